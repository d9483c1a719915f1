"""The pages of a virtual engine's requests in a real prefix cache: where tokens of the model meet slots of pages.

A page of the cache stands for a block of the trace (`replay.trace`), which is ``512 / shrink`` tokens of the model.
"""

from __future__ import annotations

from sapwood_contract.keys import TOKEN_BYTES
from sapwood_engine.core.prefix_cache import PrefixCache, Shortfall
from sapwood_tools.replay.engine import CacheTooSmall
from sapwood_tools.replay.trace import BLOCK_TOKENS, NAMESPACE, PAGE_SIZE, SCALE, TraceRequest
from sapwood_tools.replay.virtual_queue import Job

_PAGE_BYTES = PAGE_SIZE * TOKEN_BYTES


class VirtualPages:
    """One cache, and who has how much of it."""

    def __init__(self, capacity_blocks: int, *, shrink: int, log_blocks: bool) -> None:
        """``shrink``: tokens of the trace that a token of the model stands for; it divides `trace.BLOCK_TOKENS`."""
        self.cache = PrefixCache(num_pages=capacity_blocks, page_size=PAGE_SIZE, log_blocks=log_blocks)
        self.page_tokens = BLOCK_TOKENS // shrink
        """Of the model."""
        self.version = 0
        """Counts what entered."""
        self._shrink = shrink

    def job(self, request_id: int, request: TraceRequest, now: float, *, num_outputs: int) -> Job:
        """Return ``request`` as the engine takes it; ``num_outputs``: tokens of the trace.

        Raises `CacheTooSmall` where it can never fit.
        """
        num_tokens, capacity = request.prompt.num_tokens, self.cache.num_pages
        if len(request.blocks) > capacity:
            raise CacheTooSmall(f"a prompt of {num_tokens} tokens does not fit into {capacity} blocks")
        return Job(
            request_id,
            request,
            now,
            num_tokens=-(-num_tokens // self._shrink),
            num_outputs=-(-num_outputs // self._shrink),
            num_pages=min(capacity, -(-(num_tokens + num_outputs) // BLOCK_TOKENS)),
        )

    def look_up(self, job: Job) -> None:
        """Renew `Job.cached` if anything has entered since it was."""
        if job.looked_at != self.version:
            job.looked_at = self.version
            key = job.request.key
            job.cached = self._tokens_of(job, self.cache.peek(NAMESPACE, key, limit_tokens=len(key) // TOKEN_BYTES - 1))

    def open(self, job: Job) -> bool:
        """Give ``job`` pages for prompt and answer, and what the cache holds of it; return whether there are enough."""
        cache, key = self.cache, job.request.key
        if job.looked_at >= 0 and job.num_pages - job.cached // self.page_tokens > cache.num_available():
            return False  # Without a match, which would count the beginning as used.
        found = cache.match(NAMESPACE, key, limit_tokens=len(key) // TOKEN_BYTES - 1)
        receipt = cache.lock(found)
        own = cache.allocate(job.num_pages - len(found.pages))
        if isinstance(own, Shortfall):
            cache.unlock(receipt)
            return False
        cache.take_evicted()
        job.receipt, job.pages = receipt, [*found.pages, *own]
        job.found = job.done = self._tokens_of(job, found.num_usable_tokens)
        return True

    def store(self, job: Job) -> None:
        """Let others find what is computed of the prompt, as far as it fills pages."""
        assert job.receipt is not None
        job.wanted = 0
        num_bytes = len(job.request.key)
        if job.done < job.num_tokens:
            num_bytes = job.done // self.page_tokens * _PAGE_BYTES
        inserted = self.cache.insert(job.receipt, job.request.key[: num_bytes // _PAGE_BYTES * _PAGE_BYTES], job.pages)
        job.receipt = inserted.receipt
        job.pages[inserted.first : inserted.first + len(inserted.pages)] = inserted.pages
        self.cache.release(inserted.duplicates)
        self.version += 1

    def close(self, job: Job) -> None:
        """Take back what ``job`` has; the prompt stays in the cache."""
        assert job.receipt is not None
        self.cache.release(self.cache.finish(job.receipt, job.request.key, job.pages))

    def shared_tokens(self, job: Job, other: Job) -> int:
        """Return how many tokens of whole pages both prompts begin with; they share what the cache holds of ``job``."""
        mine, theirs = job.request.blocks, other.request.blocks
        shared = job.cached // self.page_tokens
        most = min((job.num_tokens - 1) // self.page_tokens, other.num_tokens // self.page_tokens)
        # Equal ids are equal beginnings: who differs at the first block that is missing shares none behind it.
        while shared < most and mine[shared] == theirs[shared]:
            shared += 1
        return shared * self.page_tokens

    def trace_tokens(self, job: Job) -> int:
        """Return what was found of the prompt, in tokens of the trace."""
        return min(job.found * self._shrink, job.request.prompt.num_tokens - 1)

    def _tokens_of(self, job: Job, num_slots: int) -> int:
        """Return the tokens in the first ``num_slots`` of a prompt; where only its last slot is missing, which may
        stand for fewer tokens than others, all but one.
        """
        if num_slots == len(job.request.key) // TOKEN_BYTES - 1:
            return job.num_tokens - 1
        return num_slots * SCALE // self._shrink

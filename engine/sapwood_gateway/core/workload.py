"""The last hour of each service as a workload: when requests came, how long they were, and which began alike.

Nothing of what was said is kept, and nobody can make it of what is: lengths, and hashes of blocks (`block_names`). Who
is told of it gets numbers in their place, which mean something in that one answer.

Invariant: memory is bounded, of each service and of all together; what does not fit is the oldest, and it is told.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count

from sapwood_contract.http import TRACE_BLOCK_TOKENS, TRACE_NAME_BYTES, TRACE_SECONDS, ServiceTrace, TracedRequest
from sapwood_contract.keys import HASH_BYTES
from sapwood_gateway.core.prefix_affinity import Prompt
from sapwood_gateway.core.routes import ServiceKey

MOST_BYTES_OF_SERVICE = 16 * 2**20
"""Some 36,000 requests whose prompts have 12,000 tokens."""
MOST_BYTES = 64 * 2**20
"""Of all services; beyond, the one that has most lets go of its oldest."""
_ENTRY_BYTES = 73
"""Of an entry without names."""
_LENGTHS = struct.Struct("<dII")


def block_names(prompt: Prompt, block_tokens: int) -> bytes:
    """Return names of the prompt's pieces of `TRACE_BLOCK_TOKENS`, from the first on, of `HASH_BYTES` each.

    Equal names mean equal tokens up to a piece's end. The last piece, which the prompt fills in part, is named by its
    last whole block. Pieces without a name are to count as new: those that no block reaches, and all where a piece is
    no whole number of blocks of ``block_tokens``, which are those of the hashes in ``prompt``.
    """
    chain, num_tokens = prompt.chain, prompt.num_tokens
    step, rest = divmod(TRACE_BLOCK_TOKENS, block_tokens)
    if rest:
        return b""
    ends = chain[step - 1 :: step]
    names = b"".join(ends)
    # Of a very long prompt the chain ends before: then its last hash is not all of a piece.
    has_rest = len(ends) == num_tokens // TRACE_BLOCK_TOKENS and len(chain) > len(ends) * step
    return names + chain[-1] if has_rest else names


@dataclass(frozen=True, slots=True)
class Kept:
    """What there is of one service."""

    entries: Sequence[bytes]
    """Those from before the hour too."""
    covered_seconds: float
    """As of `ServiceTrace`."""
    hour_begins: float


@dataclass(slots=True)
class _Log:
    whole_since: float
    """Every request that came after that is here."""
    entries: deque[bytes] = field(default_factory=deque)
    """In order of their ends."""
    num_bytes: int = 0

    def drop(self) -> int:
        """Let go of the oldest; return its bytes."""
        entry = self.entries.popleft()
        num_bytes = _size(entry)
        self.num_bytes -= num_bytes
        self.whole_since = max(self.whole_since, _arrival(entry))
        return num_bytes


class WorkloadLog:
    """Mutable, for one thread; every moment is in seconds of one clock that never goes back."""

    def __init__(
        self,
        *,
        since: float,
        most_bytes_of_service: int = MOST_BYTES_OF_SERVICE,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._since = since
        self._most_bytes_of_service = most_bytes_of_service
        self._most_bytes = most_bytes
        self._logs: dict[ServiceKey, _Log] = {}
        self._num_bytes = 0

    def note(
        self, service: ServiceKey, *, arrived_at: float, num_prompt_tokens: int, num_answer_tokens: int, names: bytes
    ) -> None:
        """A request has ended; ``names``: `block_names` of its prompt, empty where that is not known.

        Numbers of tokens are below 2**32.
        """
        log = self._logs.get(service)
        if log is None:
            log = self._begin(service, arrived_at)
        entry = _LENGTHS.pack(arrived_at, num_prompt_tokens, num_answer_tokens) + names
        entries, num_bytes = log.entries, _size(entry)
        entries.append(entry)
        log.num_bytes += num_bytes
        self._num_bytes += num_bytes
        hour_begins = arrived_at - TRACE_SECONDS
        while entries and (log.num_bytes > self._most_bytes_of_service or _arrival(entries[0]) < hour_begins):
            self._num_bytes -= log.drop()
        while self._num_bytes > self._most_bytes:
            self._num_bytes -= max(self._logs.values(), key=lambda each: each.num_bytes).drop()

    def of(self, service: ServiceKey, *, now: float) -> Kept:
        """Return what there is at ``now``; nothing of a service that is not known."""
        log = self._logs.get(service, _Log(self._since))
        return Kept(tuple(log.entries), min(TRACE_SECONDS, now - log.whole_since), now - TRACE_SECONDS)

    def check_invariants(self) -> list[str]:
        """Return what is wrong inside, for tests; empty where nothing is."""
        sizes = {key: sum(map(_size, log.entries)) for key, log in self._logs.items()}
        faults = [f"{key}: {log.num_bytes} bytes" for key, log in self._logs.items() if log.num_bytes != sizes[key]]
        if self._num_bytes != sum(sizes.values()) or self._num_bytes > self._most_bytes:
            faults.append(f"{self._num_bytes} bytes of {sizes}")
        return faults

    def _begin(self, service: ServiceKey, now: float) -> _Log:
        """Return a log for ``service``; those of services that had nothing for an hour go."""
        for key, log in list(self._logs.items()):
            while log.entries and _arrival(log.entries[0]) < now - TRACE_SECONDS:
                self._num_bytes -= log.drop()
            if not log.entries:
                del self._logs[key]
        log = self._logs[service] = _Log(self._since)
        return log


def traced(kept: Kept, *, key: bytes | None) -> ServiceTrace:
    """Return what may be told of the hour in ``kept``.

    ``key``: what names are made with, secret and of this reading, 64 bytes at most; None: there are none.
    """
    ids: dict[bytes, int] = {}
    entries = sorted((entry for entry in kept.entries if _arrival(entry) >= kept.hour_begins), key=_arrival)
    requests = [(*_LENGTHS.unpack_from(entry), _known(entry, ids)) for entry in entries]
    fresh = count(len(ids))
    names = [] if key is None else [blake2b(each, key=key, digest_size=TRACE_NAME_BYTES).digest() for each in ids]
    return ServiceTrace(
        covered_seconds=kept.covered_seconds,
        requests=tuple(
            TracedRequest(
                timestamp=round((arrived_at - kept.hour_begins) * 1000),
                input_length=num_prompt_tokens,
                output_length=num_answer_tokens,
                hash_ids=_filled(known, num_prompt_tokens, fresh),
            )
            for arrived_at, num_prompt_tokens, num_answer_tokens, known in requests
        ),
        block_names=b64encode(b"".join(names)).decode(),
    )


def _known(entry: bytes, ids: dict[bytes, int]) -> list[int]:
    """Return the ids of an entry's names; new ones enter ``ids``."""
    number: Callable[[bytes, int], int] = ids.setdefault
    begins = range(_LENGTHS.size, len(entry), HASH_BYTES)
    return [number(entry[at : at + HASH_BYTES], len(ids)) for at in begins]


def _filled(known: Iterable[int], num_tokens: int, fresh: Iterable[int]) -> tuple[int, ...]:
    """Return an id for each piece of a prompt: those without a name have one of their own."""
    found, more = tuple(known), iter(fresh)
    return found + tuple(next(more) for _ in range(-(-num_tokens // TRACE_BLOCK_TOKENS) - len(found)))


def _arrival(entry: bytes) -> float:
    arrived_at: float = _LENGTHS.unpack_from(entry)[0]
    return arrived_at


def _size(entry: bytes) -> int:
    """Return what an entry counts for: as if each of its pieces had a name, for each has an id in an answer."""
    num_prompt_tokens: int = _LENGTHS.unpack_from(entry)[1]
    return _ENTRY_BYTES + HASH_BYTES * -(-num_prompt_tokens // TRACE_BLOCK_TOKENS)

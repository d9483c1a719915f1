"""The scheduler's own mutable record of a request: what is known, scheduled and computed of it.

One invariant drives everything: ``num_computed`` chases the number of tokens. Of the tokens of a sequence ::

    0 ......... num_computed ......... num_scheduled ......... num_tokens
      KV there    in a launched step     not yet planned        known, or being sampled by a launched step

prefill, chunking, prefix hits and resumption after a preemption are all "schedule up to n of the tokens not
yet scheduled". ``num_tokens`` counts tokens that a launched step is still sampling; only ``tokens`` are
known.
"""

from __future__ import annotations

from array import array
from typing import Literal

from sapwood_engine.core.keys import TOKENS_ONLY, GrowingKey, KeyFormat, TokenKey
from sapwood_engine.core.page_table import PageTable
from sapwood_engine.core.request import Request, TokenLogprobs
from sapwood_engine.core.reuse_stack import Trail

NO_SEAT = -1

PreemptionReason = Literal["kv_full", "priority"]


class Sequence:
    """One accepted request, from its arrival to the commit of the last step that touches it.

    ``arrival`` ranks it among all requests for good, also after a preemption. ``table`` is there while the
    sequence holds pages: while it runs, and after its end until no launched step uses them.
    """

    __slots__ = (
        "_key",
        "arrival",
        "arrived_at",
        "ended",
        "max_output",
        "min_tokens",
        "num_cached",
        "num_chunks",
        "num_computed",
        "num_in_flight",
        "num_lost",
        "num_preemptions",
        "num_prompt",
        "num_sampled",
        "num_scheduled",
        "overdue",
        "pinned_until",
        "preempting",
        "prompt_logprobs",
        "reported",
        "request",
        "seat",
        "stop_ids",
        "table",
        "tokens",
        "trail",
    )

    def __init__(
        self,
        request: Request,
        *,
        arrival: int,
        arrived_at: float,
        max_output: int,
        keys: KeyFormat = TOKENS_ONLY,
    ) -> None:
        """``keys``: the format of the cache that it will run on."""
        self.request = request
        self.arrival = arrival
        self.arrived_at = arrived_at
        self.max_output = max_output
        """Output tokens after which it ends with ``length``."""
        self.min_tokens = request.stop.min_tokens
        self.stop_ids = request.stop.stop_token_ids
        self.tokens = array("i", request.prompt_ids)
        """Prompt and output, as far as known."""
        self._key = GrowingKey(keys, self.tokens, request.content)
        self.num_prompt = len(request.prompt_ids)
        self.num_computed = 0
        self.num_scheduled = 0
        self.num_sampled = 0
        """Output tokens known or being sampled by a launched step."""
        self.num_in_flight = 0
        """Rows in launched steps."""
        self.seat = NO_SEAT
        self.table: PageTable | None = None
        self.preempting: PreemptionReason | None = None
        """Set while a preempted sequence waits for the commit of a launched step that has a row of it."""
        self.overdue = False
        """Admitted because it had waited its bound: it is not preempted for priority."""
        self.ended = False
        self.pinned_until = 0.0
        """Once ended: the time until which what it leaves in the cache is pinned, 0 where it is not."""
        self.num_cached: int | None = None
        """Prompt tokens found in the cache at the first admission."""
        self.num_chunks = 0
        """Rows of launched steps that computed more of it than the next token."""
        self.trail: Trail | None = None
        """Its first use, where a miss-ratio curve is measured."""
        self.num_lost = 0
        """Tokens that were computed when it was preempted."""
        self.num_preemptions = 0
        self.reported = False
        """Its first output is out."""
        self.prompt_logprobs: list[TokenLogprobs] = []

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_sampled

    @property
    def num_output(self) -> int:
        """Output tokens known."""
        return len(self.tokens) - self.num_prompt

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Every prompt position must still be computed, because its log-probability is asked for."""
        return self.request.sampling.num_prompt_logprobs is not None and not self.reported

    @property
    def reusable_tokens(self) -> int:
        """Most tokens that may come from the cache: at least one must be computed to get logits."""
        return 0 if self.wants_prompt_logprobs else len(self.tokens) - 1

    def next_chunk(self, chunk_tokens: int) -> int:
        """Return how many known tokens the next step computes, if step tokens do not run out."""
        if self.preempting is not None:
            return 0
        return min(chunk_tokens, len(self.tokens) - self.num_scheduled)

    def key(self, num_tokens: int | None = None) -> TokenKey:
        """The key of the first ``num_tokens`` known tokens, of all of them where None."""
        return self._key.key(num_tokens)

    def wait_again(self) -> None:
        """Forget everything that running brought but the tokens; the pages must have been given back."""
        self.num_lost = self.num_computed
        self.num_preemptions += 1
        self.num_computed = self.num_scheduled = 0
        self.seat = NO_SEAT
        self.table = None
        self.preempting = None
        if not self.reported:
            self.prompt_logprobs.clear()

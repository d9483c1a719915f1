"""Who may enter: limits of a request, limits of the queue, and when a waiting request is held back.

`token_limit` is the one function from which both the door's refusal and the planner's bounds follow, so a
request that was let in can always be admitted once enough others have ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sapwood_contract.launch import SchedulerPolicy
from sapwood_engine.core.keys import KeyFormat, TokenKey
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.radix_node import common_prefix_bytes
from sapwood_engine.core.request import Request, RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How the scheduler decides; what fits is `Capacity`."""

    policy: SchedulerPolicy = "sapwood"
    max_running: int = 64
    """Most requests computed at once; the capacity's seats and step tokens may lower it."""
    max_queued: int = 1024
    """Most requests waiting for their first admission."""
    max_step_tokens: int = 2048
    """Most tokens of a step, over all rows; the capacity may lower it."""
    chunk_tokens: int = 512
    """Most prompt tokens of one request in one step."""
    itl_target_seconds: float = 0.08
    """Longest step that prefills may make of one in which somebody decodes, as far as costs can be told."""
    ttft_target_seconds: float = 2.0
    """What the ``sapwood`` policy's ageing aims at: after waiting this much longer no cache hit overtakes."""
    max_overtaken: int = 64
    """Under every policy: a waiting request is admitted at the latest this many admissions after the place
    that arrival order would have given it; from then on nothing is admitted before it. Large enough that no
    policy is bent by one burst, small enough to be a bound that a person notices."""
    max_skips: int = 16
    """Waiting requests that do not fit now and are passed over in one plan; each costs a look-up."""
    max_looks: int = 64
    """Waiting requests looked at in one plan, those held back for sharing included."""
    min_shared_tokens: int = 16
    """A waiting request is held back when one being prefilled computes at least so many tokens of its
    prefix: fewer are not worth the step that it waits."""
    headroom_tokens: int = 128
    """While a preempted request waits, an admission must leave every running request room to grow by this
    much: the hysteresis that keeps preemption from looping."""
    max_priority_preemptions: int = 4
    """A request sent back so often for others of higher priority stays the next time."""
    seed: int = 0
    """Of the ``random`` policy."""

    def __post_init__(self) -> None:
        for name in (
            "max_running",
            "max_queued",
            "max_step_tokens",
            "chunk_tokens",
            "max_skips",
            "max_looks",
        ):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name}: {value} cannot be used: it must be at least 1")
        for name in ("itl_target_seconds", "ttft_target_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} cannot be used: it must be positive")


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request waits or runs; it will get outputs until one carries ``finish``."""

    displaced: RequestId | None = None
    """A waiting request of strictly worse priority that lost its place in the full queue: it gets no output
    any more, and its caller must be told that the queue is full."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not taken; nothing of it is kept."""

    reason: Literal["never_fits", "queue_full", "duplicate_id", "bad_content"]
    message: str


def content_refusal(request: Request, keys: KeyFormat) -> Refused | None:
    """Return why the content spans of ``request`` cannot be used on a cache with ``keys``, None where they can."""
    if request.content and not keys.content:
        return Refused("bad_content", "The prompt has content other than text, which this engine does not take.")
    end = 0
    for span in request.content:
        if span.length < 1 or span.start < end or not span.content_hash:
            return Refused(
                "bad_content",
                f"The content at position {span.start} takes {span.length} tokens and its hash "
                f"{len(span.content_hash)} bytes; each needs 1, and what is before it ends at position {end}.",
            )
        end = span.end
    if end > len(request.prompt_ids):
        return Refused("bad_content", f"The content ends at position {end} of a prompt of {len(request.prompt_ids)}.")
    return None


def token_limit(capacity: Capacity) -> int:
    """Return the most tokens, prompt and output together, that one request may ever have."""
    return min(capacity.max_context_tokens, capacity.num_pages * capacity.page_size)


def max_output(request: Request, capacity: Capacity) -> int | Refused:
    """Return how many output tokens ``request`` may get on an otherwise empty engine, or why it can never
    run.

    A prompt and one token (none where none is asked for) must fit; ``max_tokens`` beyond what is left is
    cut, and the answer ends with ``length``.
    """
    limit = token_limit(capacity)
    num_prompt = len(request.prompt_ids)
    if num_prompt == 0:
        return Refused("never_fits", "The prompt has 0 tokens; at least 1 is needed.")
    num_needed = num_prompt + min(1, request.stop.max_tokens)
    if num_needed > limit:
        return Refused(
            "never_fits",
            f"The prompt has {num_prompt} tokens and needs room for {num_needed}; "
            f"this engine holds at most {limit} tokens of one request.",
        )
    return min(request.stop.max_tokens, limit - num_prompt)


def shared_whole_page_tokens(
    key: TokenKey, other: TokenKey, *, unit_bytes: int, page_size: int, limit_tokens: int
) -> int:
    """Return how many tokens of whole pages the two keys share from the start, at most ``limit_tokens``."""
    page_bytes = page_size * unit_bytes
    if key[:page_bytes] != other[:page_bytes]:
        return 0
    shared = common_prefix_bytes(key, 0, other, limit_tokens * unit_bytes)
    return shared // page_bytes * page_size

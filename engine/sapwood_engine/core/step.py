"""A step as the executor sees it: integers only, column by column.

A step has rows. A row is a run of consecutive positions of one request whose KV is to be
computed; decode is a row of length 1, prefill a longer one, and one step may hold both::

    row            0        1     2
    seats          3        0     7          which request (a seat is an index below max_seats)
    starts         0        37    128        position of the row's first token
    lengths        5        1     64
    token_ids      t t t t t  P   t t t …    sum(lengths) ids, row after row
    samples        True     True  False      draw a token from the row's last position?

``P`` is `PENDING_TOKEN`: the token that the step before is still sampling for that seat
(planned one step ahead); the executor fills it in from its own record.

Columns rather than one object a row: planning 64 rows must take microseconds, and the
runtime turns each column into an array in one call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sapwood_engine.core.request import RequestId, SamplingParams, TokenLogprobs

PENDING_TOKEN = -1
NO_TOKEN = -1

StepKind = Literal["prefill", "decode", "mixed"]


@dataclass(frozen=True, slots=True)
class SeatOpened:
    """A request takes a seat (first admission, or resumption after preemption). Whatever the seat held is gone."""

    seat: int
    sampling: SamplingParams
    suppressible_ids: tuple[int, ...]
    """Stop ids, masked in the rows listed in `StepPlan.suppress_stops`."""
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    """Tokens produced before a preemption; with the prompt they are the history that penalties look at."""


@dataclass(frozen=True, slots=True)
class PageUpdate:
    """From page index ``first`` on, the seat's page table holds ``pages``."""

    seat: int
    first: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PageCopy:
    """The first ``num_tokens`` slots of page ``source`` are copied to page ``target``, all layers, K and V.

    Copies run in the order listed and before anything else of their step is written.
    """

    source: int
    target: int
    num_tokens: int


# --- What a plan decided besides its rows: the shell records these, the core does not count.


@dataclass(frozen=True, slots=True)
class Admitted:
    """A waiting request took a seat."""

    request_id: RequestId
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache; 0 on a resumption, whose hits are not the caller's."""
    num_recomputed_tokens: int
    """Tokens computed once already and lost to a preemption; 0 on a first admission."""
    queue_seconds: float
    resumed: bool
    reuse_gap_seconds: tuple[float, ...] = ()
    """A sample: how long the end of what was found had not been used. Empty where nothing was, and on a resumption."""
    admitted_at: float = 0.0
    """When it had its seat and its pages, by the scheduler's clock."""
    match_seconds: float = 0.0
    """How long it took to find and take what the cache holds of it."""


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running request gave its seat back and waits again."""

    request_id: RequestId
    num_tokens: int
    reason: Literal["kv_full", "priority"]


EvictionReason = Literal["capacity", "ttl", "flush", "admin"]


@dataclass(frozen=True, slots=True)
class Evicted:
    """The prefix cache dropped tokens."""

    num_tokens: int
    reason: EvictionReason
    idle_seconds: tuple[float, ...] = ()
    """A sample: how long some of it had not been used. Taken of what goes for room."""


PlanEvent = Admitted | Preempted | Evicted


@dataclass(slots=True)
class StepPlan:
    """Everything the executor needs for one step, and what was decided on the way."""

    step_id: int
    kind: StepKind
    seats: list[int]
    starts: list[int]
    lengths: list[int]
    token_ids: list[int]
    samples: list[bool]
    opened: list[SeatOpened] = field(default_factory=list)
    page_updates: list[PageUpdate] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    suppress_stops: list[int] = field(default_factory=list)
    """Rows in which the seat's `suppressible_ids` must not be sampled."""
    prompt_targets: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Row -> for each of its positions but the very last of a prompt, the prompt token that follows it; asks for
    the log-probability of each."""
    events: list[PlanEvent] = field(default_factory=list)
    predicted_seconds: float = 0.0
    """What the step should take, by those before; 0 where there are none."""


@dataclass(slots=True)
class StepResult:
    """What a step produced."""

    step_id: int
    token_ids: list[int]
    """[num_rows] the sampled token, `NO_TOKEN` where none was asked for or none could be drawn."""
    seconds: float
    """Time the device spent on the step."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """Row -> log-probabilities of its sampled token, where its seat asks for them."""
    prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """Row -> log-probabilities of its `prompt_targets`."""
    unusable_rows: list[int] = field(default_factory=list)
    """Rows that should have sampled and could not: their logits are NaN or infinite, or every token is banned."""

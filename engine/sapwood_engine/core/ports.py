"""Where the core meets the device: one value and one protocol, wired together in `cli`.

`runtime` implements `Executor` (torch composition today, other steps behind the same port);
`service.engine_loop` drives it; a fake that passes the same conformance suite serves the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sapwood_engine.core.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Capacity:
    """What fits, known once the weights are loaded."""

    num_pages: int
    page_size: int
    """Tokens a page."""
    max_context_tokens: int
    """Most tokens of one request, prompt and output together."""
    max_seats: int
    """Most requests in one step."""
    max_step_tokens: int
    """Most tokens in one step, over all rows."""
    vocab_size: int
    """Width of the logits: the ids 0 … vocab_size - 1 can be sampled."""


class Executor(Protocol):
    """Runs steps in the order they are launched, at most two in flight.

    ``launch`` returns without waiting for the step. ``collect`` blocks until the oldest launched step is done and
    returns its result, or raises `StepFailed` for it; either way that step is no longer in flight. A failed step
    leaves the executor usable: the seats it touched hold undefined KV until they are opened again, all other
    seats and all pages not written by it are intact. Both are called from one thread. The plan is not mutated
    and may be read until its `collect` returns.
    """

    @property
    def capacity(self) -> Capacity:
        """Constant over the executor's life."""

    def launch(self, plan: StepPlan) -> None:
        """Start ``plan``; the caller keeps ``step_id`` strictly increasing."""

    def collect(self) -> StepResult:
        """Wait for the oldest launched step."""

    def close(self) -> None:
        """Release memory and threads; idempotent."""

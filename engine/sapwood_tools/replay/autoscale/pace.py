"""How fast an engine of a replay is, reckoned from few numbers so that a request costs microseconds.

Prompts are computed one after the other, and a token of an answer takes the longer the more answers there are. That is
what a latency model (`sapwood_tools.replay.latency`) says of steps, without the steps: the replay of one engine step by
step is `sapwood_tools.replay.virtual_engine`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood_operator.autoscaling.values import StepCost
from sapwood_tools.replay.latency import LatencyModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds; tokens of the trace."""

    prefill_token: float
    prefill_key: float = 0.0
    """For each token before it that a prefilled one reads."""
    step: float = 0.03
    """Between two tokens of an answer that is alone."""
    decode: float = 0.0
    """More for each answer beside it."""

    def prefill_seconds(self, num_tokens: int, num_cached: int) -> float:
        """Return how long the rest of a prompt takes that has ``num_cached`` of ``num_tokens`` cached."""
        num_computed = num_tokens - num_cached
        return num_computed * (self.prefill_token + self.prefill_key * (num_cached + num_tokens) / 2)

    def token_seconds(self, num_answers: int) -> float:
        """Return the time between two tokens of each of ``num_answers``."""
        return self.step + self.decode * num_answers

    @property
    def prefill_tokens_per_second(self) -> float:
        """Of short prompts."""
        return 1 / self.prefill_token

    def cost(self) -> StepCost:
        """Return what an engine would say of itself."""
        return StepCost(
            prefill_token=self.prefill_token,
            prefill_key=self.prefill_key,
            decode=self.decode,
            decode_key=0.0,
            base=self.step,
        )


def pace_of(model: LatencyModel, *, mean_context_tokens: float) -> Pace:
    """Return the pace of ``model``, whose answers read so many keys on the average; a prompt's own fixed time per
    request is left out, being none of the engine's work.
    """
    steps = model.steps
    # A chunk of a prompt is a step, and bears a step's fixed time.
    return Pace(
        prefill_token=steps.prefill_token + steps.base / model.limits.chunk_tokens,
        prefill_key=steps.prefill_key,
        step=steps.base,
        decode=steps.decode + steps.decode_key * mean_context_tokens,
    )

"""A plan's columns from sequences: which tokens of each are computed in the step.

Every function marks what it adds as scheduled. A row's index in the plan is its index in ``sequences``.
"""

from __future__ import annotations

from sapwood_engine.core.sequence import Sequence
from sapwood_engine.core.step import PENDING_TOKEN, StepPlan


def add_decodes(plan: StepPlan, decodes: list[Sequence]) -> None:
    """Fill the empty ``plan`` with one row of one token for each of ``decodes``; all of them sample."""
    plan.seats = [s.seat for s in decodes]
    plan.starts = [s.num_scheduled for s in decodes]
    plan.lengths = [1] * len(decodes)
    plan.samples = [True] * len(decodes)
    add_token = plan.token_ids.append
    for row, sequence in enumerate(decodes):
        tokens, position = sequence.tokens, sequence.num_scheduled
        add_token(tokens[position] if position < len(tokens) else PENDING_TOKEN)
        if sequence.num_sampled < sequence.min_tokens:
            plan.suppress_stops.append(row)
        sequence.num_scheduled = position + 1
        sequence.num_sampled += 1
        sequence.num_in_flight += 1


def add_chunk(plan: StepPlan, sequence: Sequence, num_tokens: int) -> bool:
    """Add a row with the next ``num_tokens`` known tokens of ``sequence``.

    Returns whether it samples, which it does if they are the last.
    """
    row = len(plan.seats)
    start = sequence.num_scheduled
    end = start + num_tokens
    samples = end == len(sequence.tokens) and sequence.max_output > 0
    plan.seats.append(sequence.seat)
    plan.starts.append(start)
    plan.lengths.append(num_tokens)
    plan.token_ids.extend(sequence.tokens[start:end])
    plan.samples.append(samples)
    if sequence.wants_prompt_logprobs and (targets := sequence.request.prompt_ids[start + 1 : end + 1]):
        plan.prompt_targets[row] = targets
    if samples:
        if sequence.num_sampled < sequence.min_tokens:
            plan.suppress_stops.append(row)
        sequence.num_sampled += 1
    sequence.num_scheduled = end
    sequence.num_in_flight += 1
    return samples

"""A prompt counts once, and nothing is kept of calls that ended."""

from __future__ import annotations

import random

from sapwood_engine.service.prompt_counts import PromptCounts


def test_each_call_counts_with_its_first_admission_in_any_order_and_is_then_forgotten() -> None:
    counts, draw, num_counted = PromptCounts(), random.Random(0), 0
    choices = [f"an.id.with.dots#{call}.{index}" for call in range(200) for index in range(1 + call % 4)]
    for choice in choices:
        counts.submitted(choice)
    draw.shuffle(choices)
    for choice in choices:
        num_counted += counts.counts(choice)
        assert not counts.counts(choice)
        counts.ended(choice)
    assert num_counted == 200
    assert len(counts) == 0


def test_an_end_that_was_not_begun_is_passed_over() -> None:
    counts = PromptCounts()
    counts.ended("r#0.0")
    assert len(counts) == 0

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sapwood_engine.core.request import SamplingParams
from sapwood_engine.core.step import NO_TOKEN, SeatOpened
from sapwood_engine.runtime.sampler import Sampler

VOCAB = 40


def sampler() -> Sampler:
    return Sampler(max_seats=4)


def opened(
    seat: int,
    params: SamplingParams,
    *,
    suppressible: tuple[int, ...] = (),
    prompt: tuple[int, ...] = (1, 2, 3),
    output: tuple[int, ...] = (),
) -> SeatOpened:
    return SeatOpened(seat, params, suppressible, prompt, output)


def logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def draw(s: Sampler, rows: torch.Tensor, seats: list[int], suppress: list[bool] | None = None) -> list[int]:
    return s.sample(rows.clone(), seats, suppress or [False] * len(seats)).token_ids


GREEDY = SamplingParams(seed=0, temperature=0.0)
RANDOM = SamplingParams(seed=11, temperature=1.5)


def test_the_same_seed_draws_the_same_tokens_in_any_batch() -> None:
    alone, crowd = sampler(), sampler()
    alone.open(opened(0, RANDOM))
    for seat, params in enumerate((SamplingParams(seed=5, top_p=0.8), GREEDY, RANDOM)):
        crowd.open(opened(seat, params))
    for step in range(30):
        rows = logits(3, step)
        assert draw(alone, rows[2:], [0]) == draw(crowd, rows, [0, 1, 2])[2:]


def test_a_resumed_request_goes_on_where_it_was() -> None:
    whole, second = sampler(), sampler()
    params = SamplingParams(seed=3, temperature=1.2, frequency_penalty=0.7, repetition_penalty=1.3)
    whole.open(opened(0, params))
    tokens = [draw(whole, logits(1, step), [0])[0] for step in range(10)]
    second.open(opened(2, params, output=tuple(tokens[:4])))
    assert [draw(second, logits(1, step), [2])[0] for step in range(4, 10)] == tokens[4:]


def test_other_seeds_draw_other_tokens() -> None:
    s = sampler()
    s.open(opened(0, RANDOM))
    s.open(opened(1, SamplingParams(seed=12, temperature=1.5)))
    pairs = [draw(s, logits(1, step).expand(2, -1), [0, 1]) for step in range(40)]
    assert sum(a != b for a, b in pairs) > 20


def test_suppressed_ids_are_drawn_only_where_they_are_not_banned() -> None:
    s = sampler()
    rows = logits(1)
    best = int(rows.argmax())
    s.open(opened(0, GREEDY, suppressible=(best,)))
    assert draw(s, rows, [0], [True]) != [best]
    assert draw(s, rows, [0], [False]) == [best]


def test_a_bias_of_a_hundred_forces_and_bans() -> None:
    s = sampler()
    rows = logits(1)
    best = int(rows.argmax())
    s.open(opened(0, SamplingParams(seed=0, logit_bias=((best, -100.0), (7, 100.0)))))
    assert {draw(s, rows, [0])[0] for _ in range(20)} == {7}


def test_penalties_count_what_was_drawn() -> None:
    s = sampler()
    s.open(opened(0, SamplingParams(seed=0, temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0)))
    flat = torch.zeros(1, VOCAB)
    assert sorted(draw(s, flat, [0])[0] for _ in range(VOCAB)) == list(range(VOCAB))


def test_the_repetition_penalty_looks_at_the_prompt_and_the_others_do_not() -> None:
    rows = torch.ones(1, VOCAB)
    for params, first in (
        (SamplingParams(seed=0, temperature=0.0, repetition_penalty=2.0), 1),
        (SamplingParams(seed=0, temperature=0.0, presence_penalty=1.0), 0),
    ):
        s = sampler()
        s.open(opened(0, params, prompt=(0,)))
        assert draw(s, rows, [0]) == [first]


def test_the_only_most_likely_token_is_the_greedy_one_even_among_equals() -> None:
    s = sampler()
    s.open(opened(0, SamplingParams(seed=0, top_k=1)))
    assert {draw(s, torch.zeros(1, VOCAB), [0])[0] for _ in range(20)} == {0}


def test_greedy_takes_the_argmax_of_any_dtype_whether_or_not_others_draw() -> None:
    rows = logits(2).bfloat16()
    best = rows.float().argmax(dim=-1).tolist()
    s = sampler()
    for seat in (0, 1):
        s.open(opened(seat, GREEDY))
    assert draw(s, rows, [0, 1]) == best
    s.open(opened(1, RANDOM))
    assert draw(s, rows, [0, 1])[0] == best[0]


def test_log_probabilities_come_for_those_who_ask_and_ignore_shaping() -> None:
    s = sampler()
    rows = logits(3)
    s.open(opened(0, GREEDY))
    shaped = SamplingParams(seed=0, temperature=0.0, logit_bias=((9, 100.0),), num_logprobs=2)
    s.open(opened(1, shaped))
    s.open(opened(2, SamplingParams(seed=0, temperature=0.0, num_logprobs=0)))
    expected = torch.log_softmax(rows, dim=-1)
    drawn = s.sample(rows, [0, 1, 2], [False] * 3)
    tokens, found = drawn.token_ids, drawn.logprobs
    assert set(found) == {1, 2}
    assert found[1].token_id == tokens[1] == 9
    assert found[1].logprob == pytest.approx(float(expected[1, 9]), abs=1e-5)
    assert [i for i, _ in found[1].top] == expected[1].topk(2).indices.tolist()
    assert found[2].top == ()


@pytest.mark.parametrize("params", [GREEDY, RANDOM])
def test_a_row_that_cannot_be_drawn_from_is_named_and_the_others_move_on(params: SamplingParams) -> None:
    s, untouched = sampler(), sampler()
    for one in (s, untouched):
        one.open(opened(0, params))
        one.open(opened(1, replace(RANDOM, num_logprobs=1), output=(6,)))
    rows = logits(2)
    wanted = draw(untouched, rows[:1], [0])
    rows[1, 3] = math.nan
    drawn = s.sample(rows, [0, 1], [False, False])
    assert (drawn.token_ids, drawn.unusable, drawn.logprobs) == ([*wanted, NO_TOKEN], [1], {})
    assert s.last_tokens[:2].tolist() == [*wanted, 6]
    assert draw(s, logits(2), [0, 1]) == draw(untouched, logits(2), [0, 1])


def test_where_every_token_is_banned_none_is_drawn() -> None:
    s = sampler()
    s.open(opened(0, GREEDY, suppressible=tuple(range(VOCAB))))
    assert s.sample(logits(1), [0], [True]).unusable == [0]

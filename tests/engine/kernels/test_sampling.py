"""Sampling against a naive implementation, row by row in plain Python, and against the distributions themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_kernels import keep_kernels

from sapwood_engine.kernels import sampling
from sapwood_engine.kernels.sampling import Doubles, Flags, Ids, Occurrences, Truncation

Sample = Callable[[torch.Tensor, Truncation, Doubles], tuple[Ids, Flags]]


@pytest.fixture(scope="module", params=["torch", "compiled"])
def sample(request: pytest.FixtureRequest) -> Sample:
    """Both implementations of one definition."""
    if request.param == "torch":
        return sampling.sample
    keep_kernels(request.config)
    from sapwood_engine.kernels.cpu_sampling import CpuSampler  # noqa: PLC0415

    samplers: dict[int, CpuSampler] = {}

    def call(logits: torch.Tensor, truncation: Truncation, uniforms: Doubles) -> tuple[Ids, Flags]:
        vocab_size = logits.shape[1]
        sampler = samplers.setdefault(vocab_size, CpuSampler(vocab_size, num_threads=3))
        return sampler(logits, truncation, uniforms)

    return call


@dataclass(frozen=True, slots=True)
class Row:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def truncation(rows: list[Row]) -> Truncation:
    return Truncation(
        temperature=np.array([r.temperature for r in rows], np.float32),
        top_k=np.array([r.top_k for r in rows], np.int64),
        top_p=np.array([r.top_p for r in rows], np.float32),
        min_p=np.array([r.min_p for r in rows], np.float32),
    )


def uniforms_of(seed: int, count: int) -> Doubles:
    return sampling.uniforms(np.full(count, seed, np.uint64), np.arange(count, dtype=np.uint64))


def naive_kept(logits: list[float], row: Row) -> dict[int, float]:
    """Ids kept and their weights relative to the best, from the definitions; as likely as the last kept is kept."""
    best = max(logits)
    weights = {i: math.exp((x - best) / row.temperature) for i, x in enumerate(logits)}

    def least(kept: dict[int, float], num_most: int, share: float) -> float:
        total, mass, last = sum(kept.values()), 0.0, 0.0
        for last in sorted(kept.values(), reverse=True)[:num_most]:
            mass += last
            if mass >= share * total:
                break
        return last

    for num_most, share in ((row.top_k or len(logits), 1.0), (len(logits), row.top_p)):
        if num_most < len(logits) or share < 1:
            floor = least(weights, num_most, share)
            weights = {i: weight for i, weight in weights.items() if weight >= floor}
    return {i: weight for i, weight in weights.items() if weight >= row.min_p}


def naive_draw(logits: list[float], row: Row, uniform: float) -> int:
    kept = naive_kept(logits, row)
    target, mass = uniform * sum(kept.values()), 0.0
    for i, weight in kept.items():
        mass += weight
        if mass > target:
            return i
    return max(kept)


def rows() -> st.SearchStrategy[Row]:
    return st.builds(
        Row,
        temperature=st.sampled_from((0.3, 0.7, 1.0, 2.0)),
        top_k=st.sampled_from((0, 1, 2, 5, 300, 10_000)),
        top_p=st.sampled_from((0.1, 0.5, 0.9, 0.999, 1.0)),
        min_p=st.sampled_from((0.0, 0.05, 0.5, 1.0)),
    )


@settings(max_examples=100)
@given(
    st.lists(rows(), min_size=1, max_size=5),
    st.integers(0, 1 << 30),
    st.sampled_from((3, 50, 400, 700)),
    st.sampled_from((0.0, 0.5)),
)
def test_a_batch_draws_what_each_row_alone_would_draw(
    sample: Sample, batch: list[Row], seed: int, vocab_size: int, grid: float
) -> None:
    """A grid of logits makes many of them equal."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(batch), vocab_size, generator=generator) * 3
    if grid:
        logits = (logits / grid).round() * grid
    uniforms = uniforms_of(seed, len(batch))
    ids, usable = sample(logits, truncation(batch), uniforms)
    assert bool(usable.all())
    for i, row in enumerate(batch):
        wanted = naive_draw(logits[i].tolist(), row, float(uniforms[i]))
        alone, _ = sample(logits[i : i + 1], truncation([row]), uniforms[i : i + 1])
        assert int(ids[i]) == int(alone[0]) == wanted


@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("row", [Row(), Row(top_k=50), Row(0.6, top_p=0.92), Row(1.5, 20_000, 0.95, 0.01), Row(0.0)])
def test_a_whole_vocabulary_whose_rows_lie_apart_is_drawn_from_as_the_definition_says(
    sample: Sample, row: Row, spread: float
) -> None:
    padded = torch.randn(8, 40_100, generator=torch.Generator().manual_seed(1)) * spread
    padded[:, 40_000:] = math.inf  # what lies between the rows
    logits = padded[:, :40_000]
    ids, usable = sample(logits, truncation([row] * 8), uniforms_of(2, 8))
    assert bool(usable.all())
    assert ids.tolist() == sampling.sample(logits, truncation([row] * 8), uniforms_of(2, 8))[0].tolist()


@pytest.mark.parametrize(
    "row", [Row(), Row(temperature=0.6), Row(top_k=4), Row(top_p=0.7), Row(min_p=0.2), Row(1.3, 6, 0.9, 0.05)]
)
def test_draws_follow_the_truncated_distribution(sample: Sample, row: Row) -> None:
    logits = torch.tensor([1.1, -0.3, 0.4, 2.0, 1.7, -2.0, 0.0, 0.9])
    n = 20_000
    ids, _ = sample(logits.expand(n, -1).contiguous(), truncation([row] * n), uniforms_of(7, n))
    counts = np.bincount(ids, minlength=8).tolist()
    kept = naive_kept(logits.tolist(), row)
    total = sum(kept.values())
    assert all(counts[i] == 0 for i in range(8) if i not in kept)
    chi_square = sum((counts[i] - n * w / total) ** 2 / (n * w / total) for i, w in kept.items())
    assert chi_square < 24.3  # the 99.9 % quantile at 7 degrees of freedom, the most there are here


def test_uniforms_of_neighbouring_seeds_and_indices_are_uniform_and_unrelated() -> None:
    values = torch.from_numpy(np.stack([uniforms_of(seed % 2**64, 200) for seed in range(-50, 50)])).float()
    counts = torch.histc(values.flatten(), bins=100, min=0.0, max=1.0)
    assert float(((counts - 200) ** 2 / 200).sum()) < 149.5  # 99.9 % at 99 degrees of freedom
    assert abs(float(torch.corrcoef(values).triu(1).mean())) < 0.01
    neighbours = torch.stack((values[:, :-1].flatten(), values[:, 1:].flatten()))
    assert float(torch.corrcoef(neighbours)[0, 1].abs()) < 0.03


def test_uniforms_are_fixed_for_all_time() -> None:
    """Seeds promise the same text after an upgrade."""
    seeds, indices = np.array([0, 0, 1, 2**64 - 1], np.uint64), np.array([0, 1, 0, 5], np.uint64)
    assert sampling.uniforms(seeds, indices).tolist() == [
        0.6524484863740322,
        0.7012121095215252,
        0.36818951565166946,
        0.15403342580516755,
    ]


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_an_extreme_uniform_still_draws_a_kept_token(sample: Sample, uniform: float) -> None:
    logits = torch.tensor([[-math.inf, 1.0, 1.0, -math.inf, 0.3, -math.inf]])
    for row in (Row(), Row(top_k=2), Row(top_p=0.5), Row(temperature=100.0)):
        ids, usable = sample(logits, truncation([row]), np.array([uniform]))
        assert bool(usable[0])
        assert int(ids[0]) in (1, 2, 4)


def test_temperature_zero_takes_the_best_and_the_lowest_of_equals(sample: Sample) -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, -1.0], [5.0, 1.0, 1.0, 1.0], [-1.0, -0.0, 0.0, -2.0]])
    ids, _ = sample(logits, truncation([Row(0.0)] * 3), np.full(3, 0.9))
    assert ids.tolist() == [1, 0, 1]


def test_a_tiny_temperature_takes_the_best_without_overflow(sample: Sample) -> None:
    logits = torch.tensor([[1e4, 1e4 - 1, -1e4]])
    for temperature in (1e-4, 1e-40):
        ids, usable = sample(logits, truncation([Row(temperature)]), np.array([0.999]))
        assert (int(ids[0]), bool(usable[0])) == (0, True)


def test_tokens_as_likely_as_the_last_kept_one_are_kept(sample: Sample) -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    for row in (Row(top_k=2), Row(top_p=0.7)):
        assert {int(sample(logits, truncation([row]), np.array([u / 50]))[0][0]) for u in range(50)} == {0, 1, 2}


def test_every_token_is_drawn_where_all_are_equal(sample: Sample) -> None:
    """The largest sum of weights that there is."""
    n = 1000
    uniforms = (np.arange(n) + 0.5) / n
    for row in (Row(), Row(top_k=3), Row(top_p=0.1), Row(min_p=1.0)):
        ids, _ = sample(torch.zeros(n, n), truncation([row] * n), uniforms)
        assert ids.tolist() == list(range(n))


def test_a_batch_without_rows_draws_nothing(sample: Sample) -> None:
    ids, usable = sample(torch.zeros(0, 5), truncation([]), np.zeros(0))
    assert (len(ids), len(usable)) == (0, 0)


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
def test_an_unusable_row_is_reported_and_harms_no_other(sample: Sample, bad: float) -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    uniforms = np.array([0.1, 0.5, 0.9])
    batch = truncation([Row(top_p=0.9), Row(top_k=3), Row(0.0)])
    clean, _ = sample(logits, batch, uniforms)
    spoilt = logits.clone()
    spoilt[1, 7] = bad
    ids, usable = sample(spoilt, batch, uniforms)
    assert usable.tolist() == [True, False, True]
    assert ids[[0, 2]].tolist() == clean[[0, 2]].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_bans_alone_is_unusable(sample: Sample, temperature: float) -> None:
    _, usable = sample(torch.full((1, 5), -math.inf), truncation([Row(temperature)]), np.array([0.5]))
    assert not bool(usable[0])


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 19), max_size=10),
    st.lists(st.integers(0, 19), max_size=10),
    st.sampled_from((0.5, 1.0, 1.7)),
    st.sampled_from((-1.0, 0.0, 0.8)),
    st.sampled_from((-0.5, 0.0, 0.3)),
)
def test_penalties_follow_their_definitions(
    prompt: list[int], output: list[int], repetition: float, presence: float, frequency: float
) -> None:
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(len(prompt)))
    wanted = logits[0].tolist()
    for i in range(20):
        if i in prompt or i in output:
            wanted[i] = wanted[i] / repetition if wanted[i] > 0 else wanted[i] * repetition
        wanted[i] -= frequency * output.count(i) + (presence if i in output else 0.0)
    ids = sorted({*prompt, *output})
    n = len(ids)
    sampling.penalise(
        logits,
        Occurrences(
            rows=torch.zeros(n, dtype=torch.int64),
            ids=torch.tensor(ids, dtype=torch.int64),
            output_counts=torch.tensor([float(output.count(i)) for i in ids]),
            repetition=torch.full((n,), repetition),
            presence=torch.full((n,), presence),
            frequency=torch.full((n,), frequency),
        ),
    )
    assert logits[0].tolist() == pytest.approx(wanted, abs=1e-5)


def test_bias_adds_and_a_ban_takes_away() -> None:
    logits = torch.zeros(2, 4)
    sampling.add_at(logits, torch.tensor([0, 1, 1]), torch.tensor([2, 0, 3]), torch.tensor([5.0, -math.inf, -1.5]))
    assert logits.tolist() == [[0, 0, 5.0, 0], [-math.inf, 0, 0, -1.5]]


def test_log_probabilities_are_those_of_the_softmax_and_the_best_come_first() -> None:
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(1))
    logits[1, 4] = logits[1, 9] = 9.0
    chosen, top_ids, top = sampling.log_probabilities(logits, torch.tensor([5, 9, 0]), 4)
    expected = torch.log_softmax(logits.double(), dim=-1)
    torch.testing.assert_close(chosen.double(), expected[[0, 1, 2], [5, 9, 0]], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(top.double(), expected.gather(1, top_ids), rtol=1e-6, atol=1e-6)
    assert top_ids[1, :2].tolist() == [4, 9]
    torch.testing.assert_close(top.double(), expected.topk(4).values, rtol=1e-6, atol=1e-6)

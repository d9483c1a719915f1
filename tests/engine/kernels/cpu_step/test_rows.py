"""Every vector loop over a row does what torch does, at every length and at the ends of every format."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support_cpu_step import (
    activate_row,
    add_scaled,
    keep_row,
    largest_seen,
    rotate_row,
    scale_row,
    sum_squares,
    weigh,
)

from sapwood_engine.checkpoint.spec import RopeSpec
from sapwood_engine.kernels.simd import LANES, SMALL_LANES, TAGS
from sapwood_engine.layers.rotary import Rotary, rotate

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_HALF = 65504.0
COUNTS = st.integers(1, 40).map(lambda n: n * SMALL_LANES)
SEEDS = st.integers(0, 99)
GUARD = 3.0
"""What lies behind a result, and must stay."""
SILU = (1.0, 0.0)
GELU_TANH = (2 * math.sqrt(2 / math.pi), 0.044715)
EDGES = (0.0, -0.0, 1e-30, 20.0, -20.0, 88.0, -88.0, 89.0, -89.0, 1e4, -1e4, 1e9, -1e9)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def guarded(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((count + 1,), GUARD, dtype=dtype)


@given(count=COUNTS, seed=SEEDS)
def test_squares_are_summed(count: int, seed: int) -> None:
    row = random(count + 1, seed=seed)
    wanted = row[:count].double().square().sum()
    assert sum_squares(row.data_ptr(), count) == pytest.approx(wanted.item(), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(count=COUNTS, seed=SEEDS)
def test_a_scaled_row_is_rounded_once(dtype: torch.dtype, count: int, seed: int) -> None:
    row, weight, out = random(count, seed=seed), random(count, seed=seed + 1), guarded(count, dtype)
    scale_row(TAGS[dtype], out.data_ptr(), row.data_ptr(), weight.data_ptr(), count, 0.37)
    assert torch.equal(out[:count], (row * 0.37 * weight).to(dtype))
    assert out[count] == GUARD


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@given(gate=st.lists(st.floats(-30, 30, width=32) | st.sampled_from(EDGES), min_size=LANES, max_size=LANES), seed=SEEDS)
def test_an_activation_is_torchs_up_to_rounding_and_saturates(
    dtype: torch.dtype, activation: str, gate: list[float], seed: int
) -> None:
    values, up, out = torch.tensor(gate), random(LANES, seed=seed), guarded(LANES, dtype)
    both = torch.cat((values, up))
    slope, cubic = SILU if activation == "silu" else GELU_TANH
    activate_row(TAGS[dtype], out.data_ptr(), both.data_ptr(), slope, cubic)
    of = F.silu(values.double()) if activation == "silu" else F.gelu(values.double(), approximate="tanh")
    wanted = of * up.double()
    if dtype == torch.float16:
        wanted = torch.where(wanted.abs() > MOST_HALF, torch.inf * wanted.sign(), wanted)
    # A tail of GELU is a difference of nearly equal numbers in torch, not here.
    torch.testing.assert_close(
        out[:LANES].double(), wanted, rtol=1e-5 + torch.finfo(dtype).eps, atol=1e-6 + torch.finfo(dtype).tiny
    )
    assert out[LANES] == GUARD


@given(half=st.integers(1, 20).map(lambda n: n * SMALL_LANES), position=st.integers(0, 9000), seed=SEEDS)
def test_a_row_rotates_as_in_the_layers(half: int, position: int, seed: int) -> None:
    rotary = Rotary(RopeSpec(10_000.0), head_dim=2 * half, context_length=9001, device=torch.device("cpu"))
    rotation = rotary(torch.tensor([position]))
    row = random(2 * half + 1, seed=seed)
    wanted = rotate(row[None, None, : 2 * half], rotation).flatten()
    behind = row[-1].item()
    rotate_row(row.data_ptr(), rotation.cos.data_ptr(), rotation.sin.data_ptr(), half)
    torch.testing.assert_close(row[:-1], wanted, rtol=1e-6, atol=1e-6)
    assert row[-1] == behind


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(
    values=st.lists(st.floats(width=32) | st.floats(-70_000, 70_000, width=32), min_size=40, max_size=40),
    factor=st.sampled_from((1.0, 0.125, -3.0)),
)
def test_a_kept_row_is_rounded_cut_to_the_ends_of_float16_and_keeps_nan(
    dtype: torch.dtype, values: list[float], factor: float
) -> None:
    row, out = torch.tensor(values), guarded(len(values), dtype)
    keep_row(TAGS[dtype], out.data_ptr(), row.data_ptr(), len(values), factor)
    product = row * factor
    wanted = (product.clamp(-MOST_HALF, MOST_HALF) if dtype == torch.float16 else product).to(dtype)
    # Numbers are the same to the bit; of NaN only that it is one.
    torch.testing.assert_close(out[:-1], wanted, rtol=0, atol=0, equal_nan=True)
    assert out[-1] == GUARD


@given(count=COUNTS, seed=SEEDS)
def test_two_scaled_rows_are_added(count: int, seed: int) -> None:
    out, row = random(count + 1, seed=seed), random(count, seed=seed + 1)
    behind, wanted = out[-1].item(), out[:-1] * 0.3 + row * -1.7
    add_scaled(out.data_ptr(), 0.3, row.data_ptr(), -1.7, count)
    torch.testing.assert_close(out[:-1], wanted, rtol=1e-6, atol=1e-6)
    assert out[-1] == behind


def scores(seen: int, garbage: float, seed: int) -> torch.Tensor:
    """Some scores of a block in whole vectors, with garbage behind the last that is seen."""
    row = torch.full((-(-seen // LANES) * LANES + 2 * LANES,), garbage)
    row[:seen] = random(seen, seed=seed) * 20
    return row


GARBAGE = st.sampled_from((math.nan, math.inf, -math.inf, 1e30, 3e38))


@given(seen=st.integers(1, 70), garbage=GARBAGE, start=st.floats(-40, 40, width=32), seed=SEEDS)
def test_the_largest_is_of_what_is_seen(seen: int, garbage: float, start: float, seed: int) -> None:
    row = scores(seen, garbage, seed)
    assert largest_seen(row.data_ptr(), seen, start) == max(start, row[:seen].max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@given(seen=st.integers(1, 64), unseen=st.integers(0, 20), garbage=GARBAGE, seed=SEEDS)
def test_weights_are_powers_of_what_is_seen_and_zero_behind(
    dtype: torch.dtype, seen: int, unseen: int, garbage: float, seed: int
) -> None:
    row, out = scores(seen, garbage, seed), torch.full((128,), torch.nan, dtype=dtype)
    maximum = row[:seen].max().item()
    total = weigh(TAGS[dtype], out.data_ptr(), row.data_ptr(), seen, seen + unseen, maximum)
    wanted = torch.exp2((row[:seen] - maximum).double())
    assert total == pytest.approx(wanted.sum().item(), rel=1e-6)
    torch.testing.assert_close(out[:seen].double(), wanted, rtol=2e-7 + torch.finfo(dtype).eps / 2, atol=1e-37)
    assert not out[seen : seen + unseen].any()


@given(distance=st.floats(126, 2.0**127, width=32))
def test_a_key_far_below_the_maximum_weighs_next_to_nothing(distance: float) -> None:
    row, out = torch.zeros(LANES), torch.empty(LANES)
    row[0] = -distance
    assert weigh(TAGS[torch.float32], out.data_ptr(), row.data_ptr(), 1, 1, 0.0) <= 2.0**-126

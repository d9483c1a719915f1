"""Weights of 8 bits: how far they are from what they were, and that their products are exact otherwise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support_cpu_step import multiply_weight

from sapwood_engine.kernels.cpu_step.layout import PANEL, Packed, pack, unpack_rows
from sapwood_engine.kernels.huge_pages import HugePages
from sapwood_engine.kernels.simd import BF16_DOT, TAGS


def rows_of(packed: Packed, columns: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(unpack_rows(packed, columns.numpy()))


ACTIVATIONS = [torch.float32, *([torch.bfloat16] if BF16_DOT else [])]
DTYPES = st.sampled_from((torch.bfloat16, torch.float16))
INITS = st.sampled_from(("nothing", "a bias", "what is there"))
MOST = 127
SLACK = 2.0
ROUNDING = 2.0**-24
GUARD = 7.0
"""What lies around the result, and must stay."""


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def columns_of_all_sizes(columns: int, depth: int, *, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A weight whose columns differ in size as much as float16 lets them."""
    sizes = 10.0 ** (torch.arange(columns) % 6 - 3)
    return (random(columns, depth, seed=seed) * sizes[:, None]).to(dtype)


@given(columns=st.integers(1, 3 * PANEL), depth=st.integers(1, 70), more=st.integers(0, 9), dtype=DTYPES)
def test_a_weight_is_off_by_half_a_254th_of_what_its_column_spans_and_no_more(
    columns: int, depth: int, more: int, dtype: torch.dtype
) -> None:
    weight = columns_of_all_sizes(columns, depth, dtype=dtype)
    packed = pack(weight, HugePages(), depth=depth + more, int8=True)
    found = rows_of(packed, torch.arange(packed.num_panels * PANEL))
    step = weight.float().abs().amax(1, keepdim=True) / MOST
    assert ((found[:columns, :depth] - weight.float()).abs() <= step * (0.5 + MOST * SLACK * ROUNDING)).all()
    assert not found[columns:].any()
    assert not found[:, depth:].any()


@given(columns=st.integers(1, 2 * PANEL), depth=st.integers(1, 70), dtype=DTYPES)
def test_what_is_quantised_is_not_changed_by_being_quantised_again(
    columns: int, depth: int, dtype: torch.dtype
) -> None:
    exact = torch.randint(-MOST, MOST + 1, (columns, depth), generator=torch.Generator().manual_seed(depth))
    exact[:, 0] = MOST
    weight = (exact * 2.0**-9).to(dtype)
    found = rows_of(pack(weight, HugePages(), int8=True), torch.arange(columns))
    assert torch.equal(found[:, :depth], weight.float())


def test_a_column_of_zeros_stays_one_and_a_column_of_nan_spoils_no_other() -> None:
    weight = random(5, 12, seed=0, dtype=torch.bfloat16)
    weight[1], weight[3, 7] = 0, torch.nan
    found = rows_of(pack(weight, HugePages(), int8=True), torch.arange(5))
    assert not found[1].any()
    assert found[3].isnan().all()
    assert not found[[0, 1, 2, 4]].isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_weight_takes_a_byte_and_a_column_four_more(dtype: torch.dtype) -> None:
    panels = pack(random(3 * PANEL, 300, seed=0, dtype=dtype), HugePages(), int8=True).panels
    assert panels.nbytes == 3 * PANEL * (300 + 4)


def multiply(
    x: torch.Tensor, weight: torch.Tensor, init: str, before: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """``x`` [rows, depth] by ``weight`` [PANEL, depth] quantised: float32 [rows, PANEL]."""
    num_rows, depth = x.shape
    out = torch.full((num_rows + 1, PANEL + 5), GUARD)
    out[:num_rows, :PANEL] = before
    out_bytes = out.stride(0) * 4
    start, start_bytes = {
        "nothing": (0, 0),
        "a bias": (bias.data_ptr(), 0),
        "what is there": (out.data_ptr(), out_bytes),
    }[init]
    panel = pack(weight, HugePages(), int8=True).panels
    wide = torch.empty(depth, PANEL, dtype=x.dtype)
    multiply_weight(
        TAGS[x.dtype], TAGS[torch.int8], x.data_ptr(), depth * x.itemsize, num_rows, panel.data_ptr(), depth,
        wide.data_ptr(), start, start_bytes, out.data_ptr(), out_bytes,
    )  # fmt: skip
    assert (out[num_rows:] == GUARD).all()
    assert (out[:, PANEL:] == GUARD).all()
    return out[:num_rows, :PANEL]


@pytest.mark.parametrize("x_dtype", ACTIVATIONS, ids=str)
@given(num_rows=st.integers(1, 40), half_depth=st.integers(1, 150), init=INITS, dtype=DTYPES, seed=st.integers(0, 99))
def test_a_panel_of_any_height_and_depth_gives_the_product_with_what_was_kept(
    x_dtype: torch.dtype, num_rows: int, half_depth: int, init: str, dtype: torch.dtype, seed: int
) -> None:
    depth = 2 * half_depth
    x = random(num_rows, depth, seed=seed, dtype=x_dtype)
    weight = columns_of_all_sizes(PANEL, depth, dtype=dtype, seed=seed + 1)
    before, bias = random(num_rows, PANEL, seed=seed + 2), random(PANEL, seed=seed + 3)
    kept = rows_of(pack(weight, HugePages(), int8=True), torch.arange(PANEL)).double()
    start = {"nothing": torch.zeros(1), "a bias": bias, "what is there": before}[init].double()
    wanted = start + x.double() @ kept.T
    allowed = SLACK * ROUNDING * (depth + 2) * (start.abs() + x.double().abs() @ kept.abs().T)
    assert ((multiply(x, weight, init, before, bias).double() - wanted).abs() <= allowed).all()


@pytest.mark.parametrize("x_dtype", ACTIVATIONS, ids=str)
@given(num_rows=st.integers(1, 40), half_depth=st.integers(1, 40), init=INITS, data=st.data())
def test_a_row_has_the_same_result_to_the_bit_whatever_rows_are_beside_it(
    x_dtype: torch.dtype, num_rows: int, half_depth: int, init: str, data: st.DataObject
) -> None:
    x = random(num_rows, 2 * half_depth, seed=num_rows, dtype=x_dtype)
    weight = random(PANEL, 2 * half_depth, seed=half_depth, dtype=torch.bfloat16)
    before, bias = random(num_rows, PANEL, seed=1), random(PANEL, seed=2)
    together = multiply(x, weight, init, before, bias)
    begin = data.draw(st.integers(0, num_rows - 1), label="begin")
    end = data.draw(st.integers(begin + 1, num_rows), label="end")
    assert torch.equal(multiply(x[begin:end], weight, init, before[begin:end], bias), together[begin:end])

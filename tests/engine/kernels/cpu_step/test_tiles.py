"""A panel's products: right for every height and depth, and a row's own."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support_cpu_step import PRODUCTS, multiply_panel

from sapwood_engine.kernels.cpu_step.layout import PANEL, pack
from sapwood_engine.kernels.huge_pages import HugePages
from sapwood_engine.kernels.simd import TAGS

Init = Literal["nothing", "a bias", "what is there"]
INITS: tuple[Init, ...] = ("nothing", "a bias", "what is there")
GUARD = 7.0
"""What lies around the result, and must stay."""
SLACK = 2.0
ROUNDING = 2.0**-24

pytestmark = pytest.mark.parametrize(("x_dtype", "w_dtype"), PRODUCTS, ids=str)


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def multiply(
    x: torch.Tensor, weight: torch.Tensor, init: Init, before: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """``x`` [rows, depth] by ``weight`` [PANEL, depth]: float32 [rows, PANEL]."""
    num_rows, depth = x.shape
    # Rows lie apart in memory, as heads of tokens do.
    wide = torch.full((num_rows, depth + 6), torch.nan, dtype=x.dtype)
    wide[:, :depth] = x
    out = torch.full((num_rows + 1, PANEL + 5), GUARD)
    out[:num_rows, :PANEL] = before
    panel = weight.T.contiguous() if weight.dtype == torch.float32 else pack(weight, HugePages()).panels
    out_bytes = out.stride(0) * 4
    start, start_bytes = {
        "nothing": (0, 0),
        "a bias": (bias.data_ptr(), 0),
        "what is there": (out.data_ptr(), out_bytes),
    }[init]
    multiply_panel(
        TAGS[x.dtype], TAGS[weight.dtype], wide.data_ptr(), wide.stride(0) * x.itemsize, num_rows, panel.data_ptr(),
        depth, start, start_bytes, out.data_ptr(), out_bytes,
    )  # fmt: skip
    assert (out[num_rows:] == GUARD).all()
    assert (out[:, PANEL:] == GUARD).all()
    return out[:num_rows, :PANEL]


@given(
    num_rows=st.integers(1, 40),
    half_depth=st.integers(1, 150),
    init=st.sampled_from(INITS),
    seed=st.integers(0, 99),
)
def test_a_panel_of_any_height_and_depth_gives_the_product(
    x_dtype: torch.dtype, w_dtype: torch.dtype, num_rows: int, half_depth: int, init: Init, seed: int
) -> None:
    depth = 2 * half_depth
    x, weight = random(num_rows, depth, seed=seed, dtype=x_dtype), random(PANEL, depth, seed=seed + 1, dtype=w_dtype)
    before, bias = random(num_rows, PANEL, seed=seed + 2), random(PANEL, seed=seed + 3)
    start = {"nothing": torch.zeros(1), "a bias": bias, "what is there": before}[init].double()
    wanted = start + x.double() @ weight.double().T
    allowed = SLACK * ROUNDING * (depth + 1) * (start.abs() + x.double().abs() @ weight.double().abs().T)
    assert ((multiply(x, weight, init, before, bias).double() - wanted).abs() <= allowed).all()


@given(
    num_rows=st.integers(1, 40),
    half_depth=st.integers(1, 40),
    init=st.sampled_from(INITS),
    data=st.data(),
)
def test_a_row_has_the_same_result_to_the_bit_whatever_rows_are_beside_it(
    x_dtype: torch.dtype, w_dtype: torch.dtype, num_rows: int, half_depth: int, init: Init, data: st.DataObject
) -> None:
    x = random(num_rows, 2 * half_depth, seed=num_rows, dtype=x_dtype)
    weight = random(PANEL, 2 * half_depth, seed=half_depth, dtype=w_dtype)
    before, bias = random(num_rows, PANEL, seed=1), random(PANEL, seed=2)
    together = multiply(x, weight, init, before, bias)
    begin = data.draw(st.integers(0, num_rows - 1), label="begin")
    end = data.draw(st.integers(begin + 1, num_rows), label="end")
    apart = multiply(x[begin:end], weight, init, before[begin:end], bias)
    assert torch.equal(apart, together[begin:end])


def test_a_row_of_nan_spoils_no_other(x_dtype: torch.dtype, w_dtype: torch.dtype) -> None:
    x, weight = random(9, 30, seed=0, dtype=x_dtype), random(PANEL, 30, seed=1, dtype=w_dtype)
    before, bias = random(9, PANEL, seed=2), random(PANEL, seed=3)
    clean = multiply(x, weight, "nothing", before, bias)
    x[4] = torch.nan
    spoilt = multiply(x, weight, "nothing", before, bias)
    assert spoilt[4].isnan().all()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(spoilt[others], clean[others])

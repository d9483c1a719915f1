"""What is packed for the step is what is read back, whatever the shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sapwood_engine.kernels.cpu_step.layout import DEPTH_MULTIPLE, PANEL, Packed, interleave, pack, padded, unpack_rows
from sapwood_engine.kernels.huge_pages import HugePages
from sapwood_engine.kernels.simd import LANES


def rows_of(packed: Packed, columns: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(unpack_rows(packed, columns.numpy()))


DTYPES = st.sampled_from((torch.bfloat16, torch.float16))


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(columns=st.integers(1, 3 * PANEL), depth=st.integers(1, 70), more=st.integers(0, 9), dtype=DTYPES)
def test_any_weight_is_read_back_to_the_bit_with_zeros_behind_it(
    columns: int, depth: int, more: int, dtype: torch.dtype
) -> None:
    weight = random(columns, depth, dtype=dtype)
    packed = pack(weight, HugePages(), depth=depth + more)
    assert (packed.num_columns, packed.num_panels) == (columns, padded(columns, PANEL) // PANEL)
    assert packed.depth == padded(depth + more, DEPTH_MULTIPLE)
    assert packed.panels.dtype == dtype
    assert packed.panels.numel() == packed.num_panels * PANEL * packed.depth
    found = rows_of(packed, torch.arange(packed.num_panels * PANEL))
    assert found.shape == (packed.num_panels * PANEL, packed.depth)
    assert torch.equal(found[:columns, :depth], weight.float())
    assert not found[columns:].any()
    assert not found[:, depth:].any()


@given(ids=st.lists(st.integers(0, 49), max_size=20), dtype=DTYPES)
def test_rows_are_read_in_any_order_and_as_often_as_asked(ids: list[int], dtype: torch.dtype) -> None:
    weight = random(50, 12, dtype=dtype)
    wanted = torch.tensor(ids, dtype=torch.int64)
    assert torch.equal(rows_of(pack(weight, HugePages()), wanted), weight[wanted].float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_weight_larger_than_what_is_packed_at_a_time_is_whole(dtype: torch.dtype) -> None:
    weight = random(5 * PANEL + 3, 60_000, dtype=dtype)
    assert weight.numel() > 4 * 1024 * 1024
    assert torch.equal(rows_of(pack(weight, HugePages()), torch.arange(len(weight))), weight.float())


@given(rows=st.integers(1, 3 * LANES), depth=st.integers(1, 40), dtype=DTYPES)
def test_every_panel_of_gate_and_up_holds_the_same_rows_of_both(rows: int, depth: int, dtype: torch.dtype) -> None:
    gate, up = random(rows, depth, dtype=dtype, seed=1), random(rows, depth, dtype=dtype, seed=2)
    mixed = interleave(gate, up)
    assert mixed.shape == (2 * padded(rows, LANES), depth)
    by_panel = mixed.view(-1, 2, LANES, depth)
    for index, part in enumerate((gate, up)):
        found = by_panel[:, index].reshape(-1, depth)
        assert torch.equal(found[:rows], part)
        assert not found[rows:].any()

"""Keys and values reach their panels from pages of any size, and nothing beside them is touched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support_cpu_step import ATTENTIONS, copy_bytes, lay_values, transpose_keys

from sapwood_engine.kernels.cpu_step.layout import PANEL
from sapwood_engine.kernels.simd import LANES, SMALL_LANES, TAGS

HEAD_DIMS = (8, 64, 80, 96, 128)
NUM_HEADS = 2
GUARD = 5.0
"""What lies in a panel beside what is written, and must stay."""

every_dtype = pytest.mark.parametrize(("x_dtype", "kv_dtype"), [(torch.float32, torch.float32), *ATTENTIONS], ids=str)
every_dim = pytest.mark.parametrize("dim", HEAD_DIMS)


def paged_rows(num_rows: int, dim: int, page_size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages in which all but one head is NaN; the byte offsets of ``num_rows`` rows of that head, pages shuffled."""
    generator = torch.Generator().manual_seed(page_size)
    num_pages = -(-num_rows // page_size) + 2
    pages = torch.full((num_pages, page_size, NUM_HEADS, dim), torch.nan, dtype=dtype)
    pages[:, :, 1] = torch.randn((num_pages, page_size, dim), generator=generator).to(dtype)
    order = torch.randperm(num_pages, generator=generator)
    positions = torch.arange(num_rows)
    slots = order[positions // page_size] * page_size + positions % page_size
    return pages, (slots * NUM_HEADS + 1) * dim * dtype.itemsize


def read(pages: torch.Tensor, offsets: torch.Tensor, dim: int) -> torch.Tensor:
    """The rows at ``offsets``, [num_rows, dim]."""
    return pages.view(-1, dim)[offsets // (dim * pages.element_size())]


@every_dtype
@every_dim
@given(page_size=st.integers(1, 64), half=st.integers(0, 1))
def test_keys_become_columns(x_dtype: torch.dtype, kv_dtype: torch.dtype, dim: int, page_size: int, half: int) -> None:
    pages, offsets = paged_rows(LANES, dim, page_size, kv_dtype)
    pair = 4 // x_dtype.itemsize
    panel = torch.full((dim // pair, PANEL, pair), GUARD, dtype=x_dtype)
    columns = slice(half * LANES, (half + 1) * LANES)
    out = panel[:, columns].data_ptr()
    transpose_keys(TAGS[x_dtype], TAGS[kv_dtype], out, pages.data_ptr(), offsets.data_ptr(), dim)
    wanted = torch.full_like(panel, GUARD)
    wanted[:, columns] = read(pages, offsets, dim).to(x_dtype).view(LANES, dim // pair, pair).transpose(0, 1)
    assert torch.equal(panel, wanted)


@every_dtype
@every_dim
@given(page_size=st.integers(1, 64), alone=st.booleans())
def test_values_become_a_depth_of_every_panel(
    x_dtype: torch.dtype, kv_dtype: torch.dtype, dim: int, page_size: int, alone: bool
) -> None:
    pages, offsets = paged_rows(2, dim, page_size, kv_dtype)
    pair = 4 // x_dtype.itemsize
    num_panels, num_depths = -(-dim // PANEL), 3
    panels = torch.full((num_panels, num_depths, PANEL, pair), GUARD, dtype=x_dtype)
    first, second = offsets[0].item(), -1 if alone else offsets[1].item()
    panel_bytes = num_depths * PANEL * 4
    out = panels[0, 1].data_ptr()
    lay_values(TAGS[x_dtype], TAGS[kv_dtype], out, panel_bytes, pages.data_ptr(), first, second, dim)
    rows = read(pages, offsets, dim).to(x_dtype)
    if alone:
        rows[1] = 0
    depth = torch.full((num_panels * PANEL, pair), GUARD, dtype=x_dtype)
    depth[:dim] = rows[:pair].T
    wanted = torch.full_like(panels, GUARD)
    wanted[:, 1] = depth.view(num_panels, PANEL, pair)
    assert torch.equal(panels, wanted)


@given(num_lanes=st.integers(0, 40))
def test_bytes_are_copied_and_no_more(num_lanes: int) -> None:
    size = 4 * SMALL_LANES * num_lanes
    source, out = torch.arange(700, dtype=torch.int32).to(torch.uint8), torch.full((700,), 255, dtype=torch.uint8)
    copy_bytes(out.data_ptr(), source.data_ptr(), size)
    assert torch.equal(out[:size], source[:size])
    assert (out[size:] == 255).all()

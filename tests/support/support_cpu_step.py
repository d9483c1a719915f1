"""The compiled step's kernels, callable from tests: each takes addresses and strides in bytes, as within the step.

To be imported where the folder for compiled kernels is set: see `kernels.compiled.use_cache`.
"""

from __future__ import annotations

import torch
from numba import njit

from sapwood_engine.kernels.compiled import EXACT_OPTIONS
from sapwood_engine.kernels.cpu_step import pages, rows
from sapwood_engine.kernels.cpu_step.tiles import multiply_panel as _multiply_panel
from sapwood_engine.kernels.cpu_step.weights import multiply_weight as _multiply_weight
from sapwood_engine.kernels.simd import BF16_DOT

PRODUCTS = (
    (torch.float32, torch.float32),
    (torch.float32, torch.float16),
    (torch.bfloat16, torch.bfloat16) if BF16_DOT else (torch.float32, torch.bfloat16),
)
"""Of activations and weights: what is multiplied with what on this processor."""
ATTENTIONS = ((torch.float32, torch.float16), *([(torch.bfloat16, torch.bfloat16)] if BF16_DOT else []))
"""Of queries and pages, likewise."""

_add_scaled, _activate_row, _keep_row = rows.add_scaled, rows.activate_row, rows.keep_row
_largest_seen, _rotate_row, _scale_row = rows.largest_seen, rows.rotate_row, rows.scale_row
_sum_squares, _weigh = rows.sum_squares, rows.weigh
_copy_bytes, _lay_values, _transpose_keys = pages.copy_bytes, pages.lay_values, pages.transpose_keys


@njit(**EXACT_OPTIONS)
def multiply_panel(x_tag, w_tag, x, x_stride, num_rows, panel, depth, init, init_stride, y, y_stride):  # type: ignore[no-untyped-def]
    """See `tiles.multiply_panel`."""
    _multiply_panel(x_tag, w_tag, x, x_stride, num_rows, panel, depth, 0, 0, init, init_stride, y, y_stride)


@njit(**EXACT_OPTIONS)
def multiply_weight(x_tag, w_tag, x, x_stride, num_rows, panel, depth, wide, init, init_stride, y, y_stride):  # type: ignore[no-untyped-def]
    """See `weights.multiply_weight`."""
    _multiply_weight(x_tag, w_tag, x, x_stride, num_rows, panel, depth, wide, init, init_stride, y, y_stride)


@njit(**EXACT_OPTIONS)
def sum_squares(row, count):  # type: ignore[no-untyped-def]
    """See `rows.sum_squares`; so for all below."""
    return _sum_squares(row, count)


@njit(**EXACT_OPTIONS)
def scale_row(out_tag, out, row, weight, count, factor):  # type: ignore[no-untyped-def]
    _scale_row(out_tag, out, row, weight, count, factor)


@njit(**EXACT_OPTIONS)
def activate_row(out_tag, out, gate_up, slope, cubic):  # type: ignore[no-untyped-def]
    _activate_row(out_tag, out, gate_up, slope, cubic, 0)


@njit(**EXACT_OPTIONS)
def rotate_row(row, cos, sin, half):  # type: ignore[no-untyped-def]
    _rotate_row(row, cos, sin, half)


@njit(**EXACT_OPTIONS)
def keep_row(out_tag, out, row, count, factor):  # type: ignore[no-untyped-def]
    _keep_row(out_tag, out, row, count, factor)


@njit(**EXACT_OPTIONS)
def add_scaled(out, out_factor, row, row_factor, count):  # type: ignore[no-untyped-def]
    _add_scaled(out, out_factor, row, row_factor, count)


@njit(**EXACT_OPTIONS)
def largest_seen(row, seen, start):  # type: ignore[no-untyped-def]
    return _largest_seen(row, seen, start)


@njit(**EXACT_OPTIONS)
def weigh(out_tag, out, row, seen, count, maximum):  # type: ignore[no-untyped-def]
    return _weigh(out_tag, out, row, seen, count, maximum)


@njit(**EXACT_OPTIONS)
def copy_bytes(out, source, size):  # type: ignore[no-untyped-def]
    _copy_bytes(out, source, size)


@njit(**EXACT_OPTIONS)
def transpose_keys(x_tag, kv_tag, out, source, offsets, dim):  # type: ignore[no-untyped-def]
    _transpose_keys(x_tag, kv_tag, out, source, offsets, dim)


@njit(**EXACT_OPTIONS)
def lay_values(x_tag, kv_tag, out, panel_bytes, source, first, second, dim):  # type: ignore[no-untyped-def]
    _lay_values(x_tag, kv_tag, out, panel_bytes, source, first, second, dim)

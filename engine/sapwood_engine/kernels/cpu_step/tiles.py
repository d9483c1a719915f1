"""The tile: a few rows of activations times one panel of a matrix, all sums in registers.

A tile is up to MOST_ROWS rows high and PANEL columns, two vectors, wide::

                         panel, depth by depth
                         ┌ vector 0 ┬ vector 1 ┐
    x, row 0   k → splat │   sum    │   sum    │
       row 1   k → splat │   sum    │   sum    │
       …                 └──────────┴──────────┘

Every sum is one chain over the depth in its order, whatever the height of the tile: so a row's result does not depend
on the rows that are computed beside it, to the bit.

Addresses and strides are int64 bytes.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # publishes no types
from numba import njit, types

from sapwood_engine.kernels import simd
from sapwood_engine.kernels.compiled import EXACT_INNER
from sapwood_engine.kernels.cpu_step.layout import PANEL
from sapwood_engine.kernels.simd import I32, I64, LANES, cgutils, const, intrinsic

MOST_ROWS = 8 if simd.NUM_REGISTERS == 32 else 6
"""Two sums a row, a register each, and some for operands."""
DEPTHS_AT_ONCE = 2
"""Depths (or pairs of them) of one turn of the loop."""
VECTOR_BYTES = 4 * LANES

_INT = types.int64
_INTEGERS = ir.VectorType(I32, LANES)


@intrinsic
def multiply_tile(  # type: ignore[no-untyped-def]
    typing_context, x_tag, w_tag, height, x, x_stride, panel, depth, ahead, scales, init, init_stride, y, y_stride
):
    """y[height, PANEL] = init + x[height, depth] @ panel[depth, PANEL] * scales[PANEL], float32.

    ``x_tag``, ``w_tag``: arrays whose dtypes name the elements, see `kernels.simd`. bfloat16 is multiplied in pairs,
    with bfloat16 or with int8, which is exact in it; else ``x`` is float32, and the panel float32, float16, int8 or
    bfloat16 in halves (see `layout`). ``scales`` 0 stands for ones. ``init`` may be ``y``, or one row with
    ``init_stride`` 0; 0 stands for zeros. ``depth`` is even. What lies ``ahead`` bytes behind what is read of the panel
    is fetched meanwhile.
    """
    dot = x_tag.dtype == types.uint16
    assert not dot or (w_tag.dtype in (types.uint16, types.int8) and simd.BF16_DOT), "only bfloat16 comes in pairs"
    turn_bytes = _depth_bytes(w_tag.dtype, dot) * DEPTHS_AT_ONCE

    def emit(builder: Any, arguments: Any, height: int) -> None:
        x, x_stride, panel, depth, ahead, scales, init, init_stride, y, y_stride = arguments
        rows = [simd.offset(builder, x, const(m), x_stride) for m in range(height)]
        sums = [[cgutils.alloca_once(builder, simd.floats(LANES)) for _ in range(2)] for _ in range(height)]
        for slot in (slot for pair in sums for slot in pair):
            builder.store(simd.fill(0.0, LANES), slot)
        # The tile below writes to lines that nothing has touched for long, one a row and vector: ask for them now.
        for m in range(MOST_ROWS):
            below = simd.offset(builder, y, const(height + m), y_stride)
            for line in range(0, 2 * VECTOR_BYTES, 64):
                simd.prefetch(builder, below, line, write=True)
        turns = builder.sdiv(depth, const(DEPTHS_AT_ONCE * (2 if dot else 1)))
        with cgutils.for_range(builder, turns, intp=I64) as loop:
            at = simd.offset(builder, panel, loop.index, const(turn_bytes))
            next_ = builder.add(at, ahead)
            for line in range(0, turn_bytes, 64):
                simd.prefetch(builder, next_, line)
            step = builder.mul(loop.index, const(4 * DEPTHS_AT_ONCE))
            for turn in range(DEPTHS_AT_ONCE):
                _multiply_depth(builder, w_tag.dtype, dot, sums, rows, step, at, turn)
        # One depth more where the loop takes two.
        if dot:
            with builder.if_then(builder.icmp_signed("!=", builder.and_(depth, const(2)), const(0))):
                at = simd.offset(builder, panel, turns, const(turn_bytes))
                _multiply_depth(builder, w_tag.dtype, dot, sums, rows, builder.mul(turns, const(8)), at, 0)
        _scale(builder, sums, scales)
        _add_init(builder, sums, init, init_stride)
        for m, pair in enumerate(sums):
            target = simd.offset(builder, y, const(m), y_stride)
            for v, slot in enumerate(pair):
                simd.store(builder, builder.load(slot), target, v * VECTOR_BYTES, types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, height, *rest = arguments
        cases = [functools.partial(emit, builder, rest, rows) for rows in range(1, MOST_ROWS + 1)]
        simd.switch(builder, builder.sub(height, const(1)), cases)
        return context.get_dummy_value()

    return types.void(x_tag, w_tag, *[_INT] * 11), generate


def _add_init(builder: Any, sums: list[list[Any]], init: Any, init_stride: Any) -> None:
    with builder.if_then(builder.icmp_signed("!=", init, const(0))):
        for m, pair in enumerate(sums):
            source = simd.offset(builder, init, const(m), init_stride)
            for v, slot in enumerate(pair):
                start = simd.load(builder, source, v * VECTOR_BYTES, types.float32, LANES)
                builder.store(builder.fadd(builder.load(slot), start), slot)


def _scale(builder: Any, sums: list[list[Any]], scales: Any) -> None:
    with builder.if_then(builder.icmp_signed("!=", scales, const(0))):
        for v in range(2):
            scale = simd.load(builder, scales, v * VECTOR_BYTES, types.float32, LANES)
            for pair in sums:
                builder.store(builder.fmul(builder.load(pair[v]), scale), pair[v])


def _depth_bytes(element: Any, dot: bool) -> int:
    """Of one depth of a panel, or of a pair of depths."""
    return PANEL * simd.ELEMENT_BYTES[element] * (2 if dot else 1)


def _multiply_depth(
    builder: Any, element: Any, dot: bool, sums: list[list[Any]], rows: list[Any], step: Any, at: Any, turn: int
) -> None:
    """One depth (pair), ``turn`` behind ``at`` in the panel and ``step`` bytes into the rows."""
    base = turn * _depth_bytes(element, dot)
    weights = widened_vectors(builder, element, at, base, pairs=dot)
    for row, pair in zip(rows, sums, strict=True):
        address = builder.add(row, step)
        if dot:
            factor = builder.load(simd.pointer(builder, address, 4 * turn, I32), align=4)
            spread = _spread(builder, factor)
            for slot, weight in zip(pair, weights, strict=True):
                builder.store(simd.dot_pairs(builder, builder.load(slot), spread, weight), slot)
        else:
            spread = simd.splat(builder, simd.load_scalar(builder, address, 4 * turn), LANES)
            for slot, weight in zip(pair, weights, strict=True):
                builder.store(simd.fma(builder, spread, weight, builder.load(slot)), slot)


def widened_vectors(builder: Any, element: Any, at: Any, base: int, *, pairs: bool) -> list[Any]:
    """The two vectors of one depth of a panel as float32, or of two depths as ``pairs`` of bfloat16."""
    if pairs:
        load_pairs = _narrowed_pairs if element == types.int8 else _load_integers
        return [load_pairs(builder, at, base, v) for v in range(2)]
    if element != types.uint16:
        size = simd.ELEMENT_BYTES[element] * LANES
        return [simd.load(builder, at, base + v * size, element, LANES) for v in range(2)]
    both = _load_integers(builder, at, base, 0)
    low = builder.shl(both, ir.Constant(_INTEGERS, [16] * LANES))
    high = builder.and_(both, ir.Constant(_INTEGERS, [-65536] * LANES))
    return [builder.bitcast(part, simd.floats(LANES)) for part in (low, high)]


def _narrowed_pairs(builder: Any, at: Any, base: int, v: int) -> Any:
    """Vector ``v`` of two depths of int8 as pairs of bfloat16."""
    # As float32 their lower halves are 0: what is left above is the bfloat16.
    low, high = (
        builder.bitcast(simd.load(builder, at, base + depth * PANEL + v * LANES, types.int8, LANES), _INTEGERS)
        for depth in range(2)
    )
    return builder.or_(builder.lshr(low, ir.Constant(_INTEGERS, [16] * LANES)), high)


def _load_integers(builder: Any, at: Any, base: int, v: int) -> Any:
    """Vector ``v`` behind ``base`` as it lies."""
    return builder.load(simd.pointer(builder, at, base + v * VECTOR_BYTES, _INTEGERS), align=4)


def _spread(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_INTEGERS, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(single, undefined, ir.Constant(_INTEGERS, [0] * LANES))


@njit(**EXACT_INNER)
def multiply_panel(x_tag, w_tag, x, x_stride, rows, panel, depth, ahead, scales, init, init_stride, y, y_stride):  # type: ignore[no-untyped-def]
    """`multiply_tile` for any number of rows: as few tiles as possible, about equally high."""
    row = 0
    tiles = (rows + MOST_ROWS - 1) // MOST_ROWS
    while row < rows:
        height = (rows - row + tiles - 1) // tiles
        of, to = x + row * x_stride, y + row * y_stride
        start = init + row * init_stride if init != 0 else 0
        multiply_tile(x_tag, w_tag, height, of, x_stride, panel, depth, ahead, scales, start, init_stride, to, y_stride)
        row += height
        tiles -= 1

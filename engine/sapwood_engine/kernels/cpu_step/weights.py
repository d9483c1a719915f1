"""Rows times one panel of a weight: as the weight lies, or widened first where many rows pass over it.

The tile widens int8 in registers, which costs nothing while the memory is waited for, and a third of the time where the
processor is. So what several tiles read is widened once, into memory of the thread's own. The sums are the same to the
bit: int8 is exact in what it is widened to.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.extending import overload

from sapwood_engine.kernels import simd
from sapwood_engine.kernels.compiled import EXACT_INNER
from sapwood_engine.kernels.cpu_step.layout import PANEL, SCALE_BYTES
from sapwood_engine.kernels.cpu_step.tiles import MOST_ROWS, VECTOR_BYTES, multiply_panel, widened_vectors
from sapwood_engine.kernels.simd import I64, cgutils, const, intrinsic

ONE_ROW_AHEAD = 512
"""Bytes that one row fetches ahead in its panel; several rows take long enough to fetch the whole next panel."""
_INT = types.int64


@intrinsic
def widen_panel(typing_context, x_tag, w_tag, panel, depth, wide):  # type: ignore[no-untyped-def]
    """Write ``panel`` to ``wide`` in ``x_tag``'s elements, as `layout` orders them; ``depth`` is even."""
    pair = 2 if x_tag.dtype == types.uint16 else 1

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, panel, depth, wide = arguments
        turns = builder.sdiv(depth, const(pair))
        with cgutils.for_range(builder, turns, intp=I64) as loop:
            at = simd.offset(builder, panel, loop.index, const(pair * PANEL))
            to = simd.offset(builder, wide, loop.index, const(2 * VECTOR_BYTES))
            for v, vector in enumerate(widened_vectors(builder, w_tag.dtype, at, 0, pairs=pair == 2)):
                builder.store(vector, simd.pointer(builder, to, v * VECTOR_BYTES, vector.type), align=4)
        return context.get_dummy_value()

    return types.void(x_tag, w_tag, *[_INT] * 3), generate


@njit(**EXACT_INNER)
def bytes_of_panel(w_tag, depth):  # type: ignore[no-untyped-def]
    """From one panel to the next, see `layout`."""
    return PANEL * (depth * w_tag.itemsize + (SCALE_BYTES if w_tag.itemsize == 1 else 0))


def multiply_weight(
    x_tag: Any,
    w_tag: Any,
    x: int,
    x_stride: int,
    rows: int,
    panel: int,
    depth: int,
    wide: int,
    init: int,
    init_stride: int,
    y: int,
    y_stride: int,
) -> None:
    """`tiles.multiply_panel` for a panel of a weight, whose next panel is fetched meanwhile.

    ``wide``: [depth, PANEL] activations, this thread's own. To be called in compiled functions only.
    """
    raise NotImplementedError


@njit(**EXACT_INNER)
def multiply_as_it_lies(x_tag, w_tag, x, x_stride, rows, panel, depth, wide, init, init_stride, y, y_stride):  # type: ignore[no-untyped-def]
    """`multiply_weight` for 16 bits."""
    ahead = ONE_ROW_AHEAD if rows == 1 else bytes_of_panel(w_tag, depth)
    multiply_panel(x_tag, w_tag, x, x_stride, rows, panel, depth, ahead, 0, init, init_stride, y, y_stride)


@njit(**EXACT_INNER)
def multiply_int8(x_tag, w_tag, x, x_stride, rows, panel, depth, wide, init, init_stride, y, y_stride):  # type: ignore[no-untyped-def]
    """`multiply_weight` for int8."""
    scales, next_ = panel + depth * PANEL, panel + bytes_of_panel(w_tag, depth)
    if rows <= MOST_ROWS:
        ahead = ONE_ROW_AHEAD if rows == 1 else next_ - panel
        multiply_panel(x_tag, w_tag, x, x_stride, rows, panel, depth, ahead, scales, init, init_stride, y, y_stride)
    else:
        widen_panel(x_tag, w_tag, panel, depth, wide)
        ahead = next_ - wide
        multiply_panel(x_tag, x_tag, x, x_stride, rows, wide, depth, ahead, scales, init, init_stride, y, y_stride)


@overload(multiply_weight)
def choose_product(x_tag, w_tag, x, x_stride, rows, panel, depth, wide, init, init_stride, y, y_stride):  # type: ignore[no-untyped-def]
    """By the weight's type, so that 16 bits do not wait for int8 to be compiled."""
    product = multiply_int8 if w_tag.dtype == types.int8 else multiply_as_it_lies

    def call(x_tag, w_tag, x, x_stride, rows, panel, depth, wide, init, init_stride, y, y_stride):  # type: ignore[no-untyped-def]
        product(x_tag, w_tag, x, x_stride, rows, panel, depth, wide, init, init_stride, y, y_stride)

    return call

"""Vector loops over one row: norm, activation, rotation, conversion, the parts of a softmax.

Addresses are int64 bytes; counts are elements, multiples of SMALL_LANES unless said. Rows are float32 where no tag says
otherwise; a tag is an array whose dtype names the elements (see `kernels.simd`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # publishes no types
from numba import types

from sapwood_engine.kernels import simd
from sapwood_engine.kernels.simd import I32, I64, LANES, cgutils, const, intrinsic

_INT, _FLOAT = types.int64, types.float32
_MOST_HALF = 65504.0
_LOG2_E = 1.4426950408889634
_MASKED = -1e30
"""A number and not an infinity: masked minus masked must not be NaN."""


def _at(builder: Any, address: Any, index: Any, element: Any = types.float32) -> Any:
    return simd.offset(builder, address, index, const(simd.ELEMENT_BYTES[element]))


@intrinsic
def sum_squares(typing_context, row, count):  # type: ignore[no-untyped-def]
    """The sum of the squares of ``count`` elements."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, count = arguments
        total = cgutils.alloca_once_value(builder, simd.fill(0.0, LANES))

        def body(index: Any, lanes: int) -> None:
            x = simd.load(builder, _at(builder, row, index), 0, types.float32, lanes)
            x = x if lanes == LANES else simd.widen_small(builder, x, LANES)
            builder.store(simd.fma(builder, x, x, builder.load(total)), total)

        simd.for_lanes(builder, count, body)
        return simd.reduce(builder, builder.load(total), "fadd")

    return _FLOAT(_INT, _INT), generate


@intrinsic
def scale_row(typing_context, out_tag, out, row, weight, count, factor):  # type: ignore[no-untyped-def]
    """out = row * factor * weight, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, out, row, weight, count, factor = arguments

        def body(index: Any, lanes: int) -> None:
            x, w = (simd.load(builder, _at(builder, a, index), 0, types.float32, lanes) for a in (row, weight))
            scaled = builder.fmul(builder.fmul(x, simd.splat(builder, factor, lanes)), w)
            simd.store(builder, scaled, _at(builder, out, index, out_tag.dtype), 0, out_tag.dtype)

        simd.for_lanes(builder, count, body)
        return context.get_dummy_value()

    return types.void(out_tag, *[_INT] * 4, _FLOAT), generate


@intrinsic
def activate_row(typing_context, out_tag, out, gate_up, slope, cubic, ahead):  # type: ignore[no-untyped-def]
    """out[0:LANES] = gate · sigmoid(slope · (gate + cubic · gate³)) · up, for a row of one panel: gate, then up.

    SiLU is slope 1 and cubic 0. The tanh form of GELU is slope 2·√(2/π) and cubic 0.044715. What lies ``ahead`` bytes
    behind ``out`` is fetched for a later row.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, out, gate_up, slope, cubic, ahead = arguments
        simd.prefetch(builder, builder.add(out, ahead), 0, write=True)
        gate, up = (simd.load(builder, gate_up, 4 * LANES * v, types.float32, LANES) for v in (0, 1))
        bend = simd.fma(builder, simd.splat(builder, cubic, LANES), builder.fmul(gate, gate), simd.fill(1.0, LANES))
        inner = builder.fmul(builder.fmul(gate, bend), simd.splat(builder, slope, LANES))
        # Below -88 the exponential would overflow where the result is 0 in float32 anyway.
        exponent = simd.call(
            builder, "minnum", builder.fmul(inner, simd.fill(-_LOG2_E, LANES)), simd.fill(126.0, LANES)
        )
        below = builder.fadd(simd.exp2(builder, exponent), simd.fill(1.0, LANES))
        simd.store(builder, builder.fdiv(builder.fmul(gate, up), below), out, 0, out_tag.dtype)
        return context.get_dummy_value()

    return types.void(out_tag, _INT, _INT, _FLOAT, _FLOAT, _INT), generate


@intrinsic
def rotate_row(typing_context, row, cos, sin, half):  # type: ignore[no-untyped-def]
    """Rotate the ``2 * half`` elements of ``row`` in place.

    ``cos``, ``sin``: 2 · half each as `layers.rotary.Rotation` gives them, the first half of ``sin`` negated.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, cos, sin, half = arguments
        skip = builder.mul(half, const(4))

        def body(index: Any, lanes: int) -> None:
            def read(address: Any, second: bool) -> Any:
                at = _at(builder, address, index)
                return simd.load(builder, builder.add(at, skip) if second else at, 0, types.float32, lanes)

            low, high = read(row, second=False), read(row, second=True)
            new_low = simd.fma(builder, low, read(cos, second=False), builder.fmul(high, read(sin, second=False)))
            new_high = simd.fma(builder, high, read(cos, second=True), builder.fmul(low, read(sin, second=True)))
            simd.store(builder, new_low, _at(builder, row, index), 0, types.float32)
            simd.store(builder, new_high, builder.add(_at(builder, row, index), skip), 0, types.float32)

        simd.for_lanes(builder, half, body)
        return context.get_dummy_value()

    return types.void(*[_INT] * 4), generate


@intrinsic
def keep_row(typing_context, out_tag, out, row, count, factor):  # type: ignore[no-untyped-def]
    """out = row * factor in ``out_tag``'s elements; beyond float16's range cut to its ends, NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, out, row, count, factor = arguments

        def body(index: Any, lanes: int) -> None:
            x = simd.load(builder, _at(builder, row, index), 0, types.float32, lanes)
            x = builder.fmul(x, simd.splat(builder, factor, lanes))
            if out_tag.dtype == types.int16:
                for comparison, bound in ((">", _MOST_HALF), ("<", -_MOST_HALF)):
                    end = simd.fill(bound, lanes)
                    x = builder.select(builder.fcmp_ordered(comparison, x, end), end, x)
            simd.store(builder, x, _at(builder, out, index, out_tag.dtype), 0, out_tag.dtype)

        simd.for_lanes(builder, count, body)
        return context.get_dummy_value()

    return types.void(out_tag, *[_INT] * 3, _FLOAT), generate


@intrinsic
def add_scaled(typing_context, out, out_factor, row, row_factor, count):  # type: ignore[no-untyped-def]
    """out = out * out_factor + row * row_factor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, out_factor, row, row_factor, count = arguments

        def body(index: Any, lanes: int) -> None:
            mine, other = (simd.load(builder, _at(builder, a, index), 0, types.float32, lanes) for a in (out, row))
            added = builder.fmul(other, simd.splat(builder, row_factor, lanes))
            total = simd.fma(builder, mine, simd.splat(builder, out_factor, lanes), added)
            simd.store(builder, total, _at(builder, out, index), 0, types.float32)

        simd.for_lanes(builder, count, body)
        return context.get_dummy_value()

    return types.void(_INT, _FLOAT, _INT, _FLOAT, _INT), generate


def _seen(builder: Any, index: Any, seen: Any) -> Any:
    """Which of LANES lanes from ``index`` on lie before ``seen``."""
    integers = ir.VectorType(I32, LANES)
    undefined = ir.Constant(integers, ir.Undefined)
    left = builder.trunc(builder.sub(seen, index), I32)
    single = builder.insert_element(undefined, left, ir.Constant(I32, 0))
    spread = builder.shuffle_vector(single, undefined, ir.Constant(integers, [0] * LANES))
    return builder.icmp_signed("<", ir.Constant(integers, list(range(LANES))), spread)


@intrinsic
def largest_seen(typing_context, row, seen, start):  # type: ignore[no-untyped-def]
    """The largest of ``start`` and the first ``seen`` elements, any number; what lies behind may be anything."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, seen, start = arguments
        best = cgutils.alloca_once_value(builder, simd.splat(builder, start, LANES))
        with cgutils.for_range_slice(builder, const(0), seen, const(LANES), intp=I64) as (index, _):
            x = simd.load(builder, _at(builder, row, index), 0, types.float32, LANES)
            x = builder.select(_seen(builder, index, seen), x, simd.fill(_MASKED, LANES))
            builder.store(simd.call(builder, "maxnum", builder.load(best), x), best)
        return simd.reduce(builder, builder.load(best), "maxnum")

    return _FLOAT(_INT, _INT, _FLOAT), generate


@intrinsic
def weigh(typing_context, out_tag, out, row, seen, count, maximum):  # type: ignore[no-untyped-def]
    """out[j] = 2 ** (row[j] - maximum) for j < ``seen``, 0 up to ``count``; returns their sum in float32.

    Both counts are any numbers, and ``out`` and ``row`` have room for whole vectors.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, out, row, seen, count, maximum = arguments
        total = cgutils.alloca_once_value(builder, simd.fill(0.0, LANES))
        shift = simd.splat(builder, maximum, LANES)
        with cgutils.for_range_slice(builder, const(0), count, const(LANES), intp=I64) as (index, _):
            x = simd.load(builder, _at(builder, row, index), 0, types.float32, LANES)
            weight = simd.exp2(builder, builder.fsub(x, shift))
            weight = builder.select(_seen(builder, index, seen), weight, simd.fill(0.0, LANES))
            simd.store(builder, weight, _at(builder, out, index, out_tag.dtype), 0, out_tag.dtype)
            builder.store(builder.fadd(builder.load(total), weight), total)
        return simd.reduce(builder, builder.load(total), "fadd")

    return _FLOAT(out_tag, *[_INT] * 4, _FLOAT), generate

"""From rows of keys and values, as they lie in the pages, to panels that tiles multiply with.

A block of keys is a panel's columns (scores are queries by keys), its depth the dimensions of a head. A block of values
is a panel's depth, its columns the dimensions. So keys are transposed, and values that are multiplied in pairs are
interleaved two by two. With ``x_tag`` bfloat16 everything stays bfloat16 in pairs; with float32 it is widened.

``rows`` is the address of int64 byte offsets, one a key: pages of any size read alike.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # publishes no types
from numba import types

from sapwood_engine.kernels import simd
from sapwood_engine.kernels.cpu_step.layout import PANEL
from sapwood_engine.kernels.simd import FLOAT, I16, I32, I64, LANES, cgutils, const, intrinsic

_INT = types.int64
_LINE_BYTES = 64


@intrinsic
def fetch(typing_context, source, size):  # type: ignore[no-untyped-def]
    """Ask for ``size`` bytes at address ``source``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, size = arguments
        with cgutils.for_range_slice(builder, const(0), size, const(_LINE_BYTES), intp=I64) as (index, _):
            simd.prefetch(builder, builder.add(source, index), 0)
        return context.get_dummy_value()

    return types.void(_INT, _INT), generate


@intrinsic
def copy_bytes(typing_context, out, source, size):  # type: ignore[no-untyped-def]
    """Copy ``size`` bytes, a multiple of 16, between places that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, source, size = arguments
        words = builder.sdiv(size, const(4))

        def body(index: Any, lanes: int) -> None:
            at = builder.mul(index, const(4))
            vector = ir.VectorType(I32, lanes)
            loaded = builder.load(simd.pointer(builder, builder.add(source, at), 0, vector), align=4)
            builder.store(loaded, simd.pointer(builder, builder.add(out, at), 0, vector), align=4)

        simd.for_lanes(builder, words, body)
        return context.get_dummy_value()

    return types.void(_INT, _INT, _INT), generate


@intrinsic
def transpose_keys(typing_context, x_tag, kv_tag, out, source, rows, dim):  # type: ignore[no-untyped-def]
    """Columns 0 … LANES - 1 of a panel, ``out`` the first, from LANES keys of ``dim`` elements, an even number."""
    pairs = x_tag.dtype == types.uint16
    assert not pairs or kv_tag.dtype == types.uint16, "pairs are made of bfloat16"
    word = I32 if pairs else FLOAT
    word_bytes = 4 if pairs else simd.ELEMENT_BYTES[kv_tag.dtype]

    def read(builder: Any, address: Any, lanes: int) -> Any:
        if not pairs:
            return simd.load(builder, address, 0, kv_tag.dtype, lanes)
        return builder.load(simd.pointer(builder, address, 0, ir.VectorType(I32, lanes)), align=2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, out, source, rows, dim = arguments
        num_words = builder.sdiv(dim, const(2)) if pairs else dim
        keys = [builder.add(source, builder.load(simd.pointer(builder, rows, 8 * k, I64))) for k in range(LANES)]

        def write(index: Any, vector: Any) -> None:
            target = simd.offset(builder, out, index, const(4 * PANEL))
            builder.store(vector, simd.pointer(builder, target, 0, vector.type), align=4)

        whole = builder.and_(num_words, const(-LANES))
        with cgutils.for_range_slice(builder, const(0), whole, const(LANES), intp=I64) as (index, _):
            at = builder.mul(index, const(word_bytes))
            columns = _transpose(builder, [read(builder, builder.add(key, at), LANES) for key in keys])
            for lane, column in enumerate(columns):
                write(builder.add(index, const(lane)), column)
        with cgutils.for_range_slice(builder, whole, num_words, const(1), intp=I64) as (index, _):
            gathered: Any = ir.Constant(ir.VectorType(word, LANES), ir.Undefined)
            at = builder.mul(index, const(word_bytes))
            for lane, key in enumerate(keys):
                single = builder.extract_element(read(builder, builder.add(key, at), 1), ir.Constant(I32, 0))
                gathered = builder.insert_element(gathered, single, ir.Constant(I32, lane))
            write(index, gathered)
        return context.get_dummy_value()

    return types.void(x_tag, kv_tag, *[_INT] * 4), generate


def _transpose(builder: Any, rows: list[Any]) -> list[Any]:
    """As many vectors as lanes: in round ``s`` rows ``i`` and ``i + s`` swap the lanes whose number has bit ``s``."""
    rows, lanes = list(rows), len(rows)
    s = 1
    while s < lanes:
        for i in range(lanes):
            if i & s:
                continue
            a, b = rows[i], rows[i + s]
            low = [lane if not lane & s else lanes + lane - s for lane in range(lanes)]
            high = [lane + s if not lane & s else lanes + lane for lane in range(lanes)]
            rows[i], rows[i + s] = simd.shuffle(builder, a, b, low), simd.shuffle(builder, a, b, high)
        s *= 2
    return rows


@intrinsic
def lay_values(typing_context, x_tag, kv_tag, out, panel_bytes, source, first, second, dim):  # type: ignore[no-untyped-def]
    """One depth of ``ceil(dim / PANEL)`` panels that lie ``panel_bytes`` apart: a value, or two of them as a pair.

    ``first`` and ``second`` are byte offsets of values; a negative ``second`` stands for zeros. Without pairs
    ``second`` is not looked at.
    """
    pairs = x_tag.dtype == types.uint16

    def read(builder: Any, address: Any, index: Any, lanes: int) -> Any:
        at = simd.offset(builder, address, index, const(simd.ELEMENT_BYTES[kv_tag.dtype]))
        if not pairs:
            return simd.load(builder, at, 0, kv_tag.dtype, lanes)
        halves = builder.load(simd.pointer(builder, at, 0, ir.VectorType(I16, lanes)), align=2)
        return builder.zext(halves, ir.VectorType(I32, lanes))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, out, panel_bytes, source, first, second, dim = arguments
        missing = builder.icmp_signed("<", second, const(0))
        other = builder.add(source, builder.select(missing, first, second))

        def body(index: Any, lanes: int) -> None:
            vector = read(builder, builder.add(source, first), index, lanes)
            if pairs:
                zeros = ir.Constant(vector.type, [0] * lanes)
                high = builder.select(missing, zeros, read(builder, other, index, lanes))
                vector = builder.or_(vector, builder.shl(high, ir.Constant(vector.type, [16] * lanes)))
            panel = simd.offset(builder, out, builder.sdiv(index, const(PANEL)), panel_bytes)
            target = simd.offset(builder, panel, builder.srem(index, const(PANEL)), const(4))
            builder.store(vector, simd.pointer(builder, target, 0, vector.type), align=4)

        simd.for_lanes(builder, dim, body)
        return context.get_dummy_value()

    return types.void(x_tag, kv_tag, *[_INT] * 6), generate

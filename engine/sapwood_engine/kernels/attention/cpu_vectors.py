"""The vector loops of the CPU attention kernels, as numba intrinsics over addresses.

Addresses and strides are int64 bytes. ``tag`` is an array whose dtype names the element type (see `kernels.simd`); its
content is not looked at. ``rows`` is the address of int64 byte offsets, one a key: pages of any size read alike.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # publishes no types
from numba import types

from sapwood_engine.kernels import simd
from sapwood_engine.kernels.simd import I64, LANES, SMALL_LANES, cgutils, const, intrinsic

TILE_WIDE = 4 if simd.NUM_REGISTERS == 32 else 2
"""Vectors across the widest tile of a product; 6 rows of it are 24 or 12 accumulators, the rest is for operands."""
_TILES = ((1, 1, SMALL_LANES), *((m, n, LANES) for n in (1, TILE_WIDE) for m in (1, 2, 3, 6)))
SMALL, SINGLE, WIDE = 0, 1, 5
"""Shape of a tile: SMALL is 1 × SMALL_LANES. SINGLE is one vector wide, WIDE is TILE_WIDE vectors; to these two add
0, 1, 2 or 3 for 1, 2, 3 or 6 rows. Every shape costs a second of compiling."""
DOT_KEYS = 4
DOT_HEADS = 4 if simd.NUM_REGISTERS == 32 else 3

_INT = types.int64


@intrinsic
def multiply_tile(  # type: ignore[no-untyped-def]
    typing_context, tag, shape, out, out_stride, a, a_stride, b, rows, num_k, add
):
    """out[m, n] (+)= a[m, num_k] @ b[num_k, n]; float32 but for b, whose row ``k`` lies at ``b + rows[k]``.

    ``shape`` as SMALL, SINGLE and WIDE explain, which fixes m and n; ``add`` 0 overwrites.
    """
    element = tag.dtype

    def emit(builder: Any, arguments: Any, m: int, vectors: int, lanes: int) -> None:
        out, out_stride, a, a_stride, b, rows, num_k, add = arguments
        element_bytes = simd.ELEMENT_BYTES[element]
        sums = [[cgutils.alloca_once(builder, simd.floats(lanes)) for _ in range(vectors)] for _ in range(m)]
        outs = [simd.offset(builder, out, const(i), out_stride) for i in range(m)]
        lefts = [simd.offset(builder, a, const(i), a_stride) for i in range(m)]
        for row in sums:
            for slot in row:
                builder.store(simd.fill(0.0, lanes), slot)
        with builder.if_then(builder.icmp_signed("!=", add, const(0))):
            for row, address in zip(sums, outs, strict=True):
                for j, slot in enumerate(row):
                    builder.store(simd.load(builder, address, 4 * lanes * j, types.float32, lanes), slot)
        with cgutils.for_range(builder, num_k, intp=I64) as loop:
            row_offset = builder.load(simd.pointer(builder, simd.offset(builder, rows, loop.index, const(8)), 0, I64))
            right = builder.add(b, row_offset)
            bs = [simd.load(builder, right, element_bytes * lanes * j, element, lanes) for j in range(vectors)]
            for row, address in zip(sums, lefts, strict=True):
                scalar = simd.load_scalar(builder, simd.offset(builder, address, loop.index, const(4)))
                factor = simd.splat(builder, scalar, lanes)
                for slot, vector in zip(row, bs, strict=True):
                    builder.store(simd.fma(builder, factor, vector, builder.load(slot)), slot)
        for row, address in zip(sums, outs, strict=True):
            for j, slot in enumerate(row):
                simd.store(builder, builder.load(slot), address, 4 * lanes * j, types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, shape, *rest = arguments
        simd.switch(builder, shape, [functools.partial(emit, builder, rest, *tile) for tile in _TILES])
        return context.get_dummy_value()

    return types.void(tag, *[_INT] * 9), generate


@intrinsic
def dot_keys(typing_context, tag, num_heads, scores, scores_stride, q, q_stride, kv, rows, dim):  # type: ignore[no-untyped-def]
    """scores[h, 0:DOT_KEYS] = q[h] · key for ``num_heads`` (1 … DOT_HEADS) rows of q and the keys at ``rows``."""
    element = tag.dtype
    element_bytes = simd.ELEMENT_BYTES[element]

    def emit(builder: Any, arguments: Any, num_heads: int) -> None:
        scores, scores_stride, q, q_stride, kv, rows, dim = arguments
        keys = [builder.add(kv, builder.load(simd.pointer(builder, rows, 8 * k, I64))) for k in range(DOT_KEYS)]
        queries = [simd.offset(builder, q, const(h), q_stride) for h in range(num_heads)]
        sums = [[cgutils.alloca_once(builder, simd.floats(LANES)) for _ in keys] for _ in queries]
        for row in sums:
            for slot in row:
                builder.store(simd.fill(0.0, LANES), slot)

        def accumulate(index: Any, lanes: int) -> None:
            def read(address: Any, size: int, type_: Any) -> Any:
                vector = simd.load(builder, simd.offset(builder, address, index, const(size)), 0, type_, lanes)
                return vector if lanes == LANES else simd.widen_small(builder, vector, LANES)

            qs = [read(address, 4, types.float32) for address in queries]
            for k, address in enumerate(keys):
                vector = read(address, element_bytes, element)
                for row, factor in zip(sums, qs, strict=True):
                    builder.store(simd.fma(builder, factor, vector, builder.load(row[k])), row[k])

        whole = builder.and_(dim, const(-LANES))
        with cgutils.for_range_slice(builder, const(0), whole, const(LANES), intp=I64) as (index, _):
            accumulate(index, LANES)
        with cgutils.for_range_slice(builder, whole, dim, const(SMALL_LANES), intp=I64) as (index, _):
            accumulate(index, SMALL_LANES)
        for h, row in enumerate(sums):
            total = simd.sum_rows(builder, [builder.load(slot) for slot in row])
            simd.store(builder, total, simd.offset(builder, scores, const(h), scores_stride), 0, types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, num_heads, *rest = arguments
        cases = [functools.partial(emit, builder, rest, n) for n in range(1, DOT_HEADS + 1)]
        simd.switch(builder, builder.sub(num_heads, const(1)), cases)
        return context.get_dummy_value()

    return types.void(tag, *[_INT] * 8), generate


@intrinsic
def transpose(typing_context, tag, out, out_stride, source, rows, dim):  # type: ignore[no-untyped-def]
    """out[d, 0:SMALL_LANES] = element ``d`` of the SMALL_LANES keys at ``rows``, widened; d in 0 … dim - 1."""
    element = tag.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, out, out_stride, source, rows, dim = arguments
        n = SMALL_LANES
        keys = [builder.add(source, builder.load(simd.pointer(builder, rows, 8 * k, I64))) for k in range(n)]
        with cgutils.for_range_slice(builder, const(0), dim, const(n), intp=I64) as (index, _):
            offset = builder.mul(index, const(simd.ELEMENT_BYTES[element]))
            a, b, c, d = (simd.load(builder, builder.add(key, offset), 0, element, n) for key in keys)
            pairs = [
                simd.shuffle(builder, x, y, lanes)
                for x, y in ((a, b), (c, d))
                for lanes in ([0, 4, 1, 5], [2, 6, 3, 7])
            ]
            columns = [
                simd.shuffle(builder, pairs[i], pairs[i + 2], lanes)
                for i in (0, 1)
                for lanes in ([0, 1, 4, 5], [2, 3, 6, 7])
            ]
            address = simd.offset(builder, out, index, out_stride)
            for i, column in enumerate(columns):
                simd.store(builder, column, simd.offset(builder, address, const(i), out_stride), 0, types.float32)
        return context.get_dummy_value()

    return types.void(tag, *[_INT] * 5), generate


@intrinsic
def convert_row(typing_context, out_tag, out, in_tag, source, dim, factor):  # type: ignore[no-untyped-def]
    """out[0:dim] = source[0:dim] * factor, from one element type to another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, out, _, source, dim, factor = arguments

        def copy(index: Any, lanes: int) -> None:
            address = simd.offset(builder, source, index, const(simd.ELEMENT_BYTES[in_tag.dtype]))
            vector = builder.fmul(
                simd.load(builder, address, 0, in_tag.dtype, lanes), simd.splat(builder, factor, lanes)
            )
            target = simd.offset(builder, out, index, const(simd.ELEMENT_BYTES[out_tag.dtype]))
            simd.store(builder, vector, target, 0, out_tag.dtype)

        whole = builder.and_(dim, const(-LANES))
        with cgutils.for_range_slice(builder, const(0), whole, const(LANES), intp=I64) as (index, _):
            copy(index, LANES)
        with cgutils.for_range_slice(builder, whole, dim, const(SMALL_LANES), intp=I64) as (index, _):
            copy(index, SMALL_LANES)
        return context.get_dummy_value()

    return types.void(out_tag, _INT, in_tag, _INT, _INT, types.float32), generate


@intrinsic
def largest(typing_context, row, count, start):  # type: ignore[no-untyped-def]
    """The largest of ``start`` and the ``count`` float32 at ``row``; ``count`` is a multiple of LANES."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, count, start = arguments
        best = cgutils.alloca_once_value(builder, simd.splat(builder, start, LANES))
        with cgutils.for_range_slice(builder, const(0), count, const(LANES), intp=I64) as (index, _):
            vector = simd.load(builder, simd.offset(builder, row, index, const(4)), 0, types.float32, LANES)
            builder.store(simd.call(builder, "maxnum", builder.load(best), vector), best)
        return simd.reduce(builder, builder.load(best), "maxnum")

    return types.float32(_INT, _INT, types.float32), generate


@intrinsic
def exponentiate(typing_context, row, count, maximum):  # type: ignore[no-untyped-def]
    """Replace each of ``count`` float32 ``x`` at ``row`` by 2 ** (x - maximum) and return their sum."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, count, maximum = arguments
        total = cgutils.alloca_once_value(builder, simd.fill(0.0, LANES))
        shift = simd.splat(builder, maximum, LANES)
        with cgutils.for_range_slice(builder, const(0), count, const(LANES), intp=I64) as (index, _):
            address = simd.offset(builder, row, index, const(4))
            vector = builder.fsub(simd.load(builder, address, 0, types.float32, LANES), shift)
            vector = simd.exp2(builder, vector)
            simd.store(builder, vector, address, 0, types.float32)
            builder.store(builder.fadd(builder.load(total), vector), total)
        return simd.reduce(builder, builder.load(total), "fadd")

    return types.float32(_INT, _INT, types.float32), generate


@intrinsic
def power_of_two(typing_context, exponent):  # type: ignore[no-untyped-def]
    """2 ** exponent, by the same polynomial as `exponentiate`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = simd.exp2(builder, simd.splat(builder, arguments[0], SMALL_LANES))
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return types.float32(types.float32), generate

"""Vectors in LLVM's intermediate language, for numba intrinsics that must not hang on what LLVM vectorises by itself.

Emitters take an ``IRBuilder`` and values, and return values. An address is an int64 of bytes. Element types have a
numba name: ``float32``; ``uint16`` for the bits of bfloat16; ``int16`` for the bits of float16 (numba has no 16-bit
floats on CPUs); ``int8``, which is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]  # publishes no types
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic as untyped_intrinsic

from sapwood_engine.kernels.cpu_features import detect_cpu_features

cgutils: Any = untyped_cgutils
intrinsic: Any = untyped_intrinsic
"""Its result is called without the first argument, which types cannot say."""

LANES = 16 if detect_cpu_features().avx512 else 8
"""float32 lanes of the widest registers, and of two registers on 4-lane machines."""
NUM_REGISTERS = 32 if LANES == 16 else 16
BF16_DOT = detect_cpu_features().avx512_bf16
"""Whether pairs of bfloat16 are multiplied by an instruction (`dot_pairs`), twice as many a cycle as float32."""
SMALL_LANES = 4
"""Every head_dim is a multiple of this; what LANES leaves over is done in steps of it."""

TAGS = {
    torch.float32: np.empty(0, np.float32),
    torch.bfloat16: np.empty(0, np.uint16),
    torch.float16: np.empty(0, np.int16),
    torch.int8: np.empty(0, np.int8),
}
"""What tells an intrinsic the element type at an address: an empty array of its stand-in."""

FLOAT, HALF, I16, I32, I64 = ir.FloatType(), ir.HalfType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
I8 = ir.IntType(8)
ELEMENT_BYTES = {types.float32: 4, types.uint16: 2, types.int16: 2, types.int8: 1}


class _BFloat(ir.Type):  # type: ignore[misc]  # llvmlite publishes no types
    """LLVM's ``bfloat``, which llvmlite does not know."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


# 2 ** r on [-0.5, 0.5]: ln(2)^k / k!; the first term left out is 5e-9.
_EXP2 = (
    1.525273380405984e-5,
    1.540353039338161e-4,
    1.333355814642844e-3,
    9.618129107628477e-3,
    5.550410866482158e-2,
    2.402265069591007e-1,
    6.931471805599453e-1,
    1.0,
)


def const(value: int) -> ir.Constant:
    """An int64."""
    return ir.Constant(I64, value)


def floats(lanes: int) -> ir.VectorType:
    """The type of ``lanes`` float32."""
    return ir.VectorType(FLOAT, lanes)


def fill(value: float, lanes: int) -> ir.Constant:
    """A constant vector."""
    return ir.Constant(floats(lanes), [value] * lanes)


def pointer(builder: Any, address: Any, offset: int, type_: ir.Type) -> Any:
    """``address + offset`` as a pointer."""
    return builder.inttoptr(builder.add(address, const(offset)) if offset else address, type_.as_pointer())


def offset(builder: Any, address: Any, index: Any, stride: Any) -> Any:
    """``address + index * stride``."""
    return builder.add(address, builder.mul(index, stride))


def switch(builder: Any, value: Any, emitters: Sequence[Callable[[], None]]) -> None:
    """Run the emitter numbered ``value``; other values do nothing."""
    end = builder.append_basic_block("end")
    cases = builder.switch(value, end)
    for number, emit in enumerate(emitters):
        block = builder.append_basic_block(f"case{number}")
        cases.add_case(const(number), block)
        builder.position_at_end(block)
        emit()
        builder.branch(end)
    builder.position_at_end(end)


def for_lanes(builder: Any, count: Any, body: Callable[[Any, int], None]) -> None:
    """Run ``body(index, lanes)`` over ``count`` elements, a multiple of SMALL_LANES: whole vectors, then small ones."""
    whole = builder.and_(count, const(-LANES))
    with cgutils.for_range_slice(builder, const(0), whole, const(LANES), intp=I64) as (index, _):
        body(index, LANES)
    with cgutils.for_range_slice(builder, whole, count, const(SMALL_LANES), intp=I64) as (index, _):
        body(index, SMALL_LANES)


def load(builder: Any, address: Any, offset: int, element: Any, lanes: int) -> Any:
    """``lanes`` elements at ``address + offset`` bytes, widened to float32."""

    def raw(type_: ir.Type) -> Any:
        vector = ir.VectorType(type_, lanes)
        return builder.load(pointer(builder, address, offset, vector), align=ELEMENT_BYTES[element])

    if element == types.float32:
        return raw(FLOAT)
    if element == types.int16:
        return builder.fpext(raw(HALF), floats(lanes))
    if element == types.int8:
        return builder.sitofp(raw(I8), floats(lanes))
    integers = ir.VectorType(I32, lanes)
    shifted = builder.shl(builder.zext(raw(I16), integers), ir.Constant(integers, [16] * lanes))
    return builder.bitcast(shifted, floats(lanes))


def load_scalar(builder: Any, address: Any, offset: int = 0) -> Any:
    """One float32."""
    return builder.load(pointer(builder, address, offset, FLOAT), align=4)


def store(builder: Any, vector: Any, address: Any, offset: int, element: Any) -> None:
    """Store float32 lanes as ``element``, rounded to nearest even."""
    lanes = vector.type.count
    if element == types.int16:
        vector = builder.fptrunc(vector, ir.VectorType(HALF, lanes))
    elif element == types.uint16:
        integers = ir.VectorType(I32, lanes)
        bits = builder.bitcast(vector, integers)
        odd = builder.and_(builder.lshr(bits, ir.Constant(integers, [16] * lanes)), ir.Constant(integers, [1] * lanes))
        rounded = builder.add(bits, builder.add(odd, ir.Constant(integers, [0x7FFF] * lanes)))
        high = builder.lshr(rounded, ir.Constant(integers, [16] * lanes))
        vector = builder.trunc(high, ir.VectorType(I16, lanes))
    builder.store(vector, pointer(builder, address, offset, vector.type), align=ELEMENT_BYTES[element])


def call(builder: Any, name: str, *arguments: Any) -> Any:
    """Call LLVM's ``llvm.{name}`` on float vectors of one type, giving that type."""
    type_ = arguments[0].type
    signature = ir.FunctionType(type_, [type_] * len(arguments))
    function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.{name}.v{type_.count}f32")
    return builder.call(function, arguments)


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once."""
    return call(builder, "fma", a, b, c)


def dot_pairs(builder: Any, sums: Any, a: Any, b: Any) -> Any:
    """``sums`` plus, lane by lane, the products of the two bfloat16 of ``a`` and of ``b``, int32 lanes that hold them.

    Needs BF16_DOT: ``vdpbf16ps``, which adds one product after the other.
    """
    pairs = ir.VectorType(_BFloat(), 2 * LANES)
    signature = ir.FunctionType(floats(LANES), [floats(LANES), pairs, pairs])
    function = cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(function, [sums, builder.bitcast(a, pairs), builder.bitcast(b, pairs)])


def prefetch(builder: Any, address: Any, offset: int, *, write: bool = False) -> None:
    """Ask for the cache line at ``address + offset`` in the second-level cache; any address may be asked for."""
    bytes_ = I8.as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [bytes_, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
    intent, second_level, data = (ir.Constant(I32, value) for value in (int(write), 2, 1))
    builder.call(function, [pointer(builder, address, offset, I8), intent, second_level, data])


def splat(builder: Any, scalar: Any, lanes: int) -> Any:
    """A float32 in every lane."""
    undefined = ir.Constant(floats(lanes), ir.Undefined)
    single = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return shuffle(builder, single, undefined, [0] * lanes)


def shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    """Pick ``lanes`` out of ``a`` followed by ``b``."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def widen_small(builder: Any, vector: Any, lanes: int) -> Any:
    """A SMALL_LANES vector with zeros behind it, ``lanes`` long."""
    zero = fill(0.0, SMALL_LANES)
    return shuffle(builder, vector, zero, [*range(SMALL_LANES), *[SMALL_LANES] * (lanes - SMALL_LANES)])


def exp2(builder: Any, x: Any) -> Any:
    """2 ** x lane by lane, relative error about 1e-7; below -126 as for -126, which is 1e-38."""
    lanes = x.type.count
    integers = ir.VectorType(I32, lanes)
    x = call(builder, "maxnum", x, fill(-126.0, lanes))
    whole = call(builder, "rint", x)
    r = builder.fsub(x, whole)
    result = fill(_EXP2[0], lanes)
    for coefficient in _EXP2[1:]:
        result = fma(builder, result, r, fill(coefficient, lanes))
    exponent = builder.shl(builder.fptosi(whole, integers), ir.Constant(integers, [23] * lanes))
    return builder.bitcast(builder.add(builder.bitcast(result, integers), exponent), floats(lanes))


def sum_rows(builder: Any, vectors: list[Any]) -> Any:
    """Lane ``i`` of the result is the sum of ``vectors[i]``'s lanes; as many vectors as a power of two.

    A tree: each level lays two vectors' halves beside each other and adds, so groups of lanes halve as vectors do.
    """
    lanes = vectors[0].type.count
    group = lanes
    while len(vectors) > 1:
        vectors = [_fold_pair(builder, a, b, group) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        group //= 2
    result = vectors[0]
    while group > 1:
        halves = [
            [g + i for g in range(0, result.type.count, group) for i in range(k, k + group // 2)]
            for k in (0, group // 2)
        ]
        result = builder.fadd(*(shuffle(builder, result, result, half) for half in halves))
        group //= 2
    return result


def _fold_pair(builder: Any, a: Any, b: Any, group: int) -> Any:
    lanes, half = a.type.count, group // 2
    low = [g + i for g in range(0, 2 * lanes, group) for i in range(half)]
    return builder.fadd(shuffle(builder, a, b, low), shuffle(builder, a, b, [lane + half for lane in low]))


def reduce(builder: Any, vector: Any, name: str) -> Any:
    """Fold a vector into a scalar with ``maxnum`` or ``fadd``."""
    lanes = vector.type.count
    while lanes > 1:
        lanes //= 2
        low, high = (shuffle(builder, vector, vector, list(range(k, k + lanes))) for k in (0, lanes))
        if lanes == 1:
            low, high = (builder.extract_element(v, ir.Constant(I32, 0)) for v in (low, high))
            low, high = (splat(builder, v, 4) for v in (low, high))
        vector = builder.fadd(low, high) if name == "fadd" else call(builder, name, low, high)
    return builder.extract_element(vector, ir.Constant(I32, 0))

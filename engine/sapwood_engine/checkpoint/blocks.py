"""From the bytes of a block format to float32; the layouts are those of ggml's ``ggml-common.h``.

Every decoder takes ``blocks`` [num_blocks, bytes of a block] and fills ``out`` [num_blocks, elements of a
block]. Arithmetic is float32 throughout, in the order that ggml uses, so that results are equal to its own
bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sapwood_engine.checkpoint.tensors import BLOCK_SIZES, Bytes, StoredDtype

Floats = npt.NDArray[np.float32]

_CHUNK_ELEMENTS = 256 * 1024
"""Decoded at a time: the temporaries, a few bytes an element, stay in the processor's caches."""


def decode(dtype: StoredDtype, data: Bytes, out: Floats) -> None:
    """Fill ``out`` [num_elements] from ``data`` [num_bytes], both contiguous and whole blocks."""
    elements, size = BLOCK_SIZES[dtype]
    blocks, values = data.reshape(-1, size), out.reshape(-1, elements)
    step = _CHUNK_ELEMENTS // elements
    for first in range(0, len(blocks), step):
        _DECODERS[dtype](blocks[first : first + step], values[first : first + step])


def _half(columns: Bytes) -> Floats:
    """The float16 numbers in ``columns`` [n, 2·k] as float32 [n, k]."""
    return np.ascontiguousarray(columns).view(np.float16).astype(np.float32)


def _f32(blocks: Bytes, out: Floats) -> None:
    out.view(np.uint8)[:] = blocks


def _f16(blocks: Bytes, out: Floats) -> None:
    out[:] = _half(blocks)


def _bf16(blocks: Bytes, out: Floats) -> None:
    np.left_shift(np.ascontiguousarray(blocks).view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks[:, 2:].view(np.int8)
    out *= _half(blocks[:, :2])


def _q4_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _half(blocks[:, :2])


def _q4_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 4:], out)
    scale_and_minimum = _half(blocks[:, :4])
    out *= scale_and_minimum[:, :1]
    out += scale_and_minimum[:, 1:]


def _nibbles(packed: Bytes, out: Floats) -> None:
    """The first half of a block lies in the low nibbles, the second in the high ones."""
    half = packed.shape[1]
    out[:, :half] = packed & 15
    out[:, half:] = packed >> 4


def _q4_k(blocks: Bytes, out: Floats) -> None:
    """256 elements: 8 groups of 32, each with a 6-bit scale and minimum; 32 bytes hold two groups."""
    factors = _half(blocks[:, :4])
    scales, minima = _q4_k_scales(blocks[:, 4:16])
    groups = out.reshape(-1, 4, 2, 32)
    packed = blocks[:, 16:].reshape(-1, 4, 32)
    groups[:, :, 0] = packed & 15
    groups[:, :, 1] = packed >> 4
    groups *= (factors[:, :1] * scales).reshape(-1, 4, 2, 1)
    groups -= (factors[:, 1:] * minima).reshape(-1, 4, 2, 1)


def _q4_k_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """12 bytes hold 8 scales and 8 minima of 6 bits::

    bytes 0-3   scale 0-3,   above them the top two bits of scale 4-7
    bytes 4-7   minimum 0-3, above them the top two bits of minimum 4-7
    bytes 8-11  low nibble: scale 4-7; high nibble: minimum 4-7
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    """256 elements: two halves of 128; the low 4 bits in 64 bytes, the high 2 in 32; a scale for every 16."""
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    quarters = out.reshape(-1, 2, 4, 32)
    for quarter in range(4):
        nibble = low[:, :, quarter % 2] >> (quarter // 2 * 4) & 15
        quarters[:, :, quarter] = nibble | (high >> (2 * quarter) & 3) << 4
    out -= 32
    out.reshape(-1, 16, 16)[:] *= (scales * _half(blocks[:, 208:210]))[:, :, None]


_DECODERS: dict[StoredDtype, Callable[[Bytes, Floats], None]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}

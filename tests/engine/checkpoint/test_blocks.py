"""Block formats become the numbers that ggml's own package makes of them, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from support_checkpoints import random_blocks

from sapwood_engine.checkpoint.blocks import decode
from sapwood_engine.checkpoint.tensors import BLOCK_SIZES, StoredDtype

NUM_ELEMENTS = 256 * 3000
"""More than is decoded at a time."""


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_random_blocks_decode_as_the_gguf_package_does(dtype: StoredDtype) -> None:
    blocks = random_blocks(dtype, NUM_ELEMENTS, np.random.default_rng(3), scale=0.1)
    out = np.full(NUM_ELEMENTS, np.nan, np.float32)
    decode(dtype, blocks.reshape(-1), out)
    expected = dequantize(blocks, gguf.GGMLQuantizationType[dtype]).reshape(-1)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_floats_of_every_bit_pattern_survive(dtype: StoredDtype) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    if dtype == "F16":
        data, expected = patterns.view(np.uint8), patterns.view(np.float16).astype(np.float32)
    else:
        expected = (patterns.astype(np.uint32) << 16).view(np.float32)
        data = patterns.view(np.uint8) if dtype == "BF16" else expected.view(np.uint8)
    out = np.zeros(65536, np.float32)
    decode(dtype, data, out)
    np.testing.assert_array_equal(out, expected)


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    for dtype, sizes in BLOCK_SIZES.items():
        assert sizes == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]

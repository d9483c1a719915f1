"""GGUF headers written by the gguf package are read back, and damaged ones are refused by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from sapwood_engine.checkpoint.gguf_file import read_gguf, read_metadata
from sapwood_engine.errors import CheckpointError


def write(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def two_tensors(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.arange(5, dtype=np.float16))


def test_values_of_every_type_are_read_as_pythons_own(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_uint8("u8", 200)
        writer.add_int8("i8", -3)
        writer.add_uint16("u16", 60000)
        writer.add_int16("i16", -300)
        writer.add_uint32("u32", 4_000_000_000)
        writer.add_int32("i32", -70000)
        writer.add_uint64("u64", 2**63)
        writer.add_int64("i64", -(2**62))
        writer.add_float32("f32", 0.5)
        writer.add_float64("f64", 1e-300)
        writer.add_bool("yes", True)
        writer.add_string("text", "naïve → 木")
        writer.add_array("words", ["a", "", "木"])
        writer.add_array("numbers", [1, -2, 3])
        writer.add_array("nested", [[1, 2], [3]])

    metadata = read_metadata(write(tmp_path / "a.gguf", fill))
    assert metadata == {
        "general.architecture": "llama",
        "u8": 200,
        "i8": -3,
        "u16": 60000,
        "i16": -300,
        "u32": 4_000_000_000,
        "i32": -70000,
        "u64": 2**63,
        "i64": -(2**62),
        "f32": 0.5,
        "f64": 1e-300,
        "yes": True,
        "text": "naïve → 木",
        "words": ["a", "", "木"],
        "numbers": [1, -2, 3],
        "nested": [[1, 2], [3]],
    }


@pytest.mark.parametrize("alignment", [32, 64, 256])
def test_tensors_are_found_at_every_alignment(alignment: int, tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(alignment)
        two_tensors(writer)

    tensors = read_gguf(write(tmp_path / "a.gguf", fill)).tensors
    assert tensors["first"].shape == (2, 3)
    np.testing.assert_array_equal(tensors["first"].data.view(np.float32), np.arange(6))
    assert tensors["second"].dtype == "F16"
    np.testing.assert_array_equal(tensors["second"].data.view(np.float16), np.arange(5))


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_array("words", ["some", "words"])
        writer.add_uint32("number", 7)
        two_tensors(writer)

    whole = write(tmp_path / "whole.gguf", fill).read_bytes()
    # The padding after the last tensor holds nothing that could be missed.
    end = len(whole) - 32 + 10
    cut = tmp_path / "cut.gguf"
    for length in range(1, end):
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf: "):
            read_gguf(cut)
    cut.write_bytes(whole[:end])
    assert len(read_gguf(cut).tensors) == 2


def test_a_length_beyond_the_file_is_refused_rather_than_allocated(tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62) + bytes(64))
    with pytest.raises(CheckpointError, match="ends early"):
        read_metadata(path)
    array = struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 2**61) + bytes(64)
    path.write_bytes(b"GGUF" + array)
    with pytest.raises(CheckpointError, match="ends early"):
        read_metadata(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "cannot be opened"),
        (b"GGUF\x00\x00\x00\x03" + bytes(16), "version 50331648"),
        (b"GGUF\x01\x00\x00\x00" + bytes(16), "version 1"),
        (b"PK\x03\x04" + bytes(64), "begins with"),
    ],
    ids=["empty", "big-endian", "version 1", "zip"],
)
def test_what_is_not_gguf_is_refused(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=told):
        read_gguf(path)


def test_a_tensor_type_that_is_not_read_is_named_with_its_tensor(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        blocks = np.zeros((4, 22), np.uint8)
        writer.add_tensor("blk.3.ffn_up.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q5_0)

    with pytest.raises(CheckpointError, match=r"tensor blk\.3\.ffn_up\.weight has type Q5_0"):
        read_gguf(write(tmp_path / "a.gguf", fill))

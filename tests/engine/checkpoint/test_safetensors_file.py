"""Safetensors written by the library are read back, and damaged ones are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sapwood_engine.checkpoint.safetensors_file import read_safetensors
from sapwood_engine.errors import CheckpointError


def test_tensors_of_every_float_type_are_read_bit_for_bit(tmp_path: Path) -> None:
    values = torch.randn(3, 5)
    path = tmp_path / "a.safetensors"
    save_file({"a": values, "b": values.half(), "c": values.bfloat16()}, path, metadata={"format": "pt"})
    tensors = read_safetensors([path])
    assert {name: (t.dtype, t.shape) for name, t in tensors.items()} == {
        "a": ("F32", (3, 5)),
        "b": ("F16", (3, 5)),
        "c": ("BF16", (3, 5)),
    }
    for name, expected in (("a", values), ("b", values.half()), ("c", values.bfloat16())):
        np.testing.assert_array_equal(tensors[name].data, expected.view(torch.uint8).numpy().reshape(-1))


def test_shards_are_joined_and_a_repeated_tensor_is_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    save_file({"a": torch.zeros(2)}, first)
    save_file({"b": torch.zeros(2)}, second)
    assert set(read_safetensors([first, second])) == {"a", "b"}
    with pytest.raises(CheckpointError, match="repeats tensor a"):
        read_safetensors([first, first])


def test_a_type_that_is_not_read_is_named_with_its_tensor(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w.weight": torch.zeros(2, dtype=torch.float8_e4m3fn)}, path)
    with pytest.raises(CheckpointError, match=r"tensor w\.weight has type F8_E4M3"):
        read_safetensors([path])


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"t": ENTRY | {"data_offsets": [0, 16]}}, "tensor t does not fit"),
        ({"t": ENTRY | {"data_offsets": [8, 16]}}, "tensor t does not fit"),
        ({"t": ENTRY | {"shape": [3]}}, "tensor t does not fit"),
        ({"t": ENTRY | {"data_offsets": [-8, 0]}}, "tensor t does not fit"),
        ({"t": {"dtype": "F32"}}, "tensor t is not described"),
        ({"t": 5}, "tensor t is not described"),
        ([1, 2], "is not a readable"),
    ],
)
def test_a_header_that_lies_is_refused(header: Any, told: str, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(CheckpointError, match=told):
        read_safetensors([path])


@pytest.mark.parametrize(
    "content", [b"", b"\x01", b"\xff" * 64, b"<html>moved</html>"], ids=["empty", "one", "ff", "html"]
)
def test_what_is_not_safetensors_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a readable safetensors file"):
        read_safetensors([path])

"""All peers are given the same numbers: the builtin weights, rounded to bfloat16 and stored as float16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st

from sapwood_tools.bench import weights


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1))
def test_values_are_rounded_as_torch_rounds_them(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    expected = torch.from_numpy(array).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(weights.round_to_bfloat16(array), expected)


def test_a_quantised_file_is_written_with_the_same_values_shapes_and_metadata(tmp_path: Path) -> None:
    source, target = tmp_path / "q.gguf", tmp_path / "f.gguf"
    rng = np.random.default_rng(7)
    matrix = quantize(rng.standard_normal((4, 64), dtype=np.float32), GGMLQuantizationType.Q8_0)
    vector = rng.standard_normal(64, dtype=np.float32)
    writer = GGUFWriter(source, "llama")
    writer.add_context_length(99)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("m.weight", matrix, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("v.weight", vector)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    weights.write_float16(source, target)

    reader = GGUFReader(target)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    expected = weights.round_to_bfloat16(dequantize(matrix, GGMLQuantizationType.Q8_0))
    assert tensors["m.weight"].tensor_type == GGMLQuantizationType.F16
    assert tensors["m.weight"].shape.tolist() == [64, 4]
    np.testing.assert_array_equal(tensors["m.weight"].data.astype(np.float32), expected)
    np.testing.assert_array_equal(tensors["v.weight"].data, vector)
    assert reader.fields["llama.context_length"].contents() == 99
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]


def test_nothing_is_left_at_the_target_when_writing_fails(tmp_path: Path) -> None:
    source = tmp_path / "broken.gguf"
    source.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises((KeyError, ValueError)):
        weights.write_float16(source, tmp_path / "f.gguf")
    assert not (tmp_path / "f.gguf").exists()

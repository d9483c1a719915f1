"""What is wrong with a checkpoint is named before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support_checkpoints import tiny_model, write_gguf

from sapwood_engine.checkpoint.source import open_checkpoint, open_tensors, read_spec
from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.checkpoint.tensors import StoredTensor
from sapwood_engine.errors import CheckpointError
from sapwood_engine.models.load import load_model

Tensors = dict[str, StoredTensor]


@pytest.fixture
def opened(tmp_path: Path) -> tuple[ModelSpec, Tensors]:
    tiny_model("llama").save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    return read_spec(checkpoint), dict(open_tensors(checkpoint))


def drop(tensors: Tensors) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def add(tensors: Tensors) -> None:
    name = "model.layers.1.self_attn.sinks"
    tensors[name] = StoredTensor(name, "F32", (4,), np.zeros(16, np.uint8))


def narrow(tensors: Tensors) -> None:
    name = "model.layers.2.self_attn.k_proj.weight"
    tensors[name] = StoredTensor(name, "F32", (16, 64), np.zeros(16 * 64 * 4, np.uint8))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop, r"a\.safetensors: lacks model\.layers\.1\.mlp\.up_proj\.weight\."),
        (add, r"has no place for: model\.layers\.1\.self_attn\.sinks\."),
        (narrow, r"model\.layers\.2\.self_attn\.k_proj\.weight has shape \[16, 64\], .* needs \[32, 64\]"),
    ],
)
def test_a_tensor_missing_left_over_or_misshapen_is_named(
    damage: Callable[[Tensors], None], message: str, opened: tuple[ModelSpec, Tensors]
) -> None:
    spec, tensors = opened
    damage(tensors)
    calls: list[int] = []
    with pytest.raises(CheckpointError, match=message):
        load_model(
            spec,
            tensors,
            where="a.safetensors",
            dtype=torch.float32,
            progress=lambda done, total: calls.append(done + total),
        )
    assert calls == []


def test_many_missing_tensors_are_counted_rather_than_listed(opened: tuple[ModelSpec, Tensors]) -> None:
    spec, tensors = opened
    with pytest.raises(CheckpointError, match=r"and 4 more\.") as caught:
        load_model(replace(spec, num_layers=4), tensors, where="here", dtype=torch.float32)
    assert len(str(caught.value)) < 500


def test_progress_counts_bytes_up_to_all_of_them(opened: tuple[ModelSpec, Tensors]) -> None:
    spec, tensors = opened
    calls: list[tuple[int, int]] = []
    load_model(
        spec,
        tensors,
        where="here",
        dtype=torch.float32,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert len(calls) == len(tensors)
    assert calls == sorted(calls)
    assert calls[-1] == (sum(t.num_bytes for t in tensors.values()),) * 2


def test_tied_embeddings_are_one_tensor_and_a_stored_copy_is_passed_over(
    opened: tuple[ModelSpec, Tensors],
) -> None:
    spec, tensors = opened
    model = load_model(replace(spec, tied_embeddings=True), tensors, where="here", dtype=torch.float32)
    assert model.head.weight is model.embedding.weight


def test_frequencies_stored_by_old_checkpoints_are_passed_over(opened: tuple[ModelSpec, Tensors]) -> None:
    spec, tensors = opened
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    tensors[name] = StoredTensor(name, "F32", (8,), np.zeros(32, np.uint8))
    load_model(spec, tensors, where="here", dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantised_weights_are_rounded_once_to_the_dtype_asked_for(dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = tiny_model("qwen2", hidden_size=256, intermediate_size=512, head_dim=64, num_hidden_layers=1)
    write_gguf(tmp_path / "tiny.gguf", theirs, "Q6_K")
    checkpoint = open_checkpoint(str(tmp_path / "tiny.gguf"))
    model = load_model(read_spec(checkpoint), open_tensors(checkpoint), where="here", dtype=dtype)
    expected = theirs.model.layers[0].mlp.down_proj.weight
    assert torch.equal(model.blocks[0].mlp.down.weight, expected.to(dtype))
    assert model.logits(torch.ones(1, 256, dtype=dtype)).dtype == torch.float32

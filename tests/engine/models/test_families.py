"""Every family chooses the tokens that transformers chooses, whatever file its weights come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from support_checkpoints import VOCAB_SIZE, tiny_model, write_gguf
from support_tiny_models import assert_same_greedy, greedy, transformers_greedy

from sapwood_engine.checkpoint.source import open_checkpoint, open_tensors, read_spec
from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.models.decoder import Decoder
from sapwood_engine.models.load import load_model

NUM_TOKENS = 12
NEAR_TIE = 1e-3
LENGTHS = (1, 3, 3, 8, 21, 21, 40)


@dataclass(frozen=True)
class Case:
    """A model to compare, with the prompts' lengths and the context served where they are not the usual
    ones."""

    model_type: str
    settings: dict[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = LENGTHS
    context_length: int | None = None


def rope(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 500.0, **parameters}}


FACTORS = {
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}
LONGROPE = rope("longrope", factor=4.0, original_max_position_embeddings=20, **FACTORS)
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

CASES = {
    "llama": Case("llama"),
    "llama with tied embeddings": Case("llama", {"tie_word_embeddings": True}),
    "llama with biases": Case("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with one KV head for all": Case("llama", {"num_key_value_heads": 1}),
    "llama with gelu": Case("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama with rope linear": Case("llama", rope("linear", factor=3.0)),
    "llama with rope dynamic": Case("llama", rope("dynamic", factor=3.0)),
    "llama with rope yarn": Case("llama", rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama with rope yarn, all parameters": Case(
        "llama",
        rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            beta_fast=16.0,
            beta_slow=2.0,
            mscale=0.8,
            mscale_all_dim=1.1,
            truncate=False,
        ),
    ),
    "llama with rope llama3": Case("llama", rope("llama3", **LLAMA3)),
    "llama with rope longrope, short": Case("llama", LONGROPE, lengths=(1, 4, 8), context_length=20),
    "llama with rope longrope, long": Case("llama", LONGROPE, lengths=(21, 30, 40)),
    "mistral": Case("mistral", {"sliding_window": None}),
    "mistral within its window": Case("mistral", {"sliding_window": 64}),
    "qwen2": Case("qwen2"),
    "qwen2 with tied embeddings": Case("qwen2", {"tie_word_embeddings": True}),
    "qwen3": Case("qwen3"),
    "qwen3 with heads wider than the hidden size": Case("qwen3", {"head_dim": 32}),
}


def prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


def load(where: Path, context_length: int | None = None) -> tuple[Decoder, ModelSpec]:
    checkpoint = open_checkpoint(str(where))
    spec = read_spec(checkpoint)
    source = open_tensors(checkpoint)
    model = load_model(spec, source, where="here", dtype=torch.float32, context_length=context_length)
    return model, spec


@pytest.mark.parametrize("name", CASES)
def test_greedy_ids_from_safetensors_equal_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = tiny_model(case.model_type, **case.settings)
    theirs.save_pretrained(tmp_path)
    ours, spec = load(tmp_path, case.context_length)
    asked = prompts(case.lengths)
    expected = transformers_greedy(theirs, asked, NUM_TOKENS)
    assert_same_greedy(greedy(ours, spec, asked, NUM_TOKENS), expected, near_tie=NEAR_TIE)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_prefill_in_chunks_gives_the_same_ids(model_type: str, tmp_path: Path) -> None:
    theirs = tiny_model(model_type)
    theirs.save_pretrained(tmp_path)
    ours, spec = load(tmp_path)
    asked = prompts(LENGTHS)
    whole = greedy(ours, spec, asked, NUM_TOKENS)
    assert_same_greedy(greedy(ours, spec, asked, NUM_TOKENS, chunk=7), whole, near_tie=NEAR_TIE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_shards_of_any_float_type_load_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = tiny_model("llama").to(dtype)
    theirs.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours, _ = load(tmp_path)
    state = theirs.state_dict()
    qkv = torch.cat([state[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(ours.blocks[1].attention.qkv.weight, qkv.float())
    assert torch.equal(ours.head.weight, state["lm_head.weight"].float())
    assert torch.equal(ours.norm.weight, state["model.norm.weight"].float())


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_greedy_ids_from_gguf_equal_transformers(model_type: str, dtype: str, tmp_path: Path) -> None:
    settings = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2}
    theirs = tiny_model(model_type, **settings)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, theirs, dtype)
    ours, spec = load(path)
    asked = prompts((1, 4, 17, 17))
    expected = transformers_greedy(theirs, asked, NUM_TOKENS)
    assert_same_greedy(greedy(ours, spec, asked, NUM_TOKENS), expected, near_tie=NEAR_TIE)


def test_biases_from_gguf_follow_their_heads(tmp_path: Path) -> None:
    theirs = tiny_model("llama", attention_bias=True, mlp_bias=True)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, theirs, "F16")
    ours, spec = load(path)
    asked = prompts(LENGTHS)
    expected = transformers_greedy(theirs, asked, NUM_TOKENS)
    assert_same_greedy(greedy(ours, spec, asked, NUM_TOKENS), expected, near_tie=NEAR_TIE)


@pytest.mark.parametrize(
    ("parameters", "metadata"),
    [
        (rope("linear", factor=3.0), {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}),
        (
            rope("yarn", factor=4.0, original_max_position_embeddings=32),
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
            },
        ),
    ],
    ids=["linear", "yarn"],
)
def test_rope_scaling_in_gguf_metadata_is_followed(
    parameters: dict[str, Any], metadata: dict[str, Any], tmp_path: Path
) -> None:
    theirs = tiny_model("llama", **parameters)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, theirs, "F32", metadata)
    ours, spec = load(path)
    asked = prompts(LENGTHS)
    expected = transformers_greedy(theirs, asked, NUM_TOKENS)
    assert_same_greedy(greedy(ours, spec, asked, NUM_TOKENS), expected, near_tie=NEAR_TIE)


def test_rope_factors_that_a_gguf_carries_as_a_tensor_are_followed(tmp_path: Path) -> None:
    theirs = tiny_model("llama", **rope("llama3", **LLAMA3))
    plain = tiny_model("llama", **rope("default"))
    factors = plain.model.rotary_emb.inv_freq / theirs.model.rotary_emb.inv_freq
    assert len(set(factors.tolist())) > 2
    path = tmp_path / "tiny.gguf"
    write_gguf(path, theirs, "F32", rope_factors=factors.tolist())
    ours, spec = load(path)
    asked = prompts(LENGTHS)
    expected = transformers_greedy(theirs, asked, NUM_TOKENS)
    assert_same_greedy(greedy(ours, spec, asked, NUM_TOKENS), expected, near_tie=NEAR_TIE)

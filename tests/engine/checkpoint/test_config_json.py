"""What ``config.json`` says becomes a specification, or is refused by the name of the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sapwood_engine.checkpoint.config_json import config_spec
from sapwood_engine.checkpoint.spec import ModelSpec, RopeSpec
from sapwood_engine.errors import CheckpointError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}


def read(folder: Path, *, generation: dict[str, Any] | None = None, **changes: Any) -> ModelSpec:
    """The specification of `LLAMA` with ``changes``; a field changed to ``...`` is left out."""
    config = {k: v for k, v in (LLAMA | changes).items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return config_spec(folder)


def test_a_plain_llama_is_read_field_by_field(tmp_path: Path) -> None:
    assert read(tmp_path) == ModelSpec(
        family="llama",
        vocab_size=1000,
        hidden_size=64,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=160,
        max_positions=2048,
        norm_eps=1e-5,
        rope=RopeSpec(theta=10000.0),
        eos_token_ids=(2,),
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_key_value_heads": ...}, {"num_kv_heads": 4}),
        ({"head_dim": 32}, {"head_dim": 32}),
        ({"head_dim": None}, {"head_dim": 16}),
        ({"tie_word_embeddings": True}, {"tied_embeddings": True}),
        ({"attention_bias": True}, {"qkv_bias": True, "output_bias": True, "mlp_bias": False}),
        ({"mlp_bias": True}, {"mlp_bias": True, "qkv_bias": False}),
        ({"hidden_act": "gelu_pytorch_tanh"}, {"activation": "gelu_tanh"}),
        ({"model_type": "mistral", "sliding_window": None}, {"family": "llama", "sliding_window": None}),
        ({"model_type": "mistral", "sliding_window": 512}, {"sliding_window": 512, "max_positions": 512}),
        ({"model_type": "mistral", "sliding_window": 9000}, {"sliding_window": 9000, "max_positions": 2048}),
        ({"model_type": "mistral"}, {"sliding_window": 4096, "max_positions": 2048}),
        ({"model_type": "qwen2"}, {"family": "qwen2", "qkv_bias": True, "output_bias": False}),
        (
            {"model_type": "qwen2", "sliding_window": 99, "use_sliding_window": False},
            {"sliding_window": None},
        ),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 99,
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            {"sliding_window": 99, "max_positions": 99},
        ),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 99,
                "use_sliding_window": True,
                "max_window_layers": 3,
            },
            {"sliding_window": None, "max_positions": 2048},
        ),
        (
            {
                "model_type": "qwen3",
                "layer_types": ["full_attention", "sliding_attention"],
                "sliding_window": 99,
            },
            {"sliding_window": 99},
        ),
        (
            {"model_type": "qwen3", "layer_types": ["full_attention"] * 3, "sliding_window": 99},
            {"sliding_window": None},
        ),
        ({"model_type": "qwen3"}, {"family": "qwen3", "qk_norm": True, "head_dim": 128, "qkv_bias": False}),
        ({"eos_token_id": [5, 6]}, {"eos_token_ids": (5, 6)}),
        ({"eos_token_id": None}, {"eos_token_ids": ()}),
        ({"generation": {"eos_token_id": [7, 2]}}, {"eos_token_ids": (7, 2)}),
        ({"generation": {"temperature": 0.5}}, {"eos_token_ids": (2,)}),
    ],
)
def test_each_setting_reaches_the_specification(
    changes: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    spec = read(tmp_path, **changes)
    assert {name: getattr(spec, name) for name in expected} == expected


YARN = {"factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
LONG = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_theta": 5e5}, RopeSpec(5e5)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeSpec(5e5)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeSpec(5e5)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, RopeSpec(1e4, "linear", {"factor": 2.0})),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            RopeSpec(1e4, "dynamic", {"factor": 2.0, "original_max_position_embeddings": 2048}),
        ),
        ({"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", **YARN}}, RopeSpec(1e6, "yarn", YARN)),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN}}, RopeSpec(1e6, "yarn", YARN)),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            RopeSpec(5e5, "llama3", LLAMA3),
        ),
        (
            {"original_max_position_embeddings": 512, "rope_scaling": {"type": "longrope", **LONG}},
            RopeSpec(1e4, "longrope", {**LONG, "original_max_position_embeddings": 512, "factor": 4.0}),
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            RopeSpec(1e4, rotary_dim=8),
        ),
    ],
)
def test_rope_is_read_as_both_versions_of_transformers_spell_it(
    changes: dict[str, Any], expected: RopeSpec, tmp_path: Path
) -> None:
    assert read(tmp_path, **changes).rope == expected


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"model_type": "gemma3_text"},
            "model_type is 'gemma3_text': served are llama, mistral, qwen2, qwen3",
        ),
        ({"model_type": ...}, "model_type is None"),
        ({"hidden_size": ...}, "hidden_size is None: a positive whole number"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"hidden_act": "relu2"}, "hidden_act is 'relu2'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3: it must divide the 4 heads"),
        ({"model_type": "mistral", "sliding_window": "wide"}, "sliding_window is 'wide'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "rope_scaling .* rope_type 'su' is not served"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling .*: factor is missing"),
        ({"rope_scaling": 4}, "rope_scaling is 4"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor must be a number"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "one set of parameters"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
    ],
)
def test_what_is_not_served_is_refused_by_the_name_of_the_field(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=told):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read"),
        (b"{", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b"\xff{}", "is not JSON"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(content: bytes | None, told: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"config\.json: {told}"):
        config_spec(tmp_path)

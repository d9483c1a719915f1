"""Tiny random models of every family, written as safetensors and as GGUF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf.quants import dequantize, quantize
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 160
_CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
_LAYER_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_model(model_type: str, *, seed: int = 0, **settings: Any) -> Any:
    """A model of transformers in float32 with weights large enough that its choices are clear."""
    config_class, model_class = _CLASSES[model_type]
    fields: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    model = model_class(config_class(**(fields | settings))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3)
    return model


def write_gguf(
    path: Path,
    model: Any,
    dtype: str,
    extra: Mapping[str, Any] | None = None,
    rope_factors: Sequence[float] = (),
) -> None:
    """Write ``model`` as llama.cpp's converter would, its matrices in ``dtype``, and round them so in
    ``model`` too.

    ``extra``: more metadata, a name without prefix -> an int, float or str; ``rope_factors``: the divisors of
    the frequencies that files of Llama 3.1 carry as a tensor.
    """
    config = model.config
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(config.eos_token_id)
    for key, value in (extra or {}).items():
        add: Any = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{key}", value)
    generator = np.random.default_rng(7)
    for name, parameter in model.named_parameters():
        stored = dtype if parameter.dim() == 2 else "F32"
        raw = _encode(stored, parameter, generator)
        if stored not in ("F32", "F16"):
            raw = raw.reshape(parameter.shape[0], -1)
        values = dequantize(raw, gguf.GGMLQuantizationType[stored])
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(values.astype(np.float32)).view(parameter.shape))
        raw = raw[_order(name, parameter.shape[0], config, architecture)]
        writer.add_tensor(_gguf_name(name), raw, raw_dtype=gguf.GGMLQuantizationType[stored])
    if rope_factors:
        writer.add_tensor("rope_freqs.weight", np.array(rope_factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _encode(dtype: str, parameter: torch.Tensor, generator: np.random.Generator) -> npt.NDArray[Any]:
    """The bytes of one tensor; the formats that the gguf package cannot write are drawn at random."""
    if dtype in ("Q4_K", "Q6_K"):
        return random_blocks(dtype, parameter.numel(), generator, scale=0.3 / parameter.shape[-1] ** 0.5)
    quantised: npt.NDArray[Any] = quantize(parameter.detach().numpy(), gguf.GGMLQuantizationType[dtype])
    return quantised


def random_blocks(
    dtype: str, num_elements: int, generator: np.random.Generator, *, scale: float
) -> npt.NDArray[np.uint8]:
    """Random blocks of a quantised format, [num_blocks, bytes], whose scale fields are finite and about
    ``scale``."""
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]
    blocks = generator.integers(0, 256, (num_elements // elements, size), dtype=np.uint8)
    # (first byte of a float16 field, what its multiplier reaches)
    fields = {
        "Q8_0": [(0, 127)],
        "Q4_0": [(0, 8)],
        "Q4_1": [(0, 15), (2, 1)],
        "Q4_K": [(0, 15 * 32), (2, 32)],
        "Q6_K": [(208, 32 * 64)],
    }[dtype]
    for first, reach in fields:
        values = generator.uniform(0.5, 1.5, len(blocks)) * scale * 4 / reach
        blocks[:, first : first + 2] = values.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks


def _order(name: str, num_rows: int, config: Any, architecture: str) -> npt.NDArray[np.intp]:
    """llama.cpp's converter moves the halves of each head of Llama's q and k next to each other."""
    rows = np.arange(num_rows)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    part = name.split(".")[-2]
    if architecture != "llama" or part not in heads:
        return rows
    return rows.reshape(heads[part], 2, -1).swapaxes(1, 2).reshape(-1)


def _gguf_name(name: str) -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_LAYER_PARTS[part]}.{kind}"

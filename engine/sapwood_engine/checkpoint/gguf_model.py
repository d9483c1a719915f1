"""What a GGUF file of a known architecture means: dimensions, and tensors under Hugging Face's names."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from sapwood_engine.checkpoint.blocks import decode
from sapwood_engine.checkpoint.gguf_file import GgufFile
from sapwood_engine.checkpoint.spec import Family, ModelSpec, RopeSpec
from sapwood_engine.checkpoint.tensors import StoredTensor, TensorSource
from sapwood_engine.errors import CheckpointError

_FAMILIES: dict[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Mistral is written as ``llama``."""
_ROPE_FACTORS = "rope_freqs.weight"
"""Llama 3.1 and later: the divisor of every frequency, computed when the file was made."""
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def gguf_tensors(file: GgufFile, spec: ModelSpec) -> TensorSource:
    """Return the tensors of ``file`` by their Hugging Face names; a name that has none is kept as it is."""
    heads = {}
    if spec.family == "llama":
        heads = {"attn_q": spec.num_heads, "attn_k": spec.num_kv_heads}
    tensors = {}
    for stored in file.tensors.values():
        if stored.name == _ROPE_FACTORS:
            continue
        layer = _LAYER.fullmatch(stored.name)
        part = layer[2] if layer else ""
        name = _OUTER.get(stored.name, stored.name)
        if layer and part in _LAYER_PARTS:
            name = f"model.layers.{layer[1]}.{_LAYER_PARTS[part]}.{layer[3]}"
        tensors[name] = StoredTensor(name, stored.dtype, stored.shape, stored.data, heads.get(part, 0))
    return tensors


def gguf_spec(file: GgufFile) -> ModelSpec:
    """Read the dimensions; raises `CheckpointError` for an architecture or a setting that is not served."""
    read = _Metadata(file)
    head_dim = read.integer("attention.key_length", default=read.integer("embedding_length") // read.heads())
    if read.integer("attention.value_length", default=head_dim) != head_dim:
        raise read.refuse("attention.value_length", f"differs from the key length {head_dim}")
    if read.integer("expert_count", default=0):
        raise read.refuse("expert_count", "mixtures of experts are not served")
    context = read.integer("context_length")
    window = read.integer("attention.sliding_window", default=0) or None
    names = file.tensors
    return ModelSpec(
        family=read.family,
        vocab_size=read.tensor_shape("token_embd.weight")[0],
        hidden_size=read.integer("embedding_length"),
        num_layers=read.integer("block_count"),
        num_heads=read.heads(),
        num_kv_heads=read.integer("attention.head_count_kv", default=read.heads()),
        head_dim=head_dim,
        intermediate_size=read.integer("feed_forward_length"),
        max_positions=min(context, window or context),
        norm_eps=read.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(read, head_dim=head_dim, context=context),
        tied_embeddings="output.weight" not in names,
        qkv_bias="blk.0.attn_q.bias" in names,
        output_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_up.bias" in names,
        qk_norm="blk.0.attn_q_norm.weight" in names,
        sliding_window=window,
        eos_token_ids=read.end_tokens(),
    )


class _Metadata:
    """Typed access to one file's metadata under its architecture's prefix."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.architecture = str(file.metadata.get("general.architecture"))
        if self.architecture not in _FAMILIES:
            raise CheckpointError(
                str(file.path),
                f"general.architecture {self.architecture!r} is not served",
                f"Served: {', '.join(_FAMILIES)} (Mistral and SmolLM2 are llama).",
            )
        self.family = _FAMILIES[self.architecture]

    def get(self, key: str) -> Any:
        """The value of ``<architecture>.<key>``, None where the file does not have it."""
        return self._file.metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: float | None = None) -> float:
        """A float32, as the shortest decimal that rounds to it: 1e-05, not 9.99999974e-06."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(key, "a number is needed")
        return float(str(np.float32(value)))

    def integer(self, key: str, default: int | None = None) -> int:
        """A count; a list of equal ones, which some files have for every layer, counts as one."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(key, "one whole number is needed, the same for every layer")
        return value

    def heads(self) -> int:
        return self.integer("attention.head_count")

    def end_tokens(self) -> tuple[int, ...]:
        """End of sequence, of turn, and of message: each ends an answer."""
        keys = (f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom"))
        ids = (self._file.metadata.get(key) for key in keys)
        return tuple(dict.fromkeys(i for i in ids if isinstance(i, int)))

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        if name not in self._file.tensors:
            raise CheckpointError(str(self._file.path), f"tensor {name} is missing", "Download or convert it again.")
        return self._file.tensors[name].shape

    def rope_factors(self) -> list[float] | None:
        """The divisors of the frequencies, where the file has them."""
        stored = self._file.tensors.get(_ROPE_FACTORS)
        if stored is None:
            return None
        factors = np.empty(stored.shape, np.float32)
        decode(stored.dtype, stored.data, factors.reshape(-1))
        return [float(f) for f in factors]

    def refuse(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(
            str(self._file.path),
            f"{self.architecture}.{key} is {self.get(key)!r}: {problem}",
            "Choose another model, or convert this one with a current llama.cpp.",
        )


def _rope(read: _Metadata, *, head_dim: int, context: int) -> RopeSpec:
    rotary_dim = read.integer("rope.dimension_count", default=head_dim)
    plain = RopeSpec(
        theta=read.number("rope.freq_base", default=10000.0),
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
    )
    factors = read.rope_factors()
    if factors is not None:
        # The same divisors at every length: longrope with one list, and nothing on the amplitude.
        parameters = {"short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
        return replace(plain, variant="longrope", parameters=parameters | {"original_max_position_embeddings": context})
    scaling = read.get("rope.scaling.type") or "none"
    if scaling == "none":
        return plain
    factor = read.number("rope.scaling.factor")
    if scaling == "linear":
        return replace(plain, variant="linear", parameters={"factor": factor})
    if scaling == "yarn":
        return replace(plain, variant="yarn", parameters=_yarn(read, factor, context))
    raise read.refuse("rope.scaling.type", "served are none, linear and yarn")


def _yarn(read: _Metadata, factor: float, context: int) -> dict[str, Any]:
    parameters = {
        "factor": factor,
        "original_max_position_embeddings": read.integer("rope.scaling.original_context_length", default=context),
        "beta_fast": read.number("rope.scaling.yarn_beta_fast", default=32.0),
        "beta_slow": read.number("rope.scaling.yarn_beta_slow", default=1.0),
    }
    amplitude = read.number("rope.scaling.attn_factor", default=1.0)
    if amplitude != 1.0:
        parameters["attention_factor"] = amplitude * (0.1 * float(np.log(factor)) + 1.0)
    return parameters

"""The dimensions of a model from ``config.json``, as versions 4 and 5 of transformers write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sapwood_engine.checkpoint.spec import Activation, Family, ModelSpec, RopeSpec, RopeVariant
from sapwood_engine.errors import CheckpointError

_FAMILIES: dict[str, Family] = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Model type -> family."""
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_MISTRAL_WINDOW = 4096
"""What transformers assumes where a Mistral configuration says nothing."""
_QWEN3_HEAD_DIM = 128
"""The same for Qwen3."""
_ROPE_THETA = 10000.0
"""The same for all."""
_ROPE_ELSEWHERE = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
"""Beside the parameters of the variant, and kept elsewhere in `RopeSpec`."""
_ROPE_REQUIRES: dict[RopeVariant, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "yarn": {"factor"},
    "longrope": {"factor", "short_factor", "long_factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
}


def config_spec(folder: Path) -> ModelSpec:
    """Read ``config.json`` and ``generation_config.json`` of ``folder``.

    Raises `CheckpointError` naming the field for what is missing, malformed or not served.
    """
    config = _Config(folder / "config.json")
    family = config.family()
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    default_head_dim = _QWEN3_HEAD_DIM if family == "qwen3" else hidden // heads
    head_dim = config.integer("head_dim", default=default_head_dim)
    context = config.integer("max_position_embeddings")
    window = _sliding_window(config)
    attention_bias = bool(config.get("attention_bias", False))
    kv_heads = config.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.refuse("num_key_value_heads", f"it must divide the {heads} heads")
    return ModelSpec(
        family=family,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        max_positions=min(context, window or context),
        norm_eps=config.number("rms_norm_eps", default=1e-6),
        rope=_rope(config, context=context, head_dim=head_dim),
        activation=config.activation(),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        sliding_window=window,
        eos_token_ids=_end_tokens(folder, config),
    )


class _Config:
    """Typed access to the fields of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fields = read_object(path)

    def get(self, field: str, default: Any = None) -> Any:
        """The value; ``default`` where the field is absent or null."""
        value = self._fields.get(field)
        return default if value is None else value

    def has(self, field: str) -> bool:
        """Whether the field is there, null included."""
        return field in self._fields

    def integer(self, field: str, default: int | None = None) -> int:
        value = self.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refuse(field, "a positive whole number is needed")
        return value

    def number(self, field: str, default: float) -> float:
        value = self.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(field, "a number is needed")
        return float(value)

    def family(self) -> Family:
        if self.has("quantization_config"):
            raise self.refuse("quantization_config", "quantised safetensors are not served; take the plain weights")
        family = _FAMILIES.get(str(self.get("model_type")))
        if family is None:
            raise self.refuse("model_type", f"served are {', '.join(_FAMILIES)}")
        return family

    def activation(self) -> Activation:
        activation = _ACTIVATIONS.get(str(self.get("hidden_act", "silu")))
        if activation is None:
            raise self.refuse("hidden_act", f"served are {', '.join(_ACTIVATIONS)}")
        return activation

    def refuse(self, field: str, problem: str) -> CheckpointError:
        return CheckpointError(
            str(self._path),
            f"{field} is {self.get(field)!r}: {problem}",
            "Choose another model, or correct the file.",
        )


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that the file holds; raises `CheckpointError`."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(str(path), f"cannot be read ({error.strerror})", "Download the model's files.") from error
    except ValueError as error:
        raise CheckpointError(str(path), f"is not JSON ({error})", "Download it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(str(path), "is not a JSON object", "Download it again.")
    return value


def _sliding_window(config: _Config) -> int | None:
    """The window of the layers that have one; None where every layer sees every key."""
    types = config.get("layer_types")
    if types is not None:
        return config.integer("sliding_window") if "sliding_attention" in types else None
    if config.get("model_type") == "mistral" and not config.has("sliding_window"):
        return _MISTRAL_WINDOW
    used = config.get("use_sliding_window", config.get("model_type") == "mistral")
    if not used or config.get("sliding_window") is None:
        return None
    first_layer = config.get("max_window_layers", 0)
    return config.integer("sliding_window") if first_layer < config.integer("num_hidden_layers") else None


def _rope(config: _Config, *, context: int, head_dim: int) -> RopeSpec:
    """Version 5 keeps all in ``rope_parameters``, version 4 has ``rope_theta`` beside ``rope_scaling``."""
    field = "rope_parameters" if config.has("rope_parameters") else "rope_scaling"
    given = config.get(field, {})
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise config.refuse(field, "one set of parameters for all layers is needed")
    variant: RopeVariant = given.get("rope_type") or given.get("type") or "default"
    if variant not in _ROPE_REQUIRES:
        raise config.refuse(field, f"rope_type {variant!r} is not served; served are {', '.join(_ROPE_REQUIRES)}")
    parameters = {k: v for k, v in given.items() if k not in _ROPE_ELSEWHERE and v is not None}
    _derive(parameters, variant, config, context)
    missing = _ROPE_REQUIRES[variant] - parameters.keys()
    if missing:
        raise config.refuse(field, f"{', '.join(sorted(missing))} is missing")
    for name, value in parameters.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(isinstance(number, int | float) for number in numbers):
            raise config.refuse(field, f"{name} must be a number, or numbers")
    share = given.get("partial_rotary_factor") or config.number("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * share)
    return RopeSpec(
        theta=float(given.get("rope_theta") or config.number("rope_theta", _ROPE_THETA)),
        variant=variant,
        parameters=parameters,
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
    )


def _derive(parameters: dict[str, Any], variant: RopeVariant, config: _Config, context: int) -> None:
    """Add what transformers takes from fields outside the parameters."""
    if variant in ("default", "linear"):
        return
    name = "original_max_position_embeddings"
    if variant == "dynamic":
        parameters[name] = context
        return
    parameters[name] = config.get(name) or parameters.get(name) or context
    if variant in ("yarn", "longrope"):
        parameters.setdefault("factor", context / parameters[name])


def _end_tokens(folder: Path, config: _Config) -> tuple[int, ...]:
    """What ``generation_config.json`` says, else ``config.json``: one id or several."""
    path = folder / "generation_config.json"
    ids = read_object(path).get("eos_token_id") if path.is_file() else None
    if ids is None:
        ids = config.get("eos_token_id", [])
    ids = ids if isinstance(ids, list) else [ids]
    if not all(isinstance(i, int) for i in ids):
        raise config.refuse("eos_token_id", "whole numbers are needed")
    return tuple(ids)

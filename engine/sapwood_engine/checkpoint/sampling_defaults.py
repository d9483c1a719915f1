"""How a checkpoint's authors sample from it: what holds for the fields that a request leaves out.

As in vLLM and SGLang only what a file states counts: where it is silent OpenAI's value holds, not the one that
transformers would take (greedy, top_k 50).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sapwood_engine.checkpoint.config_json import read_object
from sapwood_engine.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """One value for each field; made without arguments they are OpenAI's."""

    temperature: float = 1.0
    """0 means greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __str__(self) -> str:
        """As a person reads it: temperature and top_p, and of the others what changes anything."""
        told = {"temperature": self.temperature, "top_p": self.top_p}
        if self.top_k:
            told["top_k"] = self.top_k
        if self.min_p:
            told["min_p"] = self.min_p
        if self.repetition_penalty != 1:
            told["repetition_penalty"] = self.repetition_penalty
        return ", ".join(f"{name} {value:g}" for name, value in told.items())


OPENAI_DEFAULTS = SamplingDefaults()

_FILE = "generation_config.json"
_GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""Field -> llama.cpp's name for it (its ``gguf-py/gguf/constants.py``)."""
_ALLOWED: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: 0 <= value < math.inf, "a number from 0 on is needed"),
    "top_p": (lambda value: 0 < value <= 1, "a number above 0 and up to 1 is needed"),
    "top_k": (lambda value: value >= -1 and isinstance(value, int), "a whole number is needed; 0 or -1 keep all"),
    "min_p": (lambda value: 0 <= value <= 1, "a number from 0 to 1 is needed"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "a number above 0 is needed"),
}


def generation_config_defaults(folder: Path) -> SamplingDefaults:
    """Read ``generation_config.json`` of ``folder``; no such file means `OPENAI_DEFAULTS`.

    ``"do_sample": false`` means greedy, whatever temperature stands beside it. Without ``do_sample`` the file says
    nothing about that, though transformers would be greedy: most such files hold token ids alone.
    Raises `CheckpointError` naming file and field for a value of the wrong kind or out of range.
    """
    path = folder / _FILE
    if not path.is_file():
        return OPENAI_DEFAULTS
    stated = read_object(path)
    defaults = _defaults(path, stated, {field: field for field in _ALLOWED})
    do_sample = stated.get("do_sample")
    if do_sample is not None and not isinstance(do_sample, bool):
        raise _refusal(path, "do_sample", do_sample, "true or false is needed")
    return replace(defaults, temperature=0.0) if do_sample is False else defaults


def gguf_defaults(path: Path, metadata: Mapping[str, Any]) -> SamplingDefaults:
    """Read llama.cpp's ``general.sampling.*`` of the file at ``path``; raises `CheckpointError` as above."""
    stated = {name: metadata.get(name) for name in _GGUF_KEYS.values()}
    # A float of the file is a float32: the shortest decimal that rounds to it, 0.9 and not 0.899999976.
    exact = {name: float(str(np.float32(v))) if isinstance(v, float) else v for name, v in stated.items()}
    return _defaults(path, exact, _GGUF_KEYS)


def _defaults(path: Path, stated: Mapping[str, Any], names: Mapping[str, str]) -> SamplingDefaults:
    """``names``: field -> what the file calls it. A value that is absent or null is left at OpenAI's."""
    values = {}
    for field, name in names.items():
        value = stated.get(name)
        if value is None:
            continue
        is_allowed, need = _ALLOWED[field]
        if isinstance(value, bool) or not isinstance(value, int | float) or not is_allowed(value):
            raise _refusal(path, name, value, need)
        values[field] = value
    top_k = int(max(0, values.pop("top_k", 0)))
    return SamplingDefaults(top_k=top_k, **{field: float(value) for field, value in values.items()})


def _refusal(path: Path, name: str, value: object, need: str) -> CheckpointError:
    return CheckpointError(
        str(path), f"{name} is {value!r}: {need}", "Correct the file, or start with --sampling-defaults=openai."
    )

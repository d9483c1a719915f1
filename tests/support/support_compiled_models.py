"""A tiny model of transformers as the compiled step and as torch's composition, over the same 16-bit weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support_checkpoints import tiny_model
from support_kernels import keep_kernels

from sapwood_engine.checkpoint.source import open_checkpoint, open_tensors, read_spec
from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.models.decoder import Decoder
from sapwood_engine.models.load import load_model
from sapwood_engine.runtime.model_runner import Model

MAX_ROWS = 1024
WEIGHT_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A model of the compiled step and the dtype of its pages."""

    model: Model
    spec: ModelSpec
    kv_dtype: torch.dtype


def compile_decoder(
    decoder: Decoder,
    spec: ModelSpec,
    config: pytest.Config,
    *,
    num_threads: int = 2,
    max_rows: int = MAX_ROWS,
    max_logits: int = 8,
    int8: bool = False,
) -> Compiled:
    """Take the weights out of ``decoder``; compiled functions are kept in pytest's cache."""
    keep_kernels(config)
    # The folder for compiled kernels had to be set first.
    from sapwood_engine.models.compiled import CompiledDecoder  # noqa: PLC0415

    model = CompiledDecoder(decoder, spec, max_rows=max_rows, max_logits=max_logits, num_threads=num_threads, int8=int8)
    in_pairs = model.activations == torch.bfloat16
    return Compiled(model, spec, torch.bfloat16 if in_pairs else torch.float16)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk whose tensors are all of one 16-bit dtype."""

    folder: Path
    dtype: torch.dtype
    rotary_dim: int | None = None
    """Dimensions of a head that rotate, if not all"""

    def load(self, dtype: torch.dtype) -> tuple[Decoder, ModelSpec]:
        """Return the composed decoder with weights of ``dtype``."""
        checkpoint = open_checkpoint(str(self.folder))
        spec = read_spec(checkpoint)
        spec = replace(spec, rope=replace(spec.rope, rotary_dim=self.rotary_dim or spec.rope.rotary_dim))
        return load_model(spec, open_tensors(checkpoint), where="tiny", dtype=dtype), spec

    def composed(self) -> tuple[Decoder, ModelSpec]:
        """Return the oracle: torch's operators in float32."""
        return self.load(torch.float32)

    def compiled(self, config: pytest.Config, *, num_threads: int = 2) -> Compiled:
        """Return the compiled step over the weights as they are."""
        return compile_decoder(*self.load(self.dtype), config, num_threads=num_threads)


def write_checkpoint(
    folder: Path, model_type: str, dtype: torch.dtype, *, rotary_dim: int | None = None, **settings: Any
) -> Checkpoint:
    """Write a random model with heads of 64 and room for 1,024 positions, unless ``settings`` say otherwise."""
    fields = {"head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 1024} | settings
    tiny_model(model_type, **fields).to(dtype).save_pretrained(folder)
    return Checkpoint(folder, dtype, rotary_dim)

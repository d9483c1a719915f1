"""From a checkpoint to a model in memory."""

from __future__ import annotations

import torch

from sapwood_engine.checkpoint.spec import Family, ModelSpec
from sapwood_engine.checkpoint.tensors import TensorSource
from sapwood_engine.layers.rotary import Rotary
from sapwood_engine.models import llama, qwen2, qwen3
from sapwood_engine.models.decoder import BlockComposer, Decoder, compose
from sapwood_engine.models.weights import Progress, Weights

_BLOCKS: dict[Family, BlockComposer] = {"llama": llama.block, "qwen2": qwen2.block, "qwen3": qwen3.block}


def load_model(
    spec: ModelSpec,
    source: TensorSource,
    *,
    where: str,
    dtype: torch.dtype,
    device: torch.device | None = None,
    context_length: int | None = None,
    num_threads: int = 1,
    progress: Progress | None = None,
) -> Decoder:
    """Compose the model that ``spec`` describes and fill it from ``source``.

    ``where`` names the checkpoint in errors; ``dtype`` is that of weights and activations; ``device`` is the
    CPU by default; ``context_length`` (default: the checkpoint's own) is the most positions that will be
    served; ``num_threads`` read at once. Raises `CheckpointError` where tensors are missing, left over or mis-shaped,
    before any is read.
    """
    device = device or torch.device("cpu")
    rotary = Rotary(
        spec.rope, head_dim=spec.head_dim, context_length=context_length or spec.max_positions, device=device
    )
    weights = Weights(dtype, device)
    model = compose(spec, weights, _BLOCKS[spec.family], rotary)
    weights.fill(source, where, num_threads=num_threads, progress=progress)
    return model

"""The real executor over a tiny random Llama in float32, quick to build."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from sapwood_engine.checkpoint.spec import ModelSpec, RopeSpec
from sapwood_engine.checkpoint.tensors import StoredTensor
from sapwood_engine.core.ports import Capacity
from sapwood_engine.kernels.attention.base import AttentionBackend
from sapwood_engine.kernels.attention.reference import ReferenceAttention
from sapwood_engine.layers.batch import StepBatch
from sapwood_engine.models.decoder import ComposedModel, Decoder
from sapwood_engine.models.load import load_model
from sapwood_engine.runtime.executor import TorchExecutor
from sapwood_engine.runtime.kv_pool import KvPool
from sapwood_engine.runtime.model_runner import Model, ModelRunner

TINY = ModelSpec(
    family="llama",
    vocab_size=200,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    max_positions=512,
    norm_eps=1e-5,
    rope=RopeSpec(theta=10000.0),
)


def tiny_decoder(
    spec: ModelSpec = TINY,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    exact_in: torch.dtype = torch.float32,
) -> Decoder:
    """A model with random weights that ``exact_in`` has too, large enough that its choices are clear."""
    generator = np.random.default_rng(seed)
    hidden, inner, q = spec.hidden_size, spec.intermediate_size, spec.num_heads * spec.head_dim
    kv = spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (spec.vocab_size, hidden),
        "lm_head": (spec.vocab_size, hidden),
        "model.norm": (hidden,),
    }
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm": (hidden,),
            f"{prefix}.self_attn.q_proj": (q, hidden),
            f"{prefix}.self_attn.k_proj": (kv, hidden),
            f"{prefix}.self_attn.v_proj": (kv, hidden),
            f"{prefix}.self_attn.o_proj": (hidden, q),
            f"{prefix}.post_attention_layernorm": (hidden,),
            f"{prefix}.mlp.gate_proj": (inner, hidden),
            f"{prefix}.mlp.up_proj": (inner, hidden),
            f"{prefix}.mlp.down_proj": (hidden, inner),
        }
    source = {}
    for stem, shape in shapes.items():
        scale = 1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 1.0
        drawn = torch.from_numpy((generator.standard_normal(shape) * scale).astype(np.float32))
        values = drawn.to(exact_in).float().numpy()
        name = f"{stem}.weight"
        source[name] = StoredTensor(name, "F32", shape, values.reshape(-1).view(np.uint8))
    return load_model(spec, source, where="tiny", dtype=dtype)


def capacity(
    *,
    num_pages: int = 64,
    page_size: int = 4,
    max_seats: int = 8,
    max_step_tokens: int = 128,
    context: int = 128,
) -> Capacity:
    """A small capacity over `TINY`."""
    return Capacity(num_pages, page_size, context, max_seats, max_step_tokens, TINY.vocab_size)


def tiny_pool(limits: Capacity, spec: ModelSpec = TINY, dtype: torch.dtype = torch.float32) -> KvPool:
    """A pool full of NaN: what is read before it is written shows."""
    pool = KvPool(
        num_layers=spec.num_layers,
        num_pages=limits.num_pages,
        page_size=limits.page_size,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=dtype,
    )
    for layer in pool.layers:
        for cache in layer:
            cache.fill_(torch.nan)
    return pool


class FailingModel:
    """A model whose n-th forward, counted from 0, raises after it has written its KV."""

    def __init__(self, model: Model, fail_forwards: Collection[int]) -> None:
        self._model = model
        self._fail_forwards = fail_forwards
        self._num_forwards = 0

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """See `Model.forward`."""
        hidden = self._model.forward(batch)
        self._num_forwards += 1
        if self._num_forwards - 1 in self._fail_forwards:
            raise RuntimeError("scripted failure")
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Model.logits`."""
        return self._model.logits(hidden)


def composed(attention: AttentionBackend) -> ComposedModel:
    """`tiny_decoder` over ``attention``."""
    return ComposedModel(tiny_decoder(), attention)


def tiny_executor(
    limits: Capacity,
    *,
    model: Model | None = None,
    attention: AttentionBackend | None = None,
    kv_dtype: torch.dtype = torch.float32,
) -> TorchExecutor:
    """The real executor over ``model`` (default: `tiny_decoder`) and a pool full of NaN."""
    pool = tiny_pool(limits, dtype=kv_dtype)
    runner = ModelRunner(model or composed(attention or ReferenceAttention()), pool, limits)
    return TorchExecutor(limits, runner.run, num_threads=1, release=pool.release)

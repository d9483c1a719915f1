"""One step's tensors as the layers see them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sapwood_engine.kernels.attention.base import AttentionBackend, AttentionMetadata


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Flat tokens of one step and where their KV goes."""

    token_ids: torch.Tensor
    """int64 [num_tokens]"""
    positions: torch.Tensor
    """int64 [num_tokens]"""
    slots: torch.Tensor
    """int64 [num_tokens]: page * page_size + offset, where each token's K and V are written"""
    logits_rows: torch.Tensor
    """int64 [num_logits]: indices into the tokens whose logits are wanted"""
    metadata: AttentionMetadata
    kv_layers: list[tuple[torch.Tensor, torch.Tensor]]
    """[num_layers] of (K, V), each [num_pages, page_size, num_kv_heads, head_dim]"""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """What the layers see of a step. ``attention`` is planned already."""

    slots: torch.Tensor
    kv_layers: list[tuple[torch.Tensor, torch.Tensor]]
    attention: AttentionBackend

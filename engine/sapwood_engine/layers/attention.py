"""Self-attention of one layer over the paged KV."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sapwood_engine.layers.batch import ForwardBatch
from sapwood_engine.layers.linear import Linear
from sapwood_engine.layers.norm import RmsNorm
from sapwood_engine.layers.rotary import Rotation, rotate

_MOST_FLOAT16 = torch.finfo(torch.float16).max


@dataclass(frozen=True, slots=True)
class Attention:
    """Project, normalise (Qwen3), rotate, store K and V, attend, project back.

    q, k and v are one matrix; its rows are q's heads, then k's, then v's.
    """

    qkv: Linear
    """[(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]"""
    output: Linear
    """[hidden_size, num_heads * head_dim]"""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    q_norm: RmsNorm | None = None
    """Over head_dim"""
    k_norm: RmsNorm | None = None

    def __call__(self, x: torch.Tensor, rotation: Rotation, batch: ForwardBatch, layer: int) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same shape, a new tensor.

        Writes K and V of the tokens to ``batch.slots`` of layer ``layer``'s pages.
        """
        num_tokens, num_rotated = x.shape[0], self.num_heads + self.num_kv_heads
        heads = self.qkv(x).view(num_tokens, num_rotated + self.num_kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            heads[:, : self.num_heads] = self.q_norm(heads[:, : self.num_heads])
            heads[:, self.num_heads : num_rotated] = self.k_norm(heads[:, self.num_heads : num_rotated])
        rotated = rotate(heads[:, :num_rotated], rotation)
        k_pages, v_pages = batch.kv_layers[layer]
        store_kv(k_pages, batch.slots, rotated[:, self.num_heads :])
        store_kv(v_pages, batch.slots, heads[:, num_rotated:])
        q = rotated[:, : self.num_heads]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        attended = batch.attention.run(q, k_pages, v_pages, scale=self.head_dim**-0.5, out=out)
        return self.output(attended.view(num_tokens, -1))


def store_kv(pages: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> None:
    """Write ``values`` [num_tokens, num_kv_heads, head_dim] to ``slots``, in the dtype of ``pages``.

    float16 ends at 65,504: what lies beyond is cut to that, for an infinite key would make every score NaN.
    """
    if pages.dtype == torch.float16 and values.dtype != torch.float16:
        values = values.clamp(-_MOST_FLOAT16, _MOST_FLOAT16)
    pages.flatten(0, 1).index_copy_(0, slots, values.to(pages.dtype))

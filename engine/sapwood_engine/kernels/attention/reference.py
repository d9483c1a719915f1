"""The oracle: gather each sequence's pages, then plain softmax attention in float32, one sequence at a time.

Runs on every device and dtype; slow on purpose. What another backend computes is right when it agrees with this.
"""

from __future__ import annotations

import torch

from sapwood_engine.kernels.attention.base import AttentionMetadata


class ReferenceAttention:
    """`AttentionBackend` that spells out the definition."""

    name = "reference"

    def __init__(self) -> None:
        self._sequences: list[tuple[int, int, torch.Tensor, int]] = []
        self._page_size = 1

    def plan(self, metadata: AttentionMetadata) -> None:
        """Note for each sequence its queries, pages and number of keys."""
        qo_indptr = metadata.qo_indptr.tolist()
        kv_indptr = metadata.kv_indptr.tolist()
        last_page_lens = metadata.kv_last_page_len.tolist()
        self._page_size = metadata.page_size
        self._sequences = []
        for s, last_page_len in enumerate(last_page_lens):
            pages = metadata.kv_indices[kv_indptr[s] : kv_indptr[s + 1]].long()
            kv_len = (len(pages) - 1) * metadata.page_size + last_page_len
            self._sequences.append((qo_indptr[s], qo_indptr[s + 1], pages, kv_len))

    def run(
        self,
        q: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        *,
        scale: float,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """See `AttentionBackend.run`."""
        for begin, end, pages, kv_len in self._sequences:
            keys, values = (_gather(cache, pages, kv_len, q.shape[1]) for cache in (k_pages, v_pages))
            scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), keys) * scale
            positions = torch.arange(kv_len, device=q.device)
            hidden = positions[None, :] > positions[kv_len - (end - begin) :, None]
            weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
            out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values).to(out.dtype)
        return out


def _gather(cache: torch.Tensor, pages: torch.Tensor, kv_len: int, num_heads: int) -> torch.Tensor:
    """Return float32 [kv_len, num_heads, head_dim] with every KV head repeated for its query heads.

    Slots beyond ``kv_len`` are cut off before any arithmetic, for 0 times NaN is NaN.
    """
    flat = cache[pages].flatten(0, 1)[:kv_len].float()
    return flat.repeat_interleave(num_heads // cache.shape[2], dim=1)

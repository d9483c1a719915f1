"""The protocol of an attention backend, on FlashInfer's metadata.

A batch has sequences; sequence ``s`` brings ``qo_indptr[s+1] - qo_indptr[s]`` queries, the last tokens of its
``kv_len(s)`` keys. Its KV lies in pages ``kv_indices[kv_indptr[s] : kv_indptr[s+1]]``, the last of which holds
``kv_last_page_len[s]`` tokens::

    qo_indptr        0        5  6                 q rows of sequences 0, 1
    kv_indptr        0     3        5              their pages
    kv_indices       7  2  9  4  1                 page ids
    kv_last_page_len 4     1                       page_size 16: kv_len = 2*16+4 = 36 and 1*16+1 = 17

Query ``i`` of a sequence stands at position ``kv_len - qo_len + i`` and sees keys up to and including its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Which queries see which pages; all tensors int32 and contiguous, on the device of the backend."""

    qo_indptr: torch.Tensor
    """[num_seqs + 1]"""
    kv_indptr: torch.Tensor
    """[num_seqs + 1]"""
    kv_indices: torch.Tensor
    """[kv_indptr[-1]]"""
    kv_last_page_len: torch.Tensor
    """[num_seqs], 1 … page_size"""
    page_size: int
    max_qo_len: int
    """Longest query run; 1 means that every sequence decodes."""


class AttentionBackend(Protocol):
    """Computes causal attention of new queries over paged keys and values.

    ``plan`` is called once a step, then ``run`` once a layer with the same metadata: what depends on the batch alone
    is prepared in ``plan`` (work split, buffers) and reused. Not reentrant; one instance serves one executor.
    """

    name: str

    def plan(self, metadata: AttentionMetadata) -> None:
        """Take over ``metadata`` for the runs that follow; valid until the next ``plan``."""

    def run(
        self,
        q: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        *,
        scale: float,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Write attention of ``q`` into ``out`` and return it.

        ``q`` and ``out``: [num_tokens, num_heads, head_dim], contiguous in the last axis, same dtype.
        ``k_pages``, ``v_pages``: [num_pages, page_size, num_kv_heads, head_dim]; num_heads is a multiple of
        num_kv_heads; dtype float32, float16 or bfloat16, which may differ from q's. Slots beyond a sequence's length
        hold anything, finite or not, and do not influence the result. Accumulates in float32.
        """

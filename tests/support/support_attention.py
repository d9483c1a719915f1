"""Random paged batches for the attention suites, and the definition of attention without any paging."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sapwood_engine.kernels.attention.base import AttentionBackend, AttentionMetadata

DTYPES = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.float32, torch.float16),
)
"""Of queries and of keys and values: the combinations in use."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one attention case looks like; ``lengths`` holds (queries, keys) of each sequence."""

    lengths: tuple[tuple[int, int], ...]
    page_size: int = 16
    num_kv_heads: int = 2
    group: int = 3
    head_dim: int = 64
    q_dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype = torch.float32
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PagedCase:
    """Inputs of one run, and what must come out."""

    metadata: AttentionMetadata
    q: torch.Tensor
    k_pages: torch.Tensor
    v_pages: torch.Tensor
    scale: float
    expected: torch.Tensor
    """float32 [num_tokens, num_heads, head_dim], from the same rounded inputs"""


def make_case(shape: Shape, *, stale: float = float("nan")) -> PagedCase:
    """Draw random queries, keys and values, scatter the KV into shuffled pages; every other slot holds ``stale``."""
    generator = torch.Generator().manual_seed(shape.seed)
    ps, hkv, d = shape.page_size, shape.num_kv_heads, shape.head_dim
    num_heads = hkv * shape.group
    scale = d**-0.5
    page_counts = [-(-keys // ps) for _, keys in shape.lengths]
    num_pages = sum(page_counts) + 3
    # Of its own, so that the same queries, keys and values come with every page size.
    order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(shape.seed))
    caches = [torch.full((num_pages, ps, hkv, d), stale, dtype=shape.kv_dtype) for _ in "kv"]
    queries, outputs, used = [], [], 0
    for (num_queries, num_keys), num_seq_pages in zip(shape.lengths, page_counts, strict=True):
        pages = order[used : used + num_seq_pages]
        used += num_seq_pages
        q = torch.randn(num_queries, num_heads, d, generator=generator).to(shape.q_dtype)
        kv = [torch.randn(num_keys, hkv, d, generator=generator).to(shape.kv_dtype) for _ in "kv"]
        for cache, rows in zip(caches, kv, strict=True):
            positions = torch.arange(num_keys)
            cache[pages[positions // ps], positions % ps] = rows
        queries.append(q)
        outputs.append(dense_attention(q.double(), kv[0].double(), kv[1].double(), scale))
    metadata = AttentionMetadata(
        qo_indptr=_indptr([queries for queries, _ in shape.lengths]),
        kv_indptr=_indptr(page_counts),
        kv_indices=order[:used].int(),
        kv_last_page_len=torch.tensor([(keys - 1) % ps + 1 for _, keys in shape.lengths], dtype=torch.int32),
        page_size=ps,
        max_qo_len=max(queries for queries, _ in shape.lengths),
    )
    return PagedCase(metadata, torch.cat(queries), caches[0], caches[1], scale, torch.cat(outputs).float())


def run(backend: AttentionBackend, case: PagedCase) -> torch.Tensor:
    """Plan and run ``case``; the output starts as NaN, so that a row left out shows."""
    out = torch.full(case.q.shape, torch.nan, dtype=case.q.dtype)
    backend.plan(case.metadata)
    returned = backend.run(case.q, case.k_pages, case.v_pages, scale=case.scale, out=out)
    assert returned is out
    return out


def dense_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of the last ``len(q)`` positions of ``k``, row by row from the definition."""
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    first = len(k) - len(q)
    for i in range(len(q)):
        seen = first + i + 1
        for h in range(q.shape[1]):
            scores = k[:seen, h // group] @ q[i, h] * scale
            out[i, h] = torch.softmax(scores, dim=0) @ v[:seen, h // group]
    return out


def _indptr(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()

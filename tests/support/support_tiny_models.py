"""Greedy decoding by a bare model over reference attention, and by transformers, to compare the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.kernels.attention.base import AttentionMetadata
from sapwood_engine.kernels.attention.reference import ReferenceAttention
from sapwood_engine.layers.batch import StepBatch
from sapwood_engine.models.decoder import ComposedModel, Decoder
from sapwood_engine.runtime.model_runner import Model

PAGE_SIZE = 4


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of one sequence, to be computed in one step."""

    sequence: int
    start: int
    token_ids: Sequence[int]


class PagedModel:
    """A model with KV of its own; the pages of the sequences alternate, so that none is contiguous."""

    def __init__(
        self,
        model: Decoder | Model,
        spec: ModelSpec,
        *,
        num_sequences: int,
        max_tokens: int,
        dtype: torch.dtype = torch.float32,
        page_size: int = PAGE_SIZE,
        num_shared_pages: int = 0,
    ) -> None:
        """A bare decoder computes over reference attention; ``dtype`` is that of the pages.

        All sequences begin with the same ``num_shared_pages``.
        """
        self._model = ComposedModel(model, ReferenceAttention()) if isinstance(model, Decoder) else model
        self._num_sequences = num_sequences
        self._page_size = page_size
        self._num_shared_pages = num_shared_pages
        num_pages = num_sequences * -(-max_tokens // page_size)
        shape = (num_pages, page_size, spec.num_kv_heads, spec.head_dim)
        self._kv = [
            (torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype))
            for _ in range(spec.num_layers)
        ]

    @torch.inference_mode()
    def hidden(self, runs: Sequence[Run]) -> torch.Tensor:
        """Compute ``runs`` in one step; the hidden state of every token, one row after the other."""
        positions = [torch.arange(run.start, run.start + len(run.token_ids)) for run in runs]
        slots = [
            self._pages(run, int(p[-1]) + 1)[p // self._page_size] * self._page_size + p % self._page_size
            for run, p in zip(runs, positions, strict=True)
        ]
        return self._model.forward(
            StepBatch(
                token_ids=torch.tensor([t for run in runs for t in run.token_ids]),
                positions=torch.cat(positions),
                slots=torch.cat(slots),
                logits_rows=torch.arange(sum(len(run.token_ids) for run in runs)),
                metadata=self._metadata(runs),
                kv_layers=self._kv,
            )
        )

    @torch.inference_mode()
    def last_logits(self, runs: Sequence[Run]) -> torch.Tensor:
        """Logits after the last token of every run, [num_runs, vocab_size]."""
        ends = torch.tensor([len(run.token_ids) for run in runs]).cumsum(0) - 1
        return self._model.logits(self.hidden(runs)[ends])

    @torch.inference_mode()
    def all_logits(self, runs: Sequence[Run]) -> torch.Tensor:
        """Logits after every token."""
        return self._model.logits(self.hidden(runs))

    def _pages(self, run: Run, num_tokens: int) -> torch.Tensor:
        numbers = torch.arange(-(-num_tokens // self._page_size))
        own = torch.where(numbers < self._num_shared_pages, 0, run.sequence)
        return numbers * self._num_sequences + own

    def _metadata(self, runs: Sequence[Run]) -> AttentionMetadata:
        lengths = [run.start + len(run.token_ids) for run in runs]
        pages = [self._pages(run, length) for run, length in zip(runs, lengths, strict=True)]
        queries = [len(run.token_ids) for run in runs]
        return AttentionMetadata(
            qo_indptr=_indptr(queries),
            kv_indptr=_indptr([len(p) for p in pages]),
            kv_indices=torch.cat(pages).int(),
            kv_last_page_len=torch.tensor([(n - 1) % self._page_size + 1 for n in lengths], dtype=torch.int32),
            page_size=self._page_size,
            max_qo_len=max(queries),
        )


def _indptr(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()


@dataclass(frozen=True, slots=True)
class Greedy:
    """What greedy decoding chose, and by how much the best logit led the second at each token."""

    token_ids: list[list[int]]
    leads: list[list[float]]


def greedy(
    model: Decoder | Model,
    spec: ModelSpec,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    chunk: int = 1 << 30,
    kv_dtype: torch.dtype = torch.float32,
) -> Greedy:
    """Prefill all prompts (in chunks of ``chunk`` tokens), then decode all of them together."""
    longest = max(map(len, prompts)) + num_tokens
    paged = PagedModel(model, spec, num_sequences=len(prompts), max_tokens=longest, dtype=kv_dtype)
    for first in range(chunk, longest, chunk):
        earlier = [Run(s, first - chunk, p[first - chunk : first]) for s, p in enumerate(prompts) if len(p) > first]
        if earlier:
            paged.hidden(earlier)
    starts = [(len(p) - 1) // chunk * chunk for p in prompts]
    logits = paged.last_logits([Run(s, starts[s], p[starts[s] :]) for s, p in enumerate(prompts)])
    chosen = Greedy([[] for _ in prompts], [[] for _ in prompts])
    for step in range(num_tokens):
        best = logits.topk(2, dim=-1)
        for s in range(len(prompts)):
            chosen.token_ids[s].append(int(best.indices[s, 0]))
            chosen.leads[s].append(float(best.values[s, 0] - best.values[s, 1]))
        if step + 1 < num_tokens:
            logits = paged.last_logits(
                [Run(s, len(p) + step, [chosen.token_ids[s][-1]]) for s, p in enumerate(prompts)]
            )
    return chosen


@torch.inference_mode()
def transformers_greedy(model: Any, prompts: Sequence[Sequence[int]], num_tokens: int) -> Greedy:
    """The same by a model of transformers, prompts of one length as a batch, with its own KV cache."""
    chosen = Greedy([[] for _ in prompts], [[] for _ in prompts])
    by_length: dict[int, list[int]] = {}
    for s, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(s)
    for sequences in by_length.values():
        inputs = torch.tensor([list(prompts[s]) for s in sequences])
        cache = None
        for _ in range(num_tokens):
            out = model(input_ids=inputs, cache=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            best = out.logits[:, -1].float().topk(2, dim=-1)
            inputs = best.indices[:, :1]
            for row, s in enumerate(sequences):
                chosen.token_ids[s].append(int(best.indices[row, 0]))
                chosen.leads[s].append(float(best.values[row, 0] - best.values[row, 1]))
    return chosen


def assert_same_greedy(ours: Greedy, theirs: Greedy, *, near_tie: float) -> None:
    """Equal ids, save where the two best logits lie within ``near_tie``: there the sequences may part."""
    for s, (a, b) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=True)):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            if x != y:
                lead = max(ours.leads[s][i], theirs.leads[s][i])
                assert lead <= near_tie, f"sequence {s}, token {i}: {x} against {y} with a lead of {lead}"
                break

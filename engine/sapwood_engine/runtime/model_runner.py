"""One step on the device, in order: page tables, copies, forward, sampling."""

from __future__ import annotations

from itertools import islice
from typing import Protocol

import torch

from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.request import TokenLogprobs
from sapwood_engine.core.step import NO_TOKEN, StepPlan, StepResult
from sapwood_engine.kernels import sampling
from sapwood_engine.layers.batch import StepBatch
from sapwood_engine.runtime.batch_tensors import BatchTensors
from sapwood_engine.runtime.kv_pool import KvPool
from sapwood_engine.runtime.sampler import Draw, Sampler, token_logprobs

_SCORED_ROWS = 128
"""Prompt positions whose logits exist at once: a whole prompt's would be most of a small machine's memory."""


class Model(Protocol):
    """What the runner needs of a model: `models.decoder.ComposedModel` and `models.compiled.CompiledDecoder`."""

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Write the step's KV; return the final hidden states of ``batch.logits_rows``, [num_logits, hidden_size]."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] -> float [n, vocab_size], the caller's to change, valid until the next call"""


class ModelRunner:
    """Runs plans one after the other; called from one thread."""

    def __init__(self, model: Model, pool: KvPool, capacity: Capacity, *, draw: Draw = sampling.sample) -> None:
        self._model = model
        self._pool = pool
        self._tensors = BatchTensors(capacity)
        self._sampler = Sampler(max_seats=capacity.max_seats, draw=draw)
        self._num_prompt_logprobs: dict[int, int] = {}

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Do one step; ``seconds`` of the result is left at 0. Whatever the model raises passes through.

        Seats and page tables follow the plan before anything can fail, so that later steps find them right.
        """
        for opened in plan.opened:
            self._tensors.open(opened.seat)
            self._sampler.open(opened)
            self._num_prompt_logprobs[opened.seat] = opened.sampling.num_prompt_logprobs or 0
        self._tensors.update_pages(plan.page_updates)
        self._pool.copy(plan.copies)
        result = StepResult(plan.step_id, [NO_TOKEN] * len(plan.seats), 0.0)
        if not plan.seats:
            return result
        step = self._tensors.build(plan, self._sampler.last_tokens)
        hidden = self._model.forward(
            StepBatch(
                token_ids=step.token_ids,
                positions=step.positions,
                slots=step.slots,
                logits_rows=step.logits_rows,
                metadata=step.metadata,
                kv_layers=self._pool.layers,
            )
        )
        rows = step.sampled_rows
        if plan.prompt_targets:
            result.prompt_logprobs = self._score_prompts(plan, hidden[len(rows) :])
        if rows:
            self._sample(plan, rows, hidden[: len(rows)], result)
        return result

    def _sample(self, plan: StepPlan, rows: list[int], hidden: torch.Tensor, result: StepResult) -> None:
        suppressed = set(plan.suppress_stops)
        drawn = self._sampler.sample(
            self._model.logits(hidden), [plan.seats[row] for row in rows], [row in suppressed for row in rows]
        )
        for row, token in zip(rows, drawn.token_ids, strict=True):
            result.token_ids[row] = token
        result.unusable_rows = [rows[i] for i in drawn.unusable]
        result.logprobs = {rows[i]: found for i, found in drawn.logprobs.items()}

    def _score_prompts(self, plan: StepPlan, hidden: torch.Tensor) -> dict[int, tuple[TokenLogprobs, ...]]:
        """Return the log-probabilities of ``plan.prompt_targets``, whose hidden states lie row after row."""
        targets = [t for row_targets in plan.prompt_targets.values() for t in row_targets]
        num_top = [
            self._num_prompt_logprobs[plan.seats[row]]
            for row, row_targets in plan.prompt_targets.items()
            for _ in row_targets
        ]
        scored: list[TokenLogprobs] = []
        for begin in range(0, len(targets), _SCORED_ROWS):
            part = slice(begin, begin + _SCORED_ROWS)
            logits = self._model.logits(hidden[part])
            scored += token_logprobs(logits, torch.tensor(targets[part]), num_top[part])
        remaining = iter(scored)
        return {row: tuple(islice(remaining, len(row_targets))) for row, row_targets in plan.prompt_targets.items()}

"""Steps of a model without a server: what `sapwood serve` would build for the same options, and plans for it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sapwood_contract.launch import parse
from sapwood_engine.checkpoint.source import open_checkpoint, open_tensors, read_spec
from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.config import engine_config
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.request import SamplingParams
from sapwood_engine.core.step import PENDING_TOKEN, PageUpdate, SeatOpened, StepPlan
from sapwood_engine.kernels.cpu_features import detect_cpu_features
from sapwood_engine.models.load import load_model
from sapwood_engine.runtime.computation import build_computation
from sapwood_engine.runtime.kv_pool import KvPool
from sapwood_engine.runtime.model_runner import Model, ModelRunner
from sapwood_engine.runtime.sampler import Draw
from sapwood_engine.runtime.start import make_draw
from sapwood_engine.runtime.threads import default_num_threads

KERNEL_CACHE = Path.home() / ".cache" / "sapwood" / "kernels"
GREEDY = SamplingParams(seed=0, temperature=0.0)
_TOKEN = 7
"""Any: what a token is does not change what it costs."""
_step_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with its pages, ready to run."""

    model: Model
    draw: Draw
    pool: KvPool
    capacity: Capacity
    spec: ModelSpec
    num_threads: int
    torch_threads: int
    compiles: bool

    def runner(self) -> ModelRunner:
        """Return what runs plans on the calling thread."""
        return ModelRunner(self.model, self.pool, self.capacity, draw=self.draw)


def load(arguments: Sequence[str], *, num_seats: int, kv_tokens: int, max_context_tokens: int) -> Loaded:
    """Load the model that the options of ``sapwood serve`` in ``arguments`` name, with pages for ``kv_tokens``.

    The calling thread is left with one torch thread. Raises what `runtime.start.build_executor` does.
    """
    torch.set_num_threads(1)
    options = parse(arguments, prog="bench")
    config, checkpoint = engine_config(options), open_checkpoint(options.model)
    spec, tensors = read_spec(checkpoint), open_tensors(checkpoint)
    num_threads = config.model.threads or default_num_threads()
    computation = build_computation(
        config,
        spec,
        tensors,
        detect_cpu_features(),
        load=lambda dtype: load_model(spec, tensors, where=checkpoint.name, dtype=dtype),
        num_threads=num_threads,
        kernel_cache=KERNEL_CACHE,
    )
    page_size, num_pages = options.page_size, -(-kv_tokens // options.page_size)
    pool = KvPool(
        num_layers=spec.num_layers,
        num_pages=num_pages,
        page_size=page_size,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=computation.kv_dtype,
    )
    max_step_tokens = config.scheduler.max_step_tokens
    capacity = Capacity(num_pages, page_size, max_context_tokens, num_seats, max_step_tokens, spec.vocab_size)
    draw = make_draw(spec.vocab_size, compiled=computation.compiles, num_threads=num_threads)
    return Loaded(
        model=computation.model,
        draw=draw,
        pool=pool,
        capacity=capacity,
        spec=spec,
        num_threads=num_threads,
        torch_threads=computation.torch_threads,
        compiles=computation.compiles,
    )


def keep_kernels(loaded: Loaded) -> None:
    """Let the next start find what was compiled; to be called once everything has run."""
    if loaded.compiles:
        # numba is imported, by `load`, only where it is used.
        from sapwood_engine.kernels.compiled import seal_cache  # noqa: PLC0415

        seal_cache()


def fill_pages(pool: KvPool) -> None:
    """Write a random page to all pages: of memory never written the system would show one and the same page, in cache.

    So contexts of any length can be read without being computed first.
    """
    generator = torch.Generator().manual_seed(0)
    for tensor in itertools.chain.from_iterable(pool.layers):
        tensor.copy_(torch.randn(tensor.shape[1:], generator=generator))


def shuffled_pages(capacity: Capacity) -> list[int]:
    """Return all pages in an order that no hardware foresees, as in an engine that has run for a while."""
    return random.Random(0).sample(range(capacity.num_pages), capacity.num_pages)


def opening(seat: int, pages: Sequence[int], sampling: SamplingParams = GREEDY, prompt: Sequence[int] = ()) -> StepPlan:
    """Give ``seat`` its pages, and compute ``prompt`` where there is one."""
    seats, sampled = ([seat], [True]) if prompt else ([], [])
    lengths = [len(prompt)] if prompt else []
    plan = StepPlan(next(_step_ids), "prefill", seats, [0] * len(seats), lengths, list(prompt), sampled)
    plan.opened = [SeatOpened(seat, sampling, (), tuple(prompt), ())]
    plan.page_updates = [PageUpdate(seat, 0, tuple(pages))]
    return plan


def decode(num_seats: int, position: int, *, pending: bool = False) -> StepPlan:
    """One token at ``position`` for each of the first seats; ``pending``: the one that the step before sampled."""
    ids = [PENDING_TOKEN if pending else _TOKEN] * num_seats
    seats, starts = list(range(num_seats)), [position] * num_seats
    return StepPlan(next(_step_ids), "decode", seats, starts, [1] * num_seats, ids, [True] * num_seats)


def prefill(num_tokens: int) -> StepPlan:
    """A new prompt's first chunk, in seat 0."""
    return StepPlan(next(_step_ids), "prefill", [0], [0], [num_tokens], [_TOKEN] * num_tokens, [True])

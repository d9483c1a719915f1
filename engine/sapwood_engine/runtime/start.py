"""From settings and a checkpoint to an executor that has run its first step: everything heavy about starting."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sapwood_engine.checkpoint.source import Checkpoint, open_tensors, read_spec
from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.config import EngineConfig
from sapwood_engine.core.ports import Capacity, Executor
from sapwood_engine.core.request import SamplingParams
from sapwood_engine.core.step import PageUpdate, SeatOpened, StepPlan
from sapwood_engine.kernels.arithmetic import choose_dtype
from sapwood_engine.kernels.attention.select import select
from sapwood_engine.kernels.cpu_features import CpuFeatures, detect_cpu_features
from sapwood_engine.models.decoder import Decoder
from sapwood_engine.models.load import load_model
from sapwood_engine.runtime.executor import TorchExecutor
from sapwood_engine.runtime.kv_pool import KvPool
from sapwood_engine.runtime.memory_plan import MemoryPlan, plan_memory, read_free_bytes
from sapwood_engine.runtime.model_runner import ModelRunner
from sapwood_engine.runtime.threads import default_num_threads

Progress = Callable[[str, str, float | None], None]
"""Phase, detail, fraction done where known."""


@dataclass(frozen=True, slots=True)
class Started:
    """A running executor and what a person wants to know about it."""

    executor: Executor
    spec: ModelSpec
    facts: dict[str, str]
    """Lines of the ready card, in order"""
    seconds: dict[str, float]
    """How long each phase took"""


def build_executor(config: EngineConfig, checkpoint: Checkpoint, *, kernel_cache: Path, progress: Progress) -> Started:
    """Load ``checkpoint``, make the KV pool, compile and run a first step.

    ``kernel_cache`` is the folder for compiled kernels. Leaves the calling thread with one torch thread. Raises
    `ConfigError` and `CheckpointError`.
    """
    features = detect_cpu_features()
    spec = read_spec(checkpoint)
    arithmetic = choose_dtype(config.model.dtype, features)
    num_threads = config.model.threads or default_num_threads()
    attention = select(
        config.model.attention_backend,
        features,
        head_dim=spec.head_dim,
        num_threads=num_threads,
        cache_folder=kernel_cache,
    )
    # This thread computes nothing once loading is done; threads of its own would only be counted by OpenMP, which
    # puts threads to sleep sooner where there are more than processors. The executor's thread sets its own number.
    torch.set_num_threads(1)
    backend = attention.make()
    clock = _Clock()

    progress("weights", f"loading {checkpoint.name}", 0.0)
    model = load_model(
        spec,
        open_tensors(checkpoint),
        where=str(checkpoint.weights[0]),
        dtype=arithmetic.dtype,
        context_length=config.model.context_length,
        progress=lambda done, total: progress("weights", f"loading {checkpoint.name}", done / total),
    )
    model = quicken(model, features, compiled=attention.name == "cpu", num_threads=num_threads)
    clock.lap("weights")

    kv_dtype, kv_reason = choose_kv_dtype(arithmetic.dtype, config, features)
    memory = plan_memory(
        spec,
        config.cache,
        context_length=config.model.context_length,
        element_bytes=kv_dtype.itemsize,
        free_bytes=read_free_bytes(),
    )
    capacity = Capacity(
        num_pages=memory.num_pages,
        page_size=memory.page_size,
        max_context_tokens=memory.max_context_tokens,
        max_seats=config.scheduler.max_running,
        max_step_tokens=config.scheduler.max_step_tokens,
        vocab_size=spec.vocab_size,
    )

    progress("kernels", f"compiling attention ({attention.name})", None)
    pool = make_pool(spec, memory, kv_dtype)
    runner = ModelRunner(model, pool, backend, capacity)
    executor = TorchExecutor(capacity, runner.run, num_threads=num_threads, release=pool.release)
    warm_up(executor)
    clock.lap("kernels")
    progress("warm", "running a first step", None)
    warm_up(executor)
    clock.lap("warm")

    facts = {
        "arithmetic": f"{_name(arithmetic.dtype)} ({arithmetic.reason})",
        "attention": f"{attention.name} ({attention.reason})",
        "instruction set": features.instruction_set,
        "threads": str(num_threads),
        "KV cache": f"{memory.num_tokens} tokens in {_name(kv_dtype)} ({kv_reason})",
        "context": f"{memory.max_context_tokens} tokens",
    }
    return Started(executor, spec, facts, clock.seconds)


def choose_kv_dtype(arithmetic: torch.dtype, config: EngineConfig, features: CpuFeatures) -> tuple[torch.dtype, str]:
    """Return the dtype of the KV pool, with the reason.

    It is the arithmetic's own, so that ``--dtype=float32`` is float32 throughout. Only where float32 was chosen for
    lack of bfloat16 products, keys and values are kept as float16: half the memory and traffic, and eight times finer
    than bfloat16.
    """
    if config.model.dtype == "auto" and arithmetic == torch.float32 and features.avx2:
        return torch.float16, "half the memory of float32"
    return arithmetic, "as the arithmetic"


def quicken(model: Decoder, features: CpuFeatures, *, compiled: bool, num_threads: int) -> Decoder:
    """Return ``model`` with the products that are fastest here; ``compiled`` says whether numba's run here.

    oneDNN's packed products gain only where the processor multiplies bfloat16 itself. Logits are float32 sums over
    16-bit weights, which torch does not offer.
    """
    dtype = model.head.weight.dtype
    if dtype == torch.bfloat16 and features.native_bf16:
        model.pack()
    if not compiled or dtype == torch.float32:
        return model
    # Imported now and not above: the folder for compiled kernels had to be set first.
    from sapwood_engine.kernels.products import multiply_rows  # noqa: PLC0415

    product = functools.partial(multiply_rows, num_threads=num_threads)
    return dataclasses.replace(model, head=dataclasses.replace(model.head, product=product))


def make_pool(spec: ModelSpec, memory: MemoryPlan, dtype: torch.dtype) -> KvPool:
    """Allocate the pages that ``memory`` plans."""
    return KvPool(
        num_layers=spec.num_layers,
        num_pages=memory.num_pages,
        page_size=memory.page_size,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=dtype,
    )


def warm_up(executor: Executor) -> None:
    """Run a short prompt and a decode step on the executor's own thread.

    The first time compiles kernels, makes the thread pools and fills oneDNN's caches, so that no request waits for
    it; the second time shows how long a step takes from then on.
    """
    capacity = executor.capacity
    length = min(32, capacity.max_step_tokens, capacity.max_context_tokens - 1)
    opened = SeatOpened(0, SamplingParams(seed=0, temperature=0.0), (), (0,) * length, ())
    pages = tuple(range(length // capacity.page_size + 1))
    plans = [
        StepPlan(0, "prefill", [0], [0], [length], [0] * length, [True], [opened], [PageUpdate(0, 0, pages)]),
        StepPlan(1, "decode", [0], [length], [1], [0], [True]),
    ]
    for plan in plans:
        executor.launch(plan)
        executor.collect()


class _Clock:
    """Times phases that follow each other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

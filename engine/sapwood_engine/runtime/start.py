"""From settings and a checkpoint to an executor that has run its first step: everything heavy about starting."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import torch

from sapwood_engine.checkpoint.source import Checkpoint, open_tensors, read_spec
from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.config import EngineConfig
from sapwood_engine.core.ports import Capacity, Executor
from sapwood_engine.core.request import SamplingParams
from sapwood_engine.core.step import PageUpdate, SeatOpened, StepPlan
from sapwood_engine.kernels import sampling
from sapwood_engine.kernels.cpu_features import detect_cpu_features
from sapwood_engine.models.decoder import Decoder
from sapwood_engine.models.load import load_model
from sapwood_engine.runtime.computation import build_computation
from sapwood_engine.runtime.executor import TorchExecutor
from sapwood_engine.runtime.kv_pool import KvPool
from sapwood_engine.runtime.memory_plan import MemoryPlan, plan_memory, read_free_bytes
from sapwood_engine.runtime.model_runner import ModelRunner
from sapwood_engine.runtime.sampler import Draw
from sapwood_engine.runtime.threads import default_num_threads

Progress = Callable[[str, str, float | None], None]
"""Phase, detail, fraction done where known."""


_COMPILE_SECONDS = 30.0
"""What compiling everything took (AVX512-BF16, 2 cores); reading it again takes well under a second."""
_PROGRESS_SECONDS = 1.0
_KV_HEADROOM = 8.0
"""How many times larger than in the first prompt keys and values may become later on."""


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
    num_threads = config.model.threads or default_num_threads()
    # This thread computes nothing once loading is done; threads of its own would only be counted by OpenMP, which
    # puts threads to sleep sooner where there are more than processors. The executor's thread sets its own number.
    torch.set_num_threads(1)
    clock = _Clock()

    progress("weights", f"loading {checkpoint.name}", 0.0)
    tensors = open_tensors(checkpoint)

    def load(dtype: torch.dtype) -> Decoder:
        return load_model(
            spec,
            tensors,
            where=str(checkpoint.weights[0]),
            dtype=dtype,
            context_length=config.model.context_length,
            num_threads=num_threads,
            progress=lambda done, total: progress("weights", f"loading {checkpoint.name}", done / total),
        )

    computation = build_computation(
        config, spec, tensors, features, load=load, num_threads=num_threads, kernel_cache=kernel_cache
    )
    clock.lap("weights")

    memory = plan_memory(
        spec,
        config.cache,
        context_length=config.model.context_length,
        element_bytes=computation.kv_dtype.itemsize,
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

    draw = make_draw(spec.vocab_size, compiled=computation.compiles, num_threads=num_threads)

    def first_step(kv_dtype: torch.dtype) -> tuple[TorchExecutor, KvPool]:
        pool = make_pool(spec, memory, kv_dtype)
        runner = ModelRunner(computation.model, pool, capacity, draw=draw)
        executor = TorchExecutor(capacity, runner.run, num_threads=computation.torch_threads, release=pool.release)
        progress("kernels", "reading compiled kernels", None)
        _compile(executor, progress)
        return executor, pool

    kv_dtype, kv_reason = computation.kv_dtype, computation.kv_reason
    executor, pool = first_step(kv_dtype)
    may_widen = config.model.dtype == "auto" or computation.compiles
    if may_widen and too_large_for(kv_dtype, pool.largest(probe_length(capacity))):
        executor.close()
        kv_dtype, kv_reason = torch.bfloat16, "keys or values come near the end of float16"
        executor, pool = first_step(kv_dtype)
    clock.lap("kernels")
    progress("warm", "running a first step", None)
    warm_up(executor)
    clock.lap("warm")
    if computation.compiles:
        from sapwood_engine.kernels import compiled  # noqa: PLC0415  # as in `computation`

        compiled.seal_cache()

    facts = computation.facts | {
        "instruction set": features.instruction_set,
        "threads": computation.describe_threads(),
        "KV cache": f"{str(kv_dtype).removeprefix('torch.')} ({kv_reason})",
    }
    if spec.sliding_window == memory.max_context_tokens:
        facts["context"] = "the model's sliding window: more is not served yet"
    if computation.compiles and not keeps_kernels(kernel_cache):
        facts["kernels"] = f"compiled anew at every start, as {kernel_cache} cannot be written"
    return Started(executor, spec, facts, clock.seconds)


def _compile(executor: Executor, progress: Progress) -> None:
    """Run the first step, which compiles what was not compiled before, and say how that goes on."""
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        warming = pool.submit(warm_up, executor)
        while not wait([warming], timeout=_PROGRESS_SECONDS).done:
            took = time.monotonic() - begin
            progress(
                "kernels",
                f"compiling for this processor, once: about {_COMPILE_SECONDS:.0f} s",
                min(took / _COMPILE_SECONDS, 0.99),
            )
        warming.result()


def keeps_kernels(kernel_cache: Path) -> bool:
    """Whether what is compiled lies below ``kernel_cache``, and not in a temporary folder in its stead."""
    from sapwood_engine.kernels import compiled  # noqa: PLC0415  # as in `computation`

    return Path(compiled.config.CACHE_DIR).is_relative_to(kernel_cache)


def make_draw(vocab_size: int, *, compiled: bool, num_threads: int) -> Draw:
    """Return how tokens are drawn; ``compiled`` says whether numba's kernels run here."""
    if not compiled:
        return sampling.sample
    from sapwood_engine.kernels.cpu_sampling import CpuSampler  # noqa: PLC0415  # as in `computation`

    return CpuSampler(vocab_size, num_threads=num_threads)


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
    length = probe_length(capacity)
    ids = [i * capacity.vocab_size // length for i in range(length)]
    opened = SeatOpened(0, SamplingParams(seed=0, temperature=0.0), (), tuple(ids), ())
    pages = tuple(range(length // capacity.page_size + 1))
    plans = [
        StepPlan(0, "prefill", [0], [0], [length], ids, [True], [opened], [PageUpdate(0, 0, pages)]),
        StepPlan(1, "decode", [0], [length], [1], [0], [True]),
    ]
    for plan in plans:
        executor.launch(plan)
        executor.collect()


def probe_length(capacity: Capacity) -> int:
    """Tokens of the first prompt: from all over the vocabulary, so that its keys and values are typical."""
    return min(32, capacity.max_step_tokens, capacity.max_context_tokens - 1)


def too_large_for(kv_dtype: torch.dtype, largest: float) -> bool:
    """Whether a model whose first keys and values reach ``largest`` may go beyond ``kv_dtype``."""
    return kv_dtype == torch.float16 and not largest < torch.finfo(torch.float16).max / _KV_HEADROOM


class _Clock:
    """Times phases that follow each other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now

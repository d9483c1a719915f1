"""Which way a model is computed on this machine, why, and the making of it: the compiled step, or torch's operators."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.checkpoint.tensors import TensorSource
from sapwood_engine.config import EngineConfig
from sapwood_engine.errors import ConfigError
from sapwood_engine.kernels.arithmetic import choose_dtype
from sapwood_engine.kernels.attention.select import select
from sapwood_engine.kernels.cpu_features import CpuFeatures
from sapwood_engine.models.decoder import ComposedModel, Decoder
from sapwood_engine.runtime.model_runner import Model

LoadDecoder = Callable[[torch.dtype], Decoder]
"""Loads the checkpoint with weights of a dtype."""


@dataclass(frozen=True, slots=True)
class Computation:
    """A model ready to compute."""

    model: Model
    kv_dtype: torch.dtype
    kv_reason: str
    compiles: bool
    """Whether compiled kernels are part of it"""
    torch_threads: int
    """For what torch's operators do"""
    describe_threads: Callable[[], str]
    """What the ready card says of the threads, once a step has run"""
    facts: dict[str, str]
    """Lines of the ready card"""


def build_computation(
    config: EngineConfig,
    spec: ModelSpec,
    tensors: TensorSource,
    features: CpuFeatures,
    *,
    load: LoadDecoder,
    num_threads: int,
    kernel_cache: Path,
) -> Computation:
    """Choose, load and prepare; `ConfigError` where what is asked for cannot be had here."""
    dtype = step_dtype(config, tensors)
    hindrance = told_otherwise(config, features) or _beyond_the_table(spec, dtype, kernel_cache)
    if hindrance is None:
        return _compiled(config, spec, features, dtype, load=load, num_threads=num_threads)
    if config.model.quantization != "none":
        fix = f"only the compiled step has it, which cannot run here ({hindrance}): leave the option out"
        raise ConfigError("--quantization", config.model.quantization, fix)
    if config.model.cpu_step == "on":
        raise ConfigError("--cpu-step", "on", f"it cannot run here ({hindrance}): take auto")
    return _composed(config, spec, features, hindrance, load=load, num_threads=num_threads, kernel_cache=kernel_cache)


def step_dtype(config: EngineConfig, tensors: TensorSource) -> torch.dtype:
    """Return the dtype of the compiled step's weights: what was asked for, or the checkpoint's own 16 bits."""
    if config.model.dtype != "auto":
        return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[config.model.dtype]
    matrices = {tensor.dtype for tensor in tensors.values() if len(tensor.shape) > 1}
    return torch.float16 if matrices == {"F16"} else torch.bfloat16


def told_otherwise(config: EngineConfig, features: CpuFeatures) -> str | None:
    """Return why options or processor exclude the compiled step, whatever the model, or None."""
    if config.model.cpu_step == "off":
        return "--cpu-step=off"
    if config.model.attention_backend != "auto":
        return f"--attention-backend={config.model.attention_backend}"
    if not features.avx2 and features.architecture != "arm64":
        return f"it needs AVX2 with FMA and F16C, or NEON; this processor is {features.instruction_set}"
    return None


def _beyond_the_table(spec: ModelSpec, dtype: torch.dtype, kernel_cache: Path) -> str | None:
    """Import the kernels, which are kept below ``kernel_cache``; return what they do not compute of ``spec``."""
    # numba takes two seconds to import, and looks at its settings when the kernels are imported.
    from sapwood_engine.kernels import compiled as kernels  # noqa: PLC0415

    kernels.use_cache(kernel_cache)
    from sapwood_engine.models import compiled  # noqa: PLC0415

    return compiled.hindrance(spec, dtype)


def _compiled(
    config: EngineConfig,
    spec: ModelSpec,
    features: CpuFeatures,
    dtype: torch.dtype,
    *,
    load: LoadDecoder,
    num_threads: int,
) -> Computation:
    from sapwood_engine.models.compiled import CompiledDecoder  # noqa: PLC0415  # as above

    int8 = config.model.quantization == "int8"
    model = CompiledDecoder(
        load(dtype),
        spec,
        max_rows=config.scheduler.max_step_tokens,
        max_logits=config.scheduler.max_running,
        num_threads=num_threads,
        bind_threads=config.model.thread_binding == "auto",
        int8=int8,
    )
    weights = "int8 weights (quantised at load)" if int8 else f"{_name(dtype)} weights"
    in_pairs = model.activations == torch.bfloat16
    return Computation(
        model=model,
        kv_dtype=torch.bfloat16 if in_pairs else torch.float16,
        kv_reason="as the products" if in_pairs else "half the memory of float32, and finer than bfloat16",
        compiles=True,
        torch_threads=1,  # threads of its own would only get in the way of the step's
        describe_threads=lambda: (
            f"{model.num_threads}" if model.num_threads == num_threads else f"{model.num_threads} of {num_threads}"
        ),
        facts={
            "step": f"compiled for {features.instruction_set}",
            "arithmetic": f"{weights}, products of {_name(model.activations)} summed in float32",
        },
    )


def _composed(
    config: EngineConfig,
    spec: ModelSpec,
    features: CpuFeatures,
    hindrance: str,
    *,
    load: LoadDecoder,
    num_threads: int,
    kernel_cache: Path,
) -> Computation:
    arithmetic = choose_dtype(config.model.dtype, features)
    attention = select(
        config.model.attention_backend,
        features,
        head_dim=spec.head_dim,
        num_threads=num_threads,
        cache_folder=kernel_cache,
    )
    backend = attention.make()
    decoder = quicken(load(arithmetic.dtype), features, compiled=attention.name == "cpu", num_threads=num_threads)
    kv_dtype, kv_reason = choose_kv_dtype(arithmetic.dtype, config, features)
    return Computation(
        model=ComposedModel(decoder, backend),
        kv_dtype=kv_dtype,
        kv_reason=kv_reason,
        compiles=attention.name == "cpu",
        torch_threads=num_threads,
        describe_threads=lambda: str(num_threads),
        facts={
            "step": f"torch operators (not compiled: {hindrance})",
            "arithmetic": f"{_name(arithmetic.dtype)} ({arithmetic.reason})",
            "attention": f"{attention.name} ({attention.reason})",
        },
    )


def choose_kv_dtype(arithmetic: torch.dtype, config: EngineConfig, features: CpuFeatures) -> tuple[torch.dtype, str]:
    """Return the dtype of the KV pool of a composed model, with the reason.

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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

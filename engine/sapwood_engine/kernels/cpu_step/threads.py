"""How the threads of a step wait for each other: atomic counters in memory that they share.

A step is one parallel region; its phases end at barriers. A barrier spins, because the next phase is microseconds away,
and lets others run when it takes longer, because then a thread it waits for has lost its core.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # publishes no types
from numba import njit, types

from sapwood_engine.kernels import simd
from sapwood_engine.kernels.compiled import EXACT_INNER
from sapwood_engine.kernels.cpu_features import detect_cpu_features
from sapwood_engine.kernels.simd import I32, I64, cgutils, intrinsic

SPINS = 4000
"""Rounds of a barrier before it gives its core to others: about 50 µs."""

_ARCHITECTURE = detect_cpu_features().architecture


@intrinsic
def add_atomically(typing_context, counter, value):  # type: ignore[no-untyped-def]
    """Add to the int64 at address ``counter`` and return what it was; what was written before is seen by all."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter, value = arguments
        return builder.atomic_rmw("add", simd.pointer(builder, counter, 0, I64), value, "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def load_atomically(typing_context, counter):  # type: ignore[no-untyped-def]
    """Return the int64 at address ``counter``; what its writer wrote before is seen from here on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(simd.pointer(builder, arguments[0], 0, I64), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _relax(typing_context):  # type: ignore[no-untyped-def]
    """Tell the core that this is a waiting loop, where it has an instruction for that."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _ARCHITECTURE == "x86_64":
            signature = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _give_way(typing_context):  # type: ignore[no-untyped-def]
    """Let another thread have the core (``sched_yield``)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(I32, []), "sched_yield")
        return builder.call(function, [])

    return types.int32(), generate


@njit(**EXACT_INNER)
def wait_for(counter, target):  # type: ignore[no-untyped-def]
    """Add 1 to ``counter``, then wait until it is at least ``target``."""
    add_atomically(counter, 1)
    spins = 0
    while load_atomically(counter) < target:
        _relax()
        spins += 1
        if spins > SPINS:
            _give_way()

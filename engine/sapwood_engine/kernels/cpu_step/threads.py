"""How the threads of a step wait for each other: atomic counters in memory that they share.

A step is one parallel region; its phases end at barriers. A barrier spins, because the next phase is microseconds away.
When it takes longer, a thread it waits for has lost its core to another program, and then it sleeps: on the core that
becomes free that thread, or the other program, can go on at once. Yielding in a loop instead leaves a thread that was
put aside waiting for its next slice: one stream took 31 to 47 ms a token with it, and 12 ms with sleeping (2 cores).
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # publishes no types
from numba import njit, prange, types

from sapwood_engine.kernels import simd
from sapwood_engine.kernels.compiled import EXACT_INNER, EXACT_OPTIONS, use_threads
from sapwood_engine.kernels.cpu_features import detect_cpu_features
from sapwood_engine.kernels.simd import I32, I64, cgutils, const, intrinsic

SPINS = 4000
"""Rounds of a barrier before it sleeps: about 80 µs."""
SLEEPERS, SLEPT = 8, 16
"""Bytes from a barrier's counter to how many sleep at it now, and to the nanoseconds that all have slept."""
_PATIENCE_NANOSECONDS = 10**9
"""How long threads that should be together wait for the last: on a busy machine it may take a while to come."""
_MONOTONIC = 6 if platform.system() == "Darwin" else 1
"""The clock's number in ``clock_gettime``."""

_FUTEX_CALLS = {"x86_64": 202, "arm64": 98}
"""Number of Linux's system call ``futex``."""
_WAIT, _WAKE, _EVERYBODY = 128, 129, 2**31 - 1
"""Its operations, within one process."""
_ARCHITECTURE = detect_cpu_features().architecture
_FUTEX = _FUTEX_CALLS.get(_ARCHITECTURE, 0) if platform.system() == "Linux" else 0
"""0: there is none, and threads that wait long yield."""


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
        return builder.load_atomic(simd.pointer(builder, arguments[0], 0, I64), "seq_cst", 8)

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
def _sleep(typing_context, counter, value):  # type: ignore[no-untyped-def]
    """Sleep until woken, unless the lower half of the int64 at address ``counter`` is not ``value``'s any more."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter, value = arguments
        if _FUTEX:
            _call_futex(builder, counter, _WAIT, builder.and_(value, const(0xFFFFFFFF)))
        else:
            function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(I32, []), "sched_yield")
            builder.call(function, [])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _wake(typing_context, counter):  # type: ignore[no-untyped-def]
    """Wake all that sleep at address ``counter``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _FUTEX:
            _call_futex(builder, arguments[0], _WAKE, const(_EVERYBODY))
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _call_futex(builder: Any, counter: Any, operation: int, value: Any) -> None:
    signature = ir.FunctionType(I64, [I64], var_arg=True)
    function = cgutils.get_or_insert_function(builder.module, signature, "syscall")
    builder.call(function, [const(_FUTEX), counter, const(operation), value, const(0)])


@intrinsic
def _nanoseconds(typing_context):  # type: ignore[no-untyped-def]
    """A clock that only goes forward."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        moment = ir.LiteralStructType([I64, I64])
        place = cgutils.alloca_once(builder, moment)
        type_ = ir.FunctionType(I32, [I32, moment.as_pointer()])
        function = cgutils.get_or_insert_function(builder.module, type_, "clock_gettime")
        builder.call(function, [ir.Constant(I32, _MONOTONIC), place])
        seconds, rest = (builder.extract_value(builder.load(place), i) for i in (0, 1))
        return builder.add(builder.mul(seconds, const(10**9)), rest)

    return types.int64(), generate


@intrinsic
def _set_affinity(typing_context, mask, size):  # type: ignore[no-untyped-def]
    """Bind the calling thread to the processors of the ``size`` bytes at address ``mask``; 0 where that worked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        mask, size = arguments
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(I32, [I32, I64, I64]), "sched_setaffinity"
        )
        return builder.call(function, [ir.Constant(I32, 0), size, mask])

    return types.int32(types.int64, types.int64), generate


@njit(parallel=True, **EXACT_OPTIONS)
def _bind(masks):  # type: ignore[no-untyped-def]
    """Bind thread ``t`` of the pool to the processors of ``masks[t]``, uint8 [num_threads, size]."""
    for t in prange(masks.shape[0]):
        _set_affinity(np.int64(masks[t].ctypes.data), masks.shape[1])


def bind_threads(processors: Sequence[Collection[int]]) -> None:
    """Let thread ``t`` of the calling thread's pool run on ``processors[t]``; the calling thread is the first.

    A binding that the system refuses, as after a change of the processors allowed, leaves the thread where it was.
    """
    size = max(map(max, processors)) // 64 * 8 + 8
    masks = np.zeros((len(processors), size), np.uint8)
    for mask, allowed in zip(masks, processors, strict=True):
        for processor in allowed:
            mask[processor // 8] |= 1 << processor % 8
    _bind(masks)


@njit(**EXACT_INNER)
def _meet(counter, num_threads, patience):  # type: ignore[no-untyped-def]
    """Be inside until ``num_threads`` are at the same time, which the int64 behind ``counter`` then says, or
    ``patience`` nanoseconds are over.
    """
    begin = _nanoseconds()
    if add_atomically(counter, 1) + 1 == num_threads:
        add_atomically(counter + 8, 1)
    while load_atomically(counter + 8) == 0 and _nanoseconds() - begin < patience:
        _relax()
    add_atomically(counter, -1)


@njit(parallel=True, **EXACT_OPTIONS)
def _gather(counters, num_threads, patience):  # type: ignore[no-untyped-def]
    for _ in prange(num_threads):
        _meet(np.int64(counters.ctypes.data), num_threads, patience)


def count_together(most: int) -> int:
    """Return how many threads of the calling thread's pool, up to ``most``, are really had at the same time.

    A barrier needs all of them, and the pool may give fewer than it was asked for (``OMP_THREAD_LIMIT``).
    """
    for count in range(most, 1, -1):
        counters = np.zeros(2, np.int64)
        _gather(counters, use_threads(count), _PATIENCE_NANOSECONDS)
        if counters[1]:
            return count
    return 1


@njit(**EXACT_INNER)
def wait_for(counter, target):  # type: ignore[no-untyped-def]
    """Add 1 to the barrier at address ``counter``, then wait until it is at least ``target``.

    A barrier is three int64: the count, how many sleep, and the nanoseconds slept. Who comes last wakes them; who goes
    to sleep says so first, and the system looks at the count once more, so nobody sleeps for good.
    """
    if add_atomically(counter, 1) + 1 >= target:
        if load_atomically(counter + SLEEPERS) > 0:
            _wake(counter)
        return
    spins = 0
    while True:
        seen = load_atomically(counter)
        if seen >= target:
            return
        _relax()
        spins += 1
        if spins > SPINS:
            begin = _nanoseconds()
            add_atomically(counter + SLEEPERS, 1)
            seen = load_atomically(counter)
            if seen < target:
                _sleep(counter, seen)
            add_atomically(counter + SLEEPERS, -1)
            add_atomically(counter + SLEPT, _nanoseconds() - begin)

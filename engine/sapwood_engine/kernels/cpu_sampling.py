"""`kernels.sampling.sample` compiled for CPUs: the same definition, without sorting a vocabulary.

Weights are integers, the best token's 2^44: sums of integers are the same in any order, so that they are taken in
whatever order is quickest, and what is kept is exact, equals included. The least weight that top-k or top-p keeps is
found by bisection: first over powers of 16, then among the few tokens beyond the power that was found.

::

    weight       0                2^32        2^36   floor      2^40              2^44
    a token      | ||||| || |||  |   |  |    |  |     |  | |    |    |             |
                                             [ candidates, in ascending order of id ]
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit, prange

from sapwood_engine.kernels.compiled import EXACT_INNER, EXACT_OPTIONS, threads_in_use, use_threads
from sapwood_engine.kernels.sampling import Doubles, Flags, Ids, Truncation

_ONE_BITS = 44
_ONE = 1 << _ONE_BITS
"""The weight of a row's best token. A token that is 2^44 times less likely has none."""
_MOST_IDS = 1 << (63 - _ONE_BITS)
"""The sum of so many weights may not fit into an int64."""
_COARSE_BITS = 4
_FRACTION_BITS = 30
_FRACTION = np.float32(1 << _FRACTION_BITS)
_STRETCH = 256
"""Tokens that are looked at together before any is looked at alone."""
_MAGNITUDE, _INFINITY = 0x7FFF_FFFF, 0x7F80_0000
"""Of a float32's bits: all but the sign, and those of infinity."""
_LEAST_EXPONENT = np.float32(-60.0)
_MOST_FACTOR = 1e30
"""Of differences between logits: infinity times a difference of 0 would be no number."""
_HALF, _LOG2_E = np.float32(0.5), 1.0 / math.log(2.0)
# 2 ** r on [-0.5, 0.5]: ln(2)^k / k!, as in `kernels.simd`.
_C1, _C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(math.log(2.0) ** k / math.factorial(k)) for k in range(1, 8))
_C0 = np.float32(1.0)


class CpuSampler:
    """Draws tokens with memory of its own, made once; called from one thread at a time.

    On the threads that the step before it ran on, and on no more than there are rows: one that another program has put
    aside would be waited for.
    """

    def __init__(self, vocab_size: int, *, num_threads: int) -> None:
        """``num_threads``: the most."""
        assert vocab_size < _MOST_IDS, f"the weights of {vocab_size} ids may not fit into 64 bits"
        self._num_threads = num_threads
        self._weights = np.zeros((num_threads, vocab_size), np.int64)
        self._ids = np.zeros((num_threads, vocab_size), np.int32)

    def __call__(self, logits: torch.Tensor, truncation: Truncation, uniforms: Doubles) -> tuple[Ids, Flags]:
        """See `kernels.sampling.sample`; ``logits`` float32 whose rows lie in one piece each."""
        num_rows, vocab_size = logits.shape
        assert vocab_size == self._weights.shape[1], f"{vocab_size} logits a row, not {self._weights.shape[1]}"
        ids, usable = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.bool_)
        if num_rows:
            stride, one = logits.stride()
            assert one == 1 or vocab_size == 1, f"the logits of a row lie {one} apart"
            # As one row: compiled loops use whole registers where the step from element to element is known.
            flat = logits.as_strided(((num_rows - 1) * stride + vocab_size,), (1,)).numpy()
            columns = (truncation.temperature, truncation.top_k, truncation.top_p, truncation.min_p, uniforms)
            scratch = (self._weights, self._ids)
            num_threads = use_threads(min(self._num_threads, threads_in_use(), num_rows))
            _sample(flat, flat.view(np.int32), stride, columns, scratch, ids, usable, num_threads)
        return ids, usable


@njit(parallel=True, **EXACT_OPTIONS)
def _sample(logits, bits, stride, columns, scratch, drawn, usable, num_threads):  # type: ignore[no-untyped-def]
    """Fill ``drawn`` and ``usable``, [num_rows]; thread t does rows t, t + num_threads, … in its row of the scratch."""
    temperature, top_k, top_p, min_p, uniforms = columns
    weights, ids = scratch
    num_rows, vocab_size = len(drawn), weights.shape[1]
    for t in prange(num_threads):
        for row in range(t, num_rows, num_threads):
            mine = logits[row * stride : row * stride + vocab_size]
            best, usable[row] = _best(bits[row * stride : row * stride + vocab_size])
            drawn[row] = best
            if usable[row] and temperature[row] > 0:
                factor = np.float32(min(_LOG2_E / temperature[row], _MOST_FACTOR))
                _weigh(mine, mine[best], factor, weights[t])
                drawn[row] = _draw(weights[t], ids[t], top_k[row], top_p[row], min_p[row], uniforms[row])


@njit(**EXACT_INNER)
def _best(bits):  # type: ignore[no-untyped-def]
    """The first id of the largest logit, and whether a token can be drawn, from the ``bits`` of float32 logits."""
    most, least, begin_of_most = -_MAGNITUDE, _MAGNITUDE, 0
    for begin in range(0, len(bits), _STRETCH):
        low, high = _extremes(bits[begin : begin + _STRETCH])
        least = min(least, low)
        if high > most:
            most, begin_of_most = high, begin
    best = begin_of_most
    while best < len(bits) - 1 and _order(bits[best]) != most:
        best += 1
    return best, least >= -_INFINITY and -_INFINITY < most < _INFINITY


@njit(**EXACT_INNER)
def _extremes(bits):  # type: ignore[no-untyped-def]
    least, most = _MAGNITUDE, -_MAGNITUDE
    for i in range(len(bits)):
        order = _order(bits[i])
        least, most = min(least, order), max(most, order)
    return least, most


@njit(**EXACT_INNER)
def _order(bits):  # type: ignore[no-untyped-def]
    """An integer for the bits of a float32: as the numbers are ordered, 0 for both zeros, NaN beyond the infinities.

    Unlike numbers, of which some may be NaN, LLVM compares integers in whole registers.
    """
    sign = bits >> 31
    return ((bits & _MAGNITUDE) ^ sign) - sign


@njit(**EXACT_INNER)
def _weigh(row, best, factor, weights):  # type: ignore[no-untyped-def]
    """weights = 2^44 · 2^((row - best) · factor), rounded down; the polynomial's error is 1e-7 of it."""
    for i in range(len(row)):
        exponent = (row[i] - best) * factor
        exponent = exponent if exponent > _LEAST_EXPONENT else _LEAST_EXPONENT
        whole = np.int32(exponent - _HALF)
        r = exponent - np.float32(whole)
        power = ((((((_C7 * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2) * r + _C1) * r + _C0
        weights[i] = (np.int64(np.int32(power * _FRACTION)) << (_ONE_BITS - _FRACTION_BITS)) >> np.int64(-whole)


@njit(**EXACT_INNER)
def _measure(weights, floor):  # type: ignore[no-untyped-def]
    """How many weights are at least ``floor``, and their sum."""
    count, mass = 0, 0
    for i in range(len(weights)):
        count += weights[i] >= floor
        mass += weights[i] if weights[i] >= floor else 0
    return count, mass


@njit(**EXACT_INNER)
def _candidates(weights, ids, k, mass):  # type: ignore[no-untyped-def]
    """Move the weights that can be among the k best, or the best that sum to ``mass``, to the front of ``weights``.

    Their ids go to ``ids``. Returns how many they are, and two bounds for `_floor`.
    """
    floor = _ONE
    while floor > 1:
        floor >>= _COARSE_BITS
        count, sum_ = _measure(weights, floor)
        if count >= k and sum_ >= mass:
            break
    count = 0
    for begin in range(0, len(weights), _STRETCH):
        stretch = weights[begin : begin + _STRETCH]
        if _measure(stretch, floor)[0] > 0:
            for i in range(len(stretch)):
                if stretch[i] >= floor:
                    weights[count], ids[count] = stretch[i], begin + i
                    count += 1
    return count, floor, (floor << _COARSE_BITS) + 1


@njit(**EXACT_INNER)
def _floor(weights, low, high, k, mass):  # type: ignore[no-untyped-def]
    """The largest floor below ``high`` that keeps ``k`` weights and a sum of ``mass``; ``low`` where none does."""
    while high - low > 1:
        middle = (low + high) // 2
        count, sum_ = _measure(weights, middle)
        if count >= k and sum_ >= mass:
            low = middle
        else:
            high = middle
    return low


@njit(**EXACT_INNER)
def _draw(weights, ids, top_k, top_p, min_p, uniform):  # type: ignore[no-untyped-def]
    """The id that ``uniform`` falls on; ``weights`` of every id, and ``ids`` as scratch of the same length."""
    floor, low, high, num_candidates = 1, 1, _ONE + 1, 0
    if top_k > 0:
        num_candidates, low, high = _candidates(weights, ids, top_k, 0)
        weights = weights[:num_candidates]
        floor = low = _floor(weights, low, high, top_k, 0)
        high = _ONE + 1
    if top_p < 1:
        mass = np.int64(math.ceil(np.float64(top_p) * _measure(weights, floor)[1]))
        if num_candidates == 0:
            num_candidates, low, high = _candidates(weights, ids, 0, mass)
            weights = weights[:num_candidates]
        floor = _floor(weights, low, high, 0, mass)
    floor = max(floor, math.ceil(np.float64(min_p) * _ONE))
    total = _measure(weights, floor)[1]
    chosen = _pass(weights, floor, min(np.int64(uniform * total), total - 1))
    return ids[chosen] if num_candidates else chosen


@njit(**EXACT_INNER)
def _pass(weights, floor, target):  # type: ignore[no-untyped-def]
    """The first index at which the running sum of the weights from ``floor`` on is more than ``target``."""
    for begin in range(0, len(weights), _STRETCH):
        stretch = weights[begin : begin + _STRETCH]
        mass = _measure(stretch, floor)[1]
        if mass > target:
            for i in range(len(stretch)):
                target -= stretch[i] if stretch[i] >= floor else 0
                if target < 0:
                    return begin + i
        target -= mass
    return len(weights) - 1

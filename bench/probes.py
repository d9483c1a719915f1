"""What the machine does at most, in compiled functions: memory read, hot tiles, and a step's products alone.

To be imported once a folder for compiled functions is set (`kernels.compiled.use_cache`, which `steps.load` calls).
Every ``run`` asks for its threads anew: the engine's steps may have taken fewer, and products wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]  # publishes no types
from numba import njit, prange, types

from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.kernels.compiled import EXACT_INNER, EXACT_OPTIONS, use_threads
from sapwood_engine.kernels.cpu_step.layout import PANEL, padded
from sapwood_engine.kernels.cpu_step.step import ROWS_AT_ONCE, multiply, share
from sapwood_engine.kernels.cpu_step.threads import wait_for
from sapwood_engine.kernels.cpu_step.tiles import MOST_ROWS, multiply_panel, multiply_tile
from sapwood_engine.kernels.cpu_step.weights import ONE_ROW_AHEAD
from sapwood_engine.kernels.huge_pages import HugePages
from sapwood_engine.kernels.simd import BF16_DOT, I64, LANES, TAGS, cgutils, const, intrinsic, pointer, prefetch

ACTIVATIONS = torch.bfloat16 if BF16_DOT else torch.float32
WEIGHTS = torch.bfloat16
_HOT_DEPTH = 256
"""A tile of so many depths, its panel and its sums fit into the nearest cache several times over."""
_HOT_REPEATS = 40000
_WORDS = LANES // 2
"""int64 of a vector"""
_READS_AT_ONCE = 4
_BLOCK_BYTES = _READS_AT_ONCE * _WORDS * 8
KEPT, ADDED, SCRATCH = range(3)
"""Where a product goes: to rows that are kept, onto what is there, or panel by panel to where an activation reads it"""
_, _PANELS, _DEPTH, _ROWS, _ = range(5)
"""Columns of the table of matrices"""


@dataclass(frozen=True, slots=True)
class Matrix:
    """One product of a step."""

    panels: torch.Tensor
    """16-bit [num_panels, depth, PANEL] of any content, in the order of `kernels.cpu_step.layout`"""
    target: int
    vocabulary: bool = False
    """Whether only rows that sample pass through it"""


def model_matrices(spec: ModelSpec) -> list[Matrix]:
    """Return random matrices of ``spec``'s shapes, in the order in which a step reads them."""
    attended = spec.num_heads * spec.head_dim
    qkv = attended + 2 * spec.num_kv_heads * spec.head_dim
    inner = padded(spec.intermediate_size, LANES)
    memory = HugePages()
    found = []
    for _ in range(spec.num_layers):
        found += [
            _random(memory, qkv, spec.hidden_size, KEPT),
            _random(memory, spec.hidden_size, attended, ADDED),
            _random(memory, 2 * inner, spec.hidden_size, SCRATCH),
            _random(memory, spec.hidden_size, inner, ADDED),
        ]
    return [*found, _random(memory, spec.vocab_size, spec.hidden_size, KEPT, vocabulary=True)]


def _random(memory: HugePages, columns: int, depth: int, target: int, *, vocabulary: bool = False) -> Matrix:
    num_panels = padded(columns, PANEL) // PANEL
    panels = memory.zeros((num_panels, padded(depth, 2), PANEL), WEIGHTS)
    return Matrix(panels.copy_(torch.randn(panels.shape).mul_(0.02)), target, vocabulary)


@dataclass(slots=True)
class Products:
    """All products of a step of ``num_rows`` tokens, of which ``num_sampled`` sample; nothing else of the step."""

    matrices: Sequence[Matrix]
    num_rows: int
    num_sampled: int
    num_threads: int
    activations: torch.Tensor = field(init=False)
    """[num_rows * the deepest matrix]: each product takes as many as it needs, rows of its own depth"""
    results: torch.Tensor = field(init=False)
    """float32: each kept product from the beginning on, [rows, its panels' columns]"""
    _table: Any = field(init=False)
    _scratch: torch.Tensor = field(init=False)
    _barrier: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        rows = [self.num_sampled if matrix.vocabulary else self.num_rows for matrix in self.matrices]
        shapes = [matrix.panels.shape for matrix in self.matrices]
        self._table = np.array(
            [
                (matrix.panels.data_ptr(), num_panels, depth, count, matrix.target)
                for matrix, (num_panels, depth, _), count in zip(self.matrices, shapes, rows, strict=True)
            ],
            np.int64,
        )
        self.activations = torch.randn(self.num_rows * max(depth for _, depth, _ in shapes)).to(ACTIVATIONS)
        most = max(count * num_panels for count, (num_panels, _, _) in zip(rows, shapes, strict=True))
        self.results = torch.zeros(most * PANEL)
        self._scratch = torch.zeros(self.num_threads, ROWS_AT_ONCE * PANEL)
        self._barrier = torch.zeros(3, dtype=torch.int64)

    @property
    def flops(self) -> float:
        """Additions and multiplications."""
        return float(2 * PANEL * (self._table[:, _PANELS] * self._table[:, _DEPTH] * self._table[:, _ROWS]).sum())

    def run(self) -> None:
        """Compute them all, with a barrier after each as in a step."""
        use_threads(self.num_threads)
        self._barrier.zero_()
        tensors = self.activations, self.results, self._scratch, self._barrier
        addresses = (tensor.data_ptr() for tensor in tensors)
        multiply_all(TAGS[ACTIVATIONS], TAGS[WEIGHTS], self.num_threads, self._table, *addresses)


@dataclass(slots=True)
class HotTiles:
    """The highest tile, again and again out of the nearest cache, on every thread."""

    num_threads: int
    _tensors: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self._tensors = [
            torch.randn(self.num_threads, MOST_ROWS, _HOT_DEPTH).to(ACTIVATIONS),
            torch.randn(self.num_threads, _HOT_DEPTH, PANEL).to(WEIGHTS),
            torch.zeros(self.num_threads, 2 * MOST_ROWS, PANEL),
        ]

    @property
    def flops(self) -> float:
        """Additions and multiplications."""
        return 2.0 * self.num_threads * _HOT_REPEATS * MOST_ROWS * PANEL * _HOT_DEPTH

    def run(self) -> None:
        """Compute them."""
        use_threads(self.num_threads)
        x, panels, y = (tensor.data_ptr() for tensor in self._tensors)
        tags = TAGS[ACTIVATIONS], TAGS[WEIGHTS]
        run_hot_tiles(*tags, self.num_threads, x, panels, y, _HOT_DEPTH, _HOT_REPEATS)


@dataclass(slots=True)
class Reading:
    """Every matrix read once, each thread its own share."""

    matrices: Sequence[Matrix]
    num_threads: int
    sums: Any = field(init=False)
    """int64 [num_threads, 64]: in column 0 what each thread has read, as numbers added up"""
    _table: Any = field(init=False)

    def __post_init__(self) -> None:
        self.sums = np.zeros((self.num_threads, 64), np.int64)
        blocks = [(matrix.panels.data_ptr(), matrix.panels.nbytes // _BLOCK_BYTES) for matrix in self.matrices]
        self._table = np.array(blocks, np.int64)

    def run(self) -> None:
        """Read them."""
        use_threads(self.num_threads)
        read_all(self._table, self.num_threads, self.sums)


def weight_bytes(matrices: Sequence[Matrix]) -> int:
    """Return how many bytes one reading of all takes from memory."""
    return sum(matrix.panels.nbytes for matrix in matrices)


@intrinsic
def _read(typing_context, address, num_blocks):  # type: ignore[no-untyped-def]
    """Return the sum of ``num_blocks`` times _BLOCK_BYTES at ``address``, as int64 that may wrap."""
    vector = ir.VectorType(I64, _WORDS)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, num_blocks = arguments
        sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, [0] * _WORDS)) for _ in range(_READS_AT_ONCE)]
        with cgutils.for_range(builder, num_blocks, intp=I64) as loop:
            at = builder.add(address, builder.mul(loop.index, const(_BLOCK_BYTES)))
            for line in range(0, _BLOCK_BYTES, 64):
                prefetch(builder, at, ONE_ROW_AHEAD + line)
            for number, slot in enumerate(sums):
                read = builder.load(pointer(builder, at, number * _WORDS * 8, vector), align=4)
                builder.store(builder.add(builder.load(slot), read), slot)
        total = const(0)
        for slot in sums:
            for word in range(_WORDS):
                total = builder.add(total, builder.extract_element(builder.load(slot), ir.Constant(I64, word)))
        return total

    return types.int64(types.int64, types.int64), generate


@njit(parallel=True, **EXACT_OPTIONS)
def read_all(table, num_threads, sums):  # type: ignore[no-untyped-def]
    """Each thread its share of every row of ``table``, int64 [n, 2] of address and blocks; adds to ``sums[t, 0]``."""
    for t in prange(num_threads):
        total = 0
        for i in range(table.shape[0]):
            begin, end = share(table[i, 1], t, num_threads)
            total += _read(table[i, 0] + begin * _BLOCK_BYTES, end - begin)
        sums[t, 0] += total


@njit(parallel=True, **EXACT_OPTIONS)
def run_hot_tiles(x_tag, w_tag, num_threads, x, panels, y, depth, repeats):  # type: ignore[no-untyped-def]
    """Each thread its own tile, MOST_ROWS high: x [threads, MOST_ROWS, depth], panels [threads, depth, PANEL]."""
    for t in prange(num_threads):
        of, panel = x + t * MOST_ROWS * depth * x_tag.itemsize, panels + t * depth * PANEL * w_tag.itemsize
        to = y + t * 2 * MOST_ROWS * PANEL * 4
        for _ in range(repeats):
            multiply_tile(x_tag, w_tag, MOST_ROWS, of, depth * x_tag.itemsize, panel, depth, 0, 0, 0, 0, to, PANEL * 4)


@njit(**EXACT_INNER)
def _multiply_into_scratch(x_tag, w_tag, x, rows, weight, depth, scratch, begin, end):  # type: ignore[no-untyped-def]
    """As `step.multiply_gated` does, without the activation."""
    panel_bytes, x_bytes = depth * PANEL * w_tag.itemsize, depth * x_tag.itemsize
    ahead = ONE_ROW_AHEAD if rows == 1 else panel_bytes
    for first in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - first)
        for p in range(begin, end):
            of, panel = x + first * x_bytes, weight + p * panel_bytes
            multiply_panel(x_tag, w_tag, of, x_bytes, count, panel, depth, ahead, 0, 0, 0, scratch, PANEL * 4)


@njit(parallel=True, **EXACT_OPTIONS)
def multiply_all(x_tag, w_tag, num_threads, table, x, y, scratch, barrier):  # type: ignore[no-untyped-def]
    """The products of ``table``, int64 [n, 5], one after the other, each thread its share of the panels.

    ``x``: activations, as many and as long as the largest product wants; ``y``: float32, as many; ``scratch``:
    float32 [threads, ROWS_AT_ONCE, PANEL]; ``barrier``: see `threads.wait_for`.
    """
    for t in prange(num_threads):
        waited = 0
        own = scratch + t * ROWS_AT_ONCE * PANEL * 4
        for i in range(table.shape[0]):
            weight, num_panels, depth, rows, target = table[i]
            begin, end = share(num_panels, t, num_threads)
            if target == SCRATCH:
                _multiply_into_scratch(x_tag, w_tag, x, rows, weight, depth, own, begin, end)
            else:
                init = y if target == ADDED else 0
                x_bytes, y_bytes = depth * x_tag.itemsize, num_panels * PANEL * 4
                multiply(x_tag, w_tag, x, x_bytes, rows, weight, depth, 0, init, y, y_bytes, begin, end)
            waited += num_threads
            wait_for(barrier, waited)

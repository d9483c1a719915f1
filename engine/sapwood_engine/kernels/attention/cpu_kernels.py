"""Attention over pages as compiled functions: flash-style online softmax, block of keys by block of keys.

The work is a list of items: an item is one or more tokens of a sequence, and with their query heads of one KV head
they are the rows that read the same keys. Keys come in blocks of BLOCK. Each thread gets an equal share of one long
list, items × KV heads × blocks, so a share may begin or end inside an item; the parts are merged at the end::

    blocks   | item 0, head 0 | item 0, head 1 | item 1, head 0 ...
    threads  |      thread 0         |       thread 1      | ...
                                     ^ item 0, head 1 comes in two parts

Scores carry log2(e), so weights are powers of two. Hidden keys score MASKED, a number and not an infinity: masked
minus masked must not be NaN. Slots beyond a sequence are never read.

Dao et al. 2022 ("FlashAttention") for the online softmax; "Flash-Decoding" (2023) for parts of one sequence's keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

from sapwood_engine.kernels.attention.cpu_vectors import (
    DOT_HEADS,
    DOT_KEYS,
    SINGLE,
    SMALL,
    TILE_WIDE,
    WIDE,
    convert_row,
    dot_keys,
    exponentiate,
    largest,
    multiply_tile,
    power_of_two,
    transpose,
)
from sapwood_engine.kernels.simd import LANES, SMALL_LANES

BLOCK = 64
"""Keys a block: K and V in float32 (16 KiB each at head_dim 64) stay in the nearest caches."""
TILE_ROWS = 96
"""Rows that an item of several tokens aims at: enough that widening a block to float32 is paid once for many."""
LEAST_TILE_ROWS = 16
"""With fewer rows, reading 16-bit keys directly is quicker than widening them first."""
MASKED = np.float32(-1e30)
_LOG2_E = np.float32(1.4426950408889634)

ITEM_FIELDS = 6
FIRST_TOKEN, NUM_TOKENS, FIRST_PAGE, POSITION, NUM_BLOCKS, COST = range(ITEM_FIELDS)
"""Columns of an item: first token, number of tokens, index of the sequence's first page in ``kv_indices``, position of
the first token, number of key blocks, cost of a block."""

LEAST_COST = 200
"""Of a share; about 40 µs."""

UNIT, FIRST_BLOCK = range(2)
"""Columns of ``shares`` [num_threads + 1]: item * num_kv_heads + head, and the block in it, where a share begins."""


class Sizes(NamedTuple):
    """What one run looks like; strides in bytes."""

    group: int
    """Query heads of one KV head"""
    num_kv_heads: int
    dim: int
    page_size: int
    kv_slot: int
    kv_head: int
    kv_element: int
    q_token: int
    q_head: int
    out_token: int
    out_head: int
    scale: float


class Scratch(NamedTuple):
    """float32 memory of one thread, flat; of all threads where it has one axis more."""

    queries: Any
    """[rows, dim] scaled"""
    out: Any
    """[rows, dim] weighted values, not yet divided by ``sums``"""
    scores: Any
    """[rows, BLOCK]"""
    keys: Any
    """[dim, BLOCK]"""
    values: Any
    """[BLOCK, dim]"""
    maxima: Any
    """[rows]"""
    sums: Any
    """[rows]"""
    rows: Any
    """int64 [max(BLOCK, dim)] byte offsets for the vector loops"""


_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},  # not nnan, ninf: NaN in, NaN out
}
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


@njit(**_OPTIONS)
def list_items(qo_indptr, kv_indptr, kv_last_page_len, page_size, group, items):  # type: ignore[no-untyped-def]
    """Fill ``items`` int64 [_, ITEM_FIELDS] and return how many there are."""
    count = 0
    for s in range(kv_last_page_len.shape[0]):
        begin, end = qo_indptr[s], qo_indptr[s + 1]
        kv_len = (kv_indptr[s + 1] - kv_indptr[s] - 1) * page_size + kv_last_page_len[s]
        step = max(1, TILE_ROWS // group) if (end - begin) * group >= LEAST_TILE_ROWS else 1
        for first in range(begin, end, step):
            num_tokens = min(step, end - first)
            item = items[count]
            item[FIRST_TOKEN] = first
            item[NUM_TOKENS] = num_tokens
            item[FIRST_PAGE] = kv_indptr[s]
            item[POSITION] = kv_len - (end - first)
            item[NUM_BLOCKS] = (item[POSITION] + num_tokens + BLOCK - 1) // BLOCK
            rows = num_tokens * group
            # In the time of one row of a tile; measured. Widening a block costs as much as 12 rows.
            item[COST] = rows + 12 if rows >= LEAST_TILE_ROWS else 2 * rows
            count += 1
    return count


@njit(**_OPTIONS)
def divide(items, num_items, num_heads, least_cost, shares):  # type: ignore[no-untyped-def]
    """Fill ``n + 1`` rows of ``shares`` so that the blocks of ``n`` threads cost about the same; return ``n``.

    A thread more comes in only where each gets ``least_cost``: waking one takes longer than a small share.
    """
    total = 0
    for i in range(num_items):
        total += items[i, NUM_BLOCKS] * items[i, COST] * num_heads
    num_threads = max(1, min(shares.shape[0] - 1, total // least_cost))
    t, before = 0, 0
    for i in range(num_items):
        cost = items[i, NUM_BLOCKS] * items[i, COST]
        while t < num_threads and total * t < (before + cost * num_heads) * num_threads:
            target = total * t // num_threads - before
            head = target // cost
            shares[t, UNIT] = i * num_heads + head
            shares[t, FIRST_BLOCK] = (target - head * cost) // items[i, COST]
            t += 1
        before += cost * num_heads
    for rest in range(t, num_threads + 1):
        shares[rest, UNIT] = num_items * num_heads
        shares[rest, FIRST_BLOCK] = 0
    return num_threads


@njit(**_INNER)
def multiply(tag, out, out_stride, a, a_stride, b, rows, num_rows, num_k, num_columns, column_bytes, add):  # type: ignore[no-untyped-def]
    """out[num_rows, num_columns] (+)= a @ b in tiles; see `multiply_tile`. ``column_bytes`` is b's element size."""
    column = 0
    while column < num_columns:
        if num_columns - column >= TILE_WIDE * LANES:
            width, lanes = WIDE, TILE_WIDE * LANES
        elif num_columns - column >= LANES:
            width, lanes = SINGLE, LANES
        else:
            width, lanes = SMALL, SMALL_LANES
        row = 0
        while row < num_rows:
            left = num_rows - row
            if left == 1 or width == SMALL:
                height, shape = 1, width
            elif left == 2 or left == 5:
                height, shape = 2, width + 1
            elif left < 6:
                height, shape = 3, width + 2
            else:
                height, shape = 6, width + 3
            to = out + row * out_stride + column * 4
            of = a + row * a_stride
            multiply_tile(tag, shape, to, out_stride, of, a_stride, b + column * column_bytes, rows, num_k, add)
            row += height
        column += lanes


@njit(**_INNER)
def locate(kv_indices, first_page, page_size, slot_bytes, begin, num_keys, multiple, rows):  # type: ignore[no-untyped-def]
    """Write the byte offsets of keys ``begin`` … into ``rows``; the last repeats up to a ``multiple``."""
    page, offset = first_page + begin // page_size, begin % page_size
    base = kv_indices[page] * page_size
    for j in range(num_keys):
        rows[j] = (base + offset) * slot_bytes
        offset += 1
        if offset == page_size and j + 1 < num_keys:
            page, offset = page + 1, 0
            base = kv_indices[page] * page_size
    for j in range(num_keys, (num_keys + multiple - 1) // multiple * multiple):
        rows[j] = rows[num_keys - 1]


@njit(**_INNER)
def address(array):  # type: ignore[no-untyped-def]
    """Where an array's data begin, signed: numba adds uint64 and int64 as floats."""
    return np.int64(array.ctypes.data)


@njit(**_INNER)
def soften(sizes, item, key, num_keys, scratch):  # type: ignore[no-untyped-def]
    """Turn a block's scores into weights and bring what is accumulated to the new maxima."""
    scores, out, maxima, dim = scratch.scores, scratch.out, scratch.maxima, sizes.dim
    num_columns = (num_keys + LANES - 1) // LANES * LANES
    for r in range(item[NUM_TOKENS] * sizes.group):
        seen = min(num_keys, item[POSITION] + r // sizes.group + 1 - key)
        if seen <= 0:
            continue
        for j in range(seen, num_columns):
            scores[r * BLOCK + j] = MASKED
        row = address(scores) + r * BLOCK * 4
        new = largest(row, num_columns, maxima[r])
        if new > maxima[r]:
            factor = power_of_two(maxima[r] - new)
            maxima[r] = new
            scratch.sums[r] *= factor
            for d in range(r * dim, (r + 1) * dim):
                out[d] *= factor
        scratch.sums[r] += exponentiate(row, num_columns, new)


@njit(**_INNER)
def forget(sizes, num_rows, scratch):  # type: ignore[no-untyped-def]
    """Nothing is accumulated yet."""
    for r in range(num_rows):
        scratch.maxima[r] = MASKED
        scratch.sums[r] = np.float32(0)
    for i in range(num_rows * sizes.dim):
        scratch.out[i] = np.float32(0)


@njit(**_INNER)
def begin_part(q_tag, q, sizes, item, head, scratch):  # type: ignore[no-untyped-def]
    """Read the item's queries, scaled, and forget what was accumulated."""
    dim = sizes.dim
    to = address(scratch.queries)
    forget(sizes, item[NUM_TOKENS] * sizes.group, scratch)
    for r in range(item[NUM_TOKENS] * sizes.group):
        token, member = item[FIRST_TOKEN] + r // sizes.group, r % sizes.group
        source = q + token * sizes.q_token + (head * sizes.group + member) * sizes.q_head
        convert_row(scratch.queries, to + r * dim * 4, q_tag, source, dim, np.float32(sizes.scale) * _LOG2_E)


@njit(**_INNER)
def attend_tile(kv_tag, k, v, sizes, item, key, num_keys, scratch):  # type: ignore[no-untyped-def]
    """One block for many rows: widen keys (transposed) and values once, then two products in float32."""
    dim, rows = sizes.dim, scratch.rows
    rows_at, keys_at, values_at = address(rows), address(scratch.keys), address(scratch.values)
    for j in range(0, num_keys, SMALL_LANES):
        transpose(kv_tag, keys_at + j * 4, BLOCK * 4, k, rows_at + j * 8, dim)
    for j in range(num_keys):
        convert_row(scratch.values, values_at + j * dim * 4, kv_tag, v + rows[j], dim, np.float32(1))
    skipped = max(0, key - item[POSITION]) * sizes.group
    num_rows = item[NUM_TOKENS] * sizes.group
    scores_at = address(scratch.scores) + skipped * BLOCK * 4
    num_columns = (num_keys + LANES - 1) // LANES * LANES
    for d in range(dim):
        rows[d] = d * BLOCK * 4
    queries_at = address(scratch.queries) + skipped * dim * 4
    active = num_rows - skipped
    multiply(
        scratch.keys,
        scores_at,
        BLOCK * 4,
        queries_at,
        dim * 4,
        keys_at,
        rows_at,
        active,
        dim,
        num_columns,
        4,
        0,
    )
    soften(sizes, item, key, num_keys, scratch)
    for j in range(num_keys):
        rows[j] = j * dim * 4
    out_at = address(scratch.out) + skipped * dim * 4
    multiply(scratch.values, out_at, dim * 4, scores_at, BLOCK * 4, values_at, rows_at, active, num_keys, dim, 4, 1)


@njit(**_INNER)
def attend_rows(kv_tag, k, v, sizes, item, key, num_keys, scratch):  # type: ignore[no-untyped-def]
    """One block for few rows: keys and values are read once, where they lie."""
    dim, num_rows = sizes.dim, item[NUM_TOKENS] * sizes.group
    rows_at, queries_at, scores_at = address(scratch.rows), address(scratch.queries), address(scratch.scores)
    for h in range(0, num_rows, DOT_HEADS):
        num_heads = min(DOT_HEADS, num_rows - h)
        q_at = queries_at + h * dim * 4
        for j in range(0, num_keys, DOT_KEYS):
            s_at = scores_at + (h * BLOCK + j) * 4
            dot_keys(kv_tag, num_heads, s_at, BLOCK * 4, q_at, dim * 4, k, rows_at + j * 8, dim)
    soften(sizes, item, key, num_keys, scratch)
    out_at, size = address(scratch.out), sizes.kv_element
    multiply(kv_tag, out_at, dim * 4, scores_at, BLOCK * 4, v, rows_at, num_rows, num_keys, dim, size, 1)


@njit(**_INNER)
def finish_part(q_tag, out, sizes, item, head, scratch):  # type: ignore[no-untyped-def]
    """Write the item's rows of ``out``."""
    dim = sizes.dim
    at = address(scratch.out)
    for r in range(item[NUM_TOKENS] * sizes.group):
        token, member = item[FIRST_TOKEN] + r // sizes.group, r % sizes.group
        target = out + token * sizes.out_token + (head * sizes.group + member) * sizes.out_head
        convert_row(q_tag, target, scratch.out, at + r * dim * 4, dim, np.float32(1) / scratch.sums[r])


@njit(**_INNER)
def keep_part(sizes, num_rows, scratch, parts, slot):  # type: ignore[no-untyped-def]
    """Put an unfinished item aside."""
    for r in range(num_rows):
        parts.maxima[slot, r] = scratch.maxima[r]
        parts.sums[slot, r] = scratch.sums[r]
    for i in range(num_rows * sizes.dim):  # loops: numba compiles an assignment of slices for two seconds
        parts.out[slot, i] = scratch.out[i]


@njit(**_INNER)
def add_part(sizes, num_rows, scratch, parts, slot):  # type: ignore[no-untyped-def]
    """Join a part that was put aside to the one in ``scratch``."""
    dim = sizes.dim
    for r in range(num_rows):
        new = max(scratch.maxima[r], parts.maxima[slot, r])
        mine, other = power_of_two(scratch.maxima[r] - new), power_of_two(parts.maxima[slot, r] - new)
        scratch.maxima[r] = new
        scratch.sums[r] = scratch.sums[r] * mine + parts.sums[slot, r] * other
        for d in range(r * dim, (r + 1) * dim):
            scratch.out[d] = scratch.out[d] * mine + parts.out[slot, d] * other


@njit(**_INNER)
def of_thread(scratch, t):  # type: ignore[no-untyped-def]
    """One thread's part of ``scratch``."""
    return Scratch(
        scratch.queries[t],
        scratch.out[t],
        scratch.scores[t],
        scratch.keys[t],
        scratch.values[t],
        scratch.maxima[t],
        scratch.sums[t],
        scratch.rows[t],
    )


@njit(**_INNER)
def attend_share(q_tag, kv_tag, q, k, v, out, sizes, kv_indices, items, shares, t, scratch, parts):  # type: ignore[no-untyped-def]
    """Do what lies between ``shares[t]`` and ``shares[t + 1]``.

    Whole items are written to ``out``. A part at the share's begin goes to slot 2 t of ``parts``, one at its end to
    2 t + 1; ``parts.rows`` [slot, 0] names the unit, or -1.
    """
    parts.rows[2 * t, 0] = parts.rows[2 * t + 1, 0] = -1
    unit, block = shares[t, UNIT], shares[t, FIRST_BLOCK]
    last, last_block = shares[t + 1, UNIT], shares[t + 1, FIRST_BLOCK]
    while unit < last or (unit == last and block < last_block):
        item, head = items[unit // sizes.num_kv_heads], unit % sizes.num_kv_heads
        end = last_block if unit == last else item[NUM_BLOCKS]
        num_rows = item[NUM_TOKENS] * sizes.group
        whole = block == 0 and end == item[NUM_BLOCKS]
        slot = 2 * t if block > 0 else 2 * t + 1
        begin_part(q_tag, q, sizes, item, head, scratch)
        k_at, v_at = k + head * sizes.kv_head, v + head * sizes.kv_head
        while block < end:
            key = block * BLOCK
            num_keys = min(BLOCK, item[POSITION] + item[NUM_TOKENS] - key)
            locate(kv_indices, item[FIRST_PAGE], sizes.page_size, sizes.kv_slot, key, num_keys, DOT_KEYS, scratch.rows)
            if num_rows >= LEAST_TILE_ROWS:
                attend_tile(kv_tag, k_at, v_at, sizes, item, key, num_keys, scratch)
            else:
                attend_rows(kv_tag, k_at, v_at, sizes, item, key, num_keys, scratch)
            block += 1
        if whole:
            finish_part(q_tag, out, sizes, item, head, scratch)
        else:
            keep_part(sizes, num_rows, scratch, parts, slot)
            parts.rows[slot, 0] = unit
        unit, block = unit + 1, 0


@njit(**_INNER)
def join_parts(q_tag, out, sizes, items, num_slots, scratch, parts):  # type: ignore[no-untyped-def]
    """Write the items that were split; parts of one item lie in neighbouring used ones of ``num_slots`` slots."""
    slot = 0
    while slot < num_slots:
        unit = parts.rows[slot, 0]
        if unit < 0:
            slot += 1
            continue
        item, head = items[unit // sizes.num_kv_heads], unit % sizes.num_kv_heads
        num_rows = item[NUM_TOKENS] * sizes.group
        forget(sizes, num_rows, scratch)
        while slot < num_slots and (parts.rows[slot, 0] == unit or parts.rows[slot, 0] < 0):
            if parts.rows[slot, 0] == unit:
                add_part(sizes, num_rows, scratch, parts, slot)
            slot += 1
        finish_part(q_tag, out, sizes, item, head, scratch)


@njit(parallel=True, **_OPTIONS)
def attend(q_tag, kv_tag, q, k, v, out, sizes, kv_indices, items, shares, scratch, parts):  # type: ignore[no-untyped-def]
    """Attention of a whole step for one layer.

    ``q``, ``k``, ``v``, ``out`` are addresses, and the dtypes of the tags say what lies there. ``items`` from
    `list_items`, ``shares`` from `divide`. ``scratch`` has an axis for threads, ``parts`` one for two slots a thread.
    """
    num_threads = shares.shape[0] - 1
    for t in prange(num_threads):
        attend_share(q_tag, kv_tag, q, k, v, out, sizes, kv_indices, items, shares, t, of_thread(scratch, t), parts)
    join_parts(q_tag, out, sizes, items, 2 * num_threads, of_thread(scratch, 0), parts)

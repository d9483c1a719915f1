"""Attention of one step over pages: every key range in the same parts and the same order, whoever computes it.

The work comes in units: a run of tokens of one sequence, with the query heads of one KV head. They are the rows that
read the same keys. Keys come in blocks of BLOCK, laid out as panels (see `pages`), so that scores and weighted values
are products of tiles. Blocks come in parts of PART_KEYS, each with a softmax of its own; parts are joined in order::

    keys     │ block │ block │ block │ block ‖ block │ …
             └──────────── part 0 ───────────┘ part 1 …

A unit does all parts of its keys, or, where there are few rows and many keys, one of them; then whoever finishes last
joins them. Either way a row's result is the same to the bit: it depends on its own keys alone, not on what else is in
the step, how prompts are cut into chunks, or the number of threads.

Online softmax: Dao et al. 2022; parts of one sequence's keys: "Flash-Decoding", 2023. Scores carry log2(e).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sapwood_engine.kernels.attention.cpu_kernels import address, locate
from sapwood_engine.kernels.attention.cpu_vectors import power_of_two
from sapwood_engine.kernels.compiled import EXACT_INNER, EXACT_OPTIONS
from sapwood_engine.kernels.cpu_step import rows as row_kernels
from sapwood_engine.kernels.cpu_step.layout import PANEL
from sapwood_engine.kernels.cpu_step.pages import fetch, lay_values, transpose_keys
from sapwood_engine.kernels.cpu_step.threads import add_atomically
from sapwood_engine.kernels.cpu_step.tiles import multiply_panel
from sapwood_engine.kernels.simd import LANES

add_scaled, keep_row = row_kernels.add_scaled, row_kernels.keep_row
largest_seen, weigh = row_kernels.largest_seen, row_kernels.weigh

BLOCK = 64
"""Keys a block: panels of it stay in the nearest caches."""
PART_KEYS = 256
"""Keys a part: few enough that one sequence alone keeps several threads busy."""
UNIT_ROWS = 96
"""Rows that a unit of several tokens aims at: laying out a block is paid once for them."""
SPLIT_ROWS = 32
"""Units with more rows are never split into parts: the parts would take more memory than it is worth."""
UNITS_A_THREAD = 4
"""With this many whole units a thread the work is even enough without splitting."""
MASKED = np.float32(-1e30)

UNIT_FIELDS = 9
FIRST_TOKEN, NUM_TOKENS, FIRST_PAGE, POSITION, HEAD, FIRST_PART, END_PART, SLOT, NUM_SLOTS = range(UNIT_FIELDS)
"""Columns of a unit: first token; tokens; index of the sequence's first page in ``kv_indices``; position of the first
token; KV head; parts to compute; where it is split, the first slot and how many there are, else NUM_SLOTS is 1."""


class AttentionShape(NamedTuple):
    """What attention looks like; strides in bytes."""

    group: int
    """Query heads of one KV head"""
    num_kv_heads: int
    dim: int
    page_size: int
    kv_slot: int
    kv_head: int
    q_head: int
    """From one KV head's rows to the next one's; a row is ``dim`` elements, rows lie token by token"""
    out_token: int
    """From one token of ``out`` to the next; heads lie beside each other"""


class Workspace(NamedTuple):
    """float32 memory of one thread; of all threads where it has one axis more."""

    keys: Any
    """Panels [BLOCK / PANEL, dim, PANEL]"""
    values: Any
    """Panels [ceil(dim / PANEL), BLOCK, PANEL]"""
    scores: Any
    """[UNIT_ROWS, BLOCK]"""
    weights: Any
    """[UNIT_ROWS, BLOCK], or half of that as bfloat16"""
    part: Any
    """[UNIT_ROWS, PANEL * ceil(dim / PANEL)] weighted values of a part"""
    total: Any
    """The same, of all parts so far"""
    maxima: Any
    """[2, UNIT_ROWS] of the part, of all"""
    sums: Any
    """[2, UNIT_ROWS]"""
    rows: Any
    """int64 [PART_KEYS] byte offsets of a part's keys"""


class Parts(NamedTuple):
    """What units that were split leave for whoever joins them."""

    values: Any
    """float32 [num_slots, SPLIT_ROWS, PANEL * ceil(dim / PANEL)]"""
    maxima: Any
    """float32 [num_slots, SPLIT_ROWS]"""
    sums: Any
    finished: Any
    """int64 [num_slots]: at a unit's first slot, how many of its parts are done"""


@njit(**EXACT_OPTIONS)
def list_units(qo_indptr, kv_indptr, kv_last_page_len, page_size, group, num_kv_heads, num_threads, units):  # type: ignore[no-untyped-def]
    """Fill ``units`` int64 [_, UNIT_FIELDS], the most work first as far as that is cheap to tell.

    Returns their number and the number of slots; where ``units`` has too few rows, the number needed, and nothing else
    of it is meant to be used.
    """
    step = max(1, UNIT_ROWS // group)
    whole = 0
    for s in range(kv_last_page_len.shape[0]):
        whole += (qo_indptr[s + 1] - qo_indptr[s] + step - 1) // step * num_kv_heads
    split = whole < UNITS_A_THREAD * num_threads
    count, num_slots = 0, 0
    for s in range(kv_last_page_len.shape[0]):
        begin, end = qo_indptr[s], qo_indptr[s + 1]
        kv_len = (kv_indptr[s + 1] - kv_indptr[s] - 1) * page_size + kv_last_page_len[s]
        tiles = (end - begin + step - 1) // step
        # The last tokens see the most keys.
        for tile in range(tiles - 1, -1, -1):
            first = begin + tile * step
            num_tokens = min(step, end - first)
            position = kv_len - (end - first)
            num_parts = (position + num_tokens + PART_KEYS - 1) // PART_KEYS
            pieces = num_parts if split and num_tokens * group <= SPLIT_ROWS else 1
            for head in range(num_kv_heads):
                for piece in range(pieces):
                    if count < units.shape[0]:
                        unit = units[count]
                        unit[FIRST_TOKEN] = first
                        unit[NUM_TOKENS] = num_tokens
                        unit[FIRST_PAGE] = kv_indptr[s]
                        unit[POSITION] = position
                        unit[HEAD] = head
                        unit[FIRST_PART] = piece if pieces > 1 else 0
                        unit[END_PART] = piece + 1 if pieces > 1 else num_parts
                        unit[SLOT] = num_slots
                        unit[NUM_SLOTS] = pieces
                    count += 1
                if pieces > 1:
                    num_slots += pieces
    return count, num_slots


@njit(**EXACT_INNER)
def fetch_block(kv_tag, shape, k, v, first, end, space):  # type: ignore[no-untyped-def]
    """Ask for the keys and values at ``space.rows`` [first, end): pages lie anywhere, and no hardware foresees them."""
    size = shape.dim * kv_tag.itemsize
    for j in range(first, end):
        fetch(k + space.rows[j], size)
        fetch(v + space.rows[j], size)


@njit(**EXACT_INNER)
def lay_block(x_tag, kv_tag, shape, k, v, first, num_keys, space):  # type: ignore[no-untyped-def]
    """Lay the keys and values at ``space.rows`` [first, first + num_keys) out as panels."""
    pair = 2 // (x_tag.itemsize // 2)
    keys, row_bytes = address(space.keys), 4 * PANEL
    rows = space.rows[first:]
    for j in range(0, num_keys, LANES):
        panel = keys + j // PANEL * (shape.dim // pair * row_bytes) + j % PANEL * 4
        transpose_keys(x_tag, kv_tag, panel, k, address(rows) + j * 8, shape.dim)
    for j in range(0, num_keys, pair):
        second = rows[j + 1] if j + 1 < num_keys else -1
        depth = address(space.values) + j // pair * row_bytes
        lay_values(x_tag, kv_tag, depth, BLOCK // pair * row_bytes, v, rows[j], second, shape.dim)
    if pair == 1 and num_keys % 2:
        # Depths are even: the one behind the last value meets weights of 0, and must not be NaN.
        for c in range(0, shape.dim, PANEL):
            at = c // PANEL * BLOCK * PANEL + num_keys * PANEL
            for lane in range(PANEL):
                space.values[at + lane] = np.float32(0)


@njit(**EXACT_INNER)
def attend_block(x_tag, shape, unit, q, key, num_keys, space):  # type: ignore[no-untyped-def]
    """Scores, weights and weighted values of a block that lies in panels, added to the part."""
    dim, group = shape.dim, shape.group
    element = x_tag.itemsize
    pair = 2 // (element // 2)
    num_rows = unit[NUM_TOKENS] * group
    first = max(0, key - unit[POSITION]) * group  # rows before it see none of these keys
    scores, weights, part = address(space.scores), address(space.weights), address(space.part)
    for c in range(0, num_keys, PANEL):
        panel = address(space.keys) + c // PANEL * (dim // pair * 4 * PANEL)
        of, to = q + first * dim * element, scores + (first * BLOCK + c) * 4
        multiply_panel(x_tag, x_tag, of, dim * element, num_rows - first, panel, dim, 0, 0, 0, to, BLOCK * 4)
    depth = (num_keys + 1) // 2 * 2
    width = (dim + PANEL - 1) // PANEL * PANEL
    for r in range(first, num_rows):
        seen = min(num_keys, unit[POSITION] + r // group + 1 - key)
        row = scores + r * BLOCK * 4
        old = space.maxima[0, r]
        new = largest_seen(row, seen, old)
        if new > old:
            factor = power_of_two(old - new)
            space.maxima[0, r] = new
            space.sums[0, r] *= factor
            add_scaled(part + r * width * 4, factor, part + r * width * 4, np.float32(0), dim)
        space.sums[0, r] += weigh(x_tag, weights + r * BLOCK * element, row, seen, depth, new)
    for c in range(0, dim, PANEL):
        panel = address(space.values) + c // PANEL * (BLOCK // pair * 4 * PANEL)
        of, to = weights + first * BLOCK * element, part + (first * width + c) * 4
        multiply_panel(
            x_tag, x_tag, of, BLOCK * element, num_rows - first, panel, depth, 0, to, width * 4, to, width * 4
        )


@njit(**EXACT_INNER)
def forget(which, num_rows, values, space):  # type: ignore[no-untyped-def]
    """Nothing is accumulated yet in the part (0) or the total (1), whose weighted values are ``values``."""
    for r in range(num_rows):
        space.maxima[which, r] = MASKED
        space.sums[which, r] = np.float32(0)
    width = values.shape[0] // space.maxima.shape[1]
    for i in range(num_rows * width):
        values[i] = np.float32(0)


@njit(**EXACT_INNER)
def join(dim, num_rows, maxima, sums, values, space):  # type: ignore[no-untyped-def]
    """Add a part, ``values`` the address of its weighted values, to the total."""
    width = (dim + PANEL - 1) // PANEL * PANEL
    for r in range(num_rows):
        new = max(space.maxima[1, r], maxima[r])
        mine, other = power_of_two(space.maxima[1, r] - new), power_of_two(maxima[r] - new)
        space.maxima[1, r] = new
        space.sums[1, r] = space.sums[1, r] * mine + sums[r] * other
        add_scaled(address(space.total) + r * width * 4, mine, values + r * width * 4, other, dim)


@njit(**EXACT_INNER)
def finish(x_tag, shape, unit, out, space):  # type: ignore[no-untyped-def]
    """Divide the total by its sums and write it to the tokens' heads."""
    dim, group = shape.dim, shape.group
    width = (dim + PANEL - 1) // PANEL * PANEL
    for r in range(unit[NUM_TOKENS] * group):
        token, head = unit[FIRST_TOKEN] + r // group, unit[HEAD] * group + r % group
        to = out + token * shape.out_token + head * dim * x_tag.itemsize
        keep_row(x_tag, to, address(space.total) + r * width * 4, dim, np.float32(1) / space.sums[1, r])


@njit(**EXACT_INNER)
def attend_unit(x_tag, kv_tag, shape, unit, kv_indices, q, k, v, out, space, parts):  # type: ignore[no-untyped-def]
    """Do one unit: ``q``, ``k``, ``v`` and ``out`` are addresses of the layer's."""
    num_rows = unit[NUM_TOKENS] * shape.group
    num_keys = unit[POSITION] + unit[NUM_TOKENS]
    queries = q + unit[HEAD] * shape.q_head + unit[FIRST_TOKEN] * shape.group * shape.dim * x_tag.itemsize
    k_head, v_head = k + unit[HEAD] * shape.kv_head, v + unit[HEAD] * shape.kv_head
    forget(1, num_rows, space.total, space)
    for part in range(unit[FIRST_PART], unit[END_PART]):
        forget(0, num_rows, space.part, space)
        begin = part * PART_KEYS
        in_part = min(num_keys - begin, PART_KEYS)
        locate(kv_indices, unit[FIRST_PAGE], shape.page_size, shape.kv_slot, begin, in_part, LANES, space.rows)
        fetch_block(kv_tag, shape, k_head, v_head, 0, min(BLOCK, in_part), space)
        for first in range(0, in_part, BLOCK):
            in_block, next_ = min(BLOCK, in_part - first), first + BLOCK
            fetch_block(kv_tag, shape, k_head, v_head, next_, min(next_ + BLOCK, in_part), space)
            lay_block(x_tag, kv_tag, shape, k_head, v_head, first, in_block, space)
            attend_block(x_tag, shape, unit, queries, begin + first, in_block, space)
        if unit[NUM_SLOTS] == 1:
            join(shape.dim, num_rows, space.maxima[0], space.sums[0], address(space.part), space)
    if unit[NUM_SLOTS] == 1:
        finish(x_tag, shape, unit, out, space)
        return
    slot = unit[SLOT] + unit[FIRST_PART]
    size = num_rows * ((shape.dim + PANEL - 1) // PANEL * PANEL)
    parts.values[slot, :size] = space.part[:size]
    parts.maxima[slot, :num_rows] = space.maxima[0, :num_rows]
    parts.sums[slot, :num_rows] = space.sums[0, :num_rows]
    if add_atomically(address(parts.finished) + unit[SLOT] * 8, 1) < unit[NUM_SLOTS] - 1:
        return
    parts.finished[unit[SLOT]] = 0
    for slot in range(unit[SLOT], unit[SLOT] + unit[NUM_SLOTS]):
        join(shape.dim, num_rows, parts.maxima[slot], parts.sums[slot], address(parts.values[slot]), space)
    finish(x_tag, shape, unit, out, space)

"""Attention of one step over pages: every key range in the same parts and the same order, whoever computes it.

The work comes in units: a run of tokens of one sequence, with the query heads of one KV head. They are the rows that
read the same keys. Keys come in blocks of BLOCK, laid out as panels (see `pages`), so that scores and weighted values
are products of tiles. Blocks come in parts of PART_KEYS, each with a softmax of its own; parts are joined in order::

    keys     │ block │ block │ block │ block ‖ block │ …
             └──────────── part 0 ───────────┘ part 1 …

A unit does all parts of its keys, or some of them where others do the rest; then whoever finishes last joins them. So
one sequence keeps several threads busy, and a part that several decoding sequences have in common, because their page
tables name the same pages, is read once for all of them. `units` divides the work. However it is divided, a row's
result is the same to the bit: it depends on its own keys alone, not on what else is in the step, how prompts are cut
into chunks, or the number of threads.

Online softmax: Dao et al. 2022; parts of one sequence's keys: "Flash-Decoding", 2023. Scores carry log2(e).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sapwood_engine.kernels.attention.cpu_kernels import address, locate
from sapwood_engine.kernels.attention.cpu_vectors import power_of_two
from sapwood_engine.kernels.compiled import EXACT_INNER
from sapwood_engine.kernels.cpu_step import rows as row_kernels
from sapwood_engine.kernels.cpu_step.layout import PANEL
from sapwood_engine.kernels.cpu_step.pages import copy_bytes, fetch, lay_values, transpose_keys
from sapwood_engine.kernels.cpu_step.threads import add_atomically
from sapwood_engine.kernels.cpu_step.tiles import multiply_panel
from sapwood_engine.kernels.cpu_step.units import (
    END_PART,
    FIRST_MEMBER,
    FIRST_PAGE,
    FIRST_PART,
    FIRST_SLOT,
    FIRST_TOKEN,
    HEAD,
    JOIN_HEAD,
    JOIN_TOKEN,
    NUM_MEMBERS,
    NUM_PARTS,
    NUM_TOKENS,
    PART_KEYS,
    POSITION,
)
from sapwood_engine.kernels.simd import LANES

add_scaled, keep_row = row_kernels.add_scaled, row_kernels.keep_row
largest_seen, weigh = row_kernels.largest_seen, row_kernels.weigh

BLOCK = 64
"""Keys a block: panels of it stay in the nearest caches."""
MASKED = np.float32(-1e30)


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

    queries: Any
    """[UNIT_ROWS, dim], or half of that as bfloat16: of tokens that do not lie beside each other"""
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
    """float32 [num_slots, PANEL * ceil(dim / PANEL)], a slot for each row of each part"""
    maxima: Any
    """float32 [num_slots]"""
    sums: Any
    finished: Any
    """int64 [num_joins]: how many parts of each are done"""


class Work(NamedTuple):
    """What `units.list_units` made of the step."""

    units: Any
    """int64 [_, UNIT_FIELDS]"""
    joins: Any
    """int64 [_, JOIN_FIELDS]"""
    members: Any
    """int64 [_] indices of joins"""


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
        multiply_panel(x_tag, x_tag, of, dim * element, num_rows - first, panel, dim, 0, 0, 0, 0, to, BLOCK * 4)
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
            x_tag, x_tag, of, BLOCK * element, num_rows - first, panel, depth, 0, 0, to, width * 4, to, width * 4
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
def finish(x_tag, shape, first_token, num_tokens, head, out, space):  # type: ignore[no-untyped-def]
    """Divide the total by its sums and write it to the tokens' heads."""
    dim, group = shape.dim, shape.group
    width = (dim + PANEL - 1) // PANEL * PANEL
    for r in range(num_tokens * group):
        to = out + (first_token + r // group) * shape.out_token + (head * group + r % group) * dim * x_tag.itemsize
        keep_row(x_tag, to, address(space.total) + r * width * 4, dim, np.float32(1) / space.sums[1, r])


@njit(**EXACT_INNER)
def gather_queries(x_tag, shape, unit, work, q, space):  # type: ignore[no-untyped-def]
    """Bring the queries of the unit's members together; ``q``: the address of the head's."""
    row_bytes = shape.dim * x_tag.itemsize
    for m in range(unit[NUM_MEMBERS]):
        token = work.joins[work.members[unit[FIRST_MEMBER] + m], JOIN_TOKEN]
        source = q + token * shape.group * row_bytes
        to = address(space.queries) + m * shape.group * row_bytes
        copy_bytes(to, source, shape.group * row_bytes)


@njit(**EXACT_INNER)
def leave_part(x_tag, shape, unit, work, part, out, space, parts):  # type: ignore[no-untyped-def]
    """Leave a part's rows to the unit's members; join the parts of those that have all of theirs now."""
    width = (shape.dim + PANEL - 1) // PANEL * PANEL
    num_rows = unit[NUM_TOKENS] * shape.group // unit[NUM_MEMBERS]
    for m in range(unit[NUM_MEMBERS]):
        number = work.members[unit[FIRST_MEMBER] + m]
        join_ = work.joins[number]
        slot, row = join_[FIRST_SLOT] + part * num_rows, m * num_rows
        for r in range(num_rows):
            parts.maxima[slot + r] = space.maxima[0, row + r]
            parts.sums[slot + r] = space.sums[0, row + r]
        copy_bytes(
            address(parts.values) + slot * width * 4, address(space.part) + row * width * 4, num_rows * width * 4
        )
        if add_atomically(address(parts.finished) + number * 8, 1) < join_[NUM_PARTS] - 1:
            continue
        parts.finished[number] = 0
        forget(1, num_rows, space.total, space)
        for p in range(join_[NUM_PARTS]):
            slot = join_[FIRST_SLOT] + p * num_rows
            values = address(parts.values) + slot * width * 4
            join(shape.dim, num_rows, parts.maxima[slot:], parts.sums[slot:], values, space)
        finish(x_tag, shape, join_[JOIN_TOKEN], num_rows // shape.group, join_[JOIN_HEAD], out, space)


@njit(**EXACT_INNER)
def attend_unit(x_tag, kv_tag, shape, unit, work, kv_indices, q, k, v, out, space, parts):  # type: ignore[no-untyped-def]
    """Do one unit: ``q``, ``k``, ``v`` and ``out`` are addresses of the layer's."""
    num_rows = unit[NUM_TOKENS] * shape.group
    num_keys = unit[POSITION] + unit[NUM_TOKENS]
    q_head = q + unit[HEAD] * shape.q_head
    queries = q_head + unit[FIRST_TOKEN] * shape.group * shape.dim * x_tag.itemsize
    if unit[NUM_MEMBERS] > 1:
        gather_queries(x_tag, shape, unit, work, q_head, space)
        queries = address(space.queries)
    k_head, v_head = k + unit[HEAD] * shape.kv_head, v + unit[HEAD] * shape.kv_head
    whole = unit[NUM_MEMBERS] == 0
    if whole:
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
        if whole:
            join(shape.dim, num_rows, space.maxima[0], space.sums[0], address(space.part), space)
        else:
            leave_part(x_tag, shape, unit, work, part, out, space, parts)
    if whole:
        finish(x_tag, shape, unit[FIRST_TOKEN], unit[NUM_TOKENS], unit[HEAD], out, space)

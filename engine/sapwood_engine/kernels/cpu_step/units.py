"""Attention's work of one step, divided into units: which tokens, heads and keys somebody computes in one go.

A unit is made of tokens of one sequence, whole, with UNIT_ROWS rows at most. Two things divide it further, by parts of
PART_KEYS keys:

- **few units**: a part each, so that every thread has something to do;
- **shared pages**: a part that lies in the same pages for several decoding sequences becomes one unit with all of them
  as members. The tree keeps a prefix once, so equal page ids are equal keys.

Both leave the rows of each part to a *join*, which knows how many parts there are.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from sapwood_engine.kernels.compiled import EXACT_INNER, EXACT_OPTIONS

PART_KEYS = 256
"""Keys a part: few enough that one sequence alone keeps several threads busy."""
UNIT_ROWS = 96
"""Rows that a unit aims at: laying out a block is paid once for them."""
SPLIT_ROWS = 32
"""Units with more rows are never split for the sake of threads: they are long enough."""
UNITS_A_THREAD = 4
"""With this many whole units a thread the work is even enough without splitting."""

UNIT_FIELDS = 9
FIRST_TOKEN, NUM_TOKENS, FIRST_PAGE, POSITION, HEAD, FIRST_PART, END_PART, FIRST_MEMBER, NUM_MEMBERS = range(
    UNIT_FIELDS
)
"""Columns of a unit: first token; tokens; index of a sequence's first page in ``kv_indices``; position of the first
token; KV head; parts to compute; and to whom their rows are left: entries of ``members``. With no member the unit is
whole and writes its result itself. With several each has one of the tokens, and all see all keys."""

UNITS, JOINS, MEMBERS, SLOTS = range(4)
"""What is counted."""

JOIN_FIELDS = 4
JOIN_TOKEN, JOIN_HEAD, FIRST_SLOT, NUM_PARTS = range(JOIN_FIELDS)
"""Columns of a join: first token; KV head; slot of the first part's first row; parts."""


@njit(**EXACT_OPTIONS)
def most_units(qo_indptr, kv_indptr, page_size, group, num_kv_heads):  # type: ignore[no-untyped-def]
    """How many units, joins and members `list_units` may make, at most."""
    step = max(1, UNIT_ROWS // group)
    total = 0
    for s in range(kv_indptr.shape[0] - 1):
        tiles = (qo_indptr[s + 1] - qo_indptr[s] + step - 1) // step
        parts = ((kv_indptr[s + 1] - kv_indptr[s]) * page_size + PART_KEYS - 1) // PART_KEYS
        total += tiles * parts + 1  # the unit of a sequence that shares all its parts, which has none to do
    return total * num_kv_heads


@njit(**EXACT_INNER)
def same_part(kv_indptr, kv_indices, page_size, s, t, part):  # type: ignore[no-untyped-def]
    """Whether sequences ``s`` and ``t`` have the keys of ``part`` in the same pages."""
    pages = PART_KEYS // page_size
    first, other = kv_indptr[s] + part * pages, kv_indptr[t] + part * pages
    for i in range(pages):  # noqa: SIM110  # numba takes no generators
        if kv_indices[first + i] != kv_indices[other + i]:
            return False
    return True


@njit(**EXACT_INNER)
def find_groups(kv_indptr, kv_lens, kv_indices, page_size, part, groups):  # type: ignore[no-untyped-def]
    """Of the sequences that share what comes before ``part``, find those that share it as well; whether there are any.

    ``groups`` int64 [num_seqs] goes from groups of the part before to groups of this one: the number of the group's
    first sequence, -1 for a sequence that shares no more.
    """
    num_seqs = kv_lens.shape[0]
    leaders, sizes = np.full(num_seqs, -1), np.zeros(num_seqs, np.int64)
    for s in range(num_seqs):
        if groups[s] < 0 or kv_lens[s] < (part + 1) * PART_KEYS:
            continue
        for t in range(s + 1):
            beside = t == s or (leaders[t] == t and groups[t] == groups[s])
            if beside and same_part(kv_indptr, kv_indices, page_size, s, t, part):
                leaders[s] = t
                sizes[t] += 1
                break
    found = False
    for s in range(num_seqs):
        groups[s] = leaders[s] if leaders[s] >= 0 and sizes[leaders[s]] > 1 else -1
        found = found or groups[s] >= 0
    return found


@njit(**EXACT_INNER)
def ungrouped(qo_indptr, page_size, groups):  # type: ignore[no-untyped-def]
    """Before the first part all decoding sequences are one group; none where a part is not a number of pages."""
    for s in range(groups.shape[0]):
        groups[s] = 0 if qo_indptr[s + 1] - qo_indptr[s] == 1 and PART_KEYS % page_size == 0 else -1


@njit(**EXACT_INNER)
def list_shared(qo_indptr, kv_indptr, kv_lens, kv_indices, page_size, group, num_kv_heads, shared, counts, work):  # type: ignore[no-untyped-def]
    """List the units of parts that several sequences share, and the joins of those sequences, head by head.

    ``shared`` int64 [num_seqs] becomes how many parts of each are done by them, always its first; ``counts`` int64
    [4] are the units, joins, members and slots that there are.
    """
    num_seqs = kv_lens.shape[0]
    groups, first_joins = np.empty(num_seqs, np.int64), np.empty(num_seqs, np.int64)
    ungrouped(qo_indptr, page_size, groups)
    part = 0
    while find_groups(kv_indptr, kv_lens, kv_indices, page_size, part, groups):
        part += 1
        for s in range(num_seqs):
            if groups[s] >= 0:
                shared[s] = part
    for s in range(num_seqs):
        if shared[s] > 0:
            first_joins[s] = counts[JOINS]
            num_parts = (kv_lens[s] + PART_KEYS - 1) // PART_KEYS
            for head in range(num_kv_heads):
                add_join(qo_indptr[s], head, num_parts, group, counts, work)
    ungrouped(qo_indptr, page_size, groups)
    part = 0
    while find_groups(kv_indptr, kv_lens, kv_indices, page_size, part, groups):
        for leader in range(num_seqs):
            if groups[leader] != leader:
                continue
            for head in range(num_kv_heads):
                unit = -1
                for s in range(leader, num_seqs):
                    if groups[s] != leader:
                        continue
                    if unit < 0 or (work.units[unit, NUM_TOKENS] + 1) * group > UNIT_ROWS:
                        unit = counts[UNITS]
                        seen = (part + 1) * PART_KEYS  # every member sees all of the part
                        add_unit(qo_indptr[s], 0, kv_indptr[s], seen, head, part, part + 1, counts, work)
                    work.units[unit, NUM_TOKENS] += 1
                    add_member(first_joins[s] + head, unit, counts, work)
        part += 1


@njit(**EXACT_INNER)
def add_unit(first_token, num_tokens, first_page, position, head, part, end_part, counts, work):  # type: ignore[no-untyped-def]
    """Add a unit without members."""
    unit = work.units[counts[UNITS]]
    unit[FIRST_TOKEN], unit[NUM_TOKENS], unit[FIRST_PAGE], unit[POSITION] = (
        first_token,
        num_tokens,
        first_page,
        position,
    )
    unit[HEAD], unit[FIRST_PART], unit[END_PART] = head, part, end_part
    unit[FIRST_MEMBER], unit[NUM_MEMBERS] = counts[MEMBERS], 0
    counts[UNITS] += 1


@njit(**EXACT_INNER)
def add_member(join, unit, counts, work):  # type: ignore[no-untyped-def]
    """Make ``join`` a member of ``unit``, the last one added."""
    work.members[counts[MEMBERS]] = join
    work.units[unit, NUM_MEMBERS] += 1
    counts[MEMBERS] += 1


@njit(**EXACT_INNER)
def add_join(first_token, head, num_parts, num_rows, counts, work):  # type: ignore[no-untyped-def]
    """Add a join of ``num_parts`` parts with ``num_rows`` rows each."""
    join = work.joins[counts[JOINS]]
    join[JOIN_TOKEN], join[JOIN_HEAD], join[FIRST_SLOT], join[NUM_PARTS] = first_token, head, counts[SLOTS], num_parts
    counts[JOINS] += 1
    counts[SLOTS] += num_parts * num_rows


@njit(**EXACT_OPTIONS)
def list_units(qo_indptr, kv_indptr, kv_lens, kv_indices, page_size, group, num_kv_heads, num_threads, work):  # type: ignore[no-untyped-def]
    """Fill ``work`` (`attention.Work`), as large as `most_units` says; return int64 [4]: units, joins, members, slots.

    ``kv_lens`` int64 [num_seqs]: keys of each sequence. The most work comes first as far as that is cheap to tell.
    """
    num_seqs = kv_lens.shape[0]
    counts, shared = np.zeros(4, np.int64), np.zeros(num_seqs, np.int64)
    list_shared(qo_indptr, kv_indptr, kv_lens, kv_indices, page_size, group, num_kv_heads, shared, counts, work)
    step = max(1, UNIT_ROWS // group)
    whole = counts[UNITS]
    for s in range(num_seqs):
        whole += (qo_indptr[s + 1] - qo_indptr[s] + step - 1) // step * num_kv_heads
    few = whole < UNITS_A_THREAD * num_threads
    join = 0  # those of `list_shared` come in the order of the sequences
    for s in range(num_seqs):
        begin, end = qo_indptr[s], qo_indptr[s + 1]
        tiles = (end - begin + step - 1) // step
        # The last tokens see the most keys.
        for tile in range(tiles - 1, -1, -1):
            first = begin + tile * step
            num_tokens = min(step, end - first)
            position = kv_lens[s] - (end - first)
            num_parts = (position + num_tokens + PART_KEYS - 1) // PART_KEYS
            apart = few and num_parts > 1 and num_tokens * group <= SPLIT_ROWS
            for head in range(num_kv_heads):
                if apart and shared[s] == 0:
                    add_join(first, head, num_parts, num_tokens * group, counts, work)
                pieces = num_parts - shared[s] if apart else 1
                for piece in range(pieces):
                    part = shared[s] + piece
                    end_part = part + 1 if apart else num_parts
                    unit = counts[UNITS]
                    add_unit(first, num_tokens, kv_indptr[s], position, head, part, end_part, counts, work)
                    if shared[s] > 0:
                        add_member(join, unit, counts, work)
                    elif apart:
                        add_member(counts[JOINS] - 1, unit, counts, work)
                if shared[s] > 0:
                    join += 1
    return counts

"""What must hold of a scheduler at every moment, said by walking its records: one sentence a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sapwood_engine.core.ordering import WaitingQueue
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.running import RunningSet
from sapwood_engine.core.sequence import Sequence


def find_faults(
    cache: PrefixCache, running: RunningSet, queue: WaitingQueue, launched: Iterable[list[Sequence]]
) -> list[str]:
    """Check cache, pages, seats and counts in O(capacity); ``launched``: the rows of each step in flight."""
    holders = [*running, *running.leaving]
    owned = [page for s in holders if s.table for page in s.table.own_pages]
    faults = cache.check_invariants(owned)
    faults += [f"page {page} is owned {n} times" for page, n in Counter(owned).items() if n > 1]
    seats = Counter(s.seat for s in running)
    faults += [f"seat {seat} is taken {n} times" for seat, n in seats.items() if n > 1]
    if len(running) + running.num_free_seats != running.max_seats:
        faults.append(f"{running.num_free_seats} seats free and {len(running)} taken of {running.max_seats}")
    launched = list(launched)
    for sequences in launched:
        faults += [f"{_name(s)} has {n} rows in one step" for s, n in Counter(sequences).items() if n > 1]
    rows = Counter(sequence for sequences in launched for sequence in sequences)
    faults += [f"{_name(s)} waits but holds pages or has rows in flight" for s in queue if s.table or rows[s]]
    faults += [f"{_name(s)} is kept without a row in flight" for s in running.leaving if not rows[s]]
    for sequence in running:
        faults += _sequence_faults(sequence, cache.page_size)
        if sequence.num_in_flight != rows[sequence]:
            faults.append(f"{_name(sequence)}: {rows[sequence]} rows in flight, {sequence.num_in_flight} counted")
    if not len(running) and not len(queue) and queue.num_groups:
        faults.append(f"nobody waits or runs, but {queue.num_groups} groups of the queue are left")
    if not holders:
        counts = cache.counts()
        if counts.owned or counts.protected:
            faults.append(f"nobody runs, but {counts.owned} pages are owned and {counts.protected} protected")
    return faults


def _name(sequence: Sequence) -> str:
    return f"request {sequence.request.request_id!r}"


def _sequence_faults(sequence: Sequence, page_size: int) -> list[str]:
    computed, scheduled = sequence.num_computed, sequence.num_scheduled
    faults = []
    if sequence.table is None:
        return [f"{_name(sequence)} runs without pages"]
    num_pages, num_tree_pages = len(sequence.table.pages), sequence.table.num_tree_pages
    if not 0 <= computed <= scheduled <= sequence.num_tokens:
        faults.append(f"{_name(sequence)}: computed {computed}, scheduled {scheduled}, tokens {sequence.num_tokens}")
    if not sequence.num_output <= sequence.num_sampled <= sequence.max_output:
        faults.append(
            f"{_name(sequence)}: {sequence.num_output} tokens out, {sequence.num_sampled} sampled, "
            f"at most {sequence.max_output}"
        )
    if sequence.table.num_slots != num_pages * page_size or scheduled > sequence.table.num_slots:
        faults.append(f"{_name(sequence)}: {scheduled} tokens scheduled for {num_pages} pages")
    if num_tree_pages * page_size > computed:
        faults.append(f"{_name(sequence)}: the tree holds {num_tree_pages} of its pages, computed {computed} tokens")
    return faults

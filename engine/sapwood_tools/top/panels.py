"""The pictures of one engine and of several, as texts with styles and as rows. Pure.

What a client wrote is shown escaped, and never read as markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from sapwood_contract.curve import hit_ratio_at
from sapwood_contract.http import RequestView
from sapwood_tools.terminal_text import KV_STATES, counted, printable
from sapwood_tools.top import shown
from sapwood_tools.top.history import EngineView, GatewayView
from sapwood_tools.top.samples import Cache

_BAR_CELLS = 40
_PHASE_CELLS = 24
_CURVE_CELLS = 64
_STATE_STYLES = {"ready": "green", "draining": "cyan", "waiting": "red", "running": "green"}
_CHANGE_STYLES = {"appeared": "green", "split": "blue", "locked": "yellow", "unlocked": "cyan", "evicted": "red"}

REQUEST_COLUMNS = ("request", "state", "age", "prompt", "cached", "output", "took", "phases")
REPLICA_COLUMNS = ("engine", "state", "running", "waiting", "tokens/s in", "out", "hit rate", "TTFT p50", "KV")

ORDERS: Mapping[str, Callable[[RequestView], float]] = {
    "arrival": lambda _: 0,
    "prompt": lambda view: -view.num_prompt_tokens,
    "cached": lambda view: -(view.num_cached_tokens or 0),
    "output": lambda view: -view.num_output_tokens,
    "took": lambda view: -view.duration_seconds,
}
"""Name -> by what requests are sorted; ``arrival``: as the engine lists them, ended ones last."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table."""

    cells: tuple[Text, ...]

    @property
    def plain(self) -> tuple[str, ...]:
        """The cells without styles."""
        return tuple(cell.plain for cell in self.cells)


def state_of(view: EngineView) -> str:
    """Return the engine's state, or that it does not answer."""
    if view.now.load is not None:
        return view.now.load.state
    return "unknown" if view.now.has_answer else "gone"


def head(view: EngineView) -> Text:
    """Return what an engine is and does, in four lines, and a fifth for a problem."""
    load, now = view.now.load, view.interval
    text = Text()
    text.append(printable(load.model) if load else shown.UNKNOWN, "bold")
    text.append(" · ").append(state_of(view), _STATE_STYLES.get(state_of(view), "red"))
    text.append(f" · {view.name} · {_load(view, 'num_running')} running, {_load(view, 'num_waiting')} waiting")
    if view.num_restarts:
        text.append(f" · started anew {counted(view.num_restarts, 'time')}", "yellow")
    text.append(f"\nlast {shown.UNKNOWN if now.seconds is None else shown.seconds(now.seconds)}:")
    text.append(
        f" tokens/s in {shown.rate(now.prompt_tokens_per_second)}, out {shown.rate(now.output_tokens_per_second)}"
    )
    text.append(f" · hit rate {shown.share(now.hit_rate)} · evicted {shown.whole(now.evicted_tokens)} tokens")
    text.append(f" · preempted {shown.whole(now.preemptions)}")
    text.append(f"\nTTFT {shown.latency(now.ttft)} · ITL {shown.latency(now.itl)}\n")
    text.append_text(_kv_line(view))
    if view.now.problem:
        text.append(f"\n{view.url} {view.now.problem}", "bold red")
    return text


def _load(view: EngineView, name: str) -> str:
    """Return a number of the load snapshot."""
    return shown.whole(None if view.now.load is None else getattr(view.now.load.load, name))


def _kv_line(view: EngineView) -> Text:
    load = view.now.load
    if load is None or not load.load.kv_capacity_tokens:
        return Text(f"KV {shown.UNKNOWN}")
    capacity = load.load.kv_capacity_tokens
    amounts = {state: float(getattr(load.load, f"kv_{state}_tokens")) for state, _ in KV_STATES}
    text = Text("KV ").append_text(shown.bar(amounts, shown.KV_CELLS, _BAR_CELLS)).append(f" {capacity:,} tokens")
    for state, _ in KV_STATES:
        character, style = shown.KV_CELLS[state]
        text.append("  ").append(character, style).append(f" {state} {amounts[state] / capacity:.0%}")
    return text


def gateway_line(view: GatewayView) -> Text:
    """Return what a gateway does, in a line."""
    text = Text(f"gateway {view.url.partition('://')[2]}")
    if view.now is None:
        return text.append(f" {view.problem}", "bold red")
    replicas = ", ".join(f"{number} {state}" for state, number in view.now.replicas if number) or shown.UNKNOWN
    routed = ", ".join(f"{reason} {part:.0%}" for reason, part in view.routed) or shown.UNKNOWN
    text.append(f" · {view.now.running} running, {view.now.queued} queued · replicas {replicas} · routed by {routed}")
    return text


# --- tables


def sorted_requests(view: EngineView, order: str) -> list[RequestView]:
    """Return the engine's requests by one of `ORDERS`; none where they are unknown."""
    return sorted(view.now.requests or (), key=ORDERS[order])


def request_row(request: RequestView) -> Row:
    """Return the line of one request."""
    state = request.finish or request.state if request.state == "ended" else request.state
    cells = (
        Text(printable(request.request_id)),
        Text(state, "dim" if request.state == "ended" else _STATE_STYLES.get(state, "")),
        _right(shown.seconds(request.age_seconds)),
        _right(shown.whole(request.num_prompt_tokens)),
        _right(shown.whole(request.num_cached_tokens)),
        _right(shown.whole(request.num_output_tokens)),
        _right(shown.seconds(request.duration_seconds)),
        shown.bar(request.phases, shown.PHASE_CELLS, _PHASE_CELLS),
    )
    return Row(cells)


def phase_legend() -> Text:
    """Return how the cells of phases are drawn."""
    text = Text()
    for name, (character, style) in shown.PHASE_CELLS.items():
        text.append(character, style).append(f" {name}  ")
    return text


def replica_row(view: EngineView) -> Row:
    """Return the line of one engine."""
    load, now = view.now.load, view.interval
    snapshot = None if load is None else load.load
    used = None
    if snapshot is not None and snapshot.kv_capacity_tokens:
        used = (snapshot.kv_active_tokens + snapshot.kv_protected_tokens) / snapshot.kv_capacity_tokens
    cells = (
        Text(printable(view.name)),
        Text(state_of(view), _STATE_STYLES.get(state_of(view), "red")),
        _right(_load(view, "num_running")),
        _right(_load(view, "num_waiting")),
        _right(shown.rate(now.prompt_tokens_per_second)),
        _right(shown.rate(now.output_tokens_per_second)),
        _right(shown.share(now.hit_rate)),
        _right(shown.quantile(None if now.ttft is None else now.ttft.p50)),
        _right(shown.share(used)),
    )
    return Row(cells)


def _right(text: str) -> Text:
    return Text(text, justify="right")


# --- the cache


def top_nodes(cache: Cache | None, num_lines: int) -> Text:
    """Return the nodes with the most tokens, in so many lines at most."""
    if cache is None:
        return Text(f"cache {shown.UNKNOWN}")
    listed = " that are nearest to the roots" if cache.is_truncated else ""
    num_locked = sum(node.lock_ref > 0 for node in cache.nodes)
    text = Text().append(f"cache: {counted(cache.num_nodes, 'node')}, {num_locked} in use; the largest{listed}", "bold")
    several = len({node.namespace for node in cache.nodes}) > 1
    for node in sorted(cache.nodes, key=lambda node: (-node.num_tokens, node.serial))[: num_lines - 1]:
        text.append(f"\n{node.num_tokens:>9,} tokens  #{node.serial:<6}")
        text.append(f"● in use by {node.lock_ref:<4}" if node.lock_ref else " " * 16, "yellow")
        text.append(f"hit {counted(node.hits, 'time')}" if node.hits else "never hit")
        if several:
            text.append(f"  {node.namespace}", "dim")
    return text


def seen_lines(view: EngineView, num_lines: int) -> Text:
    """Return what happened in the cache, the latest first, in so many lines at most."""
    text = Text().append("seen in the cache", "bold")
    for seen in view.seen[: num_lines - 1]:
        change = seen.change
        text.append(f"\n{shown.seconds(view.now.at - seen.at):>7} ago  ")
        text.append(f"{change.kind:<9}", _CHANGE_STYLES[change.kind])
        part = "" if change.is_whole else "the last "
        text.append(f" #{change.node.serial:<6} {part}{counted(change.node.num_tokens, 'token')}")
    return text


def curve_lines(cache: Cache | None) -> Text:
    """Return the miss-ratio curve, in two lines."""
    curve = None if cache is None else cache.curve
    if curve is None:
        return Text(f"hit rate by memory {shown.UNKNOWN}")
    ratios = [point.hit_ratio for point in curve.points]
    text = Text().append("hit rate by memory ", "bold").append(shown.sparkline(ratios, _CURVE_CELLS), "cyan")
    factors = {"now": 1, "×2": 2, "×4": 4, "×8": 8, "without bound": math.inf}
    parts = [
        f"{name} {shown.share(hit_ratio_at(curve, each * curve.capacity_tokens))}" for name, each in factors.items()
    ]
    working_set = shown.whole(None if math.isnan(curve.working_set_tokens) else curve.working_set_tokens)
    text.append(f"\n{', '.join(parts)} · working set {working_set} tokens")
    return text.append(f" · regret {counted(curve.regret_tokens, 'token')} · {counted(curve.num_samples, 'sample')}")


def table_lines(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return a table as plain text."""
    cells = [columns, *(row.plain for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]

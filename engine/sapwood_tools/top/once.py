"""One snapshot as plain text: for scripts, and where there is no terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sapwood_tools.top import panels
from sapwood_tools.top.history import EngineView, GatewayView

_LINES = 20


def snapshot(engines: Sequence[EngineView], gateway: GatewayView | None) -> str:
    """Return everything that the screen would show, of all engines one after the other."""
    parts = [] if gateway is None else [panels.gateway_line(gateway).plain]
    if len(engines) > 1:
        parts.append("\n".join(panels.table_lines(panels.REPLICA_COLUMNS, [*map(panels.replica_row, engines)])))
    for view in engines:
        rows = [panels.request_row(request) for request in panels.sorted_requests(view, "arrival")]
        parts += [panels.head(view).plain, "\n".join(panels.table_lines(panels.REQUEST_COLUMNS, rows))]
        cache = view.now.cache
        parts += [panels.top_nodes(cache, _LINES).plain, panels.seen_lines(view, _LINES).plain]
        parts.append(panels.curve_lines(cache).plain)
    return "\n\n".join(parts) + "\n"

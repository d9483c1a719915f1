"""The screen: shows what `history` knows after each poll, and carries out what keys order."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Static

from sapwood_contract.http import RequestView
from sapwood_tools.admin_client import Unanswered
from sapwood_tools.terminal_text import counted, printable
from sapwood_tools.top import panels
from sapwood_tools.top.dialogs import Confirm, Help
from sapwood_tools.top.history import EngineView
from sapwood_tools.top.source import Source
from sapwood_tools.top.views import Views

_NODE_LINES = 10
_OF_THE_WEB = re.compile(r"@font-face\s*\{[^}]*\}|<!--.*?-->")


class TopApp(App[None]):
    """Polls ``source`` every ``interval_seconds`` and shows what it says."""

    TITLE = "sapwood top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #gateway, #head, #curve, #message { height: auto; }
    #replicas { height: auto; max-height: 8; }
    #requests { height: 1fr; min-height: 4; }
    #cache { height: 10; }
    #nodes { width: 3fr; }
    #seen { width: 2fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("a", "abort", "Abort"),
        ("f", "flush", "Flush"),
        ("p", "pause", "Pause"),
        ("s", "sort", "Sort"),
        Binding("question_mark", "help", "Help", key_display="?"),
        ("q", "quit", "Quit"),
    ]

    def __init__(self, source: Source, *, interval_seconds: float) -> None:
        super().__init__()
        self.views = Views()
        self.num_polls = 0
        self.order = "arrival"
        self._source = source
        self._interval_seconds = interval_seconds
        self._going = asyncio.Event()
        self._going.set()
        self._engine_url = ""
        self._requests: list[RequestView] = []
        """As the table shows them."""

    # --- the screen

    def compose(self) -> ComposeResult:
        yield Static(id="gateway")
        yield Static(id="head")
        yield DataTable(id="replicas", cursor_type="row")
        yield DataTable(id="requests", cursor_type="row", zebra_stripes=True)
        with Horizontal(id="cache"):
            yield Static(id="nodes")
            yield Static(id="seen")
        yield Static(id="curve")
        yield Static(id="message")
        yield Footer()

    def on_mount(self) -> None:
        self._table("replicas").add_columns(*panels.REPLICA_COLUMNS)
        self._table("requests").add_columns(*panels.REQUEST_COLUMNS)
        self._table("requests").focus()
        self._show()
        self.run_worker(self._poll(), exclusive=True, group="poll")

    async def _poll(self) -> None:
        while True:
            await self._going.wait()
            poll = await self._source.ask()
            # The answer may come when the screen is being closed.
            if self._going.is_set() and self.is_running:
                self.views.take(poll)
                self.num_polls += 1
                self._show()
            await asyncio.sleep(self._interval_seconds)

    @property
    def engine(self) -> EngineView | None:
        """The engine that is shown; None while there is none."""
        engines = self.views.engines
        return next((view for view in engines if view.url == self._engine_url), engines[0] if engines else None)

    @property
    def selected(self) -> RequestView | None:
        """The request that is marked; None where there is none."""
        row = self._table("requests").cursor_row
        return self._requests[row] if 0 <= row < len(self._requests) else None

    def _table(self, name: str) -> DataTable[Text]:
        return self.screen_stack[0].query_one(f"#{name}", DataTable)  # also below a dialog

    def _write(self, name: str, text: Text) -> None:
        self.screen_stack[0].query_one(f"#{name}", Static).update(text)

    def _show(self) -> None:
        """Draw everything anew."""
        view, gateway = self.engine, self.views.gateway
        self.screen_stack[0].query_one("#gateway").display = gateway is not None
        if gateway is not None:
            self._write("gateway", panels.gateway_line(gateway))
        self._show_replicas()
        self._show_requests()
        if view is None:
            told = "there is no engine: name one with --engine" if self.num_polls else "asking …"
            parts = {"head": Text(told, "bold"), "nodes": Text(), "seen": Text(), "curve": Text()}
        else:
            parts = {
                "head": panels.head(view),
                "nodes": panels.top_nodes(view.now.cache, _NODE_LINES),
                "seen": panels.seen_lines(view, _NODE_LINES),
                "curve": panels.curve_lines(view.now.cache),
            }
        for name, text in parts.items():
            self._write(name, text)

    def _show_replicas(self) -> None:
        table, engines = self._table("replicas"), self.views.engines
        table.display = len(engines) > 1
        marked = next((i for i, view in enumerate(engines) if view.url == self._engine_url), 0)
        _fill(table, [panels.replica_row(view) for view in engines], marked)

    def _show_requests(self) -> None:
        view, marked, row = self.engine, self.selected, self._table("requests").cursor_row
        self._requests = [] if view is None else panels.sorted_requests(view, self.order)
        ids = [request.request_id for request in self._requests]
        # The mark follows its request; of several with one id it stays where it is.
        if marked is not None and marked.request_id in ids and ids[row : row + 1] != [marked.request_id]:
            row = ids.index(marked.request_id)
        _fill(self._table("requests"), [panels.request_row(request) for request in self._requests], row)

    def _say(self, line: str, style: str = "") -> None:
        if self.is_running:
            self._write("message", Text(line, style))

    @on(DataTable.RowHighlighted, "#replicas")
    def _engine_marked(self, event: DataTable.RowHighlighted) -> None:
        engines = self.views.engines
        if event.cursor_row < len(engines) and engines[event.cursor_row].url != self._engine_url:
            self._engine_url = engines[event.cursor_row].url
            self._show()

    # --- keys

    def action_pause(self) -> None:
        """Stop asking, or go on."""
        if self._going.is_set():
            self._going.clear()
            self._say("paused: p goes on", "bold yellow")
        else:
            self._going.set()
            self._say("")

    def action_sort(self) -> None:
        """Sort requests by the next order."""
        orders = list(panels.ORDERS)
        self.order = orders[(orders.index(self.order) + 1) % len(orders)]
        self._show_requests()
        self._say(f"sorted by {self.order}")

    def action_help(self) -> None:
        """Tell what the keys do."""
        self.push_screen(Help())

    def action_abort(self) -> None:
        """Ask, then end the request that is marked."""
        view, request = self.engine, self.selected
        if view is None or request is None or request.state == "ended":
            self._say("no request that waits or runs is marked: choose one with the arrows")
            return
        name = printable(request.request_id)

        async def abort() -> str:
            num_aborted = await self._source.abort(view.url, request.request_id)
            return f"{name}: {counted(num_aborted, 'choice')} told to stop" if num_aborted else f"{name} has ended"

        self._confirm(f"Abort the request {name} of {view.name}?", abort)

    def action_flush(self) -> None:
        """Ask, then empty the prefix cache of the engine that is shown."""
        view = self.engine
        if view is None:
            self._say("there is no engine")
            return

        async def flush() -> str:
            return f"{view.name}: {counted(await self._source.flush(view.url), 'token')} flushed"

        self._confirm(f"Flush the prefix cache of {view.name}? What it holds will be computed anew.", flush)

    def _confirm(self, question: str, order: Callable[[], Awaitable[str]]) -> None:
        """Ask; on a yes carry ``order`` out and say what it returns, or why it could not be done."""

        async def carry_out() -> None:
            try:
                self._say(await order())
            except Unanswered as error:
                self._say(f"the engine {error}", "bold red")

        def answered(is_yes: bool | None) -> None:
            if is_yes:
                self.run_worker(carry_out(), group="orders")

        self.push_screen(Confirm(question), answered)

    def export_screenshot(self, *, title: str | None = None, simplify: bool = False) -> str:
        """Return the screen as SVG, without the fonts of the web that the library would have it load."""
        return _OF_THE_WEB.sub("", super().export_screenshot(title=title, simplify=simplify))


def _fill(table: DataTable[Text], rows: Sequence[panels.Row], marked: int) -> None:
    """Make ``rows`` what the table shows, and mark one of them; nobody is told, for no person did it."""
    with table.prevent(DataTable.RowHighlighted):
        if table.row_count == len(rows):
            for number, row in enumerate(rows):
                for column, cell in enumerate(row.cells):
                    table.update_cell_at(Coordinate(number, column), cell, update_width=True)
        else:
            table.clear()
            for row in rows:
                table.add_row(*row.cells)
        if table.cursor_row != marked:
            table.move_cursor(row=marked)

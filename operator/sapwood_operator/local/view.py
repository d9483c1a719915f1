"""What people see: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sapwood_operator.local.figures import Figures
from sapwood_operator.local.news import News
from sapwood_operator.local.platform import Platform
from sapwood_operator.local.reconcile import Told
from sapwood_operator.local.rows import Row, example_call, remarks, rows, scales

_COLUMNS = ("service", "replica", "state", "requests", "hit rate", "TTFT", "tokens/s", "restarts")
_REFRESH_SECONDS = 0.25
_COLOURS = {"ready": "green", "starting": "yellow", "draining": "cyan", "not ready": "red", "cannot start": "red"}


class Lines:
    """Writes a line for each change."""

    def __init__(self, news: News, write: Callable[[str], object]) -> None:
        self._news = news
        self._write = write
        self._asides: tuple[str, ...] = ()
        """What was told beside changes of the platform, and still holds."""

    def show(self, platform: Platform, _figures: Figures, told: Sequence[Told], _now: float) -> None:
        """As `program.View.show`."""
        asides = (*platform.documents.not_acted_on, *platform.tenant_problems, example_call(platform))
        for line in (*(each for each in asides if each not in self._asides), *self._news.lines(platform, told)):
            self.tell(line)
        self._asides = asides

    def tell(self, line: str) -> None:
        """Write something that is no change of the platform."""
        self._write(line + "\n")

    def close(self) -> None:
        """Nothing is held back."""


class LiveTable:
    """Keeps a table on the terminal; what happens scrolls by above it."""

    def __init__(self, news: News, logs: Path, console: Console) -> None:
        self._news = news
        self._logs = logs
        # No thread of its own: what it shows belongs to the loop.
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()
        self._due = 0.0

    def show(self, platform: Platform, figures: Figures, told: Sequence[Told], now: float) -> None:
        """As `program.View.show`."""
        news = self._news.lines(platform, told)
        for line in news:
            self.tell(line)
        if news or now >= self._due:
            self._due = now + _REFRESH_SECONDS
            self._live.update(self._picture(platform, figures, now), refresh=True)

    def tell(self, line: str) -> None:
        """Print something above the table."""
        self._live.console.print(Text(line, style="dim"))

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()

    def _picture(self, platform: Platform, figures: Figures, now: float) -> RenderableType:
        answer = "ending" if platform.is_ending else "ready" if platform.gateway_is_ready else "starting"
        head = Text.assemble((platform.gateway.url, "bold"), f"  {answer}; Ctrl-C lets requests finish and ends it")
        parts: list[RenderableType] = [head, Text(example_call(platform)), table(rows(platform, figures, now))]
        parts += [Text(line) for line in scales(platform)]
        parts += [Text(self._news.here(remark), style="yellow") for remark in remarks(platform)]
        return Group(*parts, Text(f"logs: {self._logs}", style="dim"))


def table(of: Sequence[Row]) -> Table:
    """Return the table of all replicas."""
    drawn = Table(*_COLUMNS, box=None, pad_edge=False)
    for row in of:
        cells = [Text(cell) for cell in astuple(row)]
        cells[2].stylize(_COLOURS.get(row.state, "red"))
        drawn.add_row(*cells)
    return drawn

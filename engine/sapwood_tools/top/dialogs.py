"""What stands above the screen until it is answered: a question, or the help."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

from sapwood_tools.top import panels, shown

_BOX = """
    {name} {{ align: center middle; }}
    {name} Static {{ width: auto; max-width: 90%; padding: 1 2; border: thick $primary; background: $surface; }}
"""


class Confirm(ModalScreen[bool]):
    """Asks a question; only ``y`` is a yes."""

    DEFAULT_CSS = _BOX.format(name="Confirm")
    BINDINGS: ClassVar[list[BindingType]] = [("y", "answer(True)", "Yes"), ("n,escape,q", "answer(False)", "No")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self.question}\n\ny yes   n no"))

    def action_answer(self, is_yes: bool) -> None:
        """Close with an answer."""
        self.dismiss(is_yes)


class Help(ModalScreen[None]):
    """Tells what the keys do and what the cells mean."""

    DEFAULT_CSS = _BOX.format(name="Help")
    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        text = Text("a      abort the request that is marked (asks first)\n")
        text.append("f      flush the prefix cache of the engine that is marked (asks first)\n")
        text.append("p      pause: ask nothing, until p again\n")
        text.append(f"s      sort requests by {', '.join(panels.ORDERS)}\n")
        text.append("tab    from table to table; the engine that is marked is the one shown\n")
        text.append("q      leave\n\nPhases  ").append_text(panels.phase_legend()).append("\nKV      ")
        for name, (character, style) in shown.KV_CELLS.items():
            text.append(character, style).append(f" {name}  ")
        text.append(f"\n\n{shown.UNKNOWN} is unknown, not 0. Rates are of the last ten seconds.")
        yield Static(text)

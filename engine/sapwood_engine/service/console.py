"""What the person at the terminal sees: how the start goes on, then what is served and how to try it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from sapwood_engine.checkpoint.sampling_defaults import SamplingDefaults
from sapwood_engine.core.ports import Capacity
from sapwood_engine.service.messages import Progress

_CLEAR_LINE = "\r\x1b[K"
_LABEL_WIDTH = 16


class Console:
    """Writes to one stream; on a terminal progress stays on one line, elsewhere each new phase is a line.

    When nobody reads the stream any more it falls silent: an engine serves on.
    """

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream
        self._on_terminal = stream.isatty()
        self._last = ""

    def progress(self, progress: Progress) -> None:
        """Say how the start goes on."""
        line = f"{progress.phase}: {progress.detail}"
        if self._on_terminal:
            share = "" if progress.fraction is None else f" {progress.fraction:4.0%}"
            self._write(f"{_CLEAR_LINE}{line}{share}")
        elif line != self._last:
            self._write(line + "\n")
        self._last = line

    def ready(self, card: str) -> None:
        """Show the ready card, in place of the progress."""
        self._write((_CLEAR_LINE if self._on_terminal else "") + card + "\n")

    def error(self, message: str) -> None:
        """Say in one line why the program ends, on stderr."""
        if self._on_terminal and self._last:
            self._write("\n")
        with contextlib.suppress(BrokenPipeError):
            print(f"sapwood: {message}", file=sys.stderr, flush=True)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            # What could not be written stays in the stream, which writes it again when it is closed.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())


def ready_card(
    *,
    model: str,
    api_url: str,
    admin_url: str,
    capacity: Capacity,
    facts: Mapping[str, str],
    sampling: SamplingDefaults,
    seconds: float,
    chat: bool,
    needs_key: bool,
    has_console: bool = False,
) -> str:
    """Return what a person needs to know of an engine that serves, and a command to try it.

    ``facts``: lines of the worker; one that has the name of a line here says more of it.
    """
    kv_tokens = capacity.num_pages * capacity.page_size
    own = {
        "address": f"{api_url}/v1",
        "admin": admin_url,
        **({"console": f"{api_url}/ui"} if has_console else {}),
        "model": model,
        "KV cache": f"{kv_tokens:,} tokens in pages of {capacity.page_size}",
        "context": f"{capacity.max_context_tokens:,} tokens",
        "sampling": f"{sampling}, where a request does not say",
    }
    lines = own | {label: f"{own[label]}, {fact}" if label in own else fact for label, fact in facts.items()}
    lines["try"] = _example(model, api_url, chat=chat, needs_key=needs_key)
    table = (f"  {label:<{_LABEL_WIDTH}}{value}" for label, value in lines.items())
    return "\n".join([f"Sapwood is ready after {seconds:.1f} s", *table])


def _example(model: str, api_url: str, *, chat: bool, needs_key: bool) -> str:
    key = " -H 'authorization: Bearer <key>'" if needs_key else ""
    asked = (
        {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
        if chat
        else {"prompt": "The capital of France is"}
    )
    # Greedy: the first answer that a person sees should be the model's best.
    body = {"model": model, "temperature": 0, "max_tokens": 64, **asked}
    path = "chat/completions" if chat else "completions"
    return f"curl {api_url}/v1/{path}{key} -H 'content-type: application/json' -d '{json.dumps(body)}'"

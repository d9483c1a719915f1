"""The workloads as values: what is asked, with how many requests at once.

A workload has variants ``r0`` … ``r3`` with the same shape and other words; every repetition takes another
one, so that nothing a server kept from the repetition before can help it. ``bench/workloads/README.md`` tells
what each is for and where the files come from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONCURRENCY: dict[str, int] = {
    "a_shared": 8,
    "b_multiturn": 8,
    "c_random": 8,
    "d_fewshot": 8,
    "e_decode1": 1,
    "f_decode16": 16,
}
"""Workload -> requests (or conversations) under way at once."""

NUM_VARIANTS = 4


class WorkloadError(Exception):
    """A workload file that is missing or cannot be read; names the file and the line."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One prompt, one answer."""

    prompt: str
    prompt_tokens: int
    """Tokens of the prompt in SmolLM2's vocabulary, special tokens recognised."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Questions asked one after the other, each with everything said so far before it."""

    system: str
    turns: tuple[str, ...]
    max_tokens: int


Item = Completion | Conversation


@dataclass(frozen=True, slots=True)
class Workload:
    """Items in the order in which they are started."""

    name: str
    variant: int
    concurrency: int
    items: tuple[Item, ...]


def load(folder: Path, name: str, variant: int) -> Workload:
    """Read one variant of a workload from ``folder``; `WorkloadError` where that does not work."""
    items = read_items(folder / f"{name}_r{variant}.jsonl")
    return Workload(name, variant, CONCURRENCY[name], items)


def load_warm_up(folder: Path) -> Workload:
    """Read what a server is asked before it is measured: the sizes to come, in other words."""
    return Workload("warm", 0, 8, read_items(folder / "warm.jsonl"))


def read_items(path: Path) -> tuple[Item, ...]:
    """Read a file of items, one JSON object a line; `WorkloadError` names file and line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}; name the folder with --data") from error
    items: list[Item] = []
    for number, line in enumerate(lines, start=1):
        try:
            items.append(_item(json.loads(line)))
        except (KeyError, TypeError, ValueError) as error:
            raise WorkloadError(f"{path}:{number}: {error!r}") from error
    return tuple(items)


def _item(fields: dict[str, Any]) -> Item:
    match fields["kind"]:
        case "completion":
            return Completion(fields["prompt"], fields["prompt_tokens"], fields["max_tokens"])
        case "conversation":
            return Conversation(fields["system"], tuple(fields["turns"]), fields["max_tokens"])
        case kind:
            raise ValueError(f"unknown kind {kind!r}")


def opening(system: str) -> str:
    """Return the ChatML text that a conversation starts with."""
    return f"<|im_start|>system\n{system}<|im_end|>\n"


def question(text: str) -> str:
    """Return the ChatML text of a user's turn, up to where the answer begins."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def answer(text: str) -> str:
    """Return the ChatML text of an answer, for the history of the next turn."""
    return f"{text}<|im_end|>\n"

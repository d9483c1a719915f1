"""How much a document says once its aliases are written out: a few lines of YAML can stand for billions of values.

Reading them costs nothing, for an alias is the same value again. Whoever then walks over all of it never ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from sapwood_contract.shallow import LEVELS

_ALWAYS = 100_000
"""Values and characters, which cost nobody more than a moment; aliases that are meant stay far below."""


class Expanding(ValueError):
    """A document that says too much, is nested too deeply or contains itself; the message quotes nothing of it."""


def check_expansion(documents: object, num_bytes: int) -> None:
    """Raise `Expanding` where ``documents``, read from so many bytes, say much more than these could write out."""
    size, _ = _measure(documents, 0, {})
    most = _ALWAYS + 2 * num_bytes  # a character is a byte at least, and so is a value
    if size > most:
        raise Expanding(f"its aliases stand for more than {most} values and characters: write out what is meant")


def _measure(value: object, level: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return values and characters in ``value``, and its levels; each value is looked at once, as ``known`` by id."""
    if isinstance(value, str | bytes):
        return 1 + len(value), 0
    if not isinstance(value, Mapping | list | tuple | set):
        return 1, 0
    size, height = known.get(id(value), (0, 0))
    if not size and level <= LEVELS:
        inner = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        measured = [_measure(each, level + 1, known) for each in inner]
        size, height = 1 + sum(each for each, _ in measured), 1 + max((each for _, each in measured), default=0)
        known[id(value)] = size, height
    if level + height > LEVELS:
        raise Expanding(f"it is nested deeper than {LEVELS} levels")
    return size, height

"""Reads one JSON object field by field, each as its type or not at all.

The schema has refused nonsense before; this refuses it again, because an object may be older than the schema and
because a wrong type must end as a condition that names the field, never as a traceback.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood_operator.domain import quantities
from sapwood_operator.errors import InvalidSpec


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object, and the path that leads to it for messages."""

    values: Mapping[str, Any]
    path: str
    """Empty for a whole document."""

    def has(self, name: str) -> bool:
        """Whether the field is there; JSON's null is not."""
        return self.values.get(name) is not None

    def where(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def _value(self, name: str, kind: Any, default: Any, fix: str) -> Any:
        """Return what is an instance of ``kind``; ``default`` None: the field is required."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise InvalidSpec(self.where(name), None, "it is required")
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidSpec(self.where(name), value, fix)
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text that is not empty; required where there is no default."""
        value: str = self._value(name, str, default, "give a text")
        if not value and default != "":
            raise InvalidSpec(self.where(name), value, "give a text that is not empty")
        return value

    def integer(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Return a whole number of at least ``least``."""
        value: int = self._value(name, int, default, "give a whole number")
        if value < least:
            raise InvalidSpec(self.where(name), value, f"give at least {least}")
        return value

    def switch(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value: bool = self._value(name, bool, default, "give true or false")
        return value

    def choice(self, name: str, default: str, choices: Collection[str]) -> str:
        """Return one of a closed set."""
        value: str = self._value(name, str, default, "give a text")
        if value not in choices:
            raise InvalidSpec(self.where(name), value, f"take one of {', '.join(choices)}")
        return value

    def seconds(self, name: str, default: float) -> float:
        """Return a duration, ``"1h30m"``, in seconds."""
        if not self.has(name):
            return default
        try:
            return quantities.seconds(self._value(name, str, None, "give a duration such as 90s"))
        except ValueError:
            raise InvalidSpec(self.where(name), self.values[name], "give a duration such as 90s or 10m") from None

    def share(self, name: str) -> float:
        """Return a decimal above 0 and below 1."""
        value = self._decimal(name)
        if not 0 < value < 1:
            fix = 'give a decimal above 0 and below 1, such as "0.88"'
            raise InvalidSpec(self.where(name), self.values[name], fix)
        return value

    def ratio(self, name: str, default: float, *, least: float = 0.0) -> float:
        """Return a decimal from ``least`` to 1."""
        value = self._decimal(name) if self.has(name) else default
        if not least <= value <= 1:
            raise InvalidSpec(self.where(name), self.values[name], f'give a decimal from "{least:g}" to "1"')
        return value

    def _decimal(self, name: str) -> float:
        """Return a decimal that is written as a text, so that no reader rounds it; NaN for a text that is none."""
        text = self._value(name, str, None, 'give a decimal as a text, "0.88"')
        try:
            return float(text)
        except ValueError:
            return math.nan

    def count_or_share(self, name: str, default: int) -> int | str:
        """Return a number of pods, or a percentage of them (``"25%"``)."""
        value = self.values.get(name, default)
        if isinstance(value, str) and value.endswith("%") and value[:-1].isdecimal():
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        raise InvalidSpec(self.where(name), value, 'give a number of pods, or a percentage such as "25%"')

    def inner(self, name: str) -> Fields:
        """Return the object in a field; empty where the field is absent."""
        return Fields(self._value(name, Mapping, {}, "give an object"), self.where(name))

    def objects(self, name: str) -> tuple[Mapping[str, Any], ...]:
        """Return a list of objects; empty where the field is absent."""
        return self._items(name, Mapping, "give a list of objects")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; empty where the field is absent."""
        return self._items(name, str, "give a list of texts")

    def _items(self, name: str, kind: Any, fix: str) -> tuple[Any, ...]:
        value = self.values.get(name)
        if value is None:
            return ()
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(i, kind) for i in value):
            raise InvalidSpec(self.where(name), value, fix)
        return tuple(value)

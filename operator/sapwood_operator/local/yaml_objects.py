"""Objects out of files and folders, as ``kubectl apply -f`` finds them, each with its place for messages."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sapwood_contract.expansion import check_expansion

_ENDINGS = (".yaml", ".yml", ".json")
_MAX_BYTES = 16 * 2**20


class UnreadableFile(ValueError):
    """A file that holds no objects; the message names file, line and what is wrong."""


@dataclass(frozen=True, slots=True)
class Found:
    """One object."""

    where: str
    """File and number of the document in it."""
    document: Mapping[str, Any]


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files that ``paths`` name, those of a folder by name; raises `UnreadableFile`."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(each for each in path.iterdir() if each.suffix in _ENDINGS) if path.is_dir() else [path]
        if not inside:
            raise UnreadableFile(f"{path}: there is no file in it that ends in {', '.join(_ENDINGS)}")
        found += inside
    return list(dict.fromkeys(found))


def objects_in(path: Path) -> Iterator[Found]:
    """Yield every object of a file, also those of a ``List``; raises `UnreadableFile`."""
    try:
        if not path.is_file() and path.exists():
            raise UnreadableFile(f"{path}: it is no regular file, and could not be read again; give one")
        text = path.read_bytes()
        if len(text) > _MAX_BYTES:
            raise UnreadableFile(f"{path}: it has {len(text)} bytes; at most {_MAX_BYTES} are read")
    except OSError as error:
        raise UnreadableFile(f"{path}: {error.strerror or error}") from error
    for number, document in enumerate(_documents(text, path), start=1):
        if document is not None:
            yield from _objects(document, f"{path}, document {number}")


def _documents(text: bytes, path: Path) -> list[Any]:
    try:
        documents = list(yaml.load_all(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        # Not the error's own words: they quote the line, in which a secret may stand.
        raise UnreadableFile(f"{path}: {place}it is not YAML that can be read: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UnreadableFile(f"{path}: it is not YAML that can be read: {' '.join(str(error).split())}") from error
    try:
        check_expansion(documents, len(text))
    except ValueError as error:
        raise UnreadableFile(f"{path}: {error}") from error
    return documents


def _objects(document: Any, where: str) -> Iterator[Found]:
    if not isinstance(document, Mapping):
        raise UnreadableFile(f"{where}: it is no object, but {type(document).__name__}")
    if document.get("kind") == "List":
        items = document.get("items") or []
        if not isinstance(items, list):
            raise UnreadableFile(f"{where}: items: it is no list")
        for index, item in enumerate(items):
            yield from _objects(item, f"{where}, items[{index}]")
    else:
        yield Found(where, document)


_LOADER: Any = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
"""Reads what JSON has: dates stay texts. A key that is there twice is refused, for a value would be lost.

It is the one written in C where PyYAML has it: the other one takes seconds for a line of brackets.
"""


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[str, Any]:
    loader.flatten_mapping(node)
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable) or not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is no text", key_node.start_mark)
        if key in found:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is there twice", key_node.start_mark)
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_LOADER.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_LOADER.add_constructor("tag:yaml.org,2002:timestamp", lambda _loader, node: str(node.value))

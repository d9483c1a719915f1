"""Where tenants are known from: objects of the cluster, and a file of whoever runs the gateway.

A tenant of the file takes the place of the object of its namespace and name. What was known stays in force until
something that can be used replaces it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sapwood_gateway.core.tenant_documents import Known, tenants_of
from sapwood_gateway.core.tenants import Tenants
from sapwood_gateway.shell.watched_file import LOOK_SECONDS, AsBefore, CannotBeRead, Content, WatchedFile

_log = logging.getLogger(__name__)

_MAX_BYTES = 16 * 2**20
_OTHER_KINDS = frozenset({"InferenceService", "LoRAAdapter", "AutoscalingPolicy"})
"""May stand in the same file, as they do in the examples."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Document = Mapping[str, Any]


class UnusableTenants(Exception):
    """The file of tenants cannot be used; the message says why, and names no tenant."""


class TenantDirectory:
    """All tenants that are known now, for one event loop."""

    def __init__(self) -> None:
        self.tenants = Tenants()
        self._of_cluster: Sequence[Document] = ()
        self._of_file: Sequence[Document] = ()
        self._problems: frozenset[str] = frozenset()

    def take_cluster(self, documents: Sequence[Document]) -> None:
        """These are all Tenant objects of the cluster, or of the discovery file."""
        self._of_cluster = documents
        self._refresh()

    def take_file(self, documents: Sequence[Document]) -> None:
        """These are all Tenant documents of ``--tenants``, each with a namespace."""
        self._of_file = documents
        self._refresh()

    def _refresh(self) -> None:
        in_file = {_place(document) for document in self._of_file}
        known = tenants_of([*self._of_file, *(each for each in self._of_cluster if _place(each) not in in_file)])
        for problem in set(known.problems) - self._problems:
            _log.warning(problem)
        self._problems = frozenset(known.problems)
        self.tenants = known.tenants


class TenantFile:
    """The file of ``--tenants``: YAML documents of kind Tenant, read again when it has changed.

    A version with a problem anywhere is not taken, or an edit that goes wrong would lock somebody out.
    """

    def __init__(self, path: Path, directory: TenantDirectory, *, default_namespace: str) -> None:
        """``default_namespace``: of documents that name none."""
        self._file = WatchedFile(path)
        self._directory = directory
        self._default_namespace = default_namespace

    async def run(self) -> None:
        """Look at the file for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.look()
            except UnusableTenants as error:
                _log.warning(
                    "the file of tenants cannot be used; what it said before stays in force",
                    extra={"reason": str(error)},
                )

    def look(self) -> None:
        """Take in what the file says, where that is new; raises `UnusableTenants`."""
        match self._file.look():
            case AsBefore():
                return
            case CannotBeRead(reason):
                raise UnusableTenants(f"it cannot be read ({reason})")
            case Content(text):
                documents = self._read(text)
                self._directory.take_file(documents)
                _log.info("read the file of tenants", extra={"num_tenants": len(documents)})

    def _read(self, text: bytes) -> list[Document]:
        if len(text) > _MAX_BYTES:
            raise UnusableTenants(f"it has {len(text)} bytes; at most {_MAX_BYTES} are read")
        try:
            documents = [_placed(each, self._default_namespace) for each in _documents(text)]
            known: Known = tenants_of(documents)
        except yaml.MarkedYAMLError as error:
            line = 0 if error.problem_mark is None else error.problem_mark.line + 1
            # Not the error's own words: they quote the line, which may hold a name.
            raise UnusableTenants(f"it is not YAML: line {line}: {error.problem}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UnusableTenants(f"it is not YAML ({type(error).__name__})") from None
        if known.problems:
            raise UnusableTenants("; ".join(known.problems)[:2_000])
        return documents


def _documents(text: bytes) -> list[Any]:
    loaded = yaml.load_all(text, Loader=_LOADER)
    return [each for each in loaded if each is not None and _kind(each) not in _OTHER_KINDS]


def _kind(document: object) -> object:
    kind = document.get("kind") if isinstance(document, Mapping) else None
    return kind if isinstance(kind, str) else None


def _placed(document: Any, namespace: str) -> Any:
    """Return ``document`` with a namespace; one that is no Tenant is left for `tenants_of` to refuse."""
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    if not isinstance(metadata, Mapping):
        return document
    return {**document, "metadata": {"namespace": namespace, **metadata}}


def _place(document: Document) -> tuple[object, object]:
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping):
        return None, None
    return str(metadata.get("namespace")), str(metadata.get("name"))

"""Where tenants are known from: objects of the cluster, and a file of whoever runs the gateway.

A tenant of the file takes the place of the object of its namespace and name. What was known stays in force until
something that can be used replaces it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sapwood_gateway.core.tenant_documents import tenants_of
from sapwood_gateway.core.tenant_secrets import NO_SECRETS, KnownSecrets, secrets_among, with_hashes
from sapwood_gateway.core.tenants import Tenants
from sapwood_gateway.shell.watched_file import LOOK_SECONDS, AsBefore, CannotBeRead, Content, WatchedFile
from sapwood_gateway.shell.yaml_text import UnreadableText, documents_in

_log = logging.getLogger(__name__)

_OTHER_KINDS = frozenset({"InferenceService", "LoRAAdapter", "AutoscalingPolicy"})
"""May stand in the same file, as they do in the examples."""

Document = Mapping[str, Any]
TakeTenants = Callable[[Sequence[Document], KnownSecrets], None]
"""Gets all Tenants of a source, and what is known of the Secrets that they name."""


class UnusableTenants(Exception):
    """The file of tenants cannot be used; the message says why, and names no tenant."""


class TenantDirectory:
    """All tenants that are known now, for one event loop."""

    def __init__(self) -> None:
        self.tenants = Tenants()
        self._of_cluster: Sequence[Document] = ()
        self._secrets = NO_SECRETS
        self._of_file: Sequence[Document] = ()
        self._problems: frozenset[str] = frozenset()

    def take_cluster(self, documents: Sequence[Document], secrets: KnownSecrets) -> None:
        """These are all Tenant objects of the cluster, or of the discovery file, and what is known of their Secrets."""
        self._of_cluster, self._secrets = documents, secrets
        self._refresh()

    def take_file(self, documents: Sequence[Document]) -> None:
        """These are all Tenant documents of ``--tenants``, each with a namespace and with its hashes."""
        self._of_file = documents
        self._refresh()

    def _refresh(self) -> None:
        in_file = {_place(document) for document in self._of_file}
        others = with_hashes([each for each in self._of_cluster if _place(each) not in in_file], self._secrets)
        known = tenants_of([*self._of_file, *others.documents])
        problems = frozenset((*others.problems, *known.problems))
        for problem in problems - self._problems:
            _log.warning(problem)
        self._problems = problems
        self.tenants = known.tenants


class TenantFile:
    """The file of ``--tenants``: YAML documents of kind Tenant, and the Secrets that they name, read again when it has
    changed.

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
            except Exception as error:  # whatever stands in the file: it never ends the gateway
                _log.warning(
                    "the file of tenants cannot be used; what it said before stays in force",
                    extra={"reason": str(error) if isinstance(error, UnusableTenants) else type(error).__name__},
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

    def _read(self, text: bytes) -> Sequence[Document]:
        try:
            found = [each for each in documents_in(text) if each is not None]
        except UnreadableText as error:
            raise UnusableTenants(str(error)) from None
        if not found:  # which is what most writers leave for a moment
            raise UnusableTenants("there is no document in it; suspend tenants to keep everybody out")
        placed = [_placed(each, self._default_namespace) for each in found if _kind(each) not in _OTHER_KINDS]
        secrets = [each for each in placed if _kind(each) == "Secret"]
        tenants = [each for each in placed if _kind(each) != "Secret"]
        filled = with_hashes(tenants, secrets_among(secrets, tenants))
        if problems := (*filled.problems, *tenants_of(filled.documents).problems):
            raise UnusableTenants("; ".join(problems)[:2_000])
        return filled.documents


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

"""What the files say: documents of a cluster, judged by a cluster's rules, and sorted by what is done with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sapwood_operator.domain.names import API_VERSION
from sapwood_operator.local.cel import rule_problems
from sapwood_operator.local.command import secret_content
from sapwood_operator.local.definitions import Definition
from sapwood_operator.local.metadata import metadata_problems
from sapwood_operator.local.problems import Problem, unusable
from sapwood_operator.local.schema import schema_problems, with_defaults
from sapwood_operator.local.world import JsonObject
from sapwood_operator.local.yaml_objects import Found, UnreadableFile, files_of, objects_in

DEFAULT_NAMESPACE = "default"
_GROUP = API_VERSION.partition("/")[0]
_SECRET_KEY = re.compile(r"(?!\.{1,2}$)[-._a-zA-Z0-9]+")
_OURS = ("InferenceService", "AutoscalingPolicy", "Tenant")
_OF_CLUSTERS = ("PersistentVolumeClaim", "Secret")
"""Kinds of Kubernetes itself that mean something here."""
_LATER: Mapping[str, str] = {"LoRAAdapter": "adapters are not built yet"}


class InvalidDocuments(ValueError):
    """Files that cannot be used, with all that is wrong with them: sentences."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What the files say, all of it valid, with the defaults of the schema."""

    services: tuple[JsonObject, ...] = ()
    policies: tuple[JsonObject, ...] = ()
    """AutoscalingPolicies."""
    tenants: tuple[JsonObject, ...] = ()
    secrets: tuple[JsonObject, ...] = ()
    claims: frozenset[str] = frozenset()
    """Names of volumes that are to be had."""
    not_acted_on: tuple[str, ...] = ()
    """What else is there: sentences."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the same files again and again."""

    paths: Sequence[Path]
    definitions: Mapping[str, Definition]

    def read(self, before: Documents) -> Documents:
        """Return what the files say now; raises `InvalidDocuments`.

        ``before``: what is in force: some rules are about changes.
        """
        try:
            found = [each for path in files_of(self.paths) for each in objects_in(path)]
        except (UnreadableFile, OSError) as error:
            raise InvalidDocuments([str(error)]) from error
        if not found:  # which is what most writers leave for a moment
            raise InvalidDocuments([f"there is no document in {', '.join(map(str, self.paths))}"])
        known = (*before.services, *before.policies, *before.tenants)
        former = {_identity(document): document for document in known}
        sorted_ = _Sorted()
        for each in found:
            self._take(each, former, sorted_)
        if sorted_.problems:
            raise InvalidDocuments(sorted_.problems)
        return Documents(
            services=tuple(sorted_.by_kind["InferenceService"]),
            policies=tuple(sorted_.by_kind["AutoscalingPolicy"]),
            tenants=tuple(sorted_.by_kind["Tenant"]),
            secrets=tuple(sorted_.by_kind["Secret"]),
            claims=frozenset(each["metadata"]["name"] for each in sorted_.by_kind["PersistentVolumeClaim"]),
            not_acted_on=tuple(sorted_.not_acted_on),
        )

    def _take(self, found: Found, former: Mapping[tuple[str, str, str], JsonObject], into: _Sorted) -> None:
        kind, name = found.document.get("kind"), _name(found.document)
        where = f"{found.where} ({kind} {name})"
        problems = metadata_problems(found.document)
        if problems:
            into.problems += _told(where, problems)
            return
        document = _placed(found.document)
        identity = _identity(document)
        if identity in into.seen:
            into.problems.append(f"{where}: it is given twice, also in {into.seen[identity]}; remove one of them")
            return
        into.seen[identity] = found.where
        if kind in self.definitions or str(document["apiVersion"]).startswith(f"{_GROUP}/"):
            self._take_ours(where, document, former.get(identity), into)
        elif kind in _OF_CLUSTERS and document["apiVersion"] == "v1":
            into.problems += _told(where, _secret_problems(document)) if kind == "Secret" else []
            into.by_kind[kind].append(document)
        else:
            into.not_acted_on.append(f"{kind} {name} means nothing without a cluster and is passed over")

    def _take_ours(self, where: str, document: JsonObject, before: JsonObject | None, into: _Sorted) -> None:
        kind = document["kind"]
        if kind not in self.definitions or document["apiVersion"] != API_VERSION:
            given, kinds = f"{kind} of {document['apiVersion']}", ", ".join(sorted(self.definitions))
            into.problems += _told(where, [unusable("kind", given, f"of {API_VERSION} there are {kinds}")])
            return
        valid, problems = judged(document, self.definitions[kind], before)
        into.problems += _told(where, problems)
        if kind in _LATER:
            into.not_acted_on.append(f"{kind} {_name(document)} is not acted on: {_LATER[kind]}")
        else:
            into.by_kind[kind].append(valid)


@dataclass(slots=True)
class _Sorted:
    """What was found so far."""

    by_kind: dict[str, list[JsonObject]] = field(default_factory=lambda: {kind: [] for kind in (*_OURS, *_OF_CLUSTERS)})
    not_acted_on: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seen: dict[tuple[str, str, str], str] = field(default_factory=dict)


def judged(
    document: JsonObject, definition: Definition, before: JsonObject | None = None
) -> tuple[JsonObject, Sequence[Problem]]:
    """Return ``document`` with defaults and without a status, and what is wrong with it.

    As the API server does, rules are asked only of what conforms to the schema. ``before``: what is in force.
    """
    root = definition.schema
    own = {**root, "properties": {k: v for k, v in root["properties"].items() if k not in ("metadata", "status")}}
    about = {key: document[key] for key in ("apiVersion", "kind", "metadata")}
    content = with_defaults(own, {k: v for k, v in document.items() if k not in about and k != "status"})
    valid = {**about, **content}
    if problems := schema_problems(own, content):
        return valid, problems
    return valid, list(rule_problems(root, valid, before))


def _placed(document: JsonObject) -> JsonObject:
    return {**document, "metadata": {"namespace": DEFAULT_NAMESPACE, **document["metadata"]}}


def _identity(document: JsonObject) -> tuple[str, str, str]:
    return document["kind"], document["metadata"]["namespace"], document["metadata"]["name"]


def _name(document: JsonObject) -> Any:
    metadata = document.get("metadata")
    return metadata.get("name") if isinstance(metadata, Mapping) else None


def _told(where: str, problems: Iterable[Problem]) -> list[str]:
    return [f"{where}: {problem}" for problem in problems]


def _secret_problems(secret: JsonObject) -> list[Problem]:
    """Name what cannot be read of a Secret, without its content."""
    try:
        keys = secret_content(secret).keys()
    except (ValueError, AttributeError, TypeError):
        return [Problem("data", "give base64 in data, or texts in stringData")]
    fix = "a key becomes the name of a file; take letters, digits, '-', '_' and '.'"
    return [unusable("data", key, fix) for key in keys if not _SECRET_KEY.fullmatch(str(key))]


Tell = Callable[[str], None]


class FollowedFiles:
    """Reads the files when one of them has changed and all are as they were at the look before.

    So a file that is being written is not seen half way. A version that cannot be used is told, and changes nothing.
    """

    def __init__(self, reader: Reader, documents: Documents, tell: Tell) -> None:
        """``documents``: what the files said when they were read first."""
        self._reader = reader
        self._documents = documents
        self._tell = tell
        self._seen: tuple[object, ...] = ()
        """The mark of what was read last."""
        self._changed: tuple[object, ...] = ()
        """The mark of the last look that saw something else."""

    def read_again(self) -> Documents | None:
        """Return what the files say, where that is new and can be used."""
        mark = self._mark()
        if mark == self._seen:
            return None
        is_being_written = mark != self._changed
        self._changed = mark
        if is_being_written:
            return None
        try:
            documents = self._reader.read(self._documents)
            problems: tuple[str, ...] = ()
        except InvalidDocuments as error:
            documents, problems = self._documents, error.problems
        if self._mark() != mark:
            return None
        self._seen = mark
        if problems:
            for problem in problems:
                self._tell(problem)
            self._tell("the files cannot be used as they are; what they said before stays in force")
        if documents == self._documents:
            return None
        self._documents = documents
        return documents

    def _mark(self) -> tuple[object, ...]:
        """Return what changes whenever a file does."""
        try:
            files = files_of(self._reader.paths)
        except (UnreadableFile, OSError) as error:
            return (str(error),)
        return tuple(_mark(path) for path in files)


def _mark(path: Path) -> tuple[object, ...]:
    try:
        found = path.stat()
    except OSError as error:
        return (path, error.errno)
    return (path, found.st_ino, found.st_size, found.st_mtime_ns)

"""Keeps a copy of one source's objects up to date, from a thread of its own: a list, then a watch, for ever.

A watch that ends or breaks is begun anew where it was; only where the server has forgotten that version is everything
listed again. While the API cannot be reached the last copy stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

from sapwood_gateway.shell.discovery.cluster_api import ApiFailure, KindMissing, Listing, Source, VersionGone

_log = logging.getLogger(__name__)

_FIRST_DELAY_SECONDS = 0.25
_LONGEST_DELAY_SECONDS = 15.0
_MISSING_KIND_SECONDS = 30.0
"""Between two looks for a kind that the cluster does without."""


class Api(Protocol):
    """What a reflector needs of the cluster's API."""

    def list(self, source: Source) -> Listing:
        """As `cluster_api.ClusterApi.list`."""
        ...

    def watch(self, source: Source, version: str) -> Iterator[Mapping[str, Any]]:
        """As `cluster_api.ClusterApi.watch`."""
        ...

    def close(self) -> None:
        """As `cluster_api.ClusterApi.close`."""
        ...


@dataclass(frozen=True, slots=True)
class Listed:
    """These are all objects."""

    items: list[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Changed:
    """One object is new, or other than before."""

    item: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deleted:
    """One object is gone."""

    item: Mapping[str, Any]


News = Listed | Changed | Deleted


class Reflector:
    """Tells what happens to one source; `run` is a thread's whole life."""

    def __init__(
        self,
        api: Api,
        source: Source,
        *,
        tell: Callable[[News], None],
        failed: Callable[[], None],
        stop: Event,
        draw: Callable[[], float],
    ) -> None:
        """``tell`` and ``failed`` are called from the reflector's thread; ``draw``: from [0, 1), for jitter."""
        self._api = api
        self._source = source
        self._tell = tell
        self._failed = failed
        self._stop = stop
        self._draw = draw
        self._version = ""
        """Of the last that was told; empty: everything must be listed."""
        self._num_failures = 0
        self._was_there = False

    def run(self) -> None:
        """List and watch until ``stop`` is set."""
        while not self._stop.is_set():
            try:
                if not self._version:
                    listing = self._api.list(self._source)
                    self._version = listing.version
                    self._was_there = True
                    self._tell(Listed(listing.items))
                self._follow(self._api.watch(self._source, self._version))
                delay = _FIRST_DELAY_SECONDS
            except VersionGone:
                _log.info("listing anew", extra={"source": self._source.path})
                self._version = ""
                delay = _FIRST_DELAY_SECONDS
            except ApiFailure as error:
                if self._stop.is_set():
                    return
                # Once it was there, it is missed: a server that just starts may not know all kinds yet.
                if isinstance(error, KindMissing) and self._source.is_optional and not self._was_there:
                    self._tell(Listed([]))
                    self._stop.wait(_MISSING_KIND_SECONDS * (0.5 + self._draw() / 2))
                    continue
                self._failed()
                _log.warning("cannot follow the cluster", extra={"source": self._source.path, "reason": str(error)})
                delay = min(_FIRST_DELAY_SECONDS * 2.0**self._num_failures, _LONGEST_DELAY_SECONDS)
                self._num_failures += 1
            self._stop.wait(delay * self._draw())

    def _follow(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            if self._stop.is_set():
                return
            item = event["object"]
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self._tell(Changed(item))
                case "DELETED":
                    self._tell(Deleted(item))
            self._version = item["metadata"]["resourceVersion"]
            self._num_failures = 0

"""Discovery by a file that holds the very objects of a cluster: ConfigMaps, EndpointSlices, Tenants and their Secrets.

Whoever keeps the file says everything; nothing is asked of anybody. Without a cluster `sapwood local` writes it, or a
person does. A version that cannot be used is told once, and the last good one stays.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from sapwood_gateway.core.cluster_facts import routes_of
from sapwood_gateway.core.file_objects import FileObjects, InvalidObjects, objects_of
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.core.tenant_secrets import secrets_among
from sapwood_gateway.shell.tenant_sources import TakeTenants
from sapwood_gateway.shell.watched_file import LOOK_SECONDS, AsBefore, CannotBeRead, Content, WatchedFile
from sapwood_gateway.shell.yaml_text import UnreadableText, documents_in

_log = logging.getLogger(__name__)


class FileDiscovery:
    """Keeps the routes of ``fleet``, and the tenants; all of it runs in the event loop."""

    def __init__(
        self, fleet: Fleet, path: Path, *, gateway: ServiceKey | None = None, take_tenants: TakeTenants
    ) -> None:
        """``gateway``: as of `cluster_facts.routes_of`. ``take_tenants`` gets all Tenants of each version."""
        self._fleet = fleet
        self._file = WatchedFile(path)
        self._gateway = gateway
        self._take_tenants = take_tenants
        self._problems: frozenset[str] = frozenset()
        self.is_ready = False
        """A version of the file has been read."""

    async def run(self) -> None:
        """Look at the file for ever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Take in what the file says, where that is new."""
        match self._file.look():
            case AsBefore():
                return
            case CannotBeRead(reason):
                self._keep_the_last(reason)
            case Content(text):
                try:
                    self._take(objects_of(documents_in(text)))
                except Exception as error:  # whatever stands in the file: it never ends the gateway
                    self._keep_the_last(_reason(error))

    def _take(self, objects: FileObjects) -> None:
        facts = routes_of(objects.config_maps, objects.slices, gateway=self._gateway)
        for problem in set(facts.problems) - self._problems:
            _log.warning(problem)
        self._problems = frozenset(facts.problems)
        self._take_tenants(objects.tenants, secrets_among(objects.secrets, objects.tenants))
        self._fleet.update(facts.routes)
        self.is_ready = True
        _log.info("read the discovery file", extra={"services": len(facts.routes.services)})

    def _keep_the_last(self, reason: str) -> None:
        _log.warning(
            "the discovery file cannot be used; what it said before stays in force", extra={"reason": reason[:500]}
        )


def _reason(error: Exception) -> str:
    """Return what is wrong without a line of the file, which may hold a tenant's name."""
    return str(error) if isinstance(error, InvalidObjects | UnreadableText) else type(error).__name__

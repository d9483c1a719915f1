"""Discovery in a cluster: services from ConfigMaps that the operator writes, replicas from EndpointSlices, tenants from
Tenants and the Secrets that they name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Event, Thread
from typing import Any, Protocol

from sapwood_contract.routing import COMPONENT_LABEL, ROUTING_LABEL
from sapwood_gateway.core.cluster_facts import routes_of
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.core.tenant_secrets import NO_SECRETS, KnownSecrets, named_secrets
from sapwood_gateway.shell.discovery import reflector
from sapwood_gateway.shell.discovery.cluster_api import Source
from sapwood_gateway.shell.discovery.reflector import Changed, Deleted, Listed, News, Reflector
from sapwood_gateway.shell.discovery.secret_reader import ROUND_SECONDS, SecretApi, SecretReader
from sapwood_gateway.shell.tenant_sources import TakeTenants

_log = logging.getLogger(__name__)

_CONFIG_MAPS = ("/api/v1", "configmaps", f"{ROUTING_LABEL}=true")
_SLICES = ("/apis/discovery.k8s.io/v1", "endpointslices", f"{COMPONENT_LABEL}=engine")
_TENANTS = ("/apis/serving.sapwood.dev/v1alpha1", "tenants", "")


class Api(reflector.Api, SecretApi, Protocol):
    """What is needed of the cluster's API."""


class ClusterDiscovery:
    """Keeps the routes of ``fleet``, and the tenants; all but the threads that ask the API runs in the event loop."""

    def __init__(
        self,
        fleet: Fleet,
        api: Api,
        *,
        namespaces: Sequence[str],
        gateway: ServiceKey | None = None,
        take_tenants: TakeTenants,
        failed: Callable[[], None],
        died: Callable[[str, Exception], None],
        draw: Callable[[], float],
        secret_seconds: float = ROUND_SECONDS,
    ) -> None:
        """``namespaces``: where to look; none means everywhere. ``gateway``: as of `cluster_facts.routes_of`.
        ``take_tenants`` gets all Tenant objects whenever something has changed; none where there is no such kind.
        ``secret_seconds``: between two looks at a Secret.

        ``failed``: called from any thread when the cluster cannot be asked; ``died``: called in the loop, with the name
        of what ended and why, when nothing follows a source any more.
        """
        self._fleet = fleet
        self._api = api
        self._gateway = gateway
        self._take_tenants = take_tenants
        self._failed = failed
        self._died = died
        self._draw = draw
        self._config_maps = {source: _Copy() for source in _sources(*_CONFIG_MAPS, namespaces)}
        self._slices = {source: _Copy() for source in _sources(*_SLICES, namespaces)}
        self._tenants = {source: _Copy() for source in _sources(*_TENANTS, namespaces, is_optional=True)}
        self._problems: frozenset[str] = frozenset()
        self._is_stale = False
        self._stop = Event()
        self._threads: list[Thread] = []
        self._secret_seconds = secret_seconds
        self._reader: SecretReader | None = None
        """None: not started."""
        self._secrets = NO_SECRETS
        self.is_ready = False
        """Everything has been listed once, and each Secret that was named then has been asked for."""

    def start(self) -> None:
        """Begin to follow the cluster, in daemon threads: one may be waiting for its server when the program ends."""
        loop = asyncio.get_running_loop()
        self._reader = SecretReader(
            self._api,
            tell=partial(_post, loop, self._take_secrets),
            failed=self._failed,
            stop=self._stop,
            draw=self._draw,
            round_seconds=self._secret_seconds,
        )
        self._run_in_thread(self._reader, "reader of Secrets", loop)
        for source in self._copies():
            follower = Reflector(
                self._api,
                source,
                tell=partial(_post, loop, self._take, source),
                failed=self._failed,
                stop=self._stop,
                draw=self._draw,
            )
            self._run_in_thread(follower, f"reflector {source.path}", loop)

    def stop(self) -> None:
        """Let each thread end soon."""
        self._stop.set()
        if self._reader is not None:
            self._reader.wake()
        self._api.close()

    def join(self) -> None:
        """Wait until no thread is left."""
        for thread in self._threads:
            thread.join()

    def _run_in_thread(self, asker: Reflector | SecretReader, name: str, loop: asyncio.AbstractEventLoop) -> None:
        thread = Thread(target=self._run, args=(asker, name, loop), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, asker: Reflector | SecretReader, name: str, loop: asyncio.AbstractEventLoop) -> None:
        try:
            asker.run()
        except Exception as error:
            if not self._stop.is_set():
                _post(loop, self._died, name, error)

    def _copies(self) -> Mapping[Source, _Copy]:
        return {**self._config_maps, **self._slices, **self._tenants}

    def _take(self, source: Source, news: News) -> None:
        self._copies()[source].take(news)
        self._schedule()

    def _take_secrets(self, secrets: KnownSecrets) -> None:
        self._secrets = secrets
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_stale and all(copy.is_listed for copy in self._copies().values()):
            # Many events come at once when a service is rolled: they make one new set of routes.
            self._is_stale = True
            asyncio.get_running_loop().call_soon(self._refresh)

    def _refresh(self) -> None:
        self._is_stale = False
        facts = routes_of(
            [item for copy in self._config_maps.values() for item in copy.items()],
            [item for copy in self._slices.values() for item in copy.items()],
            gateway=self._gateway,
        )
        for problem in set(facts.problems) - self._problems:
            _log.warning(problem)
        self._problems = frozenset(facts.problems)
        tenants = [item for copy in self._tenants.values() for item in copy.items()]
        named = named_secrets(tenants)
        if self._reader is not None:
            self._reader.want(named)
        self._take_tenants(tenants, self._secrets)
        self._fleet.update(facts.routes)
        # A gateway that served before would refuse callers whose hashes it has not read yet.
        self.is_ready = self.is_ready or named.keys() <= self._secrets.keys()


class _Copy:
    """The objects of one source."""

    def __init__(self) -> None:
        self.is_listed = False
        self._items: dict[tuple[str, str], Mapping[str, Any]] = {}

    def items(self) -> list[Mapping[str, Any]]:
        return list(self._items.values())

    def take(self, news: News) -> None:
        match news:
            case Listed(items):
                self.is_listed = True
                self._items = {_key(item): item for item in items}
            case Changed(item):
                self._items[_key(item)] = item
            case Deleted(item):
                self._items.pop(_key(item), None)


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _sources(
    api: str, kind: str, selector: str, namespaces: Sequence[str], *, is_optional: bool = False
) -> list[Source]:
    paths = [f"{api}/namespaces/{namespace}/{kind}" for namespace in namespaces] or [f"{api}/{kind}"]
    return [Source(path, selector, is_optional) for path in paths]


def _post(loop: asyncio.AbstractEventLoop, take: Callable[..., None], *news: object) -> None:
    """Hand ``news`` to the loop; one that has ended meanwhile needs none."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(take, *news)

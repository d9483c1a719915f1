"""kopf, in a thread and an event loop of its own: watches every kind and hands each event on. It writes nothing.

Only ``on.event`` handlers are registered, so kopf adds no finalizer, no annotation and no status; peering, scanning for
new kinds and the posting of events are off. A loop of its own because kopf takes an event loop for its own: it
installs signal handlers and, at its end, cancels every task that it finds.

A watch that kopf lists anew (its version was too old, the server was away) does not tell what was deleted meanwhile. So
each list of kopf's is told as `Relisted`, and the receiver lists that kind itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import kopf

from sapwood_contract.routing import SERVICE_LABEL
from sapwood_operator.adapters.access import Access
from sapwood_operator.adapters.kinds import WRITTEN_BY_USERS, Kind
from sapwood_operator.adapters.watch_session import watch_session
from sapwood_operator.handlers.watch_runs import WatchRuns

_log = logging.getLogger(__name__)
STOP_SECONDS = 10.0
"""What kopf gets to end a run; after an error of its own it may never come to that end."""


@dataclass(frozen=True, slots=True)
class Relisted:
    """kopf has listed a kind; what vanished before is not told."""

    kind: Kind


@dataclass(frozen=True, slots=True)
class Seen:
    """An object was listed, created or changed."""

    live: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Gone:
    """An object was deleted, or lost the label that it is watched by."""

    live: Mapping[str, Any]


WatchEvent = Relisted | Seen | Gone


class Watches:
    """Watches of some kinds in some namespaces, from `start` to `stop`."""

    def __init__(
        self,
        access: Access,
        kinds: Iterable[Kind],
        *,
        namespaces: Sequence[str],
        request_timeout_seconds: float,
        deliver: Callable[[WatchEvent], None],
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        """``namespaces``: none means all. ``deliver`` is called in the thread of the watches."""
        self._access = access
        self._kinds = tuple(kinds)
        self._namespaces = tuple(namespaces)
        self._request_timeout_seconds = request_timeout_seconds
        self._deliver = deliver
        self._stop_seconds = stop_seconds
        self._runs = WatchRuns()
        self._stop = threading.Event()
        self._end: Callable[[], object] = _nothing
        """Ends the run of kopf that is under way."""
        self._thread = threading.Thread(target=self._run, name="watches", daemon=True)

    def start(self) -> None:
        """Begin to watch, in a thread."""
        self._thread.start()

    def is_watching(self) -> bool:
        """Whether the watches go on, or may be expected to in a while."""
        return self._thread.is_alive() and not self._runs.are_given_up(time.monotonic())

    def ask_to_stop(self) -> None:
        """Have the watches end soon; the program does not wait for them."""
        self._stop.set()
        with suppress(RuntimeError):  # the loop of that run is closed already
            self._end()

    def stop(self) -> None:
        """End the watches and wait for that, at most some seconds."""
        self.ask_to_stop()
        self._thread.join(self._stop_seconds)

    # --- in the thread

    def _run(self) -> None:
        """Run kopf again whenever it gives up, as it does when the server answers with errors for long."""
        while not self._stop.is_set():
            self._runs.begin(time.monotonic())
            # Not asyncio.run, which waits for every task that is left: a run that does not end has to be left behind.
            loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(self._watch())
            except (Exception, asyncio.CancelledError):
                _log.exception("the watches broke off")
            finally:
                loop.close()
            self._stop.wait(self._runs.end(time.monotonic()))

    async def _watch(self) -> None:
        # Not the threading.Event itself: kopf would wait for it in a thread that outlives an error of kopf's own, and
        # the loop would not end without that thread.
        stop = asyncio.Event()
        self._end = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
        if self._stop.is_set():
            return
        me = asyncio.current_task()
        assert me is not None, "a coroutine runs in a task"
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=self._settings(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=stop,
        )
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ending = asyncio.create_task(kopf.run_tasks(tasks, ignored={me}))
        await asyncio.wait({ending}, timeout=self._stop_seconds)
        if not ending.done():
            raise TimeoutError(f"kopf did not end within {self._stop_seconds:g} s; its tasks are left behind")
        ending.result()

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.networking.request_timeout = self._request_timeout_seconds
        settings.process.ultimate_exiting_timeout = None
        for kind in self._kinds:
            if kind not in WRITTEN_BY_USERS:
                settings.watching.label_selectors[kind.api_version, kind.plural] = SERVICE_LABEL
        return settings

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login)
        for kind in self._kinds:
            kopf.on.event(kind.api_version, kind.plural, id=kind.plural, registry=registry)(self._handler(kind))
        return registry

    async def _login(self, **_: object) -> kopf.AiohttpSession:
        scheme, _space, token = self._access.authorization().partition(" ")
        configuration = self._access.configuration
        return watch_session(
            kopf.ConnectionInfo(
                server=configuration.host,
                ca_path=configuration.ssl_ca_cert,
                insecure=not configuration.verify_ssl,
                scheme=scheme or None,
                token=token or None,
                certificate_path=configuration.cert_file,
                private_key_path=configuration.key_file,
            ),
            self._on_read,
        )

    def _on_read(self, path: str) -> None:
        for kind in self._kinds:
            # Only the end: the server's own address may have a path.
            if any(path.endswith(kind.collection(namespace)) for namespace in self._namespaces or ("",)):
                self._deliver(Relisted(kind))

    def _handler(self, kind: Kind) -> Callable[..., Any]:
        async def on_event(event: kopf.RawEvent, **_: object) -> None:
            # Listed objects do not say what they are.
            live = {"apiVersion": kind.api_version, "kind": kind.kind, **event["object"]}
            self._deliver(Gone(live) if event["type"] == "DELETED" else Seen(live))

        return on_event


def _nothing() -> None:
    pass

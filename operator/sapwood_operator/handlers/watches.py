"""kopf, in a thread and an event loop of its own: watches every kind and hands each event on. It writes nothing.

Only ``on.event`` handlers are registered, so kopf adds no finalizer, no annotation and no status; peering, scanning for
new kinds and the posting of events are off. A loop of its own because kopf takes an event loop for its own: it
installs signal handlers and, at its end, cancels every task that it finds.

A watch that kopf lists anew (its version was too old, the server was away) does not tell what was deleted meanwhile. So
the first objects of such a listing come as `Relisted`, and the receiver lists that kind itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import kopf

from sapwood_contract.routing import SERVICE_LABEL
from sapwood_operator.adapters.access import Access
from sapwood_operator.adapters.kinds import SERVICES, Kind

_log = logging.getLogger(__name__)
_FIRST_RESTART_SECONDS = 1.0
_LAST_RESTART_SECONDS = 30.0
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Relisted:
    """kopf lists a kind; what vanished before is not told."""

    kind: Kind
    live: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """An object was created or changed."""

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
    ) -> None:
        """``namespaces``: none means all. ``deliver`` is called in the thread of the watches."""
        self._access = access
        self._kinds = tuple(kinds)
        self._namespaces = tuple(namespaces)
        self._request_timeout_seconds = request_timeout_seconds
        self._deliver = deliver
        self._stop = threading.Event()
        self._end: Callable[[], object] = _nothing
        """Ends the run of kopf that is under way."""
        self._thread = threading.Thread(target=self._run, name="watches", daemon=True)

    def start(self) -> None:
        """Begin to watch, in a thread."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Have the watches end soon; the program does not wait for them."""
        self._stop.set()
        with suppress(RuntimeError):  # the loop of that run is closed already
            self._end()

    def stop(self) -> None:
        """End the watches and wait for that, at most some seconds."""
        self.ask_to_stop()
        self._thread.join(_STOP_SECONDS)

    # --- in the thread

    def _run(self) -> None:
        """Run kopf again whenever it gives up, as it does when the server answers with errors for long."""
        pause = _FIRST_RESTART_SECONDS
        while not self._stop.is_set():
            try:
                asyncio.run(self._watch())
            except Exception:
                _log.exception("the watches broke off", extra={"restart_seconds": pause})
            self._stop.wait(pause)
            pause = min(2 * pause, _LAST_RESTART_SECONDS)

    async def _watch(self) -> None:
        # Not the threading.Event itself: kopf would wait for it in a thread that outlives an error of kopf's own, and
        # the loop would not end without that thread.
        stop = asyncio.Event()
        self._end = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
        if self._stop.is_set():
            return
        await kopf.operator(
            registry=self._registry(),
            settings=self._settings(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=stop,
        )

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.networking.request_timeout = self._request_timeout_seconds
        settings.process.ultimate_exiting_timeout = None
        for kind in self._kinds:
            if kind is not SERVICES:
                settings.watching.label_selectors[kind.api_version, kind.plural] = SERVICE_LABEL
        return settings

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login)
        for kind in self._kinds:
            kopf.on.event(kind.api_version, kind.plural, id=kind.plural, registry=registry)(self._handler(kind))
        return registry

    def _login(self, **_: object) -> kopf.ConnectionInfo:
        scheme, _space, token = self._access.authorization().partition(" ")
        configuration = self._access.configuration
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
        )

    def _handler(self, kind: Kind) -> Callable[..., Any]:
        async def on_event(event: kopf.RawEvent, **_: object) -> None:
            # Listed objects do not say what they are.
            live = {"apiVersion": kind.api_version, "kind": kind.kind, **event["object"]}
            match event["type"]:
                case None:
                    self._deliver(Relisted(kind, live))
                case "DELETED":
                    self._deliver(Gone(live))
                case _:
                    self._deliver(Seen(live))

        return on_event


def _nothing() -> None:
    pass

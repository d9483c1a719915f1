"""Reads the Secrets in which Tenants keep hashes of their keys, from a thread of its own: each every few seconds, and
at once where a Tenant begins to name it.

They are asked for one by one, by name, which is the only right that can be given to some Secrets alone. While the API
cannot be asked, what was known stays. No line of the log names a Secret, whose name may be a tenant's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from threading import Event
from typing import Protocol

from sapwood_gateway.core.tenant_secrets import NO_SECRET, KnownSecrets, Secret, SecretName, Unreadable, hashes_of
from sapwood_gateway.shell.discovery.cluster_api import Answer, ApiFailure

_log = logging.getLogger(__name__)

ROUND_SECONDS = 15.0
"""Between two looks at a Secret."""
_FIRST_DELAY_SECONDS = 0.25
_MOST_DOUBLINGS = 10
_REFUSALS: Mapping[int, Secret] = {
    403: Unreadable("the gateway may not read that Secret; the chart's gateway.tenants.keySecrets names those it may"),
    404: Unreadable(NO_SECRET),
}
"""By status. They take back what was known, for somebody has decided so."""
_NO_ANSWER = Unreadable("the API server does not say what that Secret holds")

Named = Mapping[SecretName, frozenset[str]]


class SecretApi(Protocol):
    """What is needed of the cluster's API."""

    def read(self, path: str) -> Answer:
        """As `cluster_api.ClusterApi.read`."""
        ...


class SecretReader:
    """Tells what the wanted Secrets hold; `run` is a thread's whole life."""

    def __init__(
        self,
        api: SecretApi,
        *,
        tell: Callable[[KnownSecrets], None],
        failed: Callable[[], None],
        stop: Event,
        draw: Callable[[], float],
        round_seconds: float,
    ) -> None:
        """``tell`` gets all that is known whenever that has changed; it and ``failed`` are called from the thread.

        ``draw``: from [0, 1), for jitter. After ``stop`` is set, `wake` makes it end soon.
        """
        self._api = api
        self._tell = tell
        self._failed = failed
        self._stop = stop
        self._draw = draw
        self._round_seconds = round_seconds
        self._named: Named = {}
        self._known: dict[SecretName, Secret] = {}
        self._num_failures = 0
        self._woken = Event()

    def want(self, named: Named) -> None:
        """Read these, each for its keys, and no others; from any thread."""
        if named != self._named:
            self._named = named
            self.wake()

    def wake(self) -> None:
        """Look now whether there is something to do."""
        self._woken.set()

    def run(self) -> None:
        """Read until ``stop`` is set."""
        asked: Named = {}
        told: KnownSecrets = {}
        next_round = time.monotonic()
        while not self._stop.is_set():
            self._woken.clear()
            named = self._named
            is_round = time.monotonic() >= next_round
            due = sorted(named) if is_round else sorted(name for name in named if named[name] != asked.get(name))
            asked = named
            is_whole = self._read(due)
            self._known = {name: secret for name, secret in self._known.items() if name in named}
            if self._known != told:
                told = dict(self._known)
                self._tell(told)
            if is_round or not is_whole:
                next_round = time.monotonic() + self._pause(is_whole=is_whole)
            self._woken.wait(max(0.0, next_round - time.monotonic()))

    def _pause(self, *, is_whole: bool) -> float:
        if is_whole:
            self._num_failures = 0
            return self._round_seconds * (0.75 + self._draw() / 4)
        delay: float = min(_FIRST_DELAY_SECONDS * 2.0**self._num_failures, self._round_seconds)
        if not self._num_failures:
            _log.warning("cannot read Secrets of Tenants; what was known of them stays")
        self._num_failures = min(self._num_failures + 1, _MOST_DOUBLINGS)
        return delay * (0.5 + self._draw() / 2)

    def _read(self, due: Iterable[SecretName]) -> bool:
        """Read these; return whether each was answered for good."""
        is_whole = True
        for name in due:
            if self._stop.is_set():
                break
            try:
                answer = self._api.read(f"/api/v1/namespaces/{name.namespace}/secrets/{name.name}")
            except ApiFailure:  # the others would only wait as long, one after the other
                self._failed()
                return False
            if isinstance(answer.document, Mapping):
                self._known[name] = hashes_of(answer.document)
            elif answer.status in _REFUSALS:
                self._known[name] = _REFUSALS[answer.status]
            else:  # one that the server cannot decrypt, say: no reason to leave out the others
                self._failed()
                self._known.setdefault(name, _NO_ANSWER)
                is_whole = False
        return is_whole

"""What the leading operator asks of engines while replicas come and go: `adapters.engine_calls`, for live objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sapwood_operator.adapters.asking import client_session
from sapwood_operator.adapters.engine_admin import EngineAdmin, addresses_of
from sapwood_operator.adapters.engine_calls import EngineCalls
from sapwood_operator.autoscaling.engines import EngineCall, EngineSeen
from sapwood_operator.autoscaling.movement import Lost
from sapwood_operator.handlers.store import ServiceKey
from sapwood_operator.settings import OperatorSettings


class Engines:
    """All of it runs in the event loop's thread."""

    def __init__(
        self,
        settings: OperatorSettings,
        *,
        wake: Callable[[ServiceKey], None],
        lose: Callable[[str, str, float], None],
    ) -> None:
        """``wake``: told every service of which something was learned; ``lose``: namespace and name of a service, and
        how many tokens of worth left with a replica and are nowhere else.
        """
        self._settings, self._wake, self._lose = settings, wake, lose
        self._calls: EngineCalls | None = None

    async def run(self) -> None:
        """Carry out calls until cancelled; before and after that none is."""
        async with client_session() as session:
            self._calls = EngineCalls(EngineAdmin(session), wake=self._wake_named, lose=self._lose)
            try:
                await asyncio.Event().wait()
            finally:
                calls, self._calls = self._calls, None
                await calls.finish()

    def known(self, key: ServiceKey) -> Mapping[str, EngineSeen]:
        """Return what is known of a service's engines, by the uids of their pods; never waits."""
        return self._calls.known(key.namespace, key.name) if self._calls else {}

    def carry_out(
        self,
        key: ServiceKey,
        service: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
        calls: Sequence[EngineCall],
        lost: Sequence[Lost],
    ) -> None:
        """Begin ``calls`` and count ``lost``, once what the turn had to write is written; never waits.

        ``service`` and ``pods``: live objects.
        """
        if self._calls:
            addresses = addresses_of(service, pods, self._settings.secret)
            self._calls.carry_out(key.namespace, key.name, calls, lost, addresses)

    def forget(self, key: ServiceKey) -> None:
        """The service is gone."""
        if self._calls:
            self._calls.forget(key.namespace, key.name)

    def _wake_named(self, namespace: str, name: str) -> None:
        self._wake(ServiceKey(namespace, name))

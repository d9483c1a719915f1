"""An engine's admin API, as far as moving replicas needs it: its load, what it caches, and prefixes to compute.

Prefixes are content: they go from one engine to another, and nothing of them into a log or an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import msgspec

from sapwood_contract.http import (
    ADMIN_HOT_PREFIXES,
    ADMIN_LOAD,
    ADMIN_PREFIXES,
    ADMIN_WARM,
    CachedNodes,
    EngineLoad,
    HotPrefixes,
    WarmProgress,
)
from sapwood_contract.trust import CREDENTIAL_HEADER, engine_credential
from sapwood_operator.adapters.asking import Unanswered, get, post
from sapwood_operator.autoscaling.attention import watched

LOAD_SECONDS = 2.0
CACHE_SECONDS = 15.0
"""For what walks through a whole cache, or carries the tokens of many prompts: an engine does it between two steps."""
_MOST_TOKEN_ID = 2**31 - 1
_NOT_UNDERSTOOD = "answers with something that is not understood: is it a Sapwood engine of this version?"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Address:
    """Where one engine's admin API is."""

    url: str
    headers: Mapping[str, str]
    """What it asks for: the gateway's credential, or nothing."""


def addresses_of(service: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], secret: bytes) -> dict[str, Address]:
    """Return where a live service's engines are, by the uids of its live pods; those without an address are left out.

    ``secret``: of the installation; engines of services with API keys ask for the gateway's credential, which is made
    of it.
    """
    known = watched(service, pods)
    headers: Mapping[str, str] = {}
    if (service["spec"].get("tenancy") or {}).get("authentication") == "ApiKey" and secret:
        headers = {CREDENTIAL_HEADER: engine_credential(secret, known.namespace, known.name)}
    return {pod.uid: Address(pod.url, headers) for pod in known.pods if pod.url}


class EngineAdmin:
    """Asks engines; each call raises `Unanswered` for no answer and for one that makes no sense."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def load(self, address: Address) -> EngineLoad:
        """Return what the engine has to do."""
        return await self._get(address, ADMIN_LOAD, EngineLoad, LOAD_SECONDS)

    async def cached(self, address: Address) -> CachedNodes:
        """Return what the engine holds."""
        return await self._get(address, ADMIN_PREFIXES, CachedNodes, CACHE_SECONDS)

    async def hot(self, address: Address) -> HotPrefixes:
        """Return the engine's most used prefixes, as many as one answer holds."""
        hot = await self._get(address, ADMIN_HOT_PREFIXES, HotPrefixes, CACHE_SECONDS)
        for prefix in hot.prefixes:
            is_sane = all(0 <= token_id <= _MOST_TOKEN_ID for token_id in prefix.token_ids) and all(
                num_tokens > 0 and 0 <= uses < math.inf for num_tokens, uses in prefix.parts
            )
            if not is_sane or not 0 <= prefix.worth_tokens < math.inf:
                raise Unanswered(_NOT_UNDERSTOOD)
        return hot

    async def warm(self, address: Address, prefixes: HotPrefixes) -> WarmProgress:
        """Have the engine compute ``prefixes`` while it has nothing else to do; return how far it is."""
        body = msgspec.json.encode(prefixes)
        answer = await post(
            self._session, address.url + ADMIN_WARM, body, headers=address.headers, timeout_seconds=CACHE_SECONDS
        )
        return _read(answer, WarmProgress)

    async def _get(self, address: Address, path: str, kind: type[T], timeout_seconds: float) -> T:
        answer = await get(self._session, address.url + path, headers=address.headers, timeout_seconds=timeout_seconds)
        return _read(answer, kind)


def _read(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, RecursionError):
        # What the library says quotes the answer.
        raise Unanswered(_NOT_UNDERSTOOD) from None

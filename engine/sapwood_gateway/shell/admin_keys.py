"""The admin keys of a gateway: held as digests, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

_BEARER = "bearer"


class AdminKeys:
    """Falsy where there are none."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple(map(_digest, keys))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def are_shown(self, headers: Mapping[str, str]) -> bool:
        """Whether a request's Authorization is one of them."""
        scheme, _, key = headers.get("Authorization", "").partition(" ")
        return scheme.lower() == _BEARER and _is_one_of(key.strip(), self._digests)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _is_one_of(offered: str, known: tuple[bytes, ...]) -> bool:
    presented = _digest(offered)
    matches = [hmac.compare_digest(presented, each) for each in known]  # all of them: constant time
    return bool(offered) and any(matches)

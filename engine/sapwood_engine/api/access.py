"""Who may call what: the class of every route, and what a caller has to show for it.

::

    open     probes, metrics, the console's page   nothing
    user     the OpenAI API                        an API key, or the gateway's credential
    gateway  what gateway and operator ask         the gateway's credential, or an admin key
             engines
    admin    the console's data, and everything    an admin key
             else of the admin API

A path that nobody has put into a class is ``user`` on the one port and ``admin`` on the other. A class for which
nothing is configured is open to everybody who reaches the port; but where a port asks for other keys or credentials
and there is no admin key, ``admin`` is closed to all. Pure: headers go in, a refusal comes out.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from sapwood_console.paths import path_class
from sapwood_contract.http import (
    ADMIN_BLOCKS,
    ADMIN_HOT_PREFIXES,
    ADMIN_LOAD,
    ADMIN_PREFIXES,
    ADMIN_TOKENIZER,
    ADMIN_WARM,
    HEALTH,
    LIVEZ,
    METRICS,
    READYZ,
)
from sapwood_contract.trust import (
    CACHED_TOKENS_HEADER,
    CREDENTIAL_HEADER,
    PRIORITY_CEILING_HEADER,
    TENANT_HEADER,
    TRUSTED_HEADERS,
)
from sapwood_engine.errors import AuthenticationFailed, InvalidField, RequestError

RouteClass = Literal["open", "user", "gateway", "admin"]

_OPEN_PATHS = frozenset({LIVEZ, READYZ, HEALTH, METRICS})
_GATEWAY_PATHS = frozenset({ADMIN_LOAD, ADMIN_BLOCKS, ADMIN_TOKENIZER, ADMIN_PREFIXES, ADMIN_HOT_PREFIXES, ADMIN_WARM})
_MAX_TENANT_CHARACTERS = 1_024
_BEARER = "bearer"


def api_class(path: str) -> RouteClass:
    """Return the class of a path of the OpenAI API's port."""
    if path in _OPEN_PATHS:
        return "open"
    of_console = path_class(path)
    return "user" if of_console == "other" else of_console


def admin_class(path: str) -> RouteClass:
    """Return the class of a path of the admin API's port."""
    if path in _OPEN_PATHS:
        return "open"
    return "gateway" if path in _GATEWAY_PATHS else "admin"


class NotTheGateway(RequestError):
    """A request says what only the gateway may say, and does not show its credential."""

    status = 403
    code = "not_the_gateway"

    def __init__(self, header: str) -> None:
        super().__init__(f"{header}: only the gateway may send this header; leave it out.")


class AdminClosed(RequestError):
    """The engine tells callers apart, and nobody has been named who may administer it."""

    status = 403
    code = "admin_closed"

    def __init__(self) -> None:
        super().__init__("This engine was started without keys of the admin API: start it with --admin-key-file.")


@dataclass(frozen=True, slots=True)
class Trusted:
    """What the gateway says of a request; the defaults where there is none."""

    tenant: str | None = None
    """As `core.request.Namespace.tenant`."""
    priority_ceiling: int | None = None
    """Highest priority that the request may have; None: any."""
    hides_cached_tokens: bool = False


class Keys:
    """What callers can show, as hashes: whoever gets hold of the process's memory has no key yet."""

    def __init__(
        self, *, users: Collection[str] = (), admins: Collection[str] = (), credentials: Collection[str] = ()
    ) -> None:
        """``users``: API keys; ``admins``: of the admin API; ``credentials``: of the gateway. None: asked of nobody."""
        self._users = tuple(map(_digest, users))
        self._admins = tuple(map(_digest, admins))
        self._credentials = tuple(map(_digest, credentials))

    def read(self, route: RouteClass, headers: Mapping[str, str]) -> Trusted:
        """Return what the gateway says of a request to a path of class ``route``.

        ``headers``: looked up by name, whatever its case. Raises `AuthenticationFailed`, `AdminClosed`,
        `NotTheGateway`, and `InvalidField` for a header of the gateway's that cannot be used. Where no credential is
        configured nobody is the gateway, and its headers mean nothing.
        """
        is_gateway = _is_one_of(headers.get(CREDENTIAL_HEADER, ""), self._credentials)
        if self._credentials and not is_gateway:
            for header in TRUSTED_HEADERS:
                if header in headers:
                    raise NotTheGateway(header)
        if not (
            route == "open"
            or (is_gateway and route != "admin")
            or self._may_enter(route, headers.get("Authorization", ""))
        ):
            raise AuthenticationFailed
        return _trusted(headers) if is_gateway else Trusted()

    def _may_enter(self, route: RouteClass, authorization: str) -> bool:
        """Whether a key, or none, lets its caller use a path of class ``route``."""
        keys = self._users if route == "user" else self._admins
        is_asked = self._credentials or (route == "admin" and self._users)
        if not keys and not is_asked:
            return True
        if not keys and route == "admin":
            raise AdminClosed
        scheme, _, key = authorization.partition(" ")
        return _is_one_of(key.strip(), keys) and scheme.lower() == _BEARER


def _trusted(headers: Mapping[str, str]) -> Trusted:
    tenant, ceiling = headers.get(TENANT_HEADER), headers.get(PRIORITY_CEILING_HEADER)
    hide = headers.get(CACHED_TOKENS_HEADER)
    if tenant is not None and not (0 < len(tenant) <= _MAX_TENANT_CHARACTERS and tenant.isascii()):
        raise InvalidField(TENANT_HEADER, "***", f"it must be 1 to {_MAX_TENANT_CHARACTERS} ASCII characters")
    if ceiling is not None and not ceiling.removeprefix("-").isdecimal():
        raise InvalidField(PRIORITY_CEILING_HEADER, ceiling, "it must be a whole number")
    if hide not in (None, "hide"):
        raise InvalidField(CACHED_TOKENS_HEADER, hide, "the only value is 'hide'")
    return Trusted(tenant, None if ceiling is None else int(ceiling), hide is not None)


def _is_one_of(offered: str, known: Collection[bytes]) -> bool:
    presented = _digest(offered)
    matches = [hmac.compare_digest(presented, each) for each in known]  # all of them: constant time
    return bool(offered) and any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

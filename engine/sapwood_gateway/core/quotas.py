"""Which limits of a tenant a request falls under, where each is counted, and what is said where one is exceeded.

Windows are minutes of the clock and days of UTC: a key names its tenant's hash, what it counts and the window's
beginning, so every gateway counts in the same place. A request is charged its price before it is sent. Afterwards
what it did not use is given back to the window from which it was taken, and what it used beyond counts in the present
one: the window that it began in may be over, and nobody would ever notice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sapwood_gateway.core.tenants import Tenant

Kind = Literal["requests", "tokens"]
Period = Literal["minute", "day"]
WhenUnknown = Literal["open", "closed"]
"""What is done with requests that cannot be counted: let in, or refused."""

_SECONDS: dict[Period, int] = {"minute": 60, "day": 86_400}
_LATE_SECONDS = 60
"""A window is kept for so much longer: clocks of gateways differ, and what was not used comes back late."""


@dataclass(frozen=True, slots=True)
class Add:
    """A change of what is counted under ``key``, which is kept for ``keep_seconds`` from its first change on."""

    key: str
    amount: int
    keep_seconds: int


@dataclass(frozen=True, slots=True)
class Window:
    """One limit of a tenant, in the minute or day that it counts in, and what one request costs there."""

    kind: Kind
    period: Period
    limit: int
    cost: int
    owner: str
    """Hash of the tenant."""
    start: int
    """Unix time."""

    @property
    def key(self) -> str:
        """Where it is counted."""
        return f"{self.owner}:{self.kind}:{self.period}:{self.start}"

    @property
    def keep_seconds(self) -> int:
        """For how long the count is needed."""
        return _SECONDS[self.period] + _LATE_SECONDS

    @property
    def charge(self) -> Add:
        """What the request adds."""
        return Add(self.key, self.cost, self.keep_seconds)

    def at(self, now: float) -> Window:
        """Return the window of the same limit that ``now`` (Unix time) is in."""
        return replace(self, start=_start(self.period, now))

    def seconds_left(self, now: float) -> int:
        """Return after how many seconds the next window begins, 1 at least."""
        return max(1, math.ceil(self.start + _SECONDS[self.period] - now))


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A request would go beyond a limit; it may be let in ``retry_after_seconds`` later."""

    kind: Kind
    period: Period
    limit: int
    retry_after_seconds: int
    asked: int = 0
    """Not 0: what the request asks for is alone more than the limit, and no wait will help."""


@dataclass(frozen=True, slots=True)
class SeatsTaken:
    """As many of the tenant's requests run as may, ``limit``."""

    limit: int


def windows(tenant: Tenant, *, price_tokens: int, now: float) -> tuple[Window, ...]:
    """Return all limits that one request counts in at ``now`` (Unix time), in the order in which they are asked."""
    quotas, owner = tenant.quotas, _owner(tenant)
    limits: tuple[tuple[Kind, Period, int | None, int], ...] = (
        ("requests", "minute", quotas.requests_per_minute, 1),
        ("requests", "day", quotas.requests_per_day, 1),
        ("tokens", "minute", quotas.tokens_per_minute, price_tokens),
        ("tokens", "day", quotas.tokens_per_day, price_tokens),
    )
    return tuple(
        Window(kind, period, limit, cost, owner, _start(period, now))
        for kind, period, limit, cost in limits
        if limit is not None
    )


def seats_key(tenant: Tenant) -> str:
    """Return where the tenant's running requests are counted."""
    return f"{_owner(tenant)}:seats"


def exceeded(window: Window, count: int, *, now: float) -> Exceeded | None:
    """Tell whether a request's charge has made ``count`` too high; None: it fits."""
    if count <= window.limit:
        return None
    asked = window.cost if window.cost > window.limit and window.kind == "tokens" else 0
    return Exceeded(window.kind, window.period, window.limit, window.seconds_left(now), asked)


def settle(charged: Iterable[Window], *, used_tokens: int, now: float) -> tuple[Add, ...]:
    """Return what makes the charges of a request what it has used."""
    changes = []
    for window in charged:
        more = used_tokens - window.cost
        if window.kind == "tokens" and more:
            place = window if more < 0 else window.at(now)
            changes.append(Add(place.key, more, place.keep_seconds))
    return tuple(changes)


def give_back(charged: Iterable[Window]) -> tuple[Add, ...]:
    """Return what undoes the charges of a request."""
    return tuple(Add(window.key, -window.cost, window.keep_seconds) for window in charged)


def tightest(counted: Sequence[tuple[Window, int]], kind: Kind) -> tuple[Window, int] | None:
    """Return the limit on ``kind`` of which least is left, and how much; None where there is none.

    ``counted``: windows with what is counted in each.
    """
    left = [(window, max(0, window.limit - count)) for window, count in counted if window.kind == kind]
    return min(left, key=lambda each: each[1], default=None)


def _owner(tenant: Tenant) -> str:
    return hashlib.sha256(tenant.id.encode()).hexdigest()[:32]


def _start(period: Period, now: float) -> int:
    return int(now // _SECONDS[period]) * _SECONDS[period]

"""In which order requests that wait for a replica get one, and who waits at all where places are few.

Turns are fair between tenants by tokens, places by requests, both as their shares.

Deficit round robin (Shreedhar and Varghese, 1995): in each round every tenant that waits is given as many tokens as
its share, and the first whose oldest request they pay for is next. Rounds without anybody to serve are skipped by
arithmetic, so a round can be as small as the shares. Invariants: of tenants that always wait, each gets tokens as its
share, up to one request of its own and one round; a tenant's requests keep their order; who has nothing that waits
saves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Set
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request that waits."""

    id: int
    """Told apart by it; never used twice."""
    tenant: str
    model: str
    """Replicas may be able to take one model of a service and not another, while the service is changed."""
    price_tokens: int
    """`prices.price_of`; 1 at least."""


@dataclass(frozen=True, slots=True)
class Nobody:
    """None of those that wait can be served."""


@dataclass(slots=True)
class _Line:
    """The requests of one tenant, the oldest first."""

    share: int
    credit_tokens: int = 0
    tickets: dict[int, Ticket] = field(default_factory=dict)

    def first(self, models: Container[str]) -> Ticket | Nobody:
        return next((ticket for ticket in self.tickets.values() if ticket.model in models), Nobody())

    def num_by_share(self) -> float:
        return len(self.tickets) / self.share

    def num_rounds(self, ticket: Ticket) -> int:
        """Return after how many rounds the credit pays for ``ticket``."""
        return -(-max(0, ticket.price_tokens - self.credit_tokens) // self.share)


class FairQueue:
    """The requests that wait for one service; mutable, for one thread."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        """Of tenants that wait, in the order in which they come next where rounds are equal."""
        self._tenants: dict[int, str] = {}
        """By id of a ticket."""
        self._models: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._tenants)

    @property
    def models(self) -> Set[str]:
        """What the waiting requests are for."""
        return self._models.keys()

    def join(self, ticket: Ticket, *, share: int) -> None:
        """Let a request wait; ``share``: its tenant's weight, 1 or more, from now on."""
        assert ticket.price_tokens > 0, ticket
        line = self._lines.setdefault(ticket.tenant, _Line(share))
        line.share = share
        line.tickets[ticket.id] = ticket
        self._tenants[ticket.id] = ticket.tenant
        self._models[ticket.model] += 1

    def leave(self, ticket_id: int) -> None:
        """Take out a request that waits no longer; one that is not here is passed over."""
        tenant = self._tenants.pop(ticket_id, None)
        if tenant is None:
            return
        line = self._lines[tenant]
        ticket = line.tickets.pop(ticket_id)
        if not line.tickets:
            del self._lines[tenant]
        self._models[ticket.model] -= 1
        if self._models[ticket.model] == 0:
            del self._models[ticket.model]

    def displaced_by(self, tenant: str, *, share: int) -> Ticket | Nobody:
        """Return whose place a newcomer takes where no other is left: the newest of the tenant most over its share.

        Nobody's, where the newcomer's tenant would then be as far over: else two would turn each other out for ever.
        """
        others = (line for name, line in self._lines.items() if name != tenant)
        greedy = max(others, key=_Line.num_by_share, default=_Line(share))
        num_own = len(self._lines[tenant].tickets) if tenant in self._lines else 0
        if (num_own + 1) * greedy.share >= len(greedy.tickets) * share:
            return Nobody()
        return next(reversed(greedy.tickets.values()))

    def next(self, models: Container[str]) -> Ticket | Nobody:
        """Take out the request that is served next, of those for one of ``models``."""
        firsts = [
            (line.num_rounds(ticket), line, ticket)
            for line in self._lines.values()
            if isinstance(ticket := line.first(models), Ticket)
        ]
        if not firsts:
            return Nobody()
        num_rounds, chosen, ticket = min(firsts, key=lambda first: first[0])
        for _, line, _ in firsts:
            line.credit_tokens += num_rounds * line.share
        chosen.credit_tokens -= ticket.price_tokens
        self._lines[ticket.tenant] = self._lines.pop(ticket.tenant)  # the last one now
        self.leave(ticket.id)
        return ticket

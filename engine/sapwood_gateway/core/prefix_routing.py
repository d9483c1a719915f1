"""Prefix affinity of all services that ask for it, over replicas that come, go and change.

Replicas of one service that name blocks alike are one cohort with one `PrefixAffinity`. While a service is rolled to
another revision it has two, whose blocks have nothing in common: the least loaded replica says which one a prompt goes
to, so each gets its share, and prefixes decide within it.

Invariant: memory is bounded whatever replicas claim and tell: blocks of each replica, of all together, and of prompts
under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sapwood_gateway.core.affinity import ANY_COPIES, NO_SHARES, Decision
from sapwood_gateway.core.block_feed import BlockFeed
from sapwood_gateway.core.block_names import CacheFacts, Naming
from sapwood_gateway.core.prefix_affinity import Load, PrefixAffinity, Prompt
from sapwood_gateway.core.routes import ServiceKey

MOST_BLOCKS_OF_REPLICA = 65_536
"""A million tokens at pages of 16. Of a larger cache the blocks used last are known."""
MOST_BLOCKS = 1_048_576
"""Of all replicas: some 220 MB. A replica that joins when they are given away is taken to hold nothing."""
MOST_BLOCKS_UNDER_WAY = 262_144
"""Of prompts that were sent and are not answered; beyond, only the beginning of a prompt is looked at, or none."""
MOST_NAMINGS = 4
"""Of a service, that a prompt is named for: two while it is rolled."""


class _Cohort(NamedTuple):
    service: ServiceKey
    naming: Naming


@dataclass(frozen=True, slots=True)
class _Member:
    cohort: _Cohort
    facts: CacheFacts
    capacity_blocks: int
    """What is believed of the one in ``facts``."""
    feed: BlockFeed | None


@dataclass(frozen=True, slots=True)
class Placed:
    """A prompt that was sent where prefix affinity decided, until `PrefixRouting.computed`."""

    number: int
    cohort: _Cohort
    prompt: Prompt
    decision: Decision
    was_idle: bool
    """The replica had nothing else to do."""


class PrefixRouting:
    """Mutable, for one thread. A replica that `update` has not named is not known, and what is told of it ignored."""

    def __init__(self, *, most_blocks: int = MOST_BLOCKS, most_blocks_under_way: int = MOST_BLOCKS_UNDER_WAY) -> None:
        self._members: dict[str, _Member] = {}
        self._policies: dict[_Cohort, PrefixAffinity] = {}
        self._room = most_blocks
        """Blocks that are not given to a replica."""
        self._room_under_way = most_blocks_under_way
        self._under_way: dict[int, Placed] = {}
        self._num_placed = 0

    def update(self, wanted: Mapping[str, tuple[ServiceKey, CacheFacts]]) -> None:
        """Know exactly these replicas; one of which anything has changed begins with nothing."""
        for id_, member in list(self._members.items()):
            if wanted.get(id_) != (member.cohort.service, member.facts):
                self._leave(id_)
        for id_, (service, facts) in wanted.items():
            if id_ not in self._members:
                self._join(id_, _Cohort(service, facts.naming), facts)

    def namings(self, service: ServiceKey) -> tuple[Naming, ...]:
        """Return how the replicas of ``service`` name blocks, that of most replicas first."""
        counts = Counter(each.cohort.naming for each in self._members.values() if each.cohort.service == service)
        return tuple(naming for naming, _ in counts.most_common(MOST_NAMINGS))

    def place(
        self,
        service: ServiceKey,
        prompts: Mapping[Naming, Prompt],
        loads: Sequence[Load],
        least: str,
        *,
        hot_replicas: tuple[int, int] = ANY_COPIES,
        shares: Mapping[str, float] = NO_SHARES,
    ) -> Placed | None:
        """Send a prompt, given by each of `namings`, to one of ``loads``; ``least`` is the least loaded of them.

        ``hot_replicas``, ``shares``: as of `PrefixAffinity.decide`.

        None where that one's blocks cannot be named: it has not said how yet.
        """
        member = self._members.get(least)
        if member is None or member.cohort.service != service or member.cohort.naming not in prompts:
            return None
        cohort = member.cohort
        given = prompts[cohort.naming]
        fits = len(given.chain) <= self._room_under_way
        prompt = given if fits else replace(given, chain=given.chain[: self._room_under_way])
        policy, members = self._policies[cohort], self._members
        alike = [load for load in loads if (known := members.get(load.replica)) and known.cohort == cohort]
        decision = policy.decide(prompt, alike, hot_replicas=hot_replicas, shares=shares)
        policy.sent(prompt, decision)
        self._room_under_way -= len(prompt.chain)
        self._num_placed += 1
        was_idle = any(load.num_requests == 0 for load in alike if load.replica == decision.replica)
        placed = Placed(self._num_placed, cohort, prompt, decision, was_idle)
        self._under_way[placed.number] = placed
        return placed

    def began(self, placed: Placed, seconds: float) -> None:
        """The first token of the answer came so long after the prompt was sent."""
        if placed.was_idle and self._is_still_in(placed):
            self._policies[placed.cohort].began(placed.prompt, placed.decision, seconds)

    def computed(self, placed: Placed) -> None:
        """The replica has told of the prompt, or never will. A second time changes nothing."""
        if self._under_way.pop(placed.number, None) is not None:
            self._room_under_way += len(placed.prompt.chain)
            if self._is_still_in(placed):
                self._policies[placed.cohort].computed(placed.prompt, placed.decision)

    def answered(self, placed: Placed, num_tokens: int) -> None:
        """The answer to the prompt has so many tokens."""
        if self._is_still_in(placed):
            self._policies[placed.cohort].answered(placed.decision.replica, num_tokens / placed.decision.share)

    def level(self, replica_id: str) -> None:
        """A replica takes prompts for the first time or again: it is not given all until it has caught up."""
        member = self._members.get(replica_id)
        if member is not None:
            self._policies[member.cohort].level(replica_id)

    # --- what replicas tell

    def feed(self, replica_id: str) -> BlockFeed | None:
        """Return what takes a replica's events, until the next `update`; None where nobody takes them."""
        member = self._members.get(replica_id)
        return None if member is None else member.feed

    @property
    def known(self) -> Mapping[str, CacheFacts]:
        """The replicas that are weighed, and what they have said of their caches."""
        return {id_: member.facts for id_, member in self._members.items()}

    @property
    def num_blocks(self) -> int:
        """Blocks that replicas are known to hold, each once for each holder."""
        return sum(self._policies[each.cohort].index.num_blocks(id_) for id_, each in self._members.items())

    def num_blocks_of(self, replica_id: str) -> int | None:
        """Return how many blocks a replica is known to hold; None where it is not weighed."""
        member = self._members.get(replica_id)
        return None if member is None else self._policies[member.cohort].index.num_blocks(replica_id)

    def check_invariants(self) -> list[str]:
        """Return what is wrong inside, for tests; empty where nothing is."""
        faults = [f"{cohort} has no member" for cohort in self._policies if cohort not in self._cohorts()]
        if self._room < 0 or self._room_under_way < 0:
            faults.append(f"room: {self._room} blocks, {self._room_under_way} under way")
        return faults

    def _cohorts(self) -> set[_Cohort]:
        return {member.cohort for member in self._members.values()}

    def _is_still_in(self, placed: Placed) -> bool:
        member = self._members.get(placed.decision.replica)
        return member is not None and member.cohort == placed.cohort

    def _join(self, id_: str, cohort: _Cohort, facts: CacheFacts) -> None:
        capacity = min(facts.capacity_blocks, MOST_BLOCKS_OF_REPLICA, self._room)
        self._room -= capacity
        policy = self._policies.setdefault(cohort, PrefixAffinity(cohort.naming.block_tokens))
        policy.join(id_, capacity, publishes_events=facts.events is not None)
        feed = None if facts.events is None else BlockFeed(policy.index, id_)
        self._members[id_] = _Member(cohort, facts, capacity, feed)

    def _leave(self, id_: str) -> None:
        for placed in [each for each in self._under_way.values() if each.decision.replica == id_]:
            self.computed(placed)  # else a replica that comes back under this id would be told of it
        member = self._members.pop(id_)
        self._room += member.capacity_blocks
        self._policies[member.cohort].leave(id_)
        if member.cohort not in self._cohorts():
            del self._policies[member.cohort]

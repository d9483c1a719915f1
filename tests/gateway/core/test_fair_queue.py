"""In which order waiting requests get a replica."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sapwood_gateway.core.fair_queue import FairQueue, Nobody, Ticket


def queue(*tickets: Ticket, shares: dict[str, int] | None = None) -> FairQueue:
    made = FairQueue()
    for ticket in tickets:
        made.join(ticket, share=(shares or {}).get(ticket.tenant, 1))
    return made


def ticket(id_: int, tenant: str, price: int = 10, model: str = "m") -> Ticket:
    return Ticket(id_, tenant, model, price)


def order(waiting: FairQueue, *models: str) -> list[int]:
    found = []
    while isinstance(first := waiting.next(models or ("m",)), Ticket):
        found.append(first.id)
    return found


def test_requests_of_one_tenant_leave_in_the_order_in_which_they_came() -> None:
    assert order(queue(*(ticket(n, "a", price=1_000 - n) for n in range(9)))) == list(range(9))


def test_a_tenant_with_one_request_does_not_wait_for_all_of_anothers() -> None:
    waiting = queue(*(ticket(n, "a") for n in range(100)), ticket(100, "b"))
    assert 100 in order(waiting)[:2]


def test_tenants_take_turns_by_tokens_and_not_by_requests() -> None:
    # a asks for 10 tokens at a time, b for 100
    waiting = queue(*(ticket(n, "a", 10) for n in range(40)), *(ticket(100 + n, "b", 100) for n in range(4)))
    first = order(waiting)[:22]
    assert Counter("b" if id_ >= 100 else "a" for id_ in first) == {"a": 20, "b": 2}


def test_twice_the_share_gets_twice_the_tokens() -> None:
    waiting = queue(
        *(ticket(n, "a", 100) for n in range(40)), *(ticket(100 + n, "b", 100) for n in range(40)), shares={"a": 2}
    )
    assert Counter("b" if id_ >= 100 else "a" for id_ in order(waiting)[:30]) == {"a": 20, "b": 10}


def test_a_change_of_share_counts_from_the_next_request_on() -> None:
    waiting = queue(*(ticket(n, "a", 100) for n in range(40)), *(ticket(100 + n, "b", 100) for n in range(40)))
    waiting.join(ticket(40, "a", 100), share=3)
    assert Counter("b" if id_ >= 100 else "a" for id_ in order(waiting)[:40]) == {"a": 30, "b": 10}


def test_a_tenant_that_was_away_has_saved_nothing() -> None:
    waiting = queue(ticket(0, "b", 10))
    assert order(waiting) == [0]
    for n in range(50):
        waiting.join(ticket(100 + n, "a", 10), share=1)
    for _ in range(20):
        waiting.next({"m"})
    for n in range(50):
        waiting.join(ticket(200 + n, "b", 10), share=1)
    assert Counter("b" if id_ >= 200 else "a" for id_ in order(waiting)[:20]) == {"a": 10, "b": 10}


def test_one_that_left_is_not_served_and_leaving_twice_changes_nothing() -> None:
    waiting = queue(ticket(0, "a"), ticket(1, "a"), ticket(2, "b"))
    for id_ in (0, 0, 2):
        waiting.leave(id_)
    assert len(waiting) == 1
    assert order(waiting) == [1]
    waiting.leave(1)
    assert len(waiting) == 0


def test_those_whose_model_no_replica_can_take_hold_nobody_up() -> None:
    waiting = queue(ticket(0, "a", model="old"), ticket(1, "a"), ticket(2, "b", model="old"))
    assert waiting.models == {"m", "old"}
    assert order(waiting, "m") == [1]
    assert waiting.models == {"old"}
    assert order(waiting, "old") == [2, 0]  # a has had its turn


def test_nobody_is_next_where_nobody_waits() -> None:
    assert FairQueue().next({"m"}) == Nobody()


def displaced(waiting: FairQueue, tenant: str, share: int = 1) -> int | Nobody:
    found = waiting.displaced_by(tenant, share=share)
    return found.id if isinstance(found, Ticket) else found


def test_in_a_full_queue_the_newest_of_whoever_has_most_makes_room_for_whoever_has_less() -> None:
    waiting = queue(*(ticket(n, "a") for n in range(5)), *(ticket(5 + n, "b") for n in range(4)))
    assert displaced(waiting, "c") == 4
    assert displaced(waiting, "b") == Nobody()  # 4 and 5 would be as unfair as 5 and 4
    assert displaced(waiting, "a") == Nobody()
    waiting.leave(8)
    assert displaced(waiting, "b") == 4


def test_who_has_most_is_meant_by_its_share() -> None:
    waiting = queue(*(ticket(n, "a") for n in range(6)), *(ticket(6 + n, "b") for n in range(3)), shares={"a": 3})
    assert displaced(waiting, "c") == 8
    assert displaced(waiting, "b", share=1) == Nobody()
    assert displaced(waiting, "b", share=9) == 5


def test_nobody_makes_room_where_each_has_one_request() -> None:
    assert displaced(queue(ticket(0, "a"), ticket(1, "b")), "c") == Nobody()
    assert displaced(queue(), "a") == Nobody()


@given(
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    newcomers=st.lists(st.integers(0, 4), max_size=80),
    places=st.integers(1, 12),
)
def test_places_of_a_full_queue_end_up_as_the_shares_whoever_asks_more_often(
    shares: list[int], newcomers: list[int], places: int
) -> None:
    waiting = FairQueue()
    held: dict[int, str] = {}

    def come(id_: int, number: int) -> None:
        if len(waiting) == places:
            found = waiting.displaced_by(str(number), share=shares[number])
            if isinstance(found, Nobody):
                return
            waiting.leave(found.id)
            assert held.pop(found.id) != str(number)
        waiting.join(ticket(id_, str(number)), share=shares[number])
        held[id_] = str(number)

    turns = [each % len(shares) for each in newcomers] + [*range(len(shares))] * places
    for id_, number in enumerate(turns):
        come(id_, number)
    assert len(waiting) == len(held) == places
    counts = Counter(held.values())
    for i, mine in enumerate(shares):
        for j, others in enumerate(shares):
            assert i == j or (counts[str(i)] + 1) * others >= counts[str(j)] * mine


@given(
    tenants=st.lists(
        st.tuples(st.integers(1, 1_000), st.lists(st.integers(1, 50_000), min_size=1, max_size=5)),
        min_size=1,
        max_size=6,
    ),
    num_served=st.integers(1, 60),
)
def test_what_tenants_get_that_always_wait_is_as_their_shares_within_one_largest_request_each(
    tenants: list[tuple[int, list[int]]], num_served: int
) -> None:
    waiting = FairQueue()
    prices: dict[int, int] = {}

    def come(number: int, turn: int) -> None:
        share, sizes = tenants[number]
        id_ = turn * len(tenants) + number
        prices[id_] = sizes[turn % len(sizes)]
        waiting.join(Ticket(id_, str(number), "m", prices[id_]), share=share)

    served = [0] * len(tenants)
    for turn in range(num_served):
        for number in range(len(tenants)):
            come(number, turn)
    for _ in range(num_served):
        first = waiting.next({"m"})
        assert isinstance(first, Ticket)
        served[int(first.tenant)] += prices[first.id]
    # A round gives each tenant as many tokens as its share; nobody is further from all others' than these.
    slack = [(max(sizes) + share) / share for share, sizes in tenants]
    rounds = [tokens / share for tokens, (share, _) in zip(served, tenants, strict=True)]
    for i in range(len(tenants)):
        for j in range(len(tenants)):
            assert abs(rounds[i] - rounds[j]) <= slack[i] + slack[j]


@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9_999), st.integers(1, 9), st.booleans())),
)
def test_whatever_comes_and_goes_everybody_is_served_once_and_each_tenants_requests_in_their_order(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    waiting = FairQueue()
    served: list[Ticket] = []
    for id_, (tenant, price, share, one_leaves) in enumerate(steps):
        waiting.join(Ticket(id_, tenant, "m", price), share=share)
        if one_leaves and isinstance(first := waiting.next({"m"}), Ticket):
            served.append(first)
    while isinstance(first := waiting.next({"m"}), Ticket):
        served.append(first)
    assert len(waiting) == 0
    assert sorted(each.id for each in served) == list(range(len(steps)))
    for tenant in "abc":
        ids = [each.id for each in served if each.tenant == tenant]
        assert ids == sorted(ids)

"""Prefix affinity while replicas come, go, restart and change their revision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sapwood_contract.http import KvEvents
from sapwood_gateway.core.block_feed import Batch, Stored
from sapwood_gateway.core.block_names import CacheFacts, Naming, PromptSpace, prompt_of
from sapwood_gateway.core.prefill_speed import TRUSTED_SAMPLES
from sapwood_gateway.core.prefix_affinity import Load, Prompt
from sapwood_gateway.core.prefix_routing import MOST_BLOCKS_OF_REPLICA, Placed, PrefixRouting
from sapwood_gateway.core.routes import ServiceKey

CHAT, OTHER = ServiceKey("team", "chat"), ServiceKey("team", "other")
OLD, NEW = Naming("old", 4), Naming("new", 4)
EVENTS = KvEvents(epoch="1", topic="t", port=1, replay_port=2, page_size=4)
GUESSED = CacheFacts(OLD, 100, None)
TOLD = CacheFacts(OLD, 100, EVENTS)
TEXT = list(range(40))


def routing(facts: CacheFacts = GUESSED, *ids: str) -> PrefixRouting:
    made = PrefixRouting()
    made.update(dict.fromkeys(ids, (CHAT, facts)))
    return made


def prompts(*namings: Naming, tokens: list[int] = TEXT) -> Mapping[Naming, Prompt]:
    return {naming: prompt_of(tokens, naming, PromptSpace(), None) for naming in namings}


def idle(*ids: str) -> list[Load]:
    return [Load(id_, 0, 0) for id_ in ids]


def placed(made: PrefixRouting, asked: Mapping[Naming, Prompt], *ids: str) -> Placed:
    found = made.place(CHAT, asked, idle(*ids), ids[0])
    assert found is not None
    return found


def test_a_prompt_goes_where_it_went_before() -> None:
    made = routing(GUESSED, "a", "b", "c")
    first = placed(made, prompts(OLD), "a", "b", "c")
    again = placed(made, prompts(OLD), "c", "b", "a")
    assert (again.decision.replica, again.decision.reason) == (first.decision.replica, "prefix")
    assert again.decision.matched_tokens == len(TEXT) - 1


def test_a_replica_that_has_said_nothing_of_its_cache_is_not_weighed() -> None:
    assert routing().place(CHAT, prompts(OLD), idle("a"), "a") is None
    assert routing(GUESSED, "a").place(CHAT, prompts(NEW), idle("a"), "a") is None
    assert routing(GUESSED, "a").place(OTHER, prompts(OLD), idle("a"), "a") is None


def test_while_a_service_is_rolled_the_least_loaded_replica_says_to_which_revision_a_prompt_goes() -> None:
    made = PrefixRouting()
    new = replace(GUESSED, naming=NEW)
    made.update({"old": (CHAT, GUESSED), "old too": (CHAT, GUESSED), "new": (CHAT, new)})
    assert made.namings(CHAT) == (OLD, NEW)
    asked = prompts(OLD, NEW)
    assert placed(made, asked, "new", "old", "old too").decision.replica == "new"
    assert placed(made, asked, "old", "new", "old too").decision.replica in ("old", "old too")


def test_a_replica_that_left_and_came_back_holds_nothing() -> None:
    made = routing(GUESSED, "a")
    placed(made, prompts(OLD), "a")
    made.update({})
    made.update({"a": (CHAT, GUESSED)})
    assert placed(made, prompts(OLD), "a").decision.matched_tokens == 0


def test_an_engine_that_restarted_holds_nothing_that_the_former_one_told() -> None:
    made = routing(TOLD, "a")
    feed = made.feed("a")
    assert feed is not None
    chain = tuple(prompts(OLD)[OLD].chain)
    assert feed.apply(Batch("1", 0, [Stored(chain)])) == "applied"
    assert made.num_blocks == len(chain)
    made.update({"a": (CHAT, replace(TOLD, events=replace(EVENTS, epoch="2")))})
    assert made.num_blocks == 0
    assert made.feed("a") not in (None, feed)


def test_an_answer_from_before_a_restart_ends_nothing_of_after_it() -> None:
    made = routing(TOLD, "a")
    before = placed(made, prompts(OLD), "a")
    made.update({})
    made.update({"a": (CHAT, TOLD)})
    placed(made, prompts(OLD), "a")
    made.computed(before)
    made.answered(before, 10)
    assert placed(made, prompts(OLD), "a").decision.matched_tokens == len(TEXT) - 1


def test_a_prompt_counts_as_held_until_it_is_computed() -> None:
    made = routing(TOLD, "a")
    under_way = placed(made, prompts(OLD), "a")
    assert placed(made, prompts(OLD), "a").decision.matched_tokens == len(TEXT) - 1
    for each in (under_way, under_way):
        made.computed(each)
    assert made.check_invariants() == []


LONG = list(range(1_000, 2_000))
LARGE = replace(GUESSED, capacity_blocks=10_000)


def moves_from_a_short_line(made: PrefixRouting, *, num_requests: int) -> bool:
    """Let a replica with so many other requests compute a thousand tokens in 100 seconds, often; then tell whether a
    line of 20,000 tokens, which is none to an engine that nobody has measured, moves a prompt away that it holds.
    """
    holder = placed(made, prompts(OLD, tokens=LONG), "a", "b").decision.replica
    for number in range(TRUSTED_SAMPLES):
        asked = prompts(OLD, tokens=[number] * 1_000)
        found = made.place(CHAT, asked, [Load(holder, num_requests, 0)], holder)
        assert found is not None
        made.began(found, 100.0)
        made.computed(found)
    again = made.place(CHAT, prompts(OLD, tokens=LONG), [*idle("ab".replace(holder, "")), Load(holder, 0, 20_000)], "a")
    assert again is not None
    return again.decision.replica != holder


def test_how_fast_a_replica_is_is_learned_from_what_it_had_to_itself() -> None:
    assert moves_from_a_short_line(routing(LARGE, "a", "b"), num_requests=0)
    assert not moves_from_a_short_line(routing(LARGE, "a", "b"), num_requests=1)


def test_an_answer_that_begins_after_its_replica_has_gone_says_nothing() -> None:
    made = routing(GUESSED, "a", "b")
    late = placed(made, prompts(OLD), "a")
    made.update({"b": (CHAT, GUESSED)})
    made.began(late, 1.0)
    made.computed(late)
    assert made.check_invariants() == []


def test_only_those_that_publish_are_followed() -> None:
    made = PrefixRouting()
    made.update({"a": (CHAT, GUESSED), "b": (CHAT, TOLD)})
    assert made.known == {"a": GUESSED, "b": TOLD}
    assert made.feed("b") is not None
    assert made.feed("a") is None
    assert made.feed("nobody") is None


def held(made: PrefixRouting, id_: str, num_blocks: int) -> None:
    feed = made.feed(id_)
    assert feed is not None
    feed.apply(Batch("1", 0, [Stored(tuple(number.to_bytes(16, "big") for number in range(num_blocks)))]))


def test_what_an_engine_claims_to_hold_is_bounded() -> None:
    made = routing(replace(TOLD, capacity_blocks=2**62), "liar")
    held(made, "liar", MOST_BLOCKS_OF_REPLICA + 5)
    assert made.num_blocks == MOST_BLOCKS_OF_REPLICA


def test_what_all_engines_together_hold_is_bounded_and_given_back() -> None:
    made = PrefixRouting(most_blocks=150)
    made.update(dict.fromkeys("abc", (CHAT, TOLD)))
    for id_ in "abc":
        held(made, id_, 120)
    assert made.num_blocks == 150
    made.update({"c": (CHAT, TOLD)})
    made.update(dict.fromkeys("cd", (CHAT, TOLD)))
    held(made, "d", 120)
    assert made.num_blocks == 100


def test_what_is_under_way_is_bounded_and_given_back() -> None:
    made = PrefixRouting(most_blocks_under_way=15)
    made.update({"a": (CHAT, TOLD)})
    sent = [placed(made, prompts(OLD), "a") for _ in range(3)]
    assert [len(each.prompt.chain) for each in sent] == [10, 5, 0]
    for each in sent:
        made.computed(each)
    assert len(placed(made, prompts(OLD), "a").prompt.chain) == 10


class RoutingMachine(RuleBasedStateMachine):
    """Replicas change in any way while prompts are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.routing = PrefixRouting(most_blocks=25, most_blocks_under_way=30)
        self.present: dict[str, tuple[ServiceKey, CacheFacts]] = {}
        self.under_way: list[Placed] = []

    @rule(
        present=st.dictionaries(
            st.sampled_from("abc"),
            st.tuples(
                st.sampled_from([CHAT, OTHER]),
                st.builds(
                    CacheFacts,
                    st.sampled_from([OLD, NEW]),
                    st.sampled_from([0, 8, 100]),
                    st.sampled_from([None, EVENTS, replace(EVENTS, epoch="2")]),
                ),
            ),
        )
    )
    def discover(self, present: dict[str, tuple[ServiceKey, CacheFacts]]) -> None:
        self.routing.update(present)
        self.present = present

    @rule(service=st.sampled_from([CHAT, OTHER]), length=st.integers(1, 40), data=st.data())
    def request(self, service: ServiceKey, length: int, data: st.DataObject) -> None:
        ids = [id_ for id_, (its, _) in self.present.items() if its == service]
        if ids:
            least = data.draw(st.sampled_from(ids))
            asked = prompts(*self.routing.namings(service), tokens=TEXT[:length])
            found = self.routing.place(service, asked, idle(*ids), least)
            assert found is not None
            assert self.present[found.decision.replica][1].naming == self.present[least][1].naming
            self.under_way.append(found)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.under_way:
            ended = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
            self.routing.answered(ended, 5)
            self.routing.computed(ended)

    @invariant()
    def it_is_bounded(self) -> None:
        assert self.routing.check_invariants() == []
        assert self.routing.num_blocks <= 25

    def teardown(self) -> None:
        """Once all has ended, everything is given back."""
        for each in self.under_way:
            self.routing.computed(each)
        self.routing.update({})
        self.routing.update({"z": (CHAT, TOLD)})
        assert len(placed(self.routing, prompts(OLD), "z").prompt.chain) == 10
        held(self.routing, "z", 30)
        assert self.routing.num_blocks == 25


TestRoutingMachine = RoutingMachine.TestCase

"""Stack distances: those of a list that is searched, where everything is sampled; bounded; namespaces apart."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sapwood_engine.core.keys import token_key
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.reuse_stack import Reused, ReuseStack, Trail

ONE, OTHER = Namespace("model", tenant="one"), Namespace("model", tenant="other")
UNIT_TOKENS = 2
UNIT_BYTES = 4 * UNIT_TOKENS
Tokens = Sequence[int]
# So few different tokens that sequences begin alike, part, meet again and are each other's beginnings.
SEQUENCES = st.lists(st.integers(1, 2), min_size=1, max_size=9)
USES = st.lists(st.tuples(st.sampled_from([ONE, OTHER]), SEQUENCES, st.lists(st.integers(1, 2), max_size=5)))


Unit = tuple[Namespace, tuple[int, ...]]
"""Whatever its sequence begins with as far as its end."""


class SearchedList:
    """An LRU stack as a list, the latest first."""

    def __init__(self) -> None:
        self._units: list[Unit] = []

    def use(self, namespace: Namespace, tokens: Tokens) -> list[int]:
        """Return the distances of the whole units that are there, then move all to the top."""
        units = [(namespace, tuple(tokens[:end])) for end in range(UNIT_TOKENS, len(tokens) + 1, UNIT_TOKENS)]
        found = []
        for unit in units:
            if unit not in self._units:
                break
            found.append(self._units.index(unit) + 1)
        self._units = [*units, *(each for each in self._units if each not in units)]
        return found


def stack(*, sample_rate: float = 1.0, most_marks: int = 1_000, keeps_tails: bool = True) -> ReuseStack:
    return ReuseStack(unit_bytes=UNIT_BYTES, sample_rate=sample_rate, most_marks=most_marks, keeps_tails=keeps_tails)


def use(used: ReuseStack, namespace: Namespace, tokens: Tokens, *, num_found: int = 0) -> list[Reused]:
    trail, key = Trail(namespace), token_key(tokens)
    used.follow(trail, key, exact=(0, num_found - 1))
    return used.use(trail, key, num_found=num_found)


def distances(found: Sequence[Reused]) -> list[float]:
    """Of each unit found."""
    return [each.distance + at for each in found for at in range(round(each.num_units))]


@given(USES)
def test_where_everything_is_sampled_every_distance_is_that_in_a_searched_list(
    uses: list[tuple[Namespace, list[int], list[int]]],
) -> None:
    used, model = stack(keeps_tails=False), SearchedList()
    for namespace, prompt, answer in uses:
        trail, key = Trail(namespace), token_key(prompt)
        used.follow(trail, key, exact=(0,))
        assert distances(used.use(trail, key)) == model.use(namespace, prompt)
        key = token_key(prompt + answer)
        used.follow(trail, key)
        assert distances(used.use(trail, key)) == model.use(namespace, prompt + answer)


@given(USES)
def test_a_small_table_of_slots_changes_no_distance_that_is_still_known(
    uses: list[tuple[Namespace, list[int], list[int]]],
) -> None:
    """Slots are numbered anew again and again; what is forgotten is the bottom of the stack."""
    used, model = stack(most_marks=24, keeps_tails=False), SearchedList()
    for namespace, prompt, _ in uses:
        found = distances(use(used, namespace, prompt))
        assert found == model.use(namespace, prompt)[: len(found)]
        assert used.check_invariants() == []


def shared_tokens(one: Tokens, other: Tokens) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(USES)
def test_with_tails_all_whole_units_are_found_and_no_more_than_was_ever_used(
    uses: list[tuple[Namespace, list[int], list[int]]],
) -> None:
    used = stack()
    before: list[tuple[Namespace, list[int]]] = []
    for namespace, prompt, answer in uses:
        trail, key = Trail(namespace), token_key(prompt)
        used.follow(trail, key, exact=(0,))
        found = used.use(trail, key)
        num_found = min(len(prompt), max((each.end_bytes // 4 for each in found), default=0))
        num_shared = max((shared_tokens(prompt, other) for space, other in before if space == namespace), default=0)
        assert num_shared // UNIT_TOKENS * UNIT_TOKENS <= num_found <= num_shared
        whole = prompt + answer
        used.follow(trail, token_key(whole))
        used.use(trail, token_key(whole))
        before.append((namespace, whole))
        assert used.check_invariants() == []


def test_a_sequence_that_goes_on_as_the_tail_of_another_finds_that_part_of_its_unit() -> None:
    used = stack()
    use(used, ONE, [1] * 5)
    use(used, ONE, [2] * 4)
    (found,) = use(used, ONE, [1] * 9)
    assert (found.num_units, found.distance, found.end_bytes) == (3, 3, 4 * 5)
    assert used.num_units == 7  # The tail has become part of a whole unit.


def test_where_a_prompt_ended_within_a_unit_is_found_by_the_same_prompt_with_another_answer() -> None:
    used = stack()
    for answer in (7, 8):
        trail = Trail(ONE)
        used.follow(trail, token_key([1] * 5), exact=(0,))
        found = used.use(trail, token_key([1] * 5))
        used.follow(trail, token_key([1] * 5 + [answer] * 4))
        used.use(trail, token_key([1] * 5 + [answer] * 4))
    assert distances(found) == [1, 2, 3]
    assert used.num_units == 2 + 3 + 3  # Each answer has a unit of its own with the prompt's end.


def test_the_beginning_of_a_sequence_is_nearer_than_its_end() -> None:
    used = stack()
    use(used, ONE, [1] * 6)
    use(used, ONE, [2] * 4)
    assert distances(use(used, ONE, [1] * 6)) == [3, 4, 5]


def test_namespaces_share_the_stack_but_no_unit_of_it() -> None:
    used = stack()
    use(used, ONE, [1, 1])
    assert use(used, OTHER, [1, 1]) == []
    assert distances(use(used, ONE, [1, 1])) == [2]


def test_what_a_namespace_forgets_another_one_keeps() -> None:
    used = stack()
    use(used, ONE, [1, 1])
    use(used, OTHER, [2, 2])
    used.forget(ONE)
    assert use(used, ONE, [1, 1]) == []
    assert distances(use(used, OTHER, [2, 2])) == [2]
    used.forget(None)
    assert used.num_marks == used.num_units == 0


def test_ends_and_first_units_are_known_exactly_however_little_is_sampled() -> None:
    used = stack(sample_rate=1e-6)
    use(used, ONE, [1] * 200)
    use(used, ONE, [2] * 100)
    found = use(used, ONE, [1] * 200 + [3] * 50)
    assert distances(found) == list(range(51, 151))
    assert not any(each.is_estimate for each in found)


def test_where_the_live_tree_parts_is_known_exactly_from_then_on() -> None:
    used = stack(sample_rate=1e-6)
    use(used, ONE, [1] * 200)
    found = use(used, ONE, [1] * 60 + [2] * 40, num_found=30)
    assert distances(found) == list(range(1, 31))
    assert distances(use(used, ONE, [1] * 60 + [3] * 40)) == list(range(1, 31))


def test_what_parts_where_nobody_knew_is_right_on_average() -> None:
    """A shared beginning of 30 units, evicted long ago, of which 10 % are followed."""
    random = Random(1)
    num_found = []
    for _ in range(400):
        used = stack(sample_rate=0.1)
        shared = [random.randrange(1_000) for _ in range(60)]
        for _ in range(2):
            found = use(used, ONE, shared + [random.randrange(1_000) for _ in range(100)])
        num_found.append(sum(each.num_units for each in found))
    assert abs(sum(num_found) / len(num_found) - 30) < 3


def test_the_weight_of_the_stack_stays_right_on_average_where_sequences_part() -> None:
    random = Random(2)
    weights = []
    for _ in range(300):
        used = stack(sample_rate=0.1)
        shared = [random.randrange(1_000) for _ in range(60)]
        for _ in range(3):
            use(used, ONE, shared + [random.randrange(1_000) for _ in range(100)])
        weights.append(used.num_units)
    assert abs(sum(weights) / len(weights) - 180) < 10


def test_a_sequence_that_was_not_kept_leaves_nothing() -> None:
    used = stack()
    trail, key = Trail(ONE), token_key([1] * 8)
    used.follow(trail, key, exact=(0,))
    used.use(trail, key)
    admission = trail.use
    assert admission is not None
    assert not used.follow(trail, key[: 2 * UNIT_BYTES])
    used.use(trail, key[: 2 * UNIT_BYTES])
    used.retract(admission)
    assert used.num_units == 2
    assert distances(use(used, ONE, [1] * 8)) == [1, 2]


def test_memory_is_bounded_by_forgetting_what_was_used_longest_ago() -> None:
    used = stack(most_marks=50)
    for number in range(500):
        use(used, ONE, [number] * 20)
    assert used.num_marks <= 50
    assert distances(use(used, ONE, [499] * 20)) == list(range(1, 11))
    assert use(used, ONE, [0] * 20) == []

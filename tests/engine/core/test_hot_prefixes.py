"""The walk that says what a tree's nodes are worth, and what is chosen of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_prefix_cache import SPACE, serve

from sapwood_contract.http import BLOCK_NAME_BYTES
from sapwood_contract.keys import chain, namespace_root
from sapwood_engine.core.block_log import BlocksStored
from sapwood_engine.core.hot_prefixes import (
    LEAST_USES,
    HotPath,
    Survey,
    SurveyedNode,
    nodes_of_most_worth,
    paths_of_most_worth,
)
from sapwood_engine.core.keys import TOKENS_ONLY, token_key
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.prefix_worth import NEW_USES
from sapwood_engine.core.request import Namespace

PAGE_SIZE = 2
PAGE_BYTES = PAGE_SIZE * TOKENS_ONLY.unit_bytes
NAMESPACES = (SPACE, Namespace("model", None, "extra", "salt", "tenant:a/b"))
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def new_cache(num_pages: int = 64, *, log_blocks: bool = False) -> PrefixCache:
    cache = PrefixCache(num_pages=num_pages, page_size=PAGE_SIZE, log_blocks=log_blocks)
    cache.note_time(0.0)
    return cache


def walked(survey: Survey) -> list[SurveyedNode]:
    nodes: list[SurveyedNode] = []
    while not survey.is_done:
        nodes += survey.advance(max_nodes=3, max_pages=5)
    return nodes


def names_of(namespace: Namespace, key: bytes) -> list[bytes]:
    """Of the whole pages of ``key``, as `sapwood_contract.keys` defines them."""
    fields = (namespace.adapter_id, namespace.extra_key, namespace.tenant_salt, namespace.tenant)
    root = namespace_root(namespace.model_revision, *fields)
    return [each[:BLOCK_NAME_BYTES] for each in chain(root, key, PAGE_BYTES)]


def cut(names: bytes) -> list[bytes]:
    return [names[at : at + BLOCK_NAME_BYTES] for at in range(0, len(names), BLOCK_NAME_BYTES)]


def check_walk(survey: Survey, nodes: list[SurveyedNode]) -> None:
    """What a node says of itself follows from the tokens of its path."""
    for number, node in enumerate(nodes):
        path = survey.path(number)
        assert node.parent is None or node.parent < number
        above = b"" if node.parent is None else survey.path(node.parent).key
        assert path.key.startswith(above)
        assert len(path.key) - len(above) == node.num_tokens * TOKENS_ONLY.unit_bytes
        assert cut(node.names) == names_of(path.namespace, path.key)[len(above) // PAGE_BYTES :]


@given(
    served=st.lists(st.tuples(st.sampled_from(NAMESPACES), prompts), max_size=20),
    log_blocks=st.booleans(),
)
def test_of_a_tree_at_rest_every_whole_page_is_named_once_as_events_name_it(
    served: list[tuple[Namespace, list[int]]], log_blocks: bool
) -> None:
    cache, logged = new_cache(log_blocks=log_blocks), new_cache(log_blocks=True)
    for namespace, prompt in served:
        serve(cache, prompt, namespace)
        serve(logged, prompt, namespace)
    survey = cache.survey(now=1.0, has_names=True)
    nodes = walked(survey)
    check_walk(survey, nodes)
    stored = [event for event in logged.block_snapshot() if isinstance(event, BlocksStored)]
    expected = [each[:BLOCK_NAME_BYTES] for event in stored for each in event.hashes]
    assert sorted(name for node in nodes for name in cut(node.names)) == sorted(expected)


@settings(suppress_health_check=list(HealthCheck))
@given(
    before=st.lists(st.tuples(st.sampled_from(NAMESPACES), prompts), max_size=12),
    meanwhile=st.lists(
        st.tuples(st.sampled_from(["serve", "evict", "flush"]), st.sampled_from(NAMESPACES), prompts), max_size=20
    ),
    max_nodes=st.integers(1, 4),
    num_pages=st.integers(6, 40),
)
def test_a_tree_that_changes_meanwhile_is_told_without_a_word_that_was_never_true(
    before: list[tuple[Namespace, list[int]]],
    meanwhile: list[tuple[str, Namespace, list[int]]],
    max_nodes: int,
    num_pages: int,
) -> None:
    cache = new_cache(num_pages)
    computed: set[tuple[Namespace, bytes]] = set()
    for namespace, prompt in before:
        serve(cache, prompt, namespace)
        computed.add((namespace, token_key(prompt)))
    survey = cache.survey(now=1.0, has_names=True)
    nodes: list[SurveyedNode] = []
    while not survey.is_done:
        nodes += survey.advance(max_nodes=max_nodes, max_pages=100)
        if meanwhile:
            act, namespace, prompt = meanwhile.pop()
            if act == "serve":
                serve(cache, prompt, namespace)
                computed.add((namespace, token_key(prompt)))
            elif act == "evict":
                cache.evict(len(prompt))
            else:
                cache.flush(namespace)
    check_walk(survey, nodes)
    for number in range(len(nodes)):
        path = survey.path(number)
        assert any(space == path.namespace and key.startswith(path.key) for space, key in computed)
    named = [name for node in nodes for name in cut(node.names)]
    assert len(named) == len(set(named))


def test_uses_are_those_beyond_the_computation_and_each_part_of_a_path_has_its_own() -> None:
    cache = new_cache()
    for prompt in ([1, 1, 2, 2], [1, 1, 3, 3], [1, 1, 3, 3, 4]):
        serve(cache, prompt)
    nodes = walked(cache.survey(now=0.0, has_names=False))
    assert sorted((node.num_tokens, node.uses) for node in nodes) == [
        (2, NEW_USES),
        (2, pytest.approx(1 + NEW_USES)),
        (2, pytest.approx(2 + NEW_USES)),
    ]
    assert {node.names for node in nodes} == {b""}


def test_a_prefix_that_rests_is_worth_less_with_time() -> None:
    cache = new_cache()
    serve(cache, [1, 1])
    (now,) = walked(cache.survey(now=0.0, has_names=False))
    (later,) = walked(cache.survey(now=600.0, has_names=False))
    assert later.worth_tokens < now.worth_tokens / 4


# --- choices


def node(parent: int | None, num_tokens: int, uses: float, num_names: int = 0) -> SurveyedNode:
    return SurveyedNode(parent, num_tokens, uses, bytes(num_names * BLOCK_NAME_BYTES))


TREE = [
    node(None, 100, 9.0),  # 0: a system prompt
    node(0, 50, 3.0),  # 1
    node(0, 10, 0.5),  # 2
    node(1, 40, 1.0),  # 3
    node(None, 30, 2.0),  # 4: of somebody else
]


@pytest.mark.parametrize(
    ("max_paths", "max_tokens", "ends"),
    [
        (9, 1000, [3, 4]),  # all but 2, which is used less than once; 0 and 1 begin 3
        (9, 0, []),
        (0, 1000, []),
        (1, 1000, [3]),
        (2, 1000, [3, 4]),
        (9, 100, [0]),
        (9, 130, [0, 4]),  # 1 would fit no more beside 0, but 4 does
        (9, 150, [1]),
        (9, 180, [1, 4]),
        (9, 99, [4]),
    ],
)
def test_what_is_used_most_comes_first_with_all_above_it_as_far_as_there_is_room(
    max_paths: int, max_tokens: int, ends: list[int]
) -> None:
    paths = paths_of_most_worth(TREE, max_paths=max_paths, max_tokens=max_tokens)
    assert [path.number for path in paths] == ends


def test_the_worth_of_a_path_is_that_of_all_on_it_that_no_path_before_it_has() -> None:
    paths = paths_of_most_worth(TREE, max_paths=9, max_tokens=1000)
    assert [(path.number, path.worth_tokens) for path in paths] == [(3, 900 + 150 + 40), (4, 60)]
    assert paths[0].parts == ((100, 9.0), (50, 3.0), (40, 1.0))


def test_a_tail_that_is_used_less_than_once_goes_nowhere_with_the_prompt_before_it() -> None:
    tree = [node(None, 2048, 40.0), *(node(0, 512, 0.01) for _ in range(50))]
    (path,) = paths_of_most_worth(tree, max_paths=256, max_tokens=1_000_000)
    assert path == HotPath(0, 2048 * 40.0, ((2048, 40.0),))


@st.composite
def forests(draw: st.DrawFn) -> list[SurveyedNode]:
    nodes: list[SurveyedNode] = []
    for number in range(draw(st.integers(0, 15))):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        nodes.append(node(parent, draw(st.integers(1, 9)), draw(st.floats(0, 9)), draw(st.integers(0, 4))))
    return nodes


@given(nodes=forests(), max_paths=st.integers(0, 6), max_tokens=st.integers(0, 60))
def test_chosen_paths_keep_both_limits_none_begins_another_and_what_fits_whole_is_chosen_whole(
    nodes: list[SurveyedNode], max_paths: int, max_tokens: int
) -> None:
    def above(number: int | None) -> list[int]:
        path = []
        while number is not None:
            path.append(number)
            number = nodes[number].parent
        return path

    def tokens(number: int) -> int:
        return sum(nodes[each].num_tokens for each in above(number))

    paths = paths_of_most_worth(nodes, max_paths=max_paths, max_tokens=max_tokens)
    ends = [path.number for path in paths]
    assert len(ends) <= max_paths
    assert sum(map(tokens, ends)) <= max_tokens
    assert not any(one != other and one in above(other) for one in ends for other in ends)
    assert all(before.worth_tokens >= after.worth_tokens for before, after in pairwise(paths))
    told = {each for path in paths for each in above(path.number)}
    assert sum(path.worth_tokens for path in paths) == pytest.approx(sum(nodes[each].worth_tokens for each in told))
    assert all(nodes[end].uses >= LEAST_USES for end in ends)
    used = {each for number, one in enumerate(nodes) if one.uses >= LEAST_USES for each in above(number)}
    parents = {nodes[each].parent for each in used}
    leaves = sorted(number for number in used if number not in parents)
    if len(nodes) <= max_paths and sum(map(tokens, range(len(nodes)))) <= max_tokens:
        assert sorted(ends) == leaves


@given(nodes=forests(), max_blocks=st.integers(0, 30))
def test_named_nodes_are_those_of_most_worth_that_fit(nodes: list[SurveyedNode], max_blocks: int) -> None:
    chosen = nodes_of_most_worth(nodes, max_blocks=max_blocks)
    best = sorted((each.worth_tokens for each in nodes), reverse=True)
    assert [each.worth_tokens for each in chosen] == best[: len(chosen)]
    assert sum(len(cut(each.names)) for each in chosen) <= max_blocks
    if sum(len(cut(each.names)) for each in nodes) <= max_blocks:
        assert len(chosen) == len(nodes)

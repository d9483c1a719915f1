"""The growth curves measure what their axes say."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

import growth
from curves import Curve, Point
from figures import spread
from plot import svg
from sapwood_engine.core.ports import Capacity
from sapwood_tools.bench.client import Answer, Failure

CAPACITY = Capacity(
    num_pages=256, page_size=16, max_context_tokens=1024, max_seats=4, max_step_tokens=64, vocab_size=100
)


class FakeClient:
    """Found ``num_cached`` tokens of every prompt in its cache."""

    def __init__(self, num_cached: int | None) -> None:
        self.num_cached = num_cached

    async def complete(self, prompt: object, max_tokens: int) -> Answer | Failure:
        return Answer("x", 1.0, 1.5, 1.5, 1024, max_tokens, self.num_cached)


def test_sequences_share_the_pages_of_the_prefix_and_no_other() -> None:
    first, second, third = growth.own_pages(CAPACITY, 3, 160, 64)
    assert first[:4] == second[:4] == third[:4]
    assert len({*first, *second[4:], *third[4:]}) == 10 + 6 + 6


def test_without_a_shared_prefix_every_sequence_has_pages_of_its_own() -> None:
    pages = growth.own_pages(CAPACITY, 4, 250, 0)
    assert len({page for own in pages for page in own}) == 4 * 16


def test_what_a_key_costs_is_what_comes_on_top_of_a_step_without_context() -> None:
    seconds = {16: spread([0.008]), **{n: spread([0.008 + 2e-6 * (n - 16)]) for n in growth.CONTEXTS}}
    curve = growth.context_curve(2, seconds)
    assert [curve.cost_seconds(point) for point in curve.points] == pytest.approx([1e-6] * len(growth.CONTEXTS))


async def test_the_time_to_the_first_token_counts_where_the_cache_held_the_prefix() -> None:
    assert await growth.first_token(FakeClient(512), range(1024), num_cached=512) == 0.5
    assert await growth.first_token(FakeClient(1008), range(1024), num_cached=1023) == 0.5, "whole pages only"


@pytest.mark.parametrize("found", [0, 480, None])
async def test_a_cache_that_held_less_ends_the_run(found: int | None) -> None:
    with pytest.raises(RuntimeError, match="512 were put"):
        await growth.first_token(FakeClient(found), range(1024), num_cached=512)


def test_cached_shares_are_all_quarters() -> None:
    assert [growth.cached_share(n) for n in growth.COMPUTED] == [100, 75, 50, 25, 0]


def test_there_is_a_plot_for_every_group_of_curves() -> None:
    curve = Curve("any", "token", [Point(n, n, spread([0.01 * n])) for n in (1, 2, 4)])
    curves = {name: [curve] * 2 for name in ("batch", "context", "shared", "cached")}
    plots = growth.plots(curves)
    assert set(plots) == set(curves)
    assert all(ElementTree.fromstring(svg(plot)).tag.endswith("svg") for plot in plots.values())

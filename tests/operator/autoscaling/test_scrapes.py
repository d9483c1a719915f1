"""What a pod says is taken whole or not at all, and nothing that is missing becomes 0."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_scrapes import MODEL, samples

from sapwood_contract.curve import hit_ratio_at
from sapwood_contract.metrics import BY_NAME, ENGINE_STATES
from sapwood_operator.autoscaling.scrapes import ALWAYS_THERE, NAMES, Kv, NoKv, NoScrape, Sample, Scrape, read_scrape
from sapwood_operator.autoscaling.values import StepCost


def read(found: list[Sample]) -> Scrape:
    scraped = read_scrape(7.0, found)
    assert isinstance(scraped, Scrape), scraped
    return scraped


def without(*names: str) -> list[Sample]:
    return [sample for sample in samples() if sample.name not in names]


def refused(found: list[Sample]) -> str:
    scraped = read_scrape(7.0, found)
    assert isinstance(scraped, NoScrape)
    return scraped.why


def test_everything_that_an_engine_says_is_found() -> None:
    scraped = read(samples())
    totals = scraped.totals
    assert (scraped.at, scraped.state) == (7.0, "ready")
    assert (totals.ended, totals.admitted, totals.generated, totals.regret) == (6, 8, 90, 32)
    assert (scraped.running, scraped.waiting, scraped.waiting_tokens) == (2, 1, 700)
    assert scraped.kv == Kv(capacity=1600, pinned=300)
    assert scraped.cost == StepCost(prefill_token=0.001, prefill_key=0.001, decode=0.001, decode_key=0.001, base=0.001)


def test_tokens_that_are_computed_again_are_no_prompt_and_those_that_no_cache_had_are_not_cached() -> None:
    totals = read(samples()).totals
    assert (totals.prompt, totals.cached) == (1000, 600)


def test_only_what_went_for_want_of_room_is_evicted() -> None:
    assert read(samples()).totals.evicted == 16


def test_buckets_are_summed_over_other_labels_and_each_has_its_own_observations() -> None:
    scraped = read(samples())
    assert scraped.ttft == {0.5: 2, 1.0: 4, math.inf: 2}
    assert scraped.itl == {0.1: 80, math.inf: 10}


def test_the_curve_goes_through_the_exported_points() -> None:
    curve = read(samples()).curve
    assert curve is not None
    assert (curve.capacity_tokens, curve.num_samples, curve.working_set_tokens) == (1600, 500, 6000)
    assert [hit_ratio_at(curve, tokens) for tokens in (800, 1600, 2400, math.inf)] == pytest.approx(
        [0.2, 0.4, 0.45, 0.7]
    )


@pytest.mark.parametrize("name", sorted(ALWAYS_THERE))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_a_number_that_makes_no_sense_leaves_nothing_of_the_scrape(name: str, value: float) -> None:
    assert name in refused(samples(**{name: value}))


@pytest.mark.parametrize("name", sorted(ALWAYS_THERE))
def test_what_says_not_all_that_an_engine_says_is_no_scrape(name: str) -> None:
    assert name in refused(without(name))


def test_an_answer_with_nothing_in_it_is_no_scrape() -> None:
    assert "is it a Sapwood engine" in refused([])


def test_an_engine_that_loads_has_not_said_its_memory() -> None:
    assert read(without("sapwood_kv_capacity_tokens", "sapwood_kv_tokens")).kv == NoKv()
    assert read(samples(sapwood_kv_capacity_tokens=0.0)).kv == NoKv()


@pytest.mark.parametrize("name", ["sapwood_mrc_hit_ratio", "sapwood_step_cost_seconds"])
def test_what_too_little_is_known_of_is_unknown_and_the_rest_stands(name: str) -> None:
    for found in (samples(**{name: math.nan}), without(name)):
        scraped = read(found)
        assert (scraped.curve if name == "sapwood_mrc_hit_ratio" else scraped.cost) is None
        assert scraped.running == 2


def test_one_unknown_part_of_the_cost_leaves_no_cost() -> None:
    assert read([each for each in samples() if each.labels.get("part") != "decode"]).cost is None


def test_where_prefills_draw_all_that_is_answered_decoding_costs_nothing_yet() -> None:
    found = [each for each in samples() if each.labels.get("part") not in ("decode", "decode_key")]
    classified = [
        replace(each, value=8.0) if each.name == "sapwood_generation_tokens_total" else each for each in found
    ]
    cost = read(classified).cost
    assert cost == StepCost(prefill_token=0.001, prefill_key=0.001, decode=0.0, decode_key=0.0, base=0.001)
    assert read([each for each in classified if each.labels.get("part") != "base"]).cost is None
    assert read(found).cost is None


def test_an_unknown_working_set_leaves_the_curve() -> None:
    curve = read(samples(sapwood_working_set_tokens=math.nan)).curve
    assert curve is not None
    assert math.isnan(curve.working_set_tokens)
    curve = read(samples(sapwood_working_set_tokens=math.inf)).curve
    assert curve is not None
    assert curve.working_set_tokens == math.inf


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (samples(sapwood_engine_state=0.0), "0 states"),
        (samples(sapwood_engine_state=1.0), "4 states"),
        ([*without("sapwood_engine_state"), Sample("sapwood_engine_state", {"state": "broken"}, 1.0)], "1 states"),
        ([*without("sapwood_engine_state"), Sample("sapwood_engine_state", {}, 1.0)], "label state"),
        (
            [
                *without("sapwood_inter_token_latency_seconds_bucket"),
                Sample("sapwood_inter_token_latency_seconds_bucket", {**MODEL, "le": "0.1"}, 1.0),
            ],
            "infinite",
        ),
        ([*samples(), Sample("sapwood_inter_token_latency_seconds_bucket", {"le": "0.05"}, 90.0)], "do not rise"),
        ([*samples(), Sample("sapwood_inter_token_latency_seconds_bucket", {"le": "soon"}, 1.0)], "soon"),
        ([*samples(), Sample("sapwood_inter_token_latency_seconds_bucket", {"le": "nan"}, 1.0)], "do not rise"),
    ],
)
def test_labels_that_make_no_sense_leave_nothing_of_the_scrape(found: list[Sample], told: str) -> None:
    assert told in refused(found)


def test_every_name_that_is_looked_at_is_exported_by_an_engine() -> None:
    parts = ("_bucket", "_count")
    for name in NAMES:
        whole = next((name.removesuffix(part) for part in parts if name.endswith(part)), name)
        assert BY_NAME[whole].program == "engine"


NAMES_OR_OTHERS = st.sampled_from([*sorted(NAMES), "up"])
LABELS = st.dictionaries(
    st.sampled_from(["le", "state", "source", "reason", "part", "capacity", "model"]),
    st.sampled_from(["", "1", "nan", "inf", "0.5x", "ready", "active", "decode", *ENGINE_STATES]),
)


@given(st.lists(st.builds(Sample, NAMES_OR_OTHERS, LABELS, st.floats())), st.sampled_from([[], samples()]))
def test_whatever_is_said_is_a_scrape_of_sound_numbers_or_none(more: list[Sample], whole: list[Sample]) -> None:
    scraped = read_scrape(0.0, [*whole, *more])
    if isinstance(scraped, NoScrape):
        assert scraped.why
        return
    totals = scraped.totals
    for value in (totals.ended, totals.prompt, totals.cached, scraped.running, scraped.waiting_tokens):
        assert 0 <= value < math.inf
    assert all(0 <= count < math.inf for count in (*scraped.ttft.values(), *scraped.itl.values()))

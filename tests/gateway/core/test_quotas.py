"""Which limits a request of a tenant falls under, and what is said where it exceeds one."""

from __future__ import annotations

import pytest

from sapwood_gateway.core.quotas import Add, Exceeded, Window, exceeded, give_back, seats_key, settle, tightest, windows
from sapwood_gateway.core.tenants import Quotas, Tenant

NOON = 1_800_014_400.0 - 1_800_014_400 % 86_400 + 43_200  # 12:00:00 of some day, UTC
ALL = Quotas(
    requests_per_minute=10, tokens_per_minute=1_000, requests_per_day=100, tokens_per_day=9_000, concurrent_requests=2
)


def tenant(quotas: Quotas = ALL, name: str = "acme") -> Tenant:
    return Tenant(namespace="team", name=name, quotas=quotas)


def test_each_limit_that_a_tenant_has_is_a_window_with_what_the_request_costs_there() -> None:
    found = windows(tenant(), price_tokens=70, now=NOON + 61.5)
    assert [(each.kind, each.period, each.limit, each.cost) for each in found] == [
        ("requests", "minute", 10, 1),
        ("requests", "day", 100, 1),
        ("tokens", "minute", 1_000, 70),
        ("tokens", "day", 9_000, 70),
    ]


def test_what_has_no_bound_is_not_counted() -> None:
    assert windows(tenant(Quotas()), price_tokens=70, now=NOON) == ()
    assert [each.kind for each in windows(tenant(Quotas(tokens_per_day=0)), price_tokens=1, now=NOON)] == ["tokens"]


def test_a_minute_is_one_of_the_clock_and_a_day_one_of_utc() -> None:
    def keys(now: float) -> list[str]:
        return [each.key for each in windows(tenant(), price_tokens=1, now=now)]

    assert keys(NOON) == keys(NOON + 59.9)
    assert [a == b for a, b in zip(keys(NOON), keys(NOON + 60), strict=True)] == [False, True, False, True]
    assert keys(NOON)[1] == keys(NOON + 43_199)[1]
    assert keys(NOON)[1] != keys(NOON + 43_200)[1]


def test_no_two_tenants_and_no_two_limits_share_a_key_and_none_tells_a_name() -> None:
    found = [
        each.key for name in ("acme", "other") for each in windows(tenant(name=name), price_tokens=1, now=NOON)
    ] + [seats_key(tenant()), seats_key(tenant(name="other"))]
    assert len(set(found)) == 10
    assert not any(word in key for key in found for word in ("acme", "other", "team"))


@pytest.mark.parametrize(
    ("index", "used", "expected"),
    [
        (0, 10, None),
        (0, 11, Exceeded("requests", "minute", 10, 39)),
        (1, 101, Exceeded("requests", "day", 100, 43_200 - 21)),
        (2, 1_000, None),
        (2, 1_001, Exceeded("tokens", "minute", 1_000, 39)),
        (3, 9_070, Exceeded("tokens", "day", 9_000, 43_200 - 21)),
    ],
)
def test_a_count_above_the_limit_is_refused_until_the_window_ends(
    index: int, used: int, expected: Exceeded | None
) -> None:
    window = windows(tenant(), price_tokens=70, now=NOON + 21.4)[index]
    assert exceeded(window, used, now=NOON + 21.4) == expected


def test_a_request_that_no_window_is_large_enough_for_is_told_so() -> None:
    window = windows(tenant(), price_tokens=1_001, now=NOON)[2]
    assert exceeded(window, 1_001, now=NOON) == Exceeded("tokens", "minute", 1_000, 60, asked=1_001)


def test_the_window_that_just_ends_asks_for_a_second_at_least() -> None:
    window = windows(tenant(), price_tokens=1, now=NOON + 59.999)[0]
    assert exceeded(window, 11, now=NOON + 59.999) == Exceeded("requests", "minute", 10, 1)


def test_what_was_not_used_is_given_back_where_it_was_taken() -> None:
    charged = windows(tenant(), price_tokens=70, now=NOON)
    assert settle(charged, used_tokens=50, now=NOON + 90) == (
        Add(charged[2].key, -20, charged[2].keep_seconds),
        Add(charged[3].key, -20, charged[3].keep_seconds),
    )


def test_what_was_used_beyond_counts_when_it_is_known() -> None:
    charged = windows(tenant(), price_tokens=70, now=NOON)
    later = windows(tenant(), price_tokens=70, now=NOON + 90)
    assert later[2].key != charged[2].key
    assert settle(charged, used_tokens=100, now=NOON + 90) == (
        Add(later[2].key, 30, later[2].keep_seconds),
        Add(later[3].key, 30, later[3].keep_seconds),
    )


def test_what_was_priced_right_is_settled_already() -> None:
    assert settle(windows(tenant(), price_tokens=70, now=NOON), used_tokens=70, now=NOON) == ()


def test_a_request_that_was_never_sent_gets_everything_back() -> None:
    charged = windows(tenant(), price_tokens=70, now=NOON)
    assert give_back(charged) == tuple(Add(each.key, -each.cost, each.keep_seconds) for each in charged)


def test_what_a_client_is_told_of_is_the_limit_that_it_will_meet_first() -> None:
    minute, day = windows(tenant(), price_tokens=70, now=NOON)[:2]
    assert tightest([(minute, 4), (day, 90)], "requests") == (minute, 6)
    assert tightest([(minute, 4), (day, 97)], "requests") == (day, 3)
    assert tightest([(minute, 12)], "requests") == (minute, 0)
    assert tightest([(minute, 4)], "tokens") is None


def test_a_window_is_kept_for_longer_than_it_lasts() -> None:
    for each in windows(tenant(), price_tokens=1, now=NOON):
        assert isinstance(each, Window)
        assert each.keep_seconds > {"minute": 60, "day": 86_400}[each.period]

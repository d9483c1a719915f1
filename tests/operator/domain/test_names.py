"""Names of children: within Kubernetes' limits, stable, never shared (names too long, digit first, bad characters)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_operator.domain import names
from sapwood_operator.errors import InvalidSpec

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
LONGEST_POD_SUFFIX = "-0123456789"
"""Of a ReplicaSet; a pod's own five letters replace what does not fit of the rest."""


@given(NAMES)
def test_every_name_that_is_accepted_gives_children_and_labels_that_kubernetes_accepts(name: str) -> None:
    names.check_name(name)
    for child in (name, names.engine(name), names.routing(name), names.engine(name) + LONGEST_POD_SUFFIX):
        assert len(child) <= 63
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", child)
    for value in names.labels(name).values():
        assert re.fullmatch(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?", value)


@given(NAMES, NAMES)
def test_two_services_never_share_a_child(one: str, other: str) -> None:
    made = [{names.engine(name), names.routing(name)} for name in (one, other)]
    assert (made[0] & made[1] == set()) or one == other


@pytest.mark.parametrize("length", [41, 50, 57, 63])
def test_a_name_that_is_too_long_is_refused_with_the_real_limit(length: int) -> None:
    with pytest.raises(InvalidSpec, match=f"it has {length} characters; take at most 40"):
        names.check_name("a" * length)


@pytest.mark.parametrize("name", ["123a", "Chat", "chat.one", "chat_one", "-chat", "chat-", ""])
def test_a_name_that_no_service_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match=r"metadata\.name: .* begin with a lower case letter"):
        names.check_name(name)


def test_the_selector_is_a_part_of_the_labels() -> None:
    assert names.selector("chat").items() <= names.labels("chat").items()
    assert (
        names.selector_text(names.selector("chat"))
        == "app.kubernetes.io/component=engine,app.kubernetes.io/instance=chat,app.kubernetes.io/name=sapwood"
    )

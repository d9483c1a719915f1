"""Names of children: within Kubernetes' limits, stable, never shared (names too long, digit first, bad characters)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_operator import ALL_APIS, SETTINGS, a_service

from sapwood_operator.domain import names
from sapwood_operator.domain.children.desired import desired_children
from sapwood_operator.domain.observed import ObjectRef, ref_of
from sapwood_operator.domain.spec import read
from sapwood_operator.errors import InvalidSpec

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True).filter(lambda n: not n.endswith("-engine"))
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


def children(name: str) -> set[ObjectRef]:
    """What a service makes at most; nothing where its name is refused."""
    exposure = {"ingress": {"host": "chat.example.com"}, "gateway": {"parentRefs": [{"name": "edge"}]}}
    try:
        spec = read(a_service(name, exposure=exposure))
    except InvalidSpec:
        return set()
    return {ref_of(child) for child in desired_children(spec, SETTINGS, replicas=1, apis=ALL_APIS)}


ENDINGS = sorted({ref.name.removeprefix("chat") for ref in children("chat")})
"""Of the names of children."""


@given(NAMES, st.sampled_from(ENDINGS).filter(bool))
def test_two_services_never_share_a_child_although_one_is_called_as_a_child_of_the_other(one: str, ending: str) -> None:
    assert ENDINGS == ["", "-engine", "-routing"]
    assert not children(one) & children(one + ending)


def test_a_name_that_a_child_of_another_service_has_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"'base-engine' cannot be used: a service called 'base' makes a Service"):
        names.check_name("base-engine")
    assert children("base-routing")
    assert children("engine")


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

"""Addresses, images, identities, back-off and logs of a node: small rules, each with its cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.node.addresses import AddressPool, NoAddressError
from cluster.node.images import Image, NotFound, command_of, find
from cluster.node.logs import tail
from cluster.node.process import Command, Mount, Place, identity_of, specification, violation_of
from cluster.node.settings import backoff_seconds

IMAGES = [Image("sapwood/engine:*", ["sapwood"], user=10001), Image("e2e/shell:1", ["/bin/sh"])]


def test_addresses_are_of_the_node_and_differ() -> None:
    pool = AddressPool(3)
    taken = [pool.take() for _ in range(241)]
    assert len(set(taken)) == 241
    assert (taken[0], taken[-1]) == ("10.77.3.10", "10.77.3.250")
    with pytest.raises(NoAddressError, match="node 3 has given 241 pods an address"):
        pool.take()


def test_an_address_that_was_given_back_comes_last() -> None:
    pool = AddressPool(1)
    first = pool.take()
    pool.give_back(first)
    assert pool.take() != first
    assert [pool.take() for _ in range(240)][-1] == first


def test_an_address_of_an_earlier_agent_is_claimed_once() -> None:
    pool = AddressPool(1)
    assert pool.claim("10.77.1.11")
    assert not pool.claim("10.77.1.11")
    assert not pool.claim("10.77.2.12")
    assert "10.77.1.11" not in [pool.take() for _ in range(240)]


@pytest.mark.parametrize("name", ["sapwood/engine:0.1.0", "sapwood/engine", "sapwood/engine:latest"])
def test_an_image_is_found_by_its_name_whatever_its_version(name: str) -> None:
    assert find(IMAGES, name) == IMAGES[0]


@pytest.mark.parametrize("name", ["sapwood/engin:1", "registry.test/sapwood/engine:1", "e2e/shell:2"])
def test_an_image_that_nobody_mapped_cannot_be_pulled(name: str) -> None:
    found = find(IMAGES, name)
    assert isinstance(found, NotFound)
    assert f'"{name}"' in found.message


@pytest.mark.parametrize(
    ("container", "argv"),
    [
        ({}, ["sapwood"]),
        ({"args": ["serve"]}, ["sapwood", "serve"]),
        ({"command": ["sh"], "args": ["-c"]}, ["sh", "-c"]),
    ],
)
def test_a_command_replaces_the_entrypoint_and_arguments_follow(container: dict[str, Any], argv: list[str]) -> None:
    assert command_of(IMAGES[0], container) == argv


def test_a_container_overrides_its_pods_identity_and_the_image_comes_last() -> None:
    pod = {"spec": {"securityContext": {"runAsUser": 5, "runAsGroup": 6, "fsGroup": 7, "supplementalGroups": [8]}}}
    inner = {"securityContext": {"runAsUser": 9, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}}
    found = identity_of(pod, inner, IMAGES[0])
    assert (found.user, found.group, list(found.groups)) == (9, 6, [8, 7])
    assert found.is_root_read_only
    assert not found.has_capabilities
    bare = identity_of({"spec": {}}, {}, IMAGES[0])
    assert (bare.user, bare.group, bare.may_gain_rights) == (10001, 10001, True)


def test_root_is_refused_where_the_pod_forbids_it() -> None:
    pod = {"spec": {"securityContext": {"runAsNonRoot": True}}}
    assert "root" in violation_of(pod, {}, identity_of(pod, {}, IMAGES[1]))
    assert not violation_of(pod, {}, identity_of(pod, {}, IMAGES[0]))
    allowed = {"securityContext": {"runAsNonRoot": False}}
    assert not violation_of(pod, allowed, identity_of(pod, allowed, IMAGES[1]))


def test_a_container_knows_its_name_and_asks_the_clusters_nameserver() -> None:
    place = Place(Path("/proc/7/ns/net"), "10.77.1.10", "chat-0", "team", "10.96.0.10", "cluster.local")
    files = place.files()
    assert files["/etc/hosts"] == "127.0.0.1 localhost\n10.77.1.10 chat-0\n"
    search = "search team.svc.cluster.local svc.cluster.local cluster.local\n"
    assert files["/etc/resolv.conf"] == f"{search}nameserver 10.96.0.10\noptions ndots:5\n"


def test_the_launcher_is_told_everything_as_json() -> None:
    place = Place(Path("/proc/7/ns/net"), "10.77.1.10", "chat-0", "team", "10.96.0.10", "cluster.local")
    identity = identity_of({"spec": {}}, {"securityContext": {"allowPrivilegeEscalation": False}}, IMAGES[0])
    mounts = [Mount(Path("/state/volumes/cache"), "/cache", is_read_only=False)]
    told = specification(place, identity, Command(["x"], {"A": "1"}, "/"), mounts, IMAGES[0], Path("/state/root"))
    for part in (b'"environment": ["A=1"]', b'"target": "/cache"', b'"no_new_rights": true', b'"user": 10001'):
        assert part in told


def test_the_first_restart_is_at_once_and_later_ones_wait_twice_as_long() -> None:
    assert [backoff_seconds(failures) for failures in range(8)] == [0, 0, 1, 2, 4, 8, 16, 20]


@pytest.mark.parametrize(("num_lines", "shown"), [(-1, b"a\nb\nc"), (0, b""), (1, b"c"), (2, b"b\nc"), (9, b"a\nb\nc")])
def test_a_log_is_shown_from_its_end(num_lines: int, shown: bytes) -> None:
    assert tail(b"a\nb\nc", num_lines) == shown

"""Logs of many pods: whole lines, each under its pod."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood_operator.kubectl.logs import Follower, prefixed, writes_logs


def test_lines_that_come_in_pieces_are_told_whole() -> None:
    chunks = [b"one\ntw", b"o\n", b"\nthr", b"ee"]
    assert list(prefixed("chat-engine-7d9-abc", "chat", chunks)) == [
        "[7d9-abc] one",
        "[7d9-abc] two",
        "[7d9-abc] ",
        "[7d9-abc] three",
    ]


def test_bytes_that_are_no_text_stop_nothing() -> None:
    assert list(prefixed("p", "chat", [b"\xff\n"])) == ["[p] �"]


def a_pod(uid: str, state: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": f"pod-{uid}", "uid": uid}, "status": {"containerStatuses": [{"state": state}]}}


@pytest.mark.parametrize(
    ("state", "writes"),
    [({"running": {}}, True), ({"terminated": {"exitCode": 1}}, True), ({"waiting": {}}, False), ({}, False)],
)
def test_a_pod_writes_once_its_container_ran(state: dict[str, Any], writes: bool) -> None:
    assert writes_logs(a_pod("a", state)) is writes


def test_a_pod_that_waits_to_be_started_again_shows_its_last_run() -> None:
    pod = a_pod("a", {"waiting": {"reason": "CrashLoopBackOff"}})
    pod["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 1}}
    assert writes_logs(pod)


def test_a_pod_that_was_never_scheduled_writes_nothing() -> None:
    assert not writes_logs({"metadata": {"name": "a"}, "status": {"phase": "Pending"}})


def followed(*looks: list[dict[str, Any]]) -> list[str]:
    """Return the pods whose log was shown while the cluster had these pods, one look after the other, and then none."""
    shown: list[str] = []
    seen = iter(looks)
    follower = Follower(
        lambda: next(seen, []), lambda pod: shown.append(pod["metadata"]["name"]), lambda: True, wait_seconds=0.0
    )
    follower.run()
    return sorted(shown)


def test_following_shows_each_pod_once_and_those_that_come_later_too() -> None:
    a, b = a_pod("a", {"running": {}}), a_pod("b", {"running": {}})
    assert followed([a, a_pod("b", {"waiting": {}})], [a], [a, b]) == ["pod-a", "pod-b"]


def test_following_shows_an_engine_that_was_started_again() -> None:
    again = a_pod("a", {"running": {}})
    again["status"]["containerStatuses"][0]["restartCount"] = 1
    assert followed([a_pod("a", {"running": {}})], [again], [again]) == ["pod-a", "pod-a"]


def test_following_waits_for_pods_while_there_is_a_service() -> None:
    looks, services = iter([[], [a_pod("a", {"running": {}})], []]), iter([False, True])
    shown: list[str] = []
    Follower(
        lambda: next(looks), lambda pod: shown.append(pod["metadata"]["name"]), lambda: next(services), wait_seconds=0.0
    ).run()
    assert shown == ["pod-a"]

"""What the node agent says of a pod, from what its containers do: the kubelet's rules."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.node.status import (
    ContainerView,
    Last,
    NeverTerminated,
    Phase,
    PodView,
    RestartPolicy,
    Running,
    State,
    Terminated,
    Waiting,
    first_view,
    phase_of,
    status_of,
    termination_message,
    will_run_again,
)

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
CREATING = Waiting("ContainerCreating")
RUNNING = Running(THEN)


def ended(code: int) -> Terminated:
    return Terminated(code, "", THEN, NOW, "process://x")


def view(state: State, last: Last = NeverTerminated(), *, is_ready: bool = False) -> ContainerView:  # noqa: B008 (a value)
    return ContainerView("main", "image:1", state, last, is_ready=is_ready)


def pod(*containers: ContainerView, policy: RestartPolicy = "Always", init: tuple[ContainerView, ...] = ()) -> PodView:
    is_initialized = all(isinstance(one.state, Terminated) and one.state.exit_code == 0 for one in init)
    return PodView(policy, init, containers, is_initialized, THEN, "10.77.1.10", "10.77.1.1")


@pytest.mark.parametrize(
    ("given", "phase"),
    [
        (pod(view(CREATING)), "Pending"),
        (pod(view(Waiting("ImagePullBackOff"))), "Pending"),
        (pod(view(RUNNING), view(CREATING)), "Pending"),
        (pod(view(RUNNING)), "Running"),
        (pod(view(Waiting("CrashLoopBackOff"), ended(1))), "Running"),
        (pod(view(ended(1))), "Running"),
        (pod(view(ended(0))), "Running"),
        (pod(view(ended(0)), policy="Never"), "Succeeded"),
        (pod(view(ended(0)), policy="OnFailure"), "Succeeded"),
        (pod(view(ended(3)), policy="OnFailure"), "Running"),
        (pod(view(ended(3)), view(RUNNING), policy="Never"), "Running"),
        (pod(view(ended(3)), view(ended(0)), policy="Never"), "Failed"),
        (pod(view(CREATING), init=(view(RUNNING),)), "Pending"),
        (pod(view(CREATING), init=(view(ended(1)),)), "Pending"),
        (pod(view(CREATING), init=(view(ended(1)),), policy="Never"), "Failed"),
        (pod(view(RUNNING), init=(view(ended(0)),)), "Running"),
    ],
)
def test_the_phase_follows_from_the_containers(given: PodView, phase: Phase) -> None:
    assert phase_of(given) == phase


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 1, False),
    ],
)
def test_a_container_is_restarted_as_its_pod_says(policy: RestartPolicy, code: int, again: bool) -> None:
    assert will_run_again(policy, code) is again


def conditions(status: dict[str, Any]) -> dict[str, Any]:
    return {one["type"]: one for one in status["conditions"]}


def test_a_pod_is_ready_when_each_container_is() -> None:
    ready, unready = view(RUNNING, is_ready=True), view(RUNNING)
    assert conditions(status_of(pod(ready, ready), "Running", {}, NOW))["Ready"]["status"] == "True"
    condition = conditions(status_of(pod(ready, unready), "Running", {}, NOW))["Ready"]
    assert condition["status"] == "False"
    assert condition["message"] == "containers with unready status: [main]"


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    before = status_of(pod(view(RUNNING)), "Running", {}, THEN)
    same = status_of(pod(view(RUNNING)), "Running", before, NOW)
    assert same == before
    other = conditions(status_of(pod(view(RUNNING, is_ready=True)), "Running", before, NOW))
    assert other["Ready"]["lastTransitionTime"] == NOW
    assert other["PodScheduled"]["lastTransitionTime"] == THEN


def test_how_a_container_ended_is_told() -> None:
    crashed = Terminated(2, "cannot read the model", THEN, NOW, "process://x")
    told = status_of(pod(view(Waiting("CrashLoopBackOff", "back-off 2s"), crashed)), "Running", {}, NOW)
    (container,) = told["containerStatuses"]
    assert container["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 2s"}}
    last = container["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"], last["message"]) == (2, "Error", "cannot read the model")


@pytest.mark.parametrize(
    ("written", "policy", "code", "message"),
    [
        (b"", "File", 1, ""),
        (b"written", "File", 0, "written"),
        (b"", "FallbackToLogsOnError", 1, "log line\n"),
        (b"", "FallbackToLogsOnError", 0, ""),
        (b"written", "FallbackToLogsOnError", 1, "written"),
    ],
)
def test_a_failed_container_without_a_message_shows_its_log_where_asked(
    written: bytes, policy: str, code: int, message: str
) -> None:
    assert termination_message(written, b"log line\n", policy, code) == message


def test_a_log_stands_in_with_its_last_eighty_lines_and_two_kilobytes() -> None:
    short = b"".join(b"%d\n" % number for number in range(200))
    assert termination_message(b"", short, "FallbackToLogsOnError", 1).splitlines()[0] == "120"
    long = b"x" * 5000
    assert len(termination_message(b"", long, "FallbackToLogsOnError", 1)) == 2048


def test_a_container_of_an_earlier_agent_was_killed_with_it() -> None:
    running = {"name": "main", "containerID": "x", "restartCount": 2, "state": {"running": {"startedAt": THEN}}}
    container = {"name": "main", "image": "image:1"}
    found = first_view({"spec": {}, "status": {"containerStatuses": [running]}}, container, NOW)
    assert found.restarts == 3
    assert isinstance(found.last, Terminated)
    assert (found.last.exit_code, found.last.started_at) == (137, THEN)
    assert phase_of(pod(found)) == "Running"
    assert first_view({"spec": {}}, container, NOW) == view(CREATING)

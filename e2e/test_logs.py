"""``kubectl sapwood logs``: what engines write, as it comes. Pods that a shell plays stand for engines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from operator_setup import prepare
from pods import Pods, shell
from sapwood_contract.routing import SERVICE_LABEL
from waiting_services import NOWHERE
from world import World, eventually, service_path

_numbers = count(1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Without an operator: it would delete nothing here, and is not what is tested."""
    return prepare(tmp_path_factory.mktemp("logs")).world


@pytest.fixture
def pods(world: World) -> Iterator[Pods]:
    namespace = world.make_namespace(f"logs-{os.getpid()}-{next(_numbers)}")
    world.make_service(namespace, placement=NOWHERE)
    yield Pods(world, namespace)
    world.delete(f"/api/v1/namespaces/{namespace}")


def engine(pods: Pods, name: str, script: str, service: str = "chat") -> None:
    """Make a pod like one of the service's."""
    pods.make(f"{service}-engine-{name}", {**shell(script), "name": "engine"}, labels={SERVICE_LABEL: service})


@dataclass(frozen=True, slots=True)
class Shown:
    """The plugin, following."""

    process: subprocess.Popen[str]
    out: Path
    err: Path

    def lines(self) -> list[str]:
        return self.out.read_text(encoding="utf-8").splitlines()

    def wait_for(self, *lines: str) -> None:
        """Return once these lines are shown."""
        eventually(lambda: set(lines) <= set(self.lines()), f"{lines} in {self.out}")


@contextmanager
def following(pods: Pods, folder: Path, *options: str) -> Iterator[Shown]:
    out, err = folder / "out", folder / "err"
    argv = [sys.executable, "-m", "sapwood_operator.kubectl.cli", "logs", "chat", "--follow", "-n", pods.namespace]
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen([*argv, *options], stdout=stdout, stderr=stderr, text=True)
    try:
        yield Shown(process, out, err)
    finally:
        process.kill()
        process.wait()


def counting(word: str, num_lines: int) -> str:
    """A script that writes ``word 1``, ``word 2``, … a tenth of a second apart, and goes on to run."""
    numbers = " ".join(str(number) for number in range(1, num_lines + 1))
    until_term = f"sleep 600 & trap 'echo {word} ends; exit 0' TERM; wait"
    return f"for n in {numbers}; do echo {word} $n; sleep 0.1; done; {until_term}"


def test_lines_that_come_later_are_seen_in_their_order(pods: Pods, tmp_path: Path) -> None:
    engine(pods, "7d9-aaaaa", counting("tick", 60))
    pods.wait_ready("chat-engine-7d9-aaaaa")
    with following(pods, tmp_path) as shown:
        shown.wait_for("[7d9-aaaaa] tick 1")
        assert "[7d9-aaaaa] tick 60" not in shown.lines(), "it has not been written yet"
        shown.wait_for("[7d9-aaaaa] tick 60")
        assert shown.lines() == [f"[7d9-aaaaa] tick {number}" for number in range(1, 61)]


def test_pods_are_told_apart_and_one_that_starts_later_is_shown_too(pods: Pods, tmp_path: Path) -> None:
    engine(pods, "7d9-aaaaa", counting("one", 20))
    engine(pods, "7d9-bbbbb", counting("two", 20))
    engine(pods, "7d9-ccccc", counting("other", 20), service="other")
    with following(pods, tmp_path) as shown:
        shown.wait_for("[7d9-aaaaa] one 1", "[7d9-bbbbb] two 1")
        engine(pods, "55c-ddddd", counting("three", 3))
        shown.wait_for("[7d9-aaaaa] one 20", "[7d9-bbbbb] two 20", "[55c-ddddd] three 3")
        expected = {"[7d9-aaaaa] one": 20, "[7d9-bbbbb] two": 20, "[55c-ddddd] three": 3}
        found = [line.rpartition(" ")[0] for line in shown.lines()]
        assert {name: found.count(name) for name in found} == expected, "whole lines, each once"


def test_an_engine_that_is_started_again_is_followed_on(pods: Pods, tmp_path: Path) -> None:
    engine(pods, "7d9-aaaaa", "echo began; sleep 2; exit 1")
    with following(pods, tmp_path) as shown:
        eventually(lambda: shown.lines().count("[7d9-aaaaa] began") >= 2, "two runs of one pod", within_seconds=60)


def test_it_ends_by_itself_when_the_service_and_its_pods_are_gone(pods: Pods, tmp_path: Path) -> None:
    engine(pods, "7d9-aaaaa", counting("tick", 1))
    with following(pods, tmp_path) as shown:
        shown.wait_for("[7d9-aaaaa] tick 1")
        pods.world.delete(service_path(pods.namespace))
        pods.delete("chat-engine-7d9-aaaaa")
        assert shown.process.wait(60) == 0
        assert shown.lines() == ["[7d9-aaaaa] tick 1", "[7d9-aaaaa] tick ends"], "its last words too"
        assert shown.err.read_text(encoding="utf-8") == ""


def test_while_there_is_a_service_it_waits_for_the_next_pod(pods: Pods, tmp_path: Path) -> None:
    engine(pods, "7d9-aaaaa", counting("tick", 1))
    with following(pods, tmp_path) as shown:
        shown.wait_for("[7d9-aaaaa] tick 1")
        pods.delete("chat-engine-7d9-aaaaa")
        shown.wait_for("[7d9-aaaaa] tick ends")
        engine(pods, "7d9-bbbbb", counting("tock", 1))
        shown.wait_for("[7d9-bbbbb] tock 1")
        assert shown.process.poll() is None
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(30) == 0
        assert shown.err.read_text(encoding="utf-8") == ""

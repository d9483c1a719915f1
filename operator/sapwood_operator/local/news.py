"""What has changed since the last look, as lines: events of the domain, states of replicas, and last words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sapwood_operator.local.platform import GATEWAY_LOG, Platform
from sapwood_operator.local.pod import Exit
from sapwood_operator.local.reconcile import Told
from sapwood_operator.local.rows import state_of

_LAST_LINES = 5
_MAX_LINE_CHARACTERS = 300
_KUBECTL = re.compile(r"kubectl (?:logs|describe pod) (\S+)(?: --previous)?")


class News:
    """Remembers what was told."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._states: dict[str, str] = {}
        self._exits: dict[str, Exit | None] = {}
        self._gateway_was_ready = False

    def lines(self, platform: Platform, told: Sequence[Told]) -> list[str]:
        """Return what is new, each line once."""
        found = [f"{each.service.name}: {each.event.reason}: {self.here(each.event.message)}" for each in told]
        pods = platform.kubelet.pods
        for pod in pods:
            found += self._ends(pod.name, pod.last_exit)
        if not platform.is_ending:
            found += self._ends(GATEWAY_LOG, platform.gateway_program.last_exit)
        states = {pod.name: state_of(platform, pod) for pod in pods}
        found += [f"{name}: {state}" for name, state in states.items() if self._states.get(name) != state]
        found += [f"{name}: gone" for name in self._states if name not in states]
        self._states = states
        self._exits = {name: end for name, end in self._exits.items() if name in states or name == GATEWAY_LOG}
        if platform.gateway_is_ready and not self._gateway_was_ready:
            found.append(f"the gateway answers on {platform.gateway.url}")
        self._gateway_was_ready = platform.gateway_is_ready
        return found

    def _ends(self, name: str, end: Exit | None) -> list[str]:
        """Tell how a program ended, once for each time."""
        if end is None or self._exits.get(name) is end:
            return []
        self._exits[name] = end
        words = [line[:_MAX_LINE_CHARACTERS] for line in end.last_words.splitlines() if line.strip()]
        last = words[-_LAST_LINES:]
        shown = f"; the end of {self._logs / name}.log:" if last else ""
        return [f"{name}: ended with exit code {end.code}{shown}", *(f"    {line}" for line in last)]

    def here(self, message: str) -> str:
        """Return what the domain says with what it means on this machine: a pod's log is a file."""
        return _KUBECTL.sub(lambda found: f"{self._logs / found[1]}.log", message)

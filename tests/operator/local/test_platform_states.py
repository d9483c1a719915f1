"""Whatever users and processes do, in any order: no orphans, no doubles, bounds kept, and an end that is as asked."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support_local import Setting, a_service

from sapwood_operator.local.kubelet import PROPAGATION_SECONDS
from sapwood_operator.local.pod import Pod
from sapwood_operator.local.reconcile import deployment_of

CHAT = a_service()
MOST = 3
SURGE = 1


class Life(RuleBasedStateMachine):
    """A platform with one service, which changes, and engines that end."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.setting = Setting(Path(self.folder.name))
        self.spec: dict[str, Any] = {"replicas": 0}

    def teardown(self) -> None:
        self.folder.cleanup()

    # --- what happens

    @rule(replicas=st.integers(0, MOST))
    def scale(self, replicas: int) -> None:
        self.spec["replicas"] = replicas
        self.setting.give({**CHAT, "spec": {**CHAT["spec"], **self.spec}})

    @rule(length=st.sampled_from([1024, 2048]))
    def change(self, length: int) -> None:
        self.spec["engine"] = {"contextLength": length}
        self.setting.give({**CHAT, "spec": {**CHAT["spec"], **self.spec}})

    @rule()
    def remove(self) -> None:
        self.spec = {"replicas": 0}
        self.setting.give()

    @precondition(lambda self: self.setting.pods)
    @rule(data=st.data(), ready=st.booleans())
    def answer(self, data: st.DataObject, ready: bool) -> None:
        self.setting.platform.kubelet.probed(self.any_pod(data), is_ready=ready)
        self.setting.step()

    @precondition(lambda self: self.setting.engines)
    @rule(data=st.data(), code=st.sampled_from([0, 1, 137]))
    def end(self, data: st.DataObject, code: int) -> None:
        data.draw(st.sampled_from(self.setting.engines)).end(code)
        self.setting.step()

    @rule(seconds=st.sampled_from([0.1, PROPAGATION_SECONDS, 30.0, 700.0]))
    def wait(self, seconds: float) -> None:
        self.setting.step(seconds)

    def any_pod(self, data: st.DataObject) -> Pod:
        return data.draw(st.sampled_from(self.setting.pods))

    # --- what always holds

    @invariant()
    def every_engine_belongs_to_a_pod_and_no_pod_has_two(self) -> None:
        running = [process.name for process in self.setting.engines]
        assert len(running) == len(set(running))
        assert set(running) <= {pod.name for pod in self.setting.pods}

    @invariant()
    def no_two_pods_have_a_port_in_common(self) -> None:
        ports = [pod.ports.http for pod in self.setting.pods]
        assert len(ports) == len(set(ports))

    @invariant()
    def there_are_no_more_than_the_deployment_has_and_the_surge(self) -> None:
        """Which is more than was asked for until those that are to go are empty."""
        staying = [pod for pod in self.setting.pods if not pod.is_leaving]
        world = self.setting.platform.world
        deployments = [deployment_of(world, key) for key in world.services]
        asked = sum(0 if each is None else int(each["spec"]["replicas"]) for each in deployments)
        assert len(staying) <= asked + SURGE

    @invariant()
    def only_engines_that_run_and_stay_get_requests(self) -> None:
        if not self.setting.started:
            return
        staying = {pod.name for pod in self.setting.pods if not pod.is_leaving}
        ready = {name for name, (is_ready, _) in self.setting.endpoints().items() if is_ready}
        assert ready <= staying

    @rule()
    def left_alone_it_becomes_what_was_asked_for(self) -> None:
        for _ in range(20):
            for pod in self.setting.pods:
                if pod.is_leaving and self.setting.started:
                    for process in self.setting.engines:
                        if process.name == pod.name and process.was_asked_to_end:
                            process.end(0)
                else:
                    self.setting.platform.kubelet.probed(pod, is_ready=True)
            self.setting.step(31.0)
        assert len(self.setting.pods) == self.spec["replicas"] == len(self.setting.engines)
        if self.setting.platform.world.services:
            assert self.setting.condition("Ready")[0] == "True"


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)

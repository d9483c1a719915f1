"""The life of one container of a pod: start, probe, restart, stop. What it is doing is in ``view``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from cluster.node import images, probes, process
from cluster.node.api import NETWORK_ERRORS, ApiError
from cluster.node.clock import now
from cluster.node.environment import ConfigError, expand
from cluster.node.images import Image
from cluster.node.probes import Answer, Failure, NoProbe, Probe
from cluster.node.settings import backoff_seconds
from cluster.node.status import (
    ContainerView,
    RestartPolicy,
    Running,
    State,
    Terminated,
    Waiting,
    termination_message,
    will_run_again,
)

RETRY_SECONDS = 1.0
"""How often what a container waits for (an image, a Secret) is looked for."""
KILL_AFTER_SECONDS = 2.0
"""What a container gets to end even if its preStop hook has used up the grace."""
HEALTHY_SECONDS = 600.0
"""A run this long starts the back-off anew."""


class Surroundings(Protocol):
    """What the pod gives its containers."""

    @property
    def place(self) -> process.Place: ...

    @property
    def launcher(self) -> Path: ...

    @property
    def images(self) -> Sequence[Image]: ...

    async def environment(self, container: Mapping[str, Any], image: Image) -> dict[str, str]:
        """Return the container's variables; `ConfigError` for what is not there."""
        ...

    def mounts(self, container: Mapping[str, Any]) -> list[process.Mount]: ...

    def log(self, name: str, restarts: int) -> Path: ...

    def message_file(self, name: str) -> Path: ...

    def scratch(self, name: str) -> Path: ...

    def event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None: ...


class ContainerWorker:
    """Runs one container until it ends for good or `stop` is called; calls ``changed`` whenever ``view`` is new."""

    def __init__(
        self,
        pod: Mapping[str, Any],
        container: Mapping[str, Any],
        policy: RestartPolicy,
        surroundings: Surroundings,
        *,
        view: ContainerView,
        changed: Callable[[], None],
    ) -> None:
        self._pod = pod
        self._container = container
        self._policy = policy
        self._surroundings = surroundings
        self._changed = changed
        self._process: process.ContainerProcess | None = None
        self._is_stopping = False
        self._ending: asyncio.Task[None] | None = None
        self.started = asyncio.Event()
        """Set once its startup probe has passed."""
        self.view = view

    def _show(self, **changes: Any) -> None:
        before, self.view = self.view, replace(self.view, **changes)
        if self.view != before:
            self._changed()

    # -- starting and restarting

    async def run(self) -> None:
        """Return when the container has ended and will not be started again."""
        failures = 0
        while not self._is_stopping:
            running = await self._start()
            began = asyncio.get_running_loop().time()
            code = await self._attend(running)
            if self._is_stopping or not will_run_again(self._policy, code):
                return
            lasted = asyncio.get_running_loop().time() - began
            failures = 1 if lasted > HEALTHY_SECONDS else failures + 1
            await self._back_off(failures)

    async def _start(self) -> process.ContainerProcess:
        """Start the container as soon as what it needs is there."""
        attempts = 0
        while True:
            image = images.find(self._surroundings.images, self.view.image)
            try:
                if isinstance(image, Image):
                    return await self._launch(image)
                state = self._pull_failure(image, attempts)
            except ConfigError as error:
                state = Waiting("CreateContainerConfigError", str(error))
            except (ApiError, *NETWORK_ERRORS) as error:
                state = Waiting("ContainerCreating", f"the API server is away: {error}")
            self._show(state=state)
            attempts += 1
            await asyncio.sleep(RETRY_SECONDS)

    def _pull_failure(self, image: images.NotFound, attempts: int) -> Waiting:
        if attempts == 0:
            self._surroundings.event("Warning", "Failed", f"Error: ErrImagePull: {image.message}")
            return Waiting("ErrImagePull", image.message)
        backing = f'Back-off pulling image "{self.view.image}"'
        self._surroundings.event("Warning", "Failed", "Error: ImagePullBackOff")
        return Waiting("ImagePullBackOff", f"{backing}: ErrImagePull: {image.message}")

    async def _launch(self, image: Image) -> process.ContainerProcess:
        container, name = self._container, self.view.name
        identity = process.identity_of(self._pod, container, image)
        refused = process.violation_of(self._pod, container, identity)
        if refused:
            raise ConfigError(refused)
        variables = await self._surroundings.environment(container, image)
        argv = [expand(word, variables) for word in images.command_of(image, container)]
        if not argv:
            raise ConfigError("no command specified")
        message = self._surroundings.message_file(name)
        message.write_bytes(b"")
        message.chmod(0o666)
        written_to = container.get("terminationMessagePath", "/dev/termination-log")
        mounts = [*self._surroundings.mounts(container), process.Mount(message, written_to, is_read_only=False)]
        command = process.Command(argv, variables, container.get("workingDir", "/"))
        wanted = process.specification(
            self._surroundings.place, identity, command, mounts, image, self._surroundings.scratch(name)
        )
        surroundings = self._surroundings
        log = surroundings.log(name, self.view.restarts)
        self._process = await process.start(surroundings.launcher, surroundings.place.network, wanted, log)
        container_id = f"process://{self._pod['metadata']['uid']}/{name}/{self.view.restarts}"
        self._show(state=Running(now()), container_id=container_id)
        return self._process

    async def _back_off(self, failures: int) -> None:
        ended = self.view.state
        assert isinstance(ended, Terminated)
        wait = backoff_seconds(failures)
        if wait:
            pod = self._pod["metadata"]
            named = f"container={self.view.name} pod={pod['name']}_{pod['namespace']}({pod['uid']})"
            message = f"back-off {wait:g}s restarting failed {named}"
            self._surroundings.event("Warning", "BackOff", f"Back-off restarting failed {named}")
            self._show(state=Waiting("CrashLoopBackOff", message), last=ended)
            await asyncio.sleep(wait)
        self._show(last=ended, restarts=self.view.restarts + 1)

    # -- while it runs

    async def _attend(self, running: process.ContainerProcess) -> int:
        """Probe the container until it ends, and return its exit code."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            code = await running.wait()
            watching.cancel()
        self._process = None
        self.started.clear()
        started = self.view.state
        assert isinstance(started, Running)
        self._show(state=self._ended(code, started), is_ready=False, is_started=False)
        return code

    def _ended(self, code: int, started: Running) -> State:
        name, restarts = self.view.name, self.view.restarts
        policy = self._container.get("terminationMessagePolicy", "File")
        log = self._surroundings.log(name, restarts)
        written = self._surroundings.message_file(name).read_bytes()
        message = termination_message(written, log.read_bytes(), policy, code)
        return Terminated(code, message, started.started_at, now(), self.view.container_id)

    async def _watch(self) -> None:
        startup = probes.probe_of(self._container, "startupProbe")
        if isinstance(startup, Probe):
            await self._watch_startup(startup)
        self._show(is_started=True)
        self.started.set()
        async with asyncio.TaskGroup() as group:
            readiness = probes.probe_of(self._container, "readinessProbe")
            if isinstance(readiness, NoProbe):
                self._show(is_ready=True)
            else:
                group.create_task(probes.watch(readiness, self._asking(readiness), self._judge_readiness))
            liveness = probes.probe_of(self._container, "livenessProbe")
            if isinstance(liveness, Probe):
                group.create_task(probes.watch(liveness, self._asking(liveness), self._judge_liveness))

    async def _watch_startup(self, probe: Probe) -> None:
        passed = asyncio.Event()

        def judge(verdict: probes.Verdict, answer: Answer) -> None:
            self._tell("Startup", answer)
            if verdict == "passed":
                passed.set()
            elif verdict == "failed":
                self._restart_unhealthy("startup")

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(probes.watch(probe, self._asking(probe), judge))
            await passed.wait()
            watching.cancel()

    def _judge_readiness(self, verdict: probes.Verdict, answer: Answer) -> None:
        self._tell("Readiness", answer)
        if verdict != "undecided":
            self._show(is_ready=verdict == "passed")

    def _judge_liveness(self, verdict: probes.Verdict, answer: Answer) -> None:
        self._tell("Liveness", answer)
        if verdict == "failed":
            self._restart_unhealthy("liveness")

    def _tell(self, kind: str, answer: Answer) -> None:
        if isinstance(answer, Failure) and not self._is_stopping:
            self._surroundings.event("Warning", "Unhealthy", f"{kind} probe failed: {answer.message}")

    def _restart_unhealthy(self, kind: str) -> None:
        is_ending = self._is_stopping or (self._ending is not None and not self._ending.done())
        if is_ending or self._process is None:
            return
        self._surroundings.event(
            "Normal", "Killing", f"Container {self.view.name} failed {kind} probe, will be restarted"
        )
        grace = self._pod["spec"].get("terminationGracePeriodSeconds", 30)
        # Not waited for: this is called by a probe, which the container's end cancels.
        self._ending = asyncio.create_task(self._end(self._process, grace))

    def _asking(self, probe: Probe) -> Callable[[], Any]:
        async def ask() -> Answer:
            return await self._act(probe.action, probe.timeout_seconds)

        return ask

    async def _act(self, action: Mapping[str, Any], timeout_seconds: float) -> Answer:
        running = self._process
        if running is None:
            return Failure("the container does not run")
        address = self._surroundings.place.address
        return await probes.act(action, self._container, address, running.execute, timeout_seconds)

    # -- stopping

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start_no_more(self) -> None:
        """Let `run` return when the container ends next. Where it does not run, `run` may go on waiting to start it:
        cancel it then."""
        self._is_stopping = True

    async def stop(self, grace_seconds: float) -> None:
        """End the container and start it no more: its preStop hook, SIGTERM, and SIGKILL after ``grace_seconds``."""
        self.start_no_more()
        if self._process is not None:
            await self._end(self._process, grace_seconds)

    async def _end(self, running: process.ContainerProcess, grace_seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + grace_seconds
        hook = self._container.get("lifecycle", {}).get("preStop")
        if hook is not None and grace_seconds > 0:
            answer = await self._act(hook, grace_seconds)
            if isinstance(answer, Failure):
                self._surroundings.event("Warning", "FailedPreStopHook", f"PreStopHook failed: {answer.message}")
        if grace_seconds > 0:
            running.terminate()
            try:
                async with asyncio.timeout(max(deadline - clock(), KILL_AFTER_SECONDS)):
                    await running.wait()
            except TimeoutError:
                pass
        running.kill()

    def kill(self) -> None:
        """End the container at once, however it is being stopped."""
        if self._process is not None:
            self._process.kill()

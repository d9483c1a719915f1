"""``kubectl sapwood logs``: what every engine of a service writes, each line under its pod's name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kubernetes.client import ApiClient

from sapwood_operator.adapters.kinds import PODS
from sapwood_operator.domain.names import ENGINE_CONTAINER
from sapwood_operator.kubectl.picture import JsonObject

NEW_PODS_SECONDS = 2.0
"""While following: how soon the lines of a pod that was just started are shown."""


def prefixed(pod: str, service: str, chunks: Iterable[bytes]) -> Iterator[str]:
    """Cut a stream into lines and put each under its pod: the part of the name that the service's pods differ in."""
    prefix = f"[{pod.removeprefix(service + '-engine-')}] "
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (prefix + line.decode("utf-8", "replace") for line in lines)
    if rest:
        yield prefix + rest.decode("utf-8", "replace")


def writes_logs(pod: JsonObject) -> bool:
    """Whether a pod has a container that runs or ran; of one that waits to be started again the last run is shown."""
    return any("running" in state or "terminated" in state for state in _states(pod))


def _states(pod: JsonObject) -> Iterator[dict[str, Any]]:
    for container in pod.get("status", {}).get("containerStatuses") or ():
        yield container.get("state") or {}
        yield container.get("lastState") or {}


def stream(client: ApiClient, pod: JsonObject, *, follow: bool, tail_lines: int | None) -> Iterator[bytes]:
    """Return the chunks of a pod's log as they come; ends with the log, or with the connection."""
    about = pod["metadata"]
    query = [("container", ENGINE_CONTAINER), ("follow", str(follow).lower())]
    if tail_lines is not None:
        query.append(("tailLines", str(tail_lines)))
    verb, url, headers, _, _ = client.param_serialize(
        method="GET",
        resource_path=f"{PODS.path(about['namespace'], about['name'])}/log",
        query_params=query,
        auth_settings=["BearerToken"],
    )
    response = client.rest_client.request(verb, url, headers=headers)  # type: ignore[no-untyped-call]  # the library's
    chunks: Iterator[bytes] = response.response.stream(amt=None, decode_content=True)
    yield from chunks


class Follower:
    """Follows the logs of pods as they come and go, a thread each, until the program ends."""

    def __init__(
        self,
        read_pods: Callable[[], Sequence[JsonObject]],
        show: Callable[[JsonObject], None],
        *,
        wait_seconds: float = NEW_PODS_SECONDS,
    ) -> None:
        """``show`` writes one pod's log to its end; it is called in a thread of its own."""
        self._read_pods = read_pods
        self._show = show
        self._wait_seconds = wait_seconds
        self._threads: dict[str, threading.Thread] = {}

    def run(self, stop: threading.Event) -> None:
        """Look for new pods until ``stop`` is set."""
        while not stop.is_set():
            for pod in self._read_pods():
                uid = pod["metadata"]["uid"]
                if uid not in self._threads and writes_logs(pod):
                    self._threads[uid] = threading.Thread(target=self._show, args=(pod,), daemon=True)
                    self._threads[uid].start()
            stop.wait(self._wait_seconds)

    def join(self) -> None:
        """Wait until every log that was begun is written to its end."""
        for thread in self._threads.values():
            thread.join()

"""``kubectl sapwood logs``: what every engine of a service writes, each line under its pod's name."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kubernetes.client import ApiClient, ApiException
from urllib3.exceptions import HTTPError

from sapwood_operator.adapters.kinds import PODS
from sapwood_operator.adapters.outcomes import MAX_MESSAGE
from sapwood_operator.domain.names import ENGINE_CONTAINER
from sapwood_operator.kubectl.picture import JsonObject
from sapwood_operator.kubectl.reading import CannotRead

NEW_PODS_SECONDS = 2.0
"""While following: how soon the lines of a pod that was just started are shown."""


class NotAllowed(CannotRead):
    """The person may not read logs: waiting makes it no better."""


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
    """Return the chunks of a pod's log as they come; ends with the log. Raises `CannotRead` where there is none to be
    had, or not to its end.
    """
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
    try:
        response = client.rest_client.request(verb, url, headers=headers)  # type: ignore[no-untyped-call]  # the library's
        if response.status != 200:
            failure = NotAllowed if response.status == 403 else CannotRead
            raise failure(f"the log of {about['name']}: {_message(response.read())}")
        chunks: Iterator[bytes] = response.response.stream(amt=None, decode_content=True)
        yield from chunks
    except (HTTPError, ApiException) as error:  # the latter: TLS
        raise CannotRead(f"the log of {about['name']} broke off: {error}") from error


def _message(body: bytes) -> str:
    """A proxy before the server may answer with anything."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, LookupError, TypeError):
        return body[:MAX_MESSAGE].decode("utf-8", "replace").strip()


def _run_of(pod: JsonObject) -> tuple[str, int]:
    """Tell runs of an engine apart: a container that was started again writes another log."""
    containers = pod["status"].get("containerStatuses") or ()
    return pod["metadata"]["uid"], sum(container.get("restartCount", 0) for container in containers)


class Follower:
    """Follows the logs of pods as they come and go, a thread for each run of an engine."""

    def __init__(
        self,
        read_pods: Callable[[], Sequence[JsonObject]],
        show: Callable[[JsonObject], None],
        is_over: Callable[[], bool],
        *,
        wait_seconds: float = NEW_PODS_SECONDS,
    ) -> None:
        """``show`` writes one pod's log to its end; it is called in a thread of its own. ``is_over`` tells, where there
        is no pod, whether none will come any more.
        """
        self._read_pods = read_pods
        self._show = show
        self._is_over = is_over
        self._wait_seconds = wait_seconds
        self._threads: dict[tuple[str, int], threading.Thread] = {}

    def run(self) -> None:
        """Look for new pods until it is over, and return when every log that was begun is written to its end."""
        while (pods := self._read_pods()) or not self._is_over():
            for pod in filter(writes_logs, pods):
                run = _run_of(pod)
                if run not in self._threads:
                    self._threads[run] = threading.Thread(target=self._show, args=(pod,), daemon=True)
                    self._threads[run].start()
            time.sleep(self._wait_seconds)
        for thread in self._threads.values():
            thread.join()

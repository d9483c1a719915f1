"""Where the gateways before a service are, and what each says of its last hour.

A gateway is asked at its admin address, or, in a cluster, through the API server by `kubectl get --raw`, with the
rights of the person who asks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

from sapwood_contract.http import GATEWAY_TRACE
from sapwood_contract.routing import COMPONENT_LABEL
from sapwood_tools.admin_client import Unanswered, admin_client
from sapwood_tools.replay.service_trace import NoServiceTrace
from sapwood_tools.terminal_text import printable
from sapwood_tools.top.engines import local_places
from sapwood_tools.top.poller import is_alive

TIMEOUT_SECONDS = 60.0
_SELECTOR = f"app.kubernetes.io/name=sapwood,{COMPONENT_LABEL}=gateway"
_KUBECTL_HINTS: Mapping[str, str] = {
    "(NotFound)": "it knows no such service, or is no gateway of this version: look at NAME and --namespace",
    "(Conflict)": "the service is not routed by prefix, so its prompts are not read and no trace is kept. Set its "
    "routing.policy to PrefixAffinity, and ask again later",
    "provide credentials": "where it is the gateway that asks for an admin key, kubectl cannot show it: take kubectl "
    "port-forward to its port admin, and name that with --gateway and --key-file",
    "(Forbidden)": "it takes the right to get pods/proxy in the namespace of the release",
}
"""What kubectl's error has in it -> what it may mean: of what the gateway says itself kubectl tells nothing."""


class Gateway(Protocol):
    """Somebody who can be asked."""

    @property
    def name(self) -> str:
        """Return what a person calls it."""

    async def ask(self, query: Mapping[str, str]) -> Any:
        """Return the JSON that `GATEWAY_TRACE` answers; raises `NoServiceTrace`."""


@dataclass(frozen=True, slots=True)
class ByAddress:
    """A gateway at an address of its admin port."""

    url: str
    key: str | None = None
    """None: none is shown."""

    @property
    def name(self) -> str:
        """As `Gateway.name`."""
        return self.url

    async def ask(self, query: Mapping[str, str]) -> Any:
        """As `Gateway.ask`."""
        async with admin_client(self.url, key=self.key, timeout_seconds=TIMEOUT_SECONDS) as client:
            try:
                return await client.json(GATEWAY_TRACE, **query)
            except Unanswered as error:
                raise NoServiceTrace(f"{self.url} {error}") from None


@dataclass(frozen=True, slots=True)
class InPod:
    """A gateway in a pod of a cluster."""

    namespace: str
    pod: str
    port: int

    @property
    def name(self) -> str:
        """As `Gateway.name`."""
        return f"pod {self.namespace}/{self.pod}"

    async def ask(self, query: Mapping[str, str]) -> Any:
        """As `Gateway.ask`."""
        path = (
            f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}:{self.port}/proxy{GATEWAY_TRACE}?{urlencode(query)}"
        )
        return await _kubectl(self.name, "get", "--raw", path)


async def find(
    urls: Sequence[str], system_namespace: str | None, key: str | None, environment: Mapping[str, str]
) -> Sequence[Gateway]:
    """Return the gateways at ``urls``, else those in ``system_namespace``, else that of a `sapwood local`.

    ``key``: of their admin port. Raises `NoServiceTrace` where there is none.
    """
    if urls:
        return [ByAddress(url, key) for url in dict.fromkeys(urls)]
    if system_namespace is not None:
        return await _pods(system_namespace)
    for place in local_places(environment, key):
        if place.gateway is not None and await is_alive(place.gateway):
            return [ByAddress(place.gateway, place.key)]
    raise NoServiceTrace(
        "there is no gateway to ask: no sapwood local of yours runs. Name the admin address of each with --gateway, or "
        "the namespace of the release with --system-namespace, whose gateways are asked through kubectl"
    )


async def _pods(namespace: str) -> list[InPod]:
    listed = await _kubectl("kubectl", "get", "pods", f"--namespace={namespace}", f"--selector={_SELECTOR}", "-o=json")
    try:
        found = [
            InPod(namespace, pod["metadata"]["name"], port["containerPort"])
            for pod in listed["items"]
            if _is_ready(pod)
            for container in pod["spec"]["containers"]
            for port in container.get("ports", ())
            if port.get("name") == "admin"
        ]
    except (KeyError, TypeError, AttributeError):
        raise NoServiceTrace("kubectl answers with something that is not understood") from None
    if not found:
        raise NoServiceTrace(
            f"there is no ready gateway in namespace {namespace!r}: --system-namespace is that of Sapwood's release"
        )
    return found


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    is_leaving = "deletionTimestamp" in pod["metadata"]
    return not is_leaving and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def _kubectl(asked: str, *arguments: str) -> Any:
    """Return what kubectl prints, as JSON; ``asked``: who an error is about."""
    try:
        process = await asyncio.create_subprocess_exec(
            "kubectl", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise NoServiceTrace(f"kubectl cannot be run ({error.strerror}): it has to be on PATH") from None
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            answer, complaint = await process.communicate()
    except TimeoutError:
        raise NoServiceTrace(f"{asked} does not answer within {TIMEOUT_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        told = printable(complaint.decode(errors="replace").strip())
        hints = [hint for word, hint in _KUBECTL_HINTS.items() if word in told]
        raise NoServiceTrace(": ".join([asked, told, *hints]))
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise NoServiceTrace(f"{asked} answers with something that is not JSON") from None

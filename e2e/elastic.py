"""A service that scales, as tests see it: how many replicas it has, what is said of them, and what its engines say."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import openai

from cluster.layout import Layout
from sapwood_contract.curve import Curve, CurvePoint
from sapwood_contract.http import ADMIN_PREFIXES, ADMIN_WARM, METRICS, CachedNode, CachedNodes
from sapwood_contract.routing import ROUTE_KEY
from sapwood_operator.adapters.engine_signals import read_text
from sapwood_operator.autoscaling.hits import Hits, Weighed
from sapwood_operator.autoscaling.scrapes import Kv, Scrape
from sapwood_operator.autoscaling.victims import Cache, read_cache
from small_engines import MODEL, READY_SECONDS
from subjects import tale
from talking import Stream, ask, client_of, story, talking
from world import OWNED, JsonObject, World, child_path, condition, eventually, service_path

ADMIN_PORT = 8001
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


@dataclass(frozen=True, slots=True)
class Elastic:
    """One InferenceService, and the gateway in front of it."""

    world: World
    url: str
    """The gateway's."""
    namespace: str
    name: str

    @property
    def host(self) -> str:
        """By which name it is asked for."""
        return f"{self.name}.{self.namespace}"

    @property
    def service(self) -> JsonObject:
        """The InferenceService as it is."""
        found = self.world.service(self.namespace, self.name)
        assert found is not None
        return found

    @property
    def autoscaling(self) -> JsonObject:
        """``status.autoscaling``; empty until something was decided."""
        return dict((self.service.get("status") or {}).get("autoscaling") or {})

    @property
    def asked(self) -> int:
        """Replicas of the Deployment."""
        found = self.world.get(child_path(self.namespace, "Deployment", f"{self.name}-engine"))
        assert found is not None
        return int(found["spec"]["replicas"])

    def steps(self) -> list[tuple[int, int, str]]:
        """The changes that status remembers: from, to and why, the newest first."""
        return [(each["from"], each["to"], each["reason"]) for each in self.autoscaling.get("decisions", ())]

    def notes(self, reason: str) -> list[str]:
        """The texts of the Events of that reason, in their order."""
        about = [e for e in self.world.events(self.namespace) if e["regarding"]["name"] == self.name]
        return [event["note"] for event in about if event["reason"] == reason]

    def says(self, type_: str, status: str, reason: str = "") -> bool:
        """Whether a condition about the present spec has this status, and this reason if one is given."""
        service = self.service
        found = condition(service, type_)
        is_present = found.get("observedGeneration") == service["metadata"]["generation"]
        return is_present and found["status"] == status and reason in ("", found["reason"])

    def wait(self, holds: Callable[[], object], what: str, *, within_seconds: float = READY_SECONDS) -> None:
        """Return once something holds; fails with the status that there is then."""
        try:
            eventually(lambda: bool(holds()), what, within_seconds=within_seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.service.get('status'), indent=1)}") from None

    def pods(self) -> list[JsonObject]:
        """The engines' pods, those that leave too, the oldest first."""
        label = f"{OWNED},app.kubernetes.io%2Finstance%3D{self.name}"
        found = self.world.items(f"/api/v1/namespaces/{self.namespace}/pods?{label}")
        return sorted(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    def ready(self) -> list[JsonObject]:
        """Those that are ready and not about to go."""
        return [pod for pod in self.pods() if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")]

    def cordoned(self) -> list[str]:
        """Pods to which gateways send nothing new."""
        found = self.world.get(child_path(self.namespace, "ConfigMap", f"{self.name}-routing"))
        assert found is not None
        return list(json.loads(found["data"][ROUTE_KEY]).get("cordoned") or ())

    def is_settled(self, replicas: int) -> bool:
        """Whether so many replicas are there, and nothing is left of the way there."""
        pods = self.pods()
        is_marked = any(_DELETION_COST in (pod["metadata"].get("annotations") or {}) for pod in pods)
        is_moving = bool(self.autoscaling.get("leaving") or self.cordoned() or is_marked)
        return (self.asked, len(pods), len(self.ready()), is_moving) == (replicas, replicas, replicas, False)

    def wait_until_settled(self, replicas: int) -> None:
        """Return once `is_settled`."""
        self.wait(lambda: self.is_settled(replicas), f"{replicas} replicas and nothing else")

    def apply(self, **spec: Any) -> None:
        """Apply it."""
        self.world.make_service(self.namespace, self.name, **spec)

    def delete(self) -> None:
        """Delete it, and return once its pods are gone."""
        self.world.delete(service_path(self.namespace, self.name))
        eventually(lambda: not self.pods(), "the engines' end", within_seconds=120)

    def talking(
        self, *lengths: int, prompt: Callable[[int], str] = story, pause_seconds: float = 0.0
    ) -> contextlib.AbstractContextManager[list[Stream]]:
        """Keep a client for each of ``lengths`` (in tokens) talking through the gateway."""
        return talking(self.url, self.host, MODEL, lengths, prompt=prompt, pause_seconds=pause_seconds)


def is_ready(pod: JsonObject) -> bool:
    """Whether a pod is ready."""
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def check_whole(streams: list[Stream], *, at_least: int) -> None:
    """Fail unless so many streams ended, and each of them as it should."""
    assert [stream for stream in streams if not stream.is_whole] == []
    assert len(streams) >= at_least


# --- what an engine says


def told(pod: JsonObject, path: str) -> JsonObject:
    """Return what an engine answers on its admin port."""
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:{ADMIN_PORT}{path}", timeout=10) as answer:
        said = json.load(answer)
    assert isinstance(said, dict)
    return said


def scrape(pod: JsonObject) -> Scrape:
    """Return an engine's metrics as the operator reads them."""
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:{ADMIN_PORT}{METRICS}", timeout=10) as answer:
        scraped = read_text(time.time(), answer.read().decode())
    assert isinstance(scraped, Scrape), scraped
    return scraped


def num_warmed(pod: JsonObject) -> int:
    """Return how many prefixes an engine has computed because it was told to."""
    return int(told(pod, ADMIN_WARM)["num_done"])


def cache_of(pod: JsonObject) -> Cache:
    """Return what an engine holds."""
    said = told(pod, ADMIN_PREFIXES)
    nodes = tuple(CachedNode(**node) for node in said["nodes"])
    return read_cache(CachedNodes(said["model_revision"], said["page_size"], nodes, said["is_whole"]))


def taker(elastic: Elastic, client: openai.OpenAI, prompt: str) -> str:
    """Ask, and return the name of the pod that the gateway sends it to, while nobody else asks."""
    pods = elastic.ready()

    def counts() -> dict[str, float]:
        return {pod["metadata"]["name"]: scrape(pod).totals.admitted for pod in pods}

    before = counts()
    ask(client, MODEL, prompt, 1)
    eventually(lambda: counts() != before, "it in an engine's metrics")
    after = counts()
    return max(after, key=lambda name: after[name] - before[name])


def tale_of(elastic: Elastic, pod: JsonObject) -> str:
    """Return a tale (`subjects.tale`) that the gateway sends to ``pod``, while nobody else asks."""
    name = pod["metadata"]["name"]
    with client_of(elastic.url, elastic.host) as client:
        found = next((prompt for prompt in map(tale, range(64)) if taker(elastic, client, prompt) == name), "")
    assert found, f"none of 64 tales goes to {name}"
    return found


def shared_out(elastic: Elastic, prompts: Iterable[str], number: int) -> list[str]:
    """Return the first of ``prompts`` of which the gateway sends ``number`` to each replica, while nobody else asks."""
    taken: dict[str, list[str]] = {pod["metadata"]["name"]: [] for pod in elastic.ready()}
    with client_of(elastic.url, elastic.host) as client:
        for prompt in prompts:
            of_one = taken[taker(elastic, client, prompt)]
            if len(of_one) < number:
                of_one.append(prompt)
            if all(len(each) == number for each in taken.values()):
                return [prompt for each in taken.values() for prompt in each]
    raise AssertionError(f"the gateway sends replicas {[len(each) for each in taken.values()]} of the prompts")


def hit_ratio_between(before: Scrape, after: Scrape) -> float:
    """Return what an engine found in its cache of the prompts between two scrapes."""
    return (after.totals.cached - before.totals.cached) / (after.totals.prompt - before.totals.prompt)


def predicted_with_one(before: Sequence[Scrape], after: Sequence[Scrape]) -> float:
    """Return the hit ratio that the curves of all replicas promise one of them, as the operator reckons it.

    ``before`` and ``after``: scrapes of each; what came between them alone counts.
    """
    curves = [_curve_between(*both) for both in zip(before, after, strict=True)]
    return Hits(curves=tuple(curves), num_measured=len(curves), affinity=1.0, measured=0.0).at(1)


def _curve_between(before: Scrape, after: Scrape) -> Weighed:
    assert isinstance(before.curve, Curve)
    assert isinstance(after.curve, Curve)
    assert isinstance(after.kv, Kv)
    prompt = after.totals.prompt - before.totals.prompt
    points = tuple(
        CurvePoint(
            end.capacity_tokens,
            (end.hit_ratio * after.totals.prompt - begin.hit_ratio * before.totals.prompt) / prompt,
        )
        for begin, end in zip(before.curve.points, after.curve.points, strict=True)
    )
    return Weighed(replace(after.curve, points=points), prompt, after.kv.capacity)


def have(elastic: Elastic, pod: JsonObject, prompt: str, *, times: int = 1) -> None:
    """Ask an engine itself, so that it holds a prompt wherever gateways would send it."""
    with client_of(f"http://{pod['status']['podIP']}:8000", elastic.host) as client:
        for _ in range(times):
            ask(client, MODEL, prompt, 1)


def scrape_settings(layout: Layout, namespace: str) -> JsonObject:
    """Return the configuration of a Prometheus that scrapes a namespace's engines as their PodMonitors have it."""

    def named(target: str, source: str) -> JsonObject:
        return {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}

    labels = {
        "namespace": "namespace",
        "pod": "pod_name",
        "inference_service": "pod_label_serving_sapwood_dev_service",
    }
    admin_port = {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": "admin", "action": "keep"}
    job = {
        "job_name": "engines",
        "kubernetes_sd_configs": [
            {"role": "pod", "namespaces": {"names": [namespace]}, "kubeconfig_file": str(layout.kubeconfig)}
        ],
        "relabel_configs": [admin_port, *(named(*label) for label in labels.items())],
    }
    return {"global": {"scrape_interval": "2s"}, "scrape_configs": [job]}

"""Reads the picture of a service from the API server, with the rights of the person who asks."""

from __future__ import annotations

from dataclasses import replace

from sapwood_contract.routing import SERVICE_LABEL
from sapwood_operator.adapters.cluster import Cluster, Listed
from sapwood_operator.adapters.kinds import (
    CHILDREN,
    EVENTS,
    OPTIONAL_CHILDREN,
    PODS,
    REPLICA_SETS,
    SERVICES,
    TENANTS,
    Kind,
)
from sapwood_operator.adapters.outcomes import Absent, Done, Refused, Retry
from sapwood_operator.errors import OperatorError
from sapwood_operator.kubectl.picture import JsonObject, Picture


class CannotRead(OperatorError):
    """The API server gave no answer that can be shown."""


def read_picture(cluster: Cluster, namespace: str, name: str) -> Picture:
    """Read everything about a service; raises `CannotRead` where it does not exist or may not be read.

    What the person may not list is left out, so a picture can be had with few rights.
    """
    service = read_service(cluster, namespace, name)
    objects: list[JsonObject] = []
    for kind in (*CHILDREN, *OPTIONAL_CHILDREN, REPLICA_SETS, PODS):
        objects += _listed(cluster, kind, namespace, label_selector=f"{SERVICE_LABEL}={name}")
    about = f"regarding.name={name},regarding.uid={service['metadata']['uid']}"
    events = _listed(cluster, EVENTS, namespace, field_selector=about)
    picture = Picture(service, tuple(objects), tuple(events))
    if not picture.asks_for_keys:
        return picture
    return replace(picture, tenants=tuple(_listed(cluster, TENANTS, namespace)))


def read_service(cluster: Cluster, namespace: str, name: str) -> JsonObject:
    """Return the service; raises `CannotRead` where it does not exist or may not be read."""
    service = cluster.read(SERVICES, namespace, name)
    match service:
        case Absent():
            raise CannotRead(f"there is no InferenceService {name!r} in namespace {namespace!r}")
        case Refused(_, reason, message) | Retry(reason, message):
            raise CannotRead(f"{reason}: {message}")
        case Done(body):
            return body


def exists(cluster: Cluster, namespace: str, name: str) -> bool:
    """Whether there is the service; one that cannot be read may be there."""
    return not isinstance(cluster.read(SERVICES, namespace, name), Absent)


def read_pods(cluster: Cluster, namespace: str, name: str) -> list[JsonObject]:
    """Return the service's pods; raises `CannotRead` where they may not be read."""
    answer = cluster.list(PODS, namespace, label_selector=f"{SERVICE_LABEL}={name}")
    if isinstance(answer, Listed):
        return list(answer.objects)
    raise CannotRead(f"{answer.reason}: {answer.message}")


def _listed(
    cluster: Cluster, kind: Kind, namespace: str, *, label_selector: str = "", field_selector: str = ""
) -> list[JsonObject]:
    answer = cluster.list(kind, namespace, label_selector=label_selector, field_selector=field_selector)
    return list(answer.objects) if isinstance(answer, Listed) else []

"""Two hundred services at once, whose pods kwok plays: all become ready, with few writes each.

How long a turn of the operator took is printed (``-s``), not judged: that depends on what else the machine does.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from cluster import processes
from cluster.audit import AuditLog
from cluster.extras import KWOK_ANNOTATION, KWOK_LABEL, make_kwok_node
from cluster.layout import Layout
from operator_process import OperatorProcess, operator
from operator_setup import USER, Site, prepare
from world import condition, eventually

NUM_SERVICES = 200
MOST_WRITES = 15
"""Of the operator's for one service, from nothing to ready."""
NAMESPACE = f"scale-{os.getpid()}"
ON_KWOK = {
    "nodeSelector": {KWOK_LABEL: "kwok"},
    "tolerations": [{"key": KWOK_ANNOTATION, "operator": "Exists"}],
}
_BUCKET = re.compile(r'sapwood_operator_reconcile_seconds_bucket\{kind="InferenceService",le="([^"]+)"\} (\S+)')


@pytest.fixture(scope="module")
def site(harness: Layout, tmp_path_factory: pytest.TempPathFactory) -> Site:
    if "kwok" not in processes.names(harness):
        pytest.skip("needs kwok: python -m cluster up --with kwok")
    make_kwok_node(harness, "kwok-scale")
    return prepare(tmp_path_factory.mktemp("scale"))


@pytest.fixture(scope="module")
def running(site: Site) -> Iterator[OperatorProcess]:
    with operator(site.kubeconfig(), site.folder / "log", identity="scale") as process:
        process.wait_until_leading()
        yield process


def num_ready(site: Site) -> int:
    services = site.world.items(f"/apis/serving.sapwood.dev/v1alpha1/namespaces/{NAMESPACE}/inferenceservices")
    return sum(condition(service, "Ready").get("status") == "True" for service in services)


def test_two_hundred_services_become_ready_with_few_writes_each(
    site: Site, running: OperatorProcess, audit: AuditLog
) -> None:
    site.world.make_namespace(NAMESPACE)
    since = audit.position()
    for number in range(NUM_SERVICES):
        site.world.make_service(NAMESPACE, f"chat-{number}", placement=ON_KWOK)
    eventually(lambda: num_ready(site) == NUM_SERVICES, "every service ready", within_seconds=300)

    writes = Counter(_service_of(call.name) for call in audit.writes(USER, since) if call.namespace == NAMESPACE)
    assert len(writes) == NUM_SERVICES
    assert max(writes.values()) <= MOST_WRITES, writes.most_common(3)
    turns = {border: float(count) for border, count in _BUCKET.findall(running.get("/metrics"))}
    print("turns within seconds:", turns)

    site.world.delete(f"/api/v1/namespaces/{NAMESPACE}")


def _service_of(name: str) -> str:
    """Children are named after their service, Events too."""
    found = re.match(r"chat-\d+", name)
    assert found, name
    return found[0]

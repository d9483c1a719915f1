"""Starts engines, gateway and Prometheus on this machine, each in its own process, and ends them.

Engines and gateway are Sapwood's programs as users start them. The operator's series come from its own registry and its
own port, in this process, with its methods called as its work would: without a cluster there is nothing to reconcile.
(In the cluster of ``make e2e`` Prometheus scrapes the operator itself.)
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from sapwood_contract.metrics import RECONCILED_KINDS
from sapwood_dashboards.stand.deciding import decide_for_ever
from sapwood_dashboards.stand.program import START_SECONDS, Program, prometheus
from sapwood_operator.adapters.health import Health, serve_health
from sapwood_operator.adapters.metrics import OperatorMetrics
from sapwood_tools.bench.servers import free_port

NAMESPACE, SERVICE = "team", "chat"
KEYS = {"usual": "sk-usual", "narrow": "sk-narrow"}
"""Of two tenants, of whom ``narrow`` may ask twice a minute."""
_ENGINE = (
    *("--threads=1", "--thread-binding=off", "--kv-tokens=1536", "--max-running=6", "--max-queued=4"),
    *("--kv-events-port=0", "--mrc-sample-rate=1.0"),
)
"""Small, so that a minute sees evictions, preemptions and a full queue; all pages are followed, for there are few."""
_GATEWAY = (
    *("--policy=prefix-affinity", "--load-interval-seconds=0.2", "--prompt-patience-seconds=5"),
    *("--queue-max-requests=4", "--queue-max-wait-seconds=1", "--max-attempts=2"),
)


@dataclass(frozen=True, slots=True)
class Stand:
    """What runs."""

    engines: tuple[Program, Program]
    gateway: Program
    prometheus: Program
    http: aiohttp.ClientSession

    async def holds(self, condition: str) -> bool:
        """Whether Prometheus finds that ``condition`` gives something now."""
        async with self.http.get(f"{self.prometheus.url}/api/v1/query", params={"query": condition}) as response:
            return bool((await response.json())["data"]["result"])


@asynccontextmanager
async def running(folder: Path, rules: dict[str, Any]) -> AsyncIterator[Stand]:
    """Run all programs until the end of the block; their logs and Prometheus' data lie in ``folder``.

    ``rules``: Prometheus' rule file.
    """
    files = _credentials(folder)
    engines = tuple(
        _sapwood(f"engine-{number}", folder, "serve", *_ENGINE, f"--gateway-credential-file={files.credential}")
        for number in range(2)
    )
    listed = [f"--engine={each.url},{each.admin_url}" for each in engines]
    shown = (f"--tenants={files.tenants}", f"--engine-credential-file={files.credential}")
    gateway = _sapwood("gateway", folder, "gateway", *_GATEWAY, *listed, *shown)
    metrics = OperatorMetrics()
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=START_SECONDS)) as http,
        serve_health(Health("leading"), metrics, runbooks="", host="127.0.0.1", port=0) as operator_port,
    ):
        store = _prometheus(folder, rules, engines, gateway, operator_port)
        programs = (*engines, gateway, store)
        operating = [
            asyncio.create_task(each) for each in (_reconcile(metrics), decide_for_ever(metrics, NAMESPACE, SERVICE))
        ]
        try:
            for each in programs:
                await each.start()
            for each in programs:
                await each.until_ready(http)
            yield Stand((engines[0], engines[1]), gateway, store, http)
        finally:
            for task in operating:
                task.cancel()
            for each in programs:
                await each.end()


def _sapwood(name: str, folder: Path, *arguments: str) -> Program:
    port, admin_port = free_port(), free_port()
    ports = (f"--port={port}", f"--admin-port={admin_port}")
    return Program(
        name, (sys.executable, "-m", "sapwood", *arguments, *ports), port, admin_port, folder / f"{name}.log"
    )


@dataclass(frozen=True, slots=True)
class _Files:
    credential: Path
    tenants: Path


def _credentials(folder: Path) -> _Files:
    """Write what the gateway knows tenants by, and engines the gateway."""
    files = _Files(folder / "credential", folder / "tenants.yaml")
    files.credential.write_text("between-gateway-and-engines")
    quotas: dict[str, dict[str, int]] = {"usual": {}, "narrow": {"requestsPerMinute": 2}}
    documents = [
        {
            "apiVersion": "serving.sapwood.dev/v1alpha1",
            "kind": "Tenant",
            "metadata": {"name": name},
            "spec": {
                "apiKeys": [{"name": "first", "sha256": sha256(key.encode()).hexdigest()}],
                "quotas": quotas[name],
            },
        }
        for name, key in KEYS.items()
    ]
    files.tenants.write_text("\n---\n".join(json.dumps(each) for each in documents))
    return files


def _prometheus(
    folder: Path, rules: dict[str, Any], engines: Sequence[Program], gateway: Program, operator_port: int
) -> Program:
    """A Prometheus that scrapes every second, with the labels that the PodMonitors give."""
    of_engines = [
        _target(each.admin_port, namespace=NAMESPACE, inference_service=SERVICE, pod=f"{SERVICE}-engine-{number}")
        for number, each in enumerate(engines)
    ]
    of_gateway = _target(gateway.admin_port, namespace="sapwood-system", pod="sapwood-gateway-0")
    of_operator = _target(operator_port, namespace="sapwood-system", pod="sapwood-operator-0")
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {"job_name": "sapwood", "static_configs": [*of_engines, of_gateway]},
            {"job_name": "operator", "honor_labels": True, "static_configs": [of_operator]},
        ],
    }
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    return prometheus(folder, config)


def _target(port: int, **labels: str) -> dict[str, Any]:
    return {"targets": [f"127.0.0.1:{port}"], "labels": labels}


async def _reconcile(metrics: OperatorMetrics) -> None:
    """Count what an operator's work would count, for ever."""
    metrics.set_leader(leads=True)
    for turn, kind in zip(itertools.count(), itertools.cycle(RECONCILED_KINDS), strict=False):
        metrics.set_queue_depth(kind, turn % 3)
        metrics.observe_reconcile(kind, 0.004 * (1 + turn % 5))
        metrics.count_write("Deployment", "apply")
        if turn % 20 == 19:
            metrics.count_error(kind)
        await asyncio.sleep(0.5)

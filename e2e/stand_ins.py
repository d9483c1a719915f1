"""InferenceServices whose engines are stand-ins (`engine_stand_in`), and what these are to say."""

from __future__ import annotations

import base64
import dataclasses
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pods import PYTHON
from sapwood_contract.http import (
    ADMIN_LOAD,
    ADMIN_PREFIXES,
    BLOCK_NAME_BYTES,
    GATEWAY_DEMAND,
    CachedNode,
    CachedNodes,
    EngineLoad,
    GatewayDemand,
    LoadSnapshot,
    ServiceDemand,
)
from world import JsonObject

STAND_IN: dict[str, Any] = {
    "engine": {"device": "CPU", "image": PYTHON},
    "podTemplate": {
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "args": ["-c", Path(__file__).with_name("engine_stand_in.py").read_text(encoding="utf-8")],
                    "env": [{"name": "MODEL", "value": "chat"}],
                    # No gateway has to hear first that it goes.
                    "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
                }
            ]
        }
    },
}
"""Of a service named chat, ``spec``."""


def have_say(pod: JsonObject, answers: Mapping[str, object]) -> None:
    """Have a stand-in answer each path as ``answers`` has it from now on."""
    url = f"http://{pod['status']['podIP']}:8000/say"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(answers).encode()), timeout=10).close()


def say(pod: JsonObject, *, worth_tokens: float, num_requests: int = 0) -> None:
    """Have a stand-in say what it holds, nothing of it elsewhere, and has to do."""
    blocks = base64.b64encode(pod["metadata"]["uid"].encode()[-BLOCK_NAME_BYTES:]).decode()
    cached = CachedNodes("1", 16, (CachedNode(blocks, 16, worth_tokens),), is_whole=True)
    load = EngineLoad("chat", "ready", LoadSnapshot(num_running=num_requests, kv_active_tokens=16 * num_requests))
    have_say(pod, {ADMIN_PREFIXES: dataclasses.asdict(cached), ADMIN_LOAD: dataclasses.asdict(load)})


@dataclass(slots=True)
class OneGateway:
    """What an operator hears of a gateway: how many requests it has at each replica of ``chat``."""

    namespace: str
    requests: dict[str, int] = field(default_factory=dict)

    def answer(self, path: str) -> object:
        """Return what the gateway's admin port answers."""
        chat = ServiceDemand(
            namespace=self.namespace,
            service="chat",
            num_waiting=0,
            num_running=sum(self.requests.values()),
            num_arrived=0,
            idle_seconds=0.0,
            replicas=self.requests,
        )
        return {GATEWAY_DEMAND: dataclasses.asdict(GatewayDemand("e2e", (chat,)))}[path]

"""Two real engines, small enough for two processors: what tests of rollouts and of tenants put requests to."""

from __future__ import annotations

from typing import Any

MODEL = "smollm2-135m"
READY_SECONDS = 300
"""The first engine of a node compiles its step, and there are as few processors as there may be."""
TWO_ENGINES: dict[str, Any] = {
    "replicas": 2,
    "model": {"name": MODEL, "source": {"builtin": MODEL}, "cache": {"nodePath": "/var/cache/sapwood"}},
    "engine": {
        "device": "CPU",
        "contextLength": 1024,
        "scheduler": {"maxRunning": 8},
        "extraArgs": ["--threads=1", "--kv-tokens=4096"],
    },
}
"""Of an InferenceService, ``spec``; what is to be tested comes beside it."""

"""Paths and payloads of the engine's admin API: what gateway, operator and tools may rely on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LIVEZ = "/livez"
READYZ = "/readyz"
HEALTH = "/health"
METRICS = "/metrics"
ADMIN_LOAD = "/admin/load"
ADMIN_CACHE = "/admin/cache"
ADMIN_BLOCKS = "/admin/blocks"
ADMIN_TOKENIZER = "/admin/tokenizer"
ADMIN_REQUESTS = "/admin/requests"
ADMIN_FLUSH = "/admin/flush"
ADMIN_DRAIN = "/admin/drain"
ADMIN_ABORT = "/admin/abort"

MAX_CACHE_NODES = 10_000
"""Most nodes that one answer of `ADMIN_CACHE` holds."""
MAX_RECENT_REQUESTS = 200
"""Most ended requests that one answer of `ADMIN_REQUESTS` holds."""
MAX_TOKENIZER_BYTES = 64 * 2**20
"""Most that one answer of `ADMIN_TOKENIZER` holds, in bytes."""

EngineState = Literal["loading", "warming", "ready", "draining"]


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """What an engine says of its load; metrics, 429s, readiness and the gateway's view all read this one value.

    Token counts are in tokens of KV; ``active + protected + evictable + free == capacity``.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    """What waiting requests will have to compute: their tokens, but for those that the cache held when the scheduler
    last looked at each, on its arrival at least."""
    kv_capacity_tokens: int = 0
    kv_page_tokens: int = 0
    kv_active_tokens: int = 0
    """Owned by running requests and not in the tree."""
    kv_protected_tokens: int = 0
    """In the tree and in use."""
    kv_evictable_tokens: int = 0
    """In the tree and not in use."""
    kv_free_tokens: int = 0
    radix_nodes: int = 0
    radix_locked_nodes: int = 0
    radix_depth_max: int = 0
    """Most nodes on a path of the tree: as the last integrity check found, which an engine at rest runs, or on a longer
    path that a request has taken since. What was evicted in between still counts."""
    max_running: int = 0
    """Most requests that run at once; 0 where the engine has not said."""


@dataclass(frozen=True, slots=True)
class KvEvents:
    """Where an engine publishes which blocks its prefix cache holds, and what one needs to know to name them."""

    epoch: str
    """Drawn at every start: numbers and blocks of another epoch mean nothing in this one."""
    topic: str
    port: int
    """ZeroMQ PUB, at the address of the admin API."""
    replay_port: int
    """ZeroMQ ROUTER: what was missed."""
    page_size: int
    """Tokens of a block."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What ``/admin/load`` and ``/admin/drain`` answer."""

    model: str
    state: EngineState
    load: LoadSnapshot
    model_revision: str = ""
    """Part of every namespace's identity (`sapwood_contract.keys`); empty while the checkpoint is not found yet."""
    kv_events: KvEvents | None = None
    """None where the engine publishes none, or does not yet."""
    knows_gateway: bool = False
    """Whether it asks for the gateway's credential, and so keeps apart the tenants that the gateway names."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """One call as `ADMIN_REQUESTS` shows it; nothing of what its caller wrote but the id it gave."""

    request_id: str
    state: Literal["waiting", "running", "ended"]
    finish: Literal["stop", "length", "abort", "error"] | None
    """How it ended; of a call with several choices the last one's."""
    age_seconds: float
    """Since its arrival."""
    duration_seconds: float
    """From its arrival to its end, or until now."""
    num_prompt_tokens: int
    num_cached_tokens: int | None
    """None while it waits."""
    num_output_tokens: int
    phases: dict[str, float]
    """Phase (`metrics.PHASES`) -> seconds so far, in the order in which they came."""


@dataclass(frozen=True, slots=True)
class RequestList:
    """What ``/admin/requests`` answers: those that wait or run, the oldest first, then ended ones, the latest first."""

    requests: tuple[RequestView, ...]

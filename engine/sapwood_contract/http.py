"""Paths and payloads of the admin APIs of engine and gateway: what gateway, operator and tools may rely on."""

from __future__ import annotations

from collections.abc import Iterable
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
ADMIN_PREFIXES = "/admin/prefixes"
ADMIN_HOT_PREFIXES = "/admin/prefixes/hot"
ADMIN_WARM = "/admin/warm"
ADMIN_FLUSH = "/admin/flush"
ADMIN_DRAIN = "/admin/drain"
ADMIN_ABORT = "/admin/abort"
GATEWAY_DEMAND = "/admin/demand"
"""Of the gateway: on the port of its probes and metrics."""
GATEWAY_TRACE = "/admin/trace"
"""Of the gateway, likewise. Query: ``namespace``, ``service``, and ``reading`` for whoever asks several gateways."""
OPERATOR_AUTOSCALING = "/autoscaling"
"""Of the operator: on the port of its probes and metrics. Query: ``namespace``, ``name``."""
OPERATOR_WHAT_IF = "/what-if"
"""Of the operator, likewise, with ``replicas`` and ``memory``, a factor."""
OPERATOR_NOT_LEADING = "NotLeading"
"""Reason of an operator that waits to lead: another one knows, or nobody yet."""
TRACE_BLOCK_TOKENS = 512
"""Tokens of a prompt for which `GATEWAY_TRACE` has an id."""
TRACE_SECONDS = 3_600.0
"""That `GATEWAY_TRACE` looks back."""
TRACE_NAME_BYTES = 8
"""Of a name in `ServiceTrace`."""

MAX_CACHE_NODES = 10_000
"""Most nodes that one answer of `ADMIN_CACHE` holds."""
MAX_RECENT_REQUESTS = 200
"""Most ended requests that one answer of `ADMIN_REQUESTS` holds."""
MAX_PREFIX_BLOCKS = 65_536
"""Most blocks that one answer of `ADMIN_PREFIXES` names."""
MAX_HOT_TOKENS = 262_144
"""Most token ids in one answer of `ADMIN_HOT_PREFIXES`, and in one call of `ADMIN_WARM`."""
BLOCK_NAME_BYTES = 8
"""Of a block's hash, so many stand for it in `CachedNode`."""
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


@dataclass(frozen=True, slots=True)
class CachedNode:
    """A node of the radix tree as `ADMIN_PREFIXES` tells of it; no token, no tenant."""

    blocks: str
    """Base64: for each whole page of the node, in order, the first `BLOCK_NAME_BYTES` of its hash, which names all
    tokens up to there and the namespace. Equal on all replicas of one model revision that hold the same."""
    num_tokens: int
    """In those pages."""
    worth_tokens: float
    """Tokens of prefill that this node is expected to save within the next five minutes, by its use so far."""


@dataclass(frozen=True, slots=True)
class CachedNodes:
    """What ``/admin/prefixes`` answers: the nodes of most worth first, as many as `MAX_PREFIX_BLOCKS` allows."""

    model_revision: str
    page_size: int
    nodes: tuple[CachedNode, ...]
    is_whole: bool
    """Whether these are all."""


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A beginning of prompts with its tokens, which are content: never logged, never kept."""

    token_ids: tuple[int, ...]
    worth_tokens: float
    """As of `CachedNode`, of what no prefix before it in the answer begins with: what is common counts once. In a call
    of ``/admin/warm``: of what its taker lacks."""
    parts: tuple[tuple[int, float], ...] = ()
    """From its beginning on: so many tokens, and how often each of them is expected to be used within five minutes.
    Empty: one as often as the other."""
    adapter: str | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    tenant: str | None = None


def worth_after(parts: Iterable[tuple[int, float]], num_tokens: int) -> float:
    """Return the worth in tokens of what comes after the first ``num_tokens``; ``parts``: of a `HotPrefix`."""
    worth, end = 0.0, 0
    for part_tokens, uses in parts:
        end += part_tokens
        worth += uses * max(0, min(part_tokens, end - num_tokens))
    return worth


@dataclass(frozen=True, slots=True)
class HotPrefixes:
    """What ``/admin/prefixes/hot`` answers, and what ``POST /admin/warm`` takes: most worth first.

    Token ids mean the same in one model revision alone: an engine refuses those of another with 409.
    """

    model_revision: str
    prefixes: tuple[HotPrefix, ...]
    is_last: bool = True
    """In a call of ``/admin/warm``: nothing more will come, so an engine that waits for it may get ready."""


@dataclass(frozen=True, slots=True)
class WarmProgress:
    """What ``/admin/warm`` answers to GET and POST: how far an engine is with the prefixes that it was given."""

    state: EngineState
    num_waiting: int
    """Prefixes that it has not computed yet; it computes them while nobody else has work for it."""
    num_done: int
    num_dropped: int
    """Given up: their room or their turn never came."""


@dataclass(frozen=True, slots=True)
class ServiceDemand:
    """What one gateway has to do for one InferenceService."""

    namespace: str
    service: str
    num_waiting: int
    """Requests that it holds until a replica can take them."""
    num_running: int
    """Requests on their way to replicas or back."""
    num_arrived: int
    """Requests since this gateway began; less than before means that it began anew."""
    idle_seconds: float
    """Since the last request came or ended; since this gateway knows the service where there was none. 0 while there is
    one."""
    replicas: dict[str, int]
    """Replica's name -> requests on their way there or back; those that have none too."""
    num_routed: int = 0
    """Requests for which a replica was chosen, since this gateway began."""
    num_routed_by_prefix: int = 0
    """Of these: to a replica that had most of their prefix, or where none had any. Spills are not among them, nor those
    that were placed without a look at prefixes."""


@dataclass(frozen=True, slots=True)
class GatewayDemand:
    """What ``GATEWAY_DEMAND`` answers."""

    epoch: str
    """Drawn at every start of this gateway."""
    services: tuple[ServiceDemand, ...]


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request as a line of a trace in Mooncake's format: lengths, and nothing of what was said."""

    timestamp: int
    """Of its arrival, in milliseconds since the beginning of the hour (`TRACE_SECONDS`) that ends with the answer."""
    input_length: int
    """Tokens of the prompt."""
    output_length: int
    """Tokens of the answer."""
    hash_ids: tuple[int, ...]
    """For each `TRACE_BLOCK_TOKENS` of the prompt, the last of them in part: equal ones in one answer mean equal
    content behind equal beginnings."""


@dataclass(frozen=True, slots=True)
class ServiceTrace:
    """What ``GATEWAY_TRACE`` answers: one gateway's requests for one service, in order of arrival."""

    covered_seconds: float
    """So much of the hour is here whole, up to now: less than `TRACE_SECONDS` where the gateway began later, or has let
    go of the oldest for want of memory."""
    requests: tuple[TracedRequest, ...]
    block_names: str = ""
    """Base64, `TRACE_NAME_BYTES` for each of the ids 0, 1, …: what another gateway of this installation calls the same
    in an answer to the same ``reading``. Ids beyond are like no other anywhere. Empty where no ``reading`` was given,
    or gateways share no secret."""

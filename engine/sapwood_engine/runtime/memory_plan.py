"""How many KV pages fit, and how long a request may get: arithmetic on numbers read once at start.

Invariant: a plan that is returned can serve at least one request of its own ``max_context_tokens``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.config import CacheSettings
from sapwood_engine.errors import ConfigError

_LEAST_CONTEXT_TOKENS = 16
"""Below this no useful request fits, and starting would only postpone the error."""

_CGROUP_V2 = ("memory.max", "memory.current", "memory.stat", "inactive_file")
_CGROUP_V1 = (
    "memory/memory.limit_in_bytes",
    "memory/memory.usage_in_bytes",
    "memory/memory.stat",
    "total_inactive_file",
)
"""Files of the limit, the usage and its parts, and the part that is file cache not used lately."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes of the KV pool."""

    num_pages: int
    page_size: int
    max_context_tokens: int
    bytes_per_token: int
    """Of keys and values, over all layers."""

    @property
    def num_tokens(self) -> int:
        """Tokens whose KV fits at once."""
        return self.num_pages * self.page_size


def kv_bytes_per_token(spec: ModelSpec, element_bytes: int) -> int:
    """Return the bytes of one token's keys and values in all layers."""
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * element_bytes


def plan_memory(
    spec: ModelSpec, cache: CacheSettings, *, context_length: int | None, element_bytes: int, free_bytes: int
) -> MemoryPlan:
    """Size the pool from ``cache.kv_tokens``, or else from ``cache.memory_fraction`` of ``free_bytes``.

    Without a ``context_length`` the model's own is taken, cut to what the pool holds. Raises `ConfigError` with the
    numbers where the pool does not fit, or cannot hold one request.
    """
    if context_length is not None and context_length > spec.max_positions:
        raise ConfigError("--context-length", context_length, f"the model has {spec.max_positions} positions")
    per_token = kv_bytes_per_token(spec, element_bytes)
    fits = f"{_mib(free_bytes)} free, {per_token} bytes a token"
    if cache.kv_tokens is not None:
        num_pages = -(-cache.kv_tokens // cache.page_size)
        if num_pages * cache.page_size * per_token > free_bytes:
            raise ConfigError("--kv-tokens", cache.kv_tokens, f"at most {free_bytes // per_token} fit ({fits})")
    else:
        num_pages = int(free_bytes * cache.memory_fraction) // (per_token * cache.page_size)
    num_tokens = num_pages * cache.page_size
    if context_length is not None and context_length > num_tokens:
        raise ConfigError(
            "--context-length",
            context_length,
            f"the KV cache holds {num_tokens} tokens ({fits}): lower it, or raise --kv-tokens or --memory-fraction",
        )
    if num_tokens < min(_LEAST_CONTEXT_TOKENS, spec.max_positions):
        raise ConfigError(
            "--memory-fraction" if cache.kv_tokens is None else "--kv-tokens",
            cache.memory_fraction if cache.kv_tokens is None else cache.kv_tokens,
            f"the KV cache would hold {num_tokens} tokens ({fits}), and a request needs {_LEAST_CONTEXT_TOKENS}: "
            "free memory, raise it, or take a smaller model",
        )
    return MemoryPlan(num_pages, cache.page_size, min(context_length or spec.max_positions, num_tokens), per_token)


def read_free_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that this process may still take: the system's, or less where a control group limits it.

    A group's usage includes the files it has read, such as the weights just loaded. The kernel drops those not used
    lately before it refuses memory, so they count as free.
    """
    free = int(psutil.virtual_memory().available)
    for limit_name, usage_name, stat_name, droppable_name in (_CGROUP_V2, _CGROUP_V1):
        try:
            limit, usage = ((cgroup / name).read_text().strip() for name in (limit_name, usage_name))
        except OSError:
            continue
        if limit != "max":
            used = max(0, int(usage) - _read_stat(cgroup / stat_name, droppable_name))
            free = min(free, max(0, int(limit) - used))
    return free


def _read_stat(path: Path, name: str) -> int:
    """Return the bytes that the lines ``name bytes`` at ``path`` give for ``name``; 0 where they do not say."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"

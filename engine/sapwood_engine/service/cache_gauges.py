"""What an engine's cache can hold and what it holds, as gauges: absent while no worker has said it.

Not NaN: one engine that loads would make NaN of a sum over all engines of a service, which passes over what is absent.
"""

from __future__ import annotations

from prometheus_client import Gauge

from sapwood_contract.http import LoadSnapshot
from sapwood_metrics.registry import Registry

CACHE_GAUGES = (
    "sapwood_kv_tokens",
    "sapwood_kv_capacity_tokens",
    "sapwood_kv_page_tokens",
    "sapwood_kv_usage_ratio",
    "sapwood_radix_nodes",
    "sapwood_radix_depth_max",
    "sapwood_radix_locked_nodes",
)


class CacheGauges:
    """The series `CACHE_GAUGES` of one engine."""

    def __init__(self, model: str, registry: Registry) -> None:
        self._model = model
        self._gauges = {name: registry.gauge(name) for name in CACHE_GAUGES}
        self._shown: dict[tuple[str, ...], Gauge] = {}
        """Name and label values but for the model -> what is shown; found here in a fifth of the library's time."""

    def set_load(self, load: LoadSnapshot) -> None:
        """Publish ``load``; nothing where it has no capacity, as it has of an engine without a worker."""
        if not load.kv_capacity_tokens:
            for gauge in self._gauges.values():
                gauge.clear()
            self._shown.clear()
            return
        pinned = load.kv_active_tokens + load.kv_protected_tokens
        self._set("sapwood_kv_tokens", load.kv_active_tokens, "active")
        self._set("sapwood_kv_tokens", load.kv_protected_tokens, "protected")
        self._set("sapwood_kv_tokens", load.kv_evictable_tokens, "evictable")
        self._set("sapwood_kv_tokens", load.kv_free_tokens, "free")
        self._set("sapwood_kv_capacity_tokens", load.kv_capacity_tokens)
        self._set("sapwood_kv_page_tokens", load.kv_page_tokens)
        self._set("sapwood_kv_usage_ratio", pinned / load.kv_capacity_tokens)
        self._set("sapwood_radix_nodes", load.radix_nodes)
        self._set("sapwood_radix_depth_max", load.radix_depth_max)
        self._set("sapwood_radix_locked_nodes", load.radix_locked_nodes)

    def _set(self, name: str, value: float, *values: str) -> None:
        gauge = self._shown.get((name, *values))
        if gauge is None:
            gauge = self._shown[name, *values] = self._gauges[name].labels(self._model, *values)
        gauge.set(value)

"""What ``--metrics-compat vllm`` exports besides our own series: those by which programs for vLLM know an engine."""

from __future__ import annotations

import time

from sapwood_contract.http import LoadSnapshot
from sapwood_contract.metrics import VLLM_SERIES
from sapwood_metrics.registry import Registry

_ENGINE = "0"
"""vLLM numbers the engines of one server."""


class NoVllmMetrics:
    """Exports nothing."""

    def set_load(self, load: LoadSnapshot) -> None:
        """Do nothing."""


class VllmMetrics:
    """Exports `VLLM_SERIES` of one engine."""

    def __init__(self, model: str, registry: Registry) -> None:
        gauges = {series.name: registry.gauge(series) for series in VLLM_SERIES}
        own = self._own = {"model_name": model, "engine": _ENGINE}
        self._running = gauges["vllm:num_requests_running"].labels(**own)
        self._waiting = gauges["vllm:num_requests_waiting"].labels(**own)
        self._usage = gauges["vllm:kv_cache_usage_perc"]
        self._cache_config = gauges["vllm:cache_config_info"]
        gauges["vllm:lora_requests_info"].labels(max_lora="0", running_lora_adapters="", waiting_lora_adapters="").set(
            time.time()
        )

    def set_load(self, load: LoadSnapshot) -> None:
        """Publish ``load``; the cache's size and its use only while they are known."""
        self._running.set(load.num_running)
        self._waiting.set(load.num_waiting)
        if load.kv_capacity_tokens:
            pinned = load.kv_active_tokens + load.kv_protected_tokens
            self._usage.labels(**self._own).set(pinned / load.kv_capacity_tokens)
            num_pages = load.kv_capacity_tokens // load.kv_page_tokens
            self._cache_config.labels(block_size=load.kv_page_tokens, num_gpu_blocks=num_pages, engine=_ENGINE).set(1)
        else:
            self._usage.clear()
            self._cache_config.clear()

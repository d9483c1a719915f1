"""What a busy engine's ``/metrics`` says, written by the engine's own code."""

from __future__ import annotations

from sapwood_contract.http import LoadSnapshot
from sapwood_engine.service.messages import TokenBatch
from sapwood_engine.service.metrics import EngineMetrics


def engine_page() -> bytes:
    """Three requests run, two wait with 700 tokens, of 1,600 tokens of KV 300 are pinned; it is ready."""
    metrics = EngineMetrics("m")
    load = LoadSnapshot(
        num_running=3,
        num_waiting=2,
        num_waiting_tokens=700,
        kv_capacity_tokens=1600,
        kv_page_tokens=16,
        kv_active_tokens=100,
        kv_protected_tokens=200,
        kv_evictable_tokens=300,
        kv_free_tokens=1000,
        max_running=8,
    )
    metrics.observe(TokenBatch(deltas=[], load=load))
    metrics.set_state("ready")
    return metrics.render().body

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_torch_executor import TINY

from sapwood_engine.config import CacheSettings
from sapwood_engine.errors import ConfigError
from sapwood_engine.runtime.memory_plan import kv_bytes_per_token, plan_memory, read_free_bytes

PER_TOKEN = 2 * 2 * 2 * 8 * 4  # K and V, 2 layers, 2 heads, head_dim 8, float32


def cache(*, page_size: int = 16, kv_tokens: int | None = None, memory_fraction: float = 0.5) -> CacheSettings:
    return CacheSettings(
        page_size=page_size,
        kv_tokens=kv_tokens,
        memory_fraction=memory_fraction,
        prefix_cache=True,
        partial_pages=True,
        eviction_policy="lru",
        events_port=None,
        events_token_ids=False,
        miss_ratio_curve=True,
        mrc_sample_rate=0.05,
        warm_wait_seconds=0.0,
    )


def test_a_token_takes_keys_and_values_in_every_layer() -> None:
    assert kv_bytes_per_token(TINY, 4) == PER_TOKEN


def test_the_fraction_of_free_memory_becomes_whole_pages() -> None:
    plan = plan_memory(TINY, cache(), context_length=None, element_bytes=4, free_bytes=PER_TOKEN * 16 * 21)
    assert (plan.num_pages, plan.num_tokens) == (10, 160)


def test_stated_tokens_are_rounded_up_to_pages() -> None:
    plan = plan_memory(
        TINY, cache(kv_tokens=100, page_size=64), context_length=None, element_bytes=4, free_bytes=1 << 30
    )
    assert (plan.num_pages, plan.num_tokens) == (2, 128)


def test_without_a_stated_context_the_models_own_is_cut_to_what_fits() -> None:
    small = plan_memory(TINY, cache(kv_tokens=160), context_length=None, element_bytes=4, free_bytes=1 << 30)
    large = plan_memory(TINY, cache(kv_tokens=9999), context_length=None, element_bytes=4, free_bytes=1 << 30)
    assert (small.max_context_tokens, large.max_context_tokens) == (160, TINY.max_positions)


@pytest.mark.parametrize(
    ("settings", "context", "free", "option", "numbers"),
    [
        (cache(kv_tokens=1000), None, PER_TOKEN * 500, "--kv-tokens", ("1000", "500")),
        (cache(kv_tokens=160), 300, 1 << 30, "--context-length", ("300", "160")),
        (cache(), 513, 1 << 30, "--context-length", ("513", "512")),
        (cache(), None, PER_TOKEN * 20, "--memory-fraction", ("0 tokens", "16")),
        (cache(kv_tokens=8, page_size=4), None, 1 << 30, "--kv-tokens", ("8 tokens", "16")),
    ],
)
def test_what_cannot_work_is_refused_with_the_numbers(
    settings: CacheSettings, context: int | None, free: int, option: str, numbers: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_memory(TINY, settings, context_length=context, element_bytes=4, free_bytes=free)
    assert refused.value.option == option
    for number in numbers:
        assert number in str(refused.value)


@given(
    free=st.integers(0, 1 << 34),
    fraction=st.floats(0.01, 0.95),
    page_size=st.sampled_from((1, 4, 16, 64)),
    context=st.none() | st.integers(2, 512),
)
def test_a_plan_fits_its_memory_and_one_request_of_full_length(
    free: int, fraction: float, page_size: int, context: int | None
) -> None:
    settings = cache(page_size=page_size, memory_fraction=fraction)
    try:
        plan = plan_memory(TINY, settings, context_length=context, element_bytes=2, free_bytes=free)
    except ConfigError:
        return
    assert plan.num_tokens * plan.bytes_per_token <= free * fraction + 1
    assert 2 <= plan.max_context_tokens <= plan.num_tokens


def test_a_control_group_lowers_the_free_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("2000000\n")
    (tmp_path / "memory.current").write_text("500000\n")
    assert read_free_bytes(tmp_path) == 1_500_000


@pytest.mark.parametrize(
    ("limit", "usage", "stat", "droppable"),
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ],
)
def test_files_that_a_control_group_can_drop_count_as_free(
    tmp_path: Path, limit: str, usage: str, stat: str, droppable: str
) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("2000000\n")
    (tmp_path / usage).write_text("1900000\n")
    (tmp_path / stat).write_text(f"anon 500000\nactive_file 7\n{droppable} 1400000\nworkingset_{droppable} 9\n")
    assert read_free_bytes(tmp_path) == 1_500_000


def test_a_control_group_never_has_more_than_its_limit(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("2000000\n")
    (tmp_path / "memory.current").write_text("500000\n")
    (tmp_path / "memory.stat").write_text("inactive_file 600000\n")  # read a moment later than the usage
    assert read_free_bytes(tmp_path) == 2_000_000


def test_a_control_group_without_a_limit_leaves_the_systems_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("500000\n")
    assert read_free_bytes(tmp_path) > 1 << 20
    assert read_free_bytes(tmp_path / "absent") > 1 << 20

"""Options become settings, or are refused by name with what to do."""

from __future__ import annotations

import math

import pytest

from sapwood_contract.launch import LaunchOptions
from sapwood_engine.config import engine_config
from sapwood_engine.errors import ConfigError


def test_the_defaults_can_be_used() -> None:
    config = engine_config(LaunchOptions())
    assert config.cache.prefix_cache
    assert config.scheduler.overlap
    assert config.model.threads is None


def test_switches_become_booleans_and_values_land_in_their_group() -> None:
    options = LaunchOptions(prefix_cache="off", overlap="off", page_size=64, drain_seconds=5.0, seed=3)
    config = engine_config(options)
    assert not config.cache.prefix_cache
    assert not config.scheduler.overlap
    assert (config.cache.page_size, config.http.drain_seconds, config.seed) == (64, 5.0, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("admin_port", 65_536),
        ("threads", 0),
        ("context_length", 1),
        ("page_size", 0),
        ("kv_tokens", 0),
        ("memory_fraction", 0.0),
        ("memory_fraction", 1.0),
        ("memory_fraction", math.nan),
        ("max_running", 0),
        ("max_queued", 0),
        ("max_step_tokens", 0),
        ("chunk_tokens", 0),
        ("itl_target_seconds", 0.0),
        ("ttft_target_seconds", 0.0),
        ("step_timeout_seconds", 0.0),
        ("drain_seconds", -1.0),
        ("drain_seconds", math.inf),
        ("model", ""),
        ("served_model_name", ""),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_option(name: str, value: float | str) -> None:
    with pytest.raises(ConfigError) as refusal:
        engine_config(LaunchOptions(**{name: value}))  # type: ignore[arg-type]  # one option a case
    assert refusal.value.option == "--" + name.replace("_", "-")
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (LaunchOptions(max_running=65, max_step_tokens=64), "--max-running"),
        (LaunchOptions(kv_tokens=15, page_size=16), "--kv-tokens"),
        (LaunchOptions(port=9000, admin_port=9000), "--admin-port"),
        (LaunchOptions(port=65_535), "--port"),
    ],
)
def test_values_that_do_not_go_together_are_refused(options: LaunchOptions, option: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        engine_config(options)
    assert refusal.value.option == option


@pytest.mark.parametrize(("port", "admin_port"), [(8000, 8001), (9000, 9001), (65_534, 65_535), (0, 0)])
def test_the_admin_port_follows_the_other_so_that_two_engines_get_along(port: int, admin_port: int) -> None:
    assert engine_config(LaunchOptions(port=port)).http.admin_port == admin_port


def test_both_ports_may_be_left_to_the_system() -> None:
    assert engine_config(LaunchOptions(port=0, admin_port=0)).http.port == 0

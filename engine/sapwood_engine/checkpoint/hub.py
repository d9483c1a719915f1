"""Checkpoints from the Hugging Face hub, through its own client, which honours HF_ENDPOINT and the like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sapwood_engine.errors import CheckpointError

_REPOSITORY = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_WANTED_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
_UNWANTED_FILES = ("*/*", "consolidated*")
"""Other formats of the same weights: subfolders, and Mistral's own layout."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of the hub at a branch, tag or commit; None is the default branch."""

    name: str
    revision: str | None = None


def parse_repository(text: str) -> Repository | None:
    """Read ``owner/name[@revision]``; None where ``text`` is not of that form."""
    match = _REPOSITORY.fullmatch(text)
    return Repository(match["name"], match["revision"]) if match else None


def download(repository: Repository, *, endpoint: str | None = None, cache: Path | None = None) -> Path:
    """Return the folder with the repository's configuration, tokenizer and safetensors files.

    Files fetched before are not fetched again, and without a network a complete copy of before is used.
    ``endpoint`` and ``cache``: None leaves them to the client's environment. Raises `CheckpointError`.
    """
    # The client is half a second of imports, and a model on this machine does not need it.
    from huggingface_hub import errors, snapshot_download  # noqa: PLC0415

    try:
        folder = snapshot_download(
            repository.name,
            revision=repository.revision,
            allow_patterns=list(_WANTED_FILES),
            ignore_patterns=list(_UNWANTED_FILES),
            endpoint=endpoint,
            cache_dir=cache,
        )
    except errors.GatedRepoError as error:
        raise _refusal(
            repository,
            "is gated, and this token may not read it",
            "Accept its terms on the hub, then set HF_TOKEN to a token of that account.",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise _refusal(
            repository,
            "does not exist, or is private and this token may not read it",
            "Check the name, or set HF_TOKEN to a token that may.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise _refusal(
            repository, f"has no revision {repository.revision!r}", "Check the branch, tag or commit."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        reason = _reason(error.__cause__ or error)
        raise _refusal(
            repository,
            f"is not on this machine as a whole, and the hub does not give it ({reason})",
            "Check the network, HF_ENDPOINT and HF_HUB_OFFLINE, or name a folder that holds the files.",
        ) from error
    except errors.HFValidationError as error:
        raise _refusal(repository, "is not a name that the hub allows", "Check the name.") from error
    except Exception as error:  # the client passes on whatever the libraries below it raise
        raise _refusal(
            repository,
            f"could not be downloaded ({_reason(error)})",
            "Try again later, or name a folder that holds the files.",
        ) from error
    return Path(folder)


def _reason(error: BaseException) -> str:
    """The first line: the client's messages go on with advice of their own."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _refusal(repository: Repository, problem: str, fix: str) -> CheckpointError:
    return CheckpointError(f"the hub's repository {repository.name}", problem, fix)

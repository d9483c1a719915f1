"""What an image name stands for on this node: a command of this machine. Pure.

There is no container runtime: an image is an entrypoint and the folders it needs, and an image that the map does not
name cannot be pulled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True, slots=True)
class Image:
    """An image: ``pattern`` of names (``*`` matches anything), what it runs, as whom, and what of the machine it
    shows."""

    pattern: str
    entrypoint: Sequence[str]
    exposed: Sequence[str] = ()
    """Folders of the machine that any user in the container may read."""
    environment: Mapping[str, str] = field(default_factory=dict)
    user: int = 0


@dataclass(frozen=True, slots=True)
class NotFound:
    """No image of that name; ``message`` is as a failed pull says it."""

    message: str


def find(images: Sequence[Image], name: str) -> Image | NotFound:
    """Return the first image whose pattern fits ``name``; a name without a tag has the tag ``latest``."""
    full = name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"
    for image in images:
        if fnmatchcase(full, image.pattern):
            return image
    return NotFound(f'failed to pull image "{name}": not found in the image map of this node')


def command_of(image: Image, container: Mapping[str, Any]) -> list[str]:
    """Return the argv of a container before variables are expanded: ``command`` replaces the entrypoint, ``args``
    follow."""
    return [*(container.get("command") or image.entrypoint), *container.get("args", [])]

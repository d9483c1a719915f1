"""Which engines there are: those that argv names, or those that a `sapwood local` of this user runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapwood_contract.local_state import ADMIN_KEY_FILE, DISCOVERY_FILE, state_folders
from sapwood_contract.routing import COMPONENT_LABEL
from sapwood_tools.admin_client import key_in_file

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """One engine."""

    name: str
    """What it is called on the screen."""
    url: str
    """Of its admin API."""


@dataclass(frozen=True, slots=True)
class Named:
    """Engines and a gateway by their addresses."""

    engines: tuple[EngineAddress, ...]
    gateway: str | None = None
    """Admin address; None: there is none to ask."""
    key: str | None = None

    def addresses(self) -> tuple[EngineAddress, ...]:
        """Return where the engines are."""
        return self.engines


@dataclass(frozen=True, slots=True)
class Local:
    """What a `sapwood local` runs: other engines at other times."""

    discovery_file: Path
    gateway: str | None
    key: str | None = None

    def addresses(self) -> tuple[EngineAddress, ...]:
        """Return where the engines are now; none where the file cannot be read."""
        try:
            return tuple(engines_in(json.loads(self.discovery_file.read_bytes())))
        except (OSError, ValueError, KeyError, TypeError):
            return ()


Place = Named | Local


def named(urls: Iterable[str], gateway: str | None, key: str | None) -> Named:
    """Return engines that are called as their addresses are."""
    return Named(tuple(EngineAddress(url.partition("://")[2], url) for url in dict.fromkeys(urls)), gateway, key)


def engines_in(document: Mapping[str, Any]) -> Iterator[EngineAddress]:
    """Yield the engines whose EndpointSlices are in a Kubernetes List; raises KeyError or TypeError for no such."""
    for item in document["items"]:
        labels = item["metadata"].get("labels", {})
        if item["kind"] != "EndpointSlice" or labels.get(COMPONENT_LABEL) != "engine":
            continue
        ports = {port["name"]: port["port"] for port in item["ports"]}
        for endpoint in item["endpoints"]:
            (address, *_) = endpoint["addresses"]
            yield EngineAddress(endpoint["targetRef"]["name"], f"http://{address}:{ports['admin']}")


def local_places(environment: Mapping[str, str], key: str | None) -> list[Local]:
    """Return what may be running, by the state folders that there are: ask each gateway whether it is."""
    return [
        local_place(folder / DISCOVERY_FILE, f"http://{LOOPBACK}:{port + 1}", key)
        for port, folder in state_folders(environment).items()
    ]


def local_place(discovery_file: Path, gateway: str | None, key: str | None) -> Local:
    """Return what the `sapwood local` runs that writes this file.

    ``key``: None takes the one beside the file, which `sapwood local` made for its engines.
    """
    return Local(discovery_file, gateway, key or _own_key(discovery_file.with_name(ADMIN_KEY_FILE)))


def _own_key(path: Path) -> str | None:
    try:
        return key_in_file(str(path))
    except argparse.ArgumentTypeError:
        return None

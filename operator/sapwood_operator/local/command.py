"""From a pod's template to a command of this machine: addresses, folders, threads and memory, and nothing else changed.

What of a pod has no meaning here (images, resources, security contexts, placement, probes) is left out.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sapwood_contract.launch import LaunchOptions, Unusable, read, to_argv
from sapwood_operator.domain.names import ENGINE_CONTAINER
from sapwood_operator.local.pod import LOOPBACK, Pod, Ports


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start."""

    arguments: tuple[str, ...]
    """Of ``sapwood``."""
    environment: Mapping[str, str]
    """Over that of `sapwood local`."""


@dataclass(frozen=True, slots=True)
class CannotStart:
    """Why no process can be made of the pod as things are; for people."""

    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What pods find here."""

    num_cores: int
    """Physical cores that may be used."""
    num_engines: int
    """Engines that are to share them."""
    folders: Mapping[str, Path]
    """By the name of a claim or of a volume: what is mounted in its stead."""
    secrets: Mapping[tuple[str, str], Mapping[str, bytes]]
    """By namespace and name."""
    environment: Mapping[str, str]
    """Of `sapwood local` itself."""
    admin_key_file: Path
    """For engines that nobody could look into."""
    keep: Callable[[str, str, Mapping[str, bytes]], Path]
    """Writes the files of a Secret (namespace, name, content) and returns their folder."""


class _Impossible(Exception):
    """Carries a problem up to `command_of`."""


def command_of(pod: Pod, machine: Machine) -> Command | CannotStart:
    """Return how to start one replica."""
    spec = pod.template["spec"]
    container = next(each for each in spec["containers"] if each["name"] == ENGINE_CONTAINER)
    try:
        mounts = _mounts(container, spec, pod, machine)
        options = _options(container.get("args") or [], mounts)
        environment = _environment(container.get("env") or [], mounts, pod, machine)
    except _Impossible as error:
        return CannotStart(str(error))
    options = _administered(_shared(_placed(options, pod.ports), machine), machine)
    return Command(("serve", *to_argv(options)), environment)


# --- folders


_Mounts = Mapping[PurePosixPath, Path | None]
"""By the path in the container; None: a folder that is empty at first, for which this machine has its own."""


def _mounts(container: Mapping[str, Any], spec: Mapping[str, Any], pod: Pod, machine: Machine) -> _Mounts:
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or ()}
    found: dict[PurePosixPath, Path | None] = {}
    for mount in container.get("volumeMounts") or ():
        volume = volumes.get(mount["name"])
        if volume is None:
            raise _Impossible(f"volume {mount['name']!r} is mounted and not there: add it to podTemplate.spec.volumes")
        folder = _folder(volume, pod, machine)
        if folder is not None and mount.get("subPath"):
            folder = folder / mount["subPath"]
        found[PurePosixPath(mount["mountPath"])] = folder
    return found


def _folder(volume: Mapping[str, Any], pod: Pod, machine: Machine) -> Path | None:
    match volume:
        case {"emptyDir": _}:
            return None
        case {"hostPath": {"path": path}}:
            return _existing(Path(path), f"volume {volume['name']!r}")
        case {"secret": {"secretName": name}}:
            return machine.keep(pod.service.namespace, name, _secret(name, pod, machine))
        case {"persistentVolumeClaim": {"claimName": name}}:
            pass
        case _:
            name = volume["name"]
    if name not in machine.folders:
        raise _Impossible(f"no folder of this machine stands for the volume {name!r}: add --volume={name}=FOLDER")
    return _existing(machine.folders[name], f"--volume={name}")


def _existing(folder: Path, what: str) -> Path:
    if not folder.is_dir():
        raise _Impossible(f"{what}: there is no folder {str(folder)!r}: make it")
    return folder


def _secret(name: str, pod: Pod, machine: Machine) -> Mapping[str, bytes]:
    found = machine.secrets.get((pod.service.namespace, name))
    if found is None:
        raise _Impossible(f"secret {name!r} not found: add a Secret of that name to the files")
    return found


def _here(path: str, mounts: _Mounts) -> str | None:
    """Return what a path in the container is here; None: it lies in a folder that a pod would find empty."""
    inside = PurePosixPath(path)
    for mount, folder in sorted(mounts.items(), key=lambda each: len(each[0].parts), reverse=True):
        if inside.is_relative_to(mount):
            return None if folder is None else str(folder / inside.relative_to(mount))
    return path


# --- options


_PATHS = ("model", "api_key_file", "gateway_credential_file", "admin_key_file")


def _options(args: list[str], mounts: _Mounts) -> LaunchOptions:
    if args[:1] != ["serve"]:
        raise _Impossible(f"the container's args {args[:1]!r} do not begin with 'serve': leave args to the operator")
    options = read(args[1:])
    if isinstance(options, Unusable):
        raise _Impossible(f"the container's args: {options.problem}")
    moved: dict[str, Any] = {}
    for name in _PATHS:
        value = getattr(options, name)
        if value is not None and value.startswith("/"):
            moved[name] = _here(value, mounts) or value
    return dataclasses.replace(options, **moved)


def _placed(options: LaunchOptions, ports: Ports) -> LaunchOptions:
    """On one machine every engine has ports of its own, and nobody outside of it reaches them."""
    return dataclasses.replace(
        options,
        host=LOOPBACK,
        port=ports.http,
        admin_host=LOOPBACK,
        admin_port=ports.admin,
        kv_events_port=None if options.kv_events_port is None else 0,
    )


def _administered(options: LaunchOptions, machine: Machine) -> LaunchOptions:
    """An engine that knows a gateway and no admin key is closed to all, `sapwood top` on this machine among them."""
    if options.gateway_credential_file is None or options.admin_key_file is not None:
        return options
    return dataclasses.replace(options, admin_key_file=str(machine.admin_key_file))


def _shared(options: LaunchOptions, machine: Machine) -> LaunchOptions:
    """Engines that know nothing of each other would each take all cores, and half of the memory that is free.

    What the user named, in ``extraArgs`` or ``podTemplate``, stays.
    """
    if machine.num_engines < 2:
        return options
    if options.threads is None:
        options = dataclasses.replace(options, threads=max(1, machine.num_cores // machine.num_engines))
    share = options.memory_fraction / machine.num_engines
    return dataclasses.replace(options, thread_binding="off", memory_fraction=round(share, 4))


# --- environment


def _environment(variables: list[Mapping[str, Any]], mounts: _Mounts, pod: Pod, machine: Machine) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for variable in variables:
        name, source = variable["name"], variable.get("valueFrom")
        if source is not None:
            if (value := _value(name, source, pod, machine)) is not None:
                found[name] = value
        elif str(variable.get("value", "")).startswith("/"):
            if (path := _here(variable["value"], mounts)) is not None:
                found[name] = path
        else:
            found[name] = str(variable.get("value", ""))
    return found


def _value(name: str, source: Mapping[str, Any], pod: Pod, machine: Machine) -> str | None:
    """Return a variable from a Secret; None where the environment has it already, or it may be absent."""
    reference = source.get("secretKeyRef")
    if reference is None:
        raise _Impossible(f"variable {name}: only value and secretKeyRef are known here; give its value")
    known = machine.secrets.get((pod.service.namespace, reference["name"]))
    if known is None and (name in machine.environment or reference.get("optional")):
        return None
    content = _secret(reference["name"], pod, machine)
    if reference["key"] not in content:
        if reference.get("optional"):
            return None
        raise _Impossible(f"secret {reference['name']!r} has no key {reference['key']!r}: add it")
    return content[reference["key"]].decode("utf-8", "surrogateescape")


def secret_content(secret: Mapping[str, Any]) -> dict[str, bytes]:
    """Return what a Secret holds; raises ValueError for data that is not base64."""
    encoded = secret.get("data") or {}
    plain = secret.get("stringData") or {}
    return {key: base64.b64decode(value, validate=True) for key, value in encoded.items()} | {
        key: value.encode() for key, value in plain.items()
    }

"""Builds the cluster's programs from Go modules, once for each version, and keeps them outside the checkout.

A program's file name in the cache carries a digest of everything that goes into it (its module's go.mod, go.sum and
sources, the compiler, the flags), so a file that exists is the right one and is never changed: clusters, checkouts and
parallel builds share the cache. A lock for each module lets one build and the others wait for the result.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import BuildError
from cluster.layout import cache_root
from cluster.locks import exclusive, say

MODULES = Path(__file__).resolve().parent.parent / "go"
PROGRESS_SECONDS = 15
_LOG_TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class Program:
    """A Go program: ``package`` of the module in ``e2e/go/<module>``, stamped with ``stamps`` (variable -> value)."""

    name: str
    module: str
    package: str
    tags: str = ""
    stamps: tuple[tuple[str, str], ...] = ()


def _kubernetes(name: str) -> Program:
    version = required_version((MODULES / "kubernetes/go.mod").read_text(encoding="utf-8"), "k8s.io/kubernetes")
    major, minor = version.removeprefix("v").split(".")[:2]
    variable = "k8s.io/component-base/version."
    stamps = ((variable + "gitVersion", version), (variable + "gitMajor", major), (variable + "gitMinor", minor))
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", stamps=stamps)


def required_version(go_mod: str, module: str) -> str:
    """Return the version of ``module`` that a go.mod requires."""
    match = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    assert match, f"go.mod requires no {module}"
    return match[1]


ETCD = Program("etcd", "kubernetes", "./etcd")
APISERVER = _kubernetes("kube-apiserver")
CONTROLLER_MANAGER = _kubernetes("kube-controller-manager")
SCHEDULER = _kubernetes("kube-scheduler")
PROXY = _kubernetes("kube-proxy")
KUBECTL = _kubernetes("kubectl")
COREDNS = Program("coredns", "coredns", ".")
LAUNCHER = Program("launcher", "launcher", ".")
KWOK = Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok")
KWOK_STAGES = Program("kwok-stages", "kwok", "./stages")
# Every cloud's SDK would come with the other discoveries.
PROMETHEUS = Program(
    "prometheus", "prometheus", "github.com/prometheus/prometheus/cmd/prometheus", "remove_all_sd,enable_kubernetes_sd"
)
PROMETHEUS_OPERATOR = Program(
    "prometheus-operator", "prometheus-operator", "github.com/prometheus-operator/prometheus-operator/cmd/operator"
)
JAEGER = Program("jaeger", "jaeger", "github.com/jaegertracing/jaeger/cmd/all-in-one")

CONTROL_PLANE = (ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER, KUBECTL)
NODES = (LAUNCHER, PROXY, COREDNS)


def path_of(program: Program, environment: Mapping[str, str]) -> Path:
    """Return the path of the built ``program``, building it if nobody has; `BuildError` with the compiler's words."""
    target = cached_path(program, environment)
    if not target.exists():
        with exclusive(cache_root(environment) / f"{program.module}.lock", f"a build of {program.module}"):
            if not target.exists():
                _build(program, target, environment)
    return target


def cached_path(program: Program, environment: Mapping[str, str]) -> Path:
    """Return where the built ``program`` is, or will be."""
    digest = digest_of(program, MODULES / program.module, _compiler(environment))
    return cache_root(environment) / "bin" / f"{program.name}-{digest}" / program.name


def digest_of(program: Program, folder: Path, compiler: str) -> str:
    """Return what tells two builds of ``program`` apart: its module's ``folder``, and what ``compiler`` says it is."""
    digest = hashlib.sha256(f"{program!r} {compiler}".encode())
    for path in sorted([folder / "go.mod", folder / "go.sum", *folder.rglob("*.go")]):
        if path.exists():  # a module without dependencies has no go.sum
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _compiler(environment: Mapping[str, str]) -> str:
    asked = ["go", "env", "GOVERSION", "GOOS", "GOARCH"]
    return subprocess.run(asked, check=True, capture_output=True, text=True, env=build_environment(environment)).stdout


def command_of(program: Program, target: Path) -> list[str]:
    """Return the compiler's argv.

    The flags are the same for each program of a module (but for the linker's stamps): another ``-trimpath`` alone
    would compile all of Kubernetes again.
    """
    link = " ".join(["-s", "-w", *(f"-X {variable}={value}" for variable, value in program.stamps)])
    tags = [f"-tags={program.tags}"] if program.tags else []
    flags = ["-v", "-mod=readonly", "-trimpath", "-buildvcs=false", f"-ldflags={link}"]
    return ["nice", "go", "build", *flags, *tags, "-o", str(target), program.package]


def build_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that Go runs in: the toolchain that is here, fetching no other one, and no C compiler."""
    return {**environment, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}


def _build(program: Program, target: Path, environment: Mapping[str, str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    log = target.with_suffix(".log")
    say(f"building {program.name} (once for this version; the first of a module compiles for minutes)")
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command_of(program, unfinished),
            cwd=MODULES / program.module,
            env=build_environment(environment),
            stdout=output,
            stderr=output,
        )
        try:
            _wait(process, program, log, began)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        raise BuildError(
            f"go build of {program.name} failed:\n{tail(log.read_text(encoding='utf-8', errors='replace'))}"
        )
    unfinished.replace(target)
    say(f"built {program.name} in {time.monotonic() - began:.0f} s")


def _wait(process: subprocess.Popen[bytes], program: Program, log: Path, began: float) -> None:
    while True:
        try:
            process.wait(PROGRESS_SECONDS)
            return
        except subprocess.TimeoutExpired:
            packages = log.read_bytes().count(b"\n")
            say(f"building {program.name}: {packages} packages after {time.monotonic() - began:.0f} s")


def tail(text: str, num_lines: int = _LOG_TAIL_LINES) -> str:
    """Return the last lines of a log."""
    return "\n".join(text.splitlines()[-num_lines:])


def build_all(programs: Sequence[Program], environment: Mapping[str, str]) -> dict[str, Path]:
    """Build what is not in the cache, one after another, and return name -> path."""
    return {program.name: path_of(program, environment) for program in programs}

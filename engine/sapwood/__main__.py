"""``sapwood COMMAND …``: finds the program and imports only what that program needs.

Programs are named here as text, so that ``sapwood tree`` never loads what ``sapwood serve`` needs. Every
program is a function that takes its own arguments and returns the exit code.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version


@dataclass(frozen=True, slots=True)
class Program:
    """One subcommand."""

    summary: str
    module: str
    function: str
    extra: str
    """The extra of the distribution that brings what the module imports."""

    def load(self) -> Callable[[list[str]], int]:
        """Import the program; `ModuleNotFoundError` where its extra is not installed."""
        main: Callable[[list[str]], int] = getattr(importlib.import_module(self.module), self.function)
        return main


PROGRAMS: dict[str, Program] = {
    "serve": Program("serve a model over the OpenAI API", "sapwood_engine.cli", "serve", "engine"),
    "gateway": Program("one OpenAI address in front of many engines", "sapwood_gateway.cli", "main", "gateway"),
    "local": Program("run InferenceServices on this machine", "sapwood_operator.local.cli", "main", "local"),
    "operator": Program("reconcile InferenceServices in a cluster", "sapwood_operator.cli", "main", "operator"),
    "bench": Program("measure any OpenAI address with the six workloads", "sapwood_tools.bench.cli", "main", "engine"),
    "replay": Program("replay a trace over replicas", "sapwood_tools.replay.cli", "main", "gateway"),
    "tree": Program("show the radix tree of a running engine", "sapwood_tools.tree", "main", "engine"),
    "top": Program("show requests, cache and replicas as they change", "sapwood_tools.top.cli", "main", "top"),
    "bench-core": Program("measure the pure core beside baselines", "sapwood_tools.bench_core", "main", "engine"),
    "soak": Program("run random operations on the core for long", "sapwood_tools.soak", "main", "engine"),
}

KUBECTL = Program("look at InferenceServices", "sapwood_operator.kubectl.cli", "main", "operator")
"""A script of its own, because kubectl finds its plugins by their names."""


def usage() -> str:
    """Return what ``sapwood --help`` prints."""
    width = max(map(len, PROGRAMS))
    lines = [f"  {name:<{width}}  {program.summary}" for name, program in PROGRAMS.items()]
    return "\n".join(
        [
            "usage: sapwood COMMAND [OPTIONS]",
            "",
            *lines,
            "",
            "'sapwood COMMAND --help' tells the options; 'sapwood --version' the version.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program that ``argv`` (default: the process's) names; its exit code, or 2 for a wrong name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_missing_streams()
    try:
        try:
            return _dispatch(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # As in `sapwood --help | head -1`. What could not be written would be tried again at exit.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def kubectl_sapwood() -> int:
    """Run ``kubectl sapwood`` with the process's arguments."""
    return _run(KUBECTL, sys.argv[1:])


def _open_missing_streams() -> None:
    """Give a program that was started with a standard stream closed (``>&-``) one that leads nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # to the end of the process


def _dispatch(arguments: list[str]) -> int:
    match arguments:
        case ["--version" | "-V"]:
            print(f"sapwood {version('sapwood')}")
            return 0
        case ["--help" | "-h" | "help"]:
            print(usage())
            return 0
        case [name, *rest] if name in PROGRAMS:
            return _run(PROGRAMS[name], rest)
        case [name, *_]:
            print(f"sapwood: there is no command {name!r}\n\n{usage()}", file=sys.stderr)
            return 2
        case _:
            print(usage(), file=sys.stderr)
            return 2


def _run(program: Program, arguments: list[str]) -> int:
    try:
        run = program.load()
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0].startswith("sapwood"):
            raise
        print(
            f"sapwood: this command needs the package {missing.name!r}; "
            f"install it from a checkout of Sapwood with: pip install '.[{program.extra}]'",
            file=sys.stderr,
        )
        return 1
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m cluster``: clusters from the command line; several may run, each under its own ``--name``.

::

    up      start one, and leave it running
    down    end it, whatever state it is in
    status  which of its processes live
    env     shell lines that point kubectl at it (from inside its network: see exec)
    exec    run a command in its network, with kubectl and KUBECONFIG ready:  exec -- kubectl get pods -A
    run     up, the command as in exec, down:                                 run -- pytest e2e
    build   only build the programs

``--with kwok``, ``--with prometheus``, ``--with jaeger`` and ``--with optional-apis`` (CRDs of others, and the
Prometheus Operator) add what only some tests want.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from cluster import binaries, bringup, extras, namespaces, processes, requirements
from cluster.errors import HarnessError
from cluster.layout import DEFAULT_NAME, Layout, layout
from cluster.locks import say

NAME_VARIABLE = "SAPWOOD_E2E_CLUSTER"
"""Tells a command which cluster it runs in; its presence means that the cluster is this harness's."""


def main(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Do what ``argv`` says and return the exit code; what cannot be done is told on stderr."""
    own = list(argv)
    command = []
    if "--" in own:
        end = own.index("--")
        own, command = own[:end], own[end + 1 :]
    options = _parser().parse_args(own)
    try:
        if bool(command) != (options.action in ("exec", "run")):
            raise HarnessError(
                f"{options.action} takes {'a' if options.action in ('exec', 'run') else 'no'} command after --"
            )
        return _do(options, layout(options.name, environment), command, environment)
    except HarnessError as error:
        say(str(error))
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cluster",
        usage="%(prog)s ACTION [options] [-- COMMAND …]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("up", "down", "status", "env", "exec", "run", "build"))
    parser.add_argument("--name", default=DEFAULT_NAME, help="which cluster (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=2, help="0: a control plane alone (default: %(default)s)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs that each node says it has (default: %(default)s)")
    parser.add_argument("--with", dest="extras", action="append", default=[], choices=sorted(extras.PROGRAMS))
    return parser


def _do(options: argparse.Namespace, wanted: Layout, command: list[str], environment: Mapping[str, str]) -> int:
    match options.action:
        case "up":
            _up(options, wanted, environment)
        case "down":
            bringup.down(wanted)
        case "status":
            _print_status(wanted)
        case "env":
            for name, value in variables(wanted, environment).items():
                print(f"export {name}={shlex.quote(value)}")
        case "exec":
            return _execute(wanted, command, environment)
        case "run":
            return _run(options, wanted, command, environment)
        case "build":
            requirements.check()
            binaries.build_all(binaries.CONTROL_PLANE + binaries.NODES, environment)
            _build_extras(options, environment)
    return 0


def _up(options: argparse.Namespace, wanted: Layout, environment: Mapping[str, str]) -> None:
    _build_extras(options, environment)
    plan = bringup.ClusterPlan(options.nodes, options.gpus, ends_with_us=options.action == "run")
    bringup.up(wanted, plan, environment)
    if "kwok" in options.extras:
        extras.start_kwok(wanted, environment)


def _build_extras(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    requirements.check()
    for name in options.extras:
        extras.prepare(name, environment)


def _run(options: argparse.Namespace, wanted: Layout, command: list[str], environment: Mapping[str, str]) -> int:
    # Who asks this process to end wants the folders gone too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _up(options, wanted, environment)  # refuses where one of that name runs, which is not ours to end
    code = 1
    try:
        code = _execute(wanted, command, environment)
    finally:
        if code:
            bringup.end(wanted)
            say(f"what the cluster logged is kept until the next one: {wanted.state}")
        else:
            bringup.down(wanted)
    return code


def _execute(wanted: Layout, command: list[str], environment: Mapping[str, str]) -> int:
    namespaces.init_of(wanted)
    namespaces.enter(wanted)
    return subprocess.run(command, check=False, env={**environment, **variables(wanted, environment)}).returncode


def variables(wanted: Layout, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a command needs to use the cluster; `NoClusterError` where it does not run."""
    namespaces.init_of(wanted)
    kubectl = binaries.path_of(binaries.KUBECTL, environment)
    return {
        "KUBECONFIG": str(wanted.kubeconfig),
        "PATH": f"{kubectl.parent}{os.pathsep}{environment['PATH']}",
        NAME_VARIABLE: wanted.name,
    }


def _print_status(wanted: Layout) -> None:
    init = namespaces.init_of(wanted)
    print(f"cluster {wanted.name}: network {wanted.netns}, init {init}, state {wanted.state}")
    for name in processes.names(wanted):
        state = "runs" if processes.is_running(wanted, name) else "ENDED"
        print(f"  {name:26} {state:6} pid {processes.pid_of(wanted, name)}  {wanted.log(name)}")

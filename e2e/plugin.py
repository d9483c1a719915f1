"""``kubectl sapwood`` as people run it, and a person of few rights who does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 60


def kubectl(*args: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run kubectl, which finds our plugin; ``kubeconfig``: None takes the environment's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    access = {"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}
    environment = {**os.environ, **access, "PATH": path}
    return subprocess.run(
        ["kubectl", *args], check=False, capture_output=True, text=True, timeout=_SECONDS, env=environment
    )


def done(*args: str, kubeconfig: Path | None = None) -> str:
    """Run kubectl as `kubectl` does, and return what it writes; fails with what it says where it fails."""
    ran = kubectl(*args, kubeconfig=kubeconfig)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@dataclass(frozen=True, slots=True)
class Person:
    """An account without any right until somebody gives it one."""

    namespace: str
    name: str
    kubeconfig: Path

    def may(self, role: str, namespace: str) -> None:
        """Give it a Role."""
        account = f"--serviceaccount={self.namespace}:{self.name}"
        done("create", "rolebinding", self.name, f"--namespace={namespace}", f"--role={role}", account)

    def may_no_longer(self, namespace: str) -> None:
        """Take away what `may` gave."""
        done("delete", "rolebinding", self.name, f"--namespace={namespace}", "--ignore-not-found")


def make_person(namespace: str, name: str, folder: Path) -> Person:
    """Make an account in a namespace; it has the admin's kubeconfig, but for who it is."""
    about = (name, f"--namespace={namespace}")
    done("create", "serviceaccount", *about)
    token = done("create", "token", *about).strip()
    found = Person(namespace, name, folder / f"{name}.kubeconfig")
    shutil.copy(os.environ["KUBECONFIG"], found.kubeconfig)
    done("config", "set-credentials", name, f"--token={token}", kubeconfig=found.kubeconfig)
    done("config", "set-context", "--current", f"--user={name}", kubeconfig=found.kubeconfig)
    return found

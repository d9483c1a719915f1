"""The few calls of the Kubernetes API that bring-up needs, as the cluster's administrator. Tests use real clients."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.errors import StartError
from cluster.layout import API_PORT, CONTROL_PLANE_ADDRESS, Layout

POLL_SECONDS = 0.1
FIELD_MANAGER = "e2e-harness"


@dataclass(frozen=True, slots=True)
class Api:
    """A client of one cluster, for a thread that is in the cluster's network."""

    layout: Layout

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """Return status and decoded answer; (0, None) where nobody listens, so that callers can poll."""
        pki = self.layout.pki
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        connection = http.client.HTTPSConnection(CONTROL_PLANE_ADDRESS, API_PORT, timeout=10, context=context)
        kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": kind})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(content) if is_json else content.decode(errors="replace")

    def apply(self, path: str, manifest: Mapping[str, Any]) -> None:
        """Create or change one object by server-side apply; `StartError` where it is refused."""
        status, answer = self.call("PATCH", f"{path}?fieldManager={FIELD_MANAGER}&force=true", manifest)
        if status not in (200, 201):
            raise StartError(f"applying {path} was answered {status}: {answer}")

    def create(self, path: str, manifest: Mapping[str, Any]) -> None:
        """Create one object; `StartError` where it is refused."""
        status, answer = self.call("POST", path, manifest)
        if status != 201:
            raise StartError(f"creating {path}/{manifest['metadata']['name']} was answered {status}: {answer}")

    def answers(self, path: str) -> bool:
        """Return whether a GET of ``path`` is answered 200."""
        return self.call("GET", path)[0] == 200


def is_healthy(port: int, path: str, *, address: str = "127.0.0.1", tls: bool = False) -> bool:
    """Return whether a component answers 200; with ``tls`` its certificate is of its own making."""
    if tls:
        unverified = ssl._create_unverified_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address, port, timeout=5, context=unverified
        )
    else:
        connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_until(holds: Callable[[], bool], what: str, *, timeout_seconds: float, alive: Callable[[], None]) -> None:
    """Return once ``holds``; `StartError` after ``timeout_seconds``, or what ``alive`` raises for a dead process."""
    end = time.monotonic() + timeout_seconds
    while not holds():
        alive()
        if time.monotonic() > end:
            raise StartError(f"{what} is not there after {timeout_seconds:g} s")
        time.sleep(POLL_SECONDS)

"""Servers of a test itself, at the control plane's address, which the cluster finds behind a Service: what they say
changes while the test goes on."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cluster import pki
from cluster.layout import CONTROL_PLANE_ADDRESS, Layout
from world import World

Answer = Callable[[str], object]
"""A path without its query -> what is answered as JSON; `KeyError`: there is nothing."""


@contextmanager
def serving(answer: Answer, *, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Answer GET at a free port, which is yielded, for as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                status, value = 200, answer(self.path.partition("?")[0])
            except KeyError:
                status, value = 404, {}
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((CONTROL_PLANE_ADDRESS, 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def certified(layout: Layout, name: str) -> ssl.SSLContext:
    """Return a server's identity that the cluster's authority signed; ``name``: by which it is asked."""
    pki.load(layout.pki).issue(name, name, server_names=[name])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(layout.pki / f"{name}.crt", layout.pki / f"{name}.key")
    return context


def publish(world: World, namespace: str, name: str, port: int) -> None:
    """Make the Service ``name``, port 443, of which the server at ``port`` is the one endpoint."""
    core = f"/api/v1/namespaces/{namespace}/services"
    spec = {"ports": [{"name": "main", "port": 443, "targetPort": port}]}
    world.apply(core, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
    world.apply(
        f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [CONTROL_PLANE_ADDRESS], "conditions": {"ready": True}}],
            "ports": [{"name": "main", "port": port}],
        },
    )

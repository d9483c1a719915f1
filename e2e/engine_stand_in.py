"""What a gateway sees of an engine, in a few lines that run as a pod: both ports, readiness, load, a drain at SIGTERM.

The pod gets this file's text on its command line, and as MODEL what it says to serve. A completion answers which pod it
was. What is posted to ``/say``, an answer for each path, it answers from then on.
"""

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ready = threading.Event()
ready.set()
said: dict[str, object] = {}


class Handler(BaseHTTPRequestHandler):
    """Both ports."""

    def do_GET(self) -> None:
        load = {"num_running": 0, "num_waiting": 0}
        state = "ready" if ready.is_set() else "draining"
        if self.path in said:
            self.answer(200, said[self.path])
        elif self.path == "/admin/load":
            self.answer(200, {"model": os.environ["MODEL"], "state": state, "load": load})
        else:
            self.answer(200 if ready.is_set() else 503, {"state": state})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/unready":
            ready.clear()
        elif self.path == "/say":
            said.update(json.loads(body))
        self.answer(200, {"pod": os.environ["HOSTNAME"], "host": self.headers["Host"]})

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    """Serve until SIGTERM, then finish what runs."""
    servers = [ThreadingHTTPServer(("", port), Handler) for port in (8000, 8001)]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    for server in servers:
        server.daemon_threads = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
    stop.wait()
    for server in servers:
        server.shutdown()
        server.server_close()
    sys.exit(0)


if __name__ == "__main__":
    main()

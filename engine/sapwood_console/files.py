"""The page's files, read once, and the headers that they are served with.

The headers let the page load and reach its own server alone: a text that came to be markup could call nobody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sapwood_console.paths import PAGE

_FOLDER = Path(__file__).parent / "static"
_INDEX = "index.html"
_CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
DATA_HEADERS: Mapping[str, str] = {**SECURITY_HEADERS, "Cache-Control": "no-store"}
"""Of what stands below `paths.DATA_PREFIX`."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file as it is served."""

    body: bytes
    headers: Mapping[str, str]
    """Type, ETag and `SECURITY_HEADERS`: with ``no-cache`` a browser asks again each time."""

    @property
    def etag(self) -> str:
        return self.headers["ETag"]


def read_files() -> Mapping[str, StaticFile]:
    """Return every file by the path that it is served at; the page itself is at `PAGE` and below it."""
    files = {f"{PAGE}/{path.name}": _read(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _CONTENT_TYPES}
    page = files.pop(f"{PAGE}/{_INDEX}")
    return files | {PAGE: page, f"{PAGE}/": page}


def _read(path: Path) -> StaticFile:
    body = path.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    own = {"Content-Type": _CONTENT_TYPES[path.suffix], "ETag": etag, "Cache-Control": "no-cache"}
    return StaticFile(body, {**own, **SECURITY_HEADERS})

"""Asks the admin address of a running program, and says in a line why there is no answer."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from sapwood_tools.terminal_text import printable

DEFAULT_URL = "http://127.0.0.1:8001"


class Unanswered(Exception):
    """There is no answer that can be used; the message says why in a line that begins with a verb."""


class AdminClient:
    """Questions to one address; make it with `admin_client`."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url.rstrip("/")

    async def json(self, path: str, **query: str | int) -> Any:
        """Return what a GET of ``path`` answers; raises `Unanswered`."""
        return _read(await self._ask("GET", path, query=query))

    async def text(self, path: str) -> str:
        """Return what a GET of ``path`` answers, as it is; raises `Unanswered`."""
        return (await self._ask("GET", path)).decode(errors="replace")

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return what a POST of ``body`` as JSON (None: of nothing) answers; raises `Unanswered`."""
        return _read(await self._ask("POST", path, body=body))

    async def _ask(
        self, method: str, path: str, *, query: Mapping[str, str | int] | None = None, body: Any = None
    ) -> bytes:
        try:
            async with self._session.request(
                method, self._url + path, params=query, json=body, allow_redirects=False
            ) as answer:
                content = await answer.read()
        except TimeoutError:
            raise Unanswered(f"does not answer within {self._session.timeout.total:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unanswered(f"does not answer: {_reason(error)}") from error
        if answer.status != 200:
            raise Unanswered(_refusal(answer.status, answer.reason or "", content))
        return content


def _reason(error: Exception) -> str:
    errno = error.errno if isinstance(error, OSError) else None
    return os.strerror(errno) if errno is not None and errno > 0 else printable(str(error))


def _refusal(status: int, reason: str, content: bytes) -> str:
    line = f"answers {status} {printable(reason)}"
    if status == 401:
        return f"{line}: give a key of its admin API with --key-file"
    with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
        line += f": {printable(str(json.loads(content)['error']['message']))}"
    return line


def _read(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise Unanswered("answers with something that is not JSON: is it an admin address?") from None


def client_session(*, key: str | None, timeout_seconds: float) -> aiohttp.ClientSession:
    """Return a session, to be closed by the caller. ``key``: shown with every question; None: nothing is shown."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=timeout_seconds))


@contextlib.asynccontextmanager
async def admin_client(url: str, *, key: str | None, timeout_seconds: float) -> AsyncIterator[AdminClient]:
    """Yield a client of ``url`` with a session of its own."""
    async with client_session(key=key, timeout_seconds=timeout_seconds) as session:
        yield AdminClient(session, url)


def admin_url(text: str) -> str:
    """Read an address in argv."""
    scheme, _, rest = text.partition("://")
    if scheme not in ("http", "https") or not rest.strip("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address such as {DEFAULT_URL}")
    return text.rstrip("/")


def key_in_file(text: str) -> str:
    """Read in argv the path of a file, and return the first key in it, as `sapwood serve` reads its files of keys."""
    try:
        keys = [line.strip() for line in Path(text).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        # Of bytes that are no text the error would quote one.
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise argparse.ArgumentTypeError(f"{text!r} cannot be read ({reason})") from None
    if not keys or not (keys[0].isascii() and keys[0].isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r} begins with no key in printable ASCII")
    return keys[0]


def add_key_file(parser: argparse.ArgumentParser) -> None:
    """Add ``--key-file``, which becomes ``key``."""
    parser.add_argument(
        "--key-file",
        dest="key",
        type=key_in_file,
        metavar="FILE",
        help="file whose first line is a key of the admin API, where one is asked for",
    )

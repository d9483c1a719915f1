"""Chromium without a window, and what a page does that it should not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Route, ViewportSize, expect, sync_playwright
from support_programs import needs

from sapwood_console.files import read_files

NOWHERE = "http://127.0.0.1:9"
"""Where pages of `static_page` are from: nobody listens there."""
PATIENCE_MILLISECONDS = 30_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium; whatever is expected of its pages may take a while on a busy machine."""
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=needs("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page, and what was seen of it besides."""

    page: Page
    errors: list[str] = field(default_factory=list)
    """Of its console, and uncaught ones; a refusal that the page asked for is not one."""
    hosts: set[str] = field(default_factory=set)
    """Of all addresses that it asked."""


@contextmanager
def watched(browser: Browser, *, width: int = 1200, **settings: Any) -> Iterator[Watched]:
    """Open an empty page that is watched from its first request on; ``settings`` as of ``Browser.new_context``."""
    context = browser.new_context(viewport=ViewportSize(width=width, height=900), **settings)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    seen = Watched(page)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("console", lambda said: seen.errors.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
    yield seen
    context.close()


def serve_files(page: Page, answers: dict[str, Any]) -> None:
    """Let ``page`` get the console's files, and for other paths (without query) what ``answers`` has as JSON; a number
    there is a status, with an error as body.
    """
    files = read_files()

    def answer(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if (file := files.get(path)) is not None:
            route.fulfill(body=file.body, headers=dict(file.headers))
            return
        said = answers.get(path, 404)
        if isinstance(said, int):
            route.fulfill(status=said, json={"error": {"message": f"refused with {said}", "code": "refused"}})
        else:
            route.fulfill(json=said)

    page.route("**/*", answer)

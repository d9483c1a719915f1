"""One Chromium a module, and a fresh page for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from support_browser import Watched, chromium, watched


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def seen(browser: Browser) -> Iterator[Watched]:
    with watched(browser) as opened:
        yield opened

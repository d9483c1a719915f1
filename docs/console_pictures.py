"""Draws the pictures of the console in ``docs/images``: ``make console-pictures``.

Two real engines with the builtin model and a gateway before them answer real requests while Chromium looks at them.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from sapwood_tools.bench.servers import free_port

IMAGES = Path(__file__).resolve().parent / "images"
MODEL = "smollm2-135m"
_START_SECONDS = 240
_SIZE = ViewportSize(width=1080, height=760)
_PHONE = ViewportSize(width=390, height=760)

BOOKS = (
    "You are the librarian of a small town by the sea. You know every book about ships, storms, lighthouses and "
    "whales, and you recommend one book at a time, with its author and one sentence on why it is worth reading.",
    "You are a cook who explains simple dishes to people who have never held a knife. You name the ingredients first, "
    "then the steps, each in one short sentence, and you never need more than one pot and one pan.",
    "You are a guide in a museum of old machines. You explain how each of them worked, who built it and what came "
    "after it, in words that a child of ten understands, and you like to be asked why.",
)
MANNER = (
    "Your answers have {} words, never lists, never the question again, and at their end a short question of your own, "
    "which the person who asked may answer or leave aside."
)
QUESTIONS = (
    "Where do I begin?",
    "What would you show to somebody who has one hour?",
    "Which one is your favourite, and why?",
    "What goes wrong most often?",
    "Is there one for the winter?",
    "What do people ask you most?",
)


@dataclass(frozen=True, slots=True)
class Served:
    gateway_url: str

    def ask(self, system: str, question: str, *, max_tokens: int = 8) -> None:
        """Have one question answered."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        body = {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
        request = urllib.request.Request(
            f"{self.gateway_url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            answer.read()

    def load(self, draw: random.Random, num_requests: int) -> None:
        """Have so many questions answered, a few at a time: some voices are asked often, most of them seldom."""
        voices = [f"{book} {MANNER.format(num)}" for num in range(10, 22) for book in BOOKS]
        weights = [1 / rank for rank in range(1, len(voices) + 1)]
        asked = [(voice, draw.choice(QUESTIONS)) for voice in draw.choices(voices, weights, k=num_requests)]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda pair: self.ask(*pair), asked))


@contextlib.contextmanager
def served() -> Iterator[Served]:
    """Start two engines, and a gateway that lets requests follow their prefixes."""
    with contextlib.ExitStack() as stack:
        engines = []
        for _ in range(2):
            port, admin_port = free_port(), free_port()
            stack.enter_context(
                _program(
                    *("serve", f"--port={port}", f"--admin-port={admin_port}", "--kv-tokens=1024"),
                    *("--threads=1", "--thread-binding=off", "--mrc-sample-rate=1"),
                )
            )
            engines.append(f"--engine=http://127.0.0.1:{port},http://127.0.0.1:{admin_port}")
            _wait_until(f"http://127.0.0.1:{port}/readyz", "ready")
        port = free_port()
        stack.enter_context(_program("gateway", f"--port={port}", "--policy=prefix-affinity", *engines))
        url = f"http://127.0.0.1:{port}"
        _wait_until(f"{url}/v1/models", MODEL)
        yield Served(url)


@contextlib.contextmanager
def _program(*arguments: str) -> Iterator[None]:
    command = [sys.executable, "-m", "sapwood", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def _wait_until(url: str, mentions: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if mentions in answer.read().decode():
                return
        if time.monotonic() > deadline:
            raise SystemExit(f"{url} is not ready in time")
        time.sleep(0.2)


def draw(browser: Browser, running: Served) -> None:
    """Write all pictures."""
    page = browser.new_page(viewport=_SIZE)
    chance = random.Random(1)
    running.load(chance, 120)
    draw_chat(page, running)
    draw_cache(page, running, chance)
    for view, mark in (
        ("curve", "#curve-plot circle"),
        ("requests", "#requests tr"),
        ("replicas", "#replicas-body tr"),
    ):
        page.locator(f"#tab-{view}").click()
        page.locator(mark).first.wait_for()
        if view == "curve":
            page.locator("#memory").focus()
            for _ in range(4):
                page.keyboard.press("ArrowRight")
            page.locator("#memory").blur()
        _shoot(page, view)
    for name, size, scheme in (("dark", _SIZE, "dark"), ("phone", _PHONE, "light")):
        other = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]  # either is one of its words
        other.goto(f"{running.gateway_url}/ui#cache")
        other.locator(".node").first.wait_for()
        _shoot(other, name)


def draw_chat(page: Page, running: Served) -> None:
    """Have a conversation of two turns."""
    page.goto(f"{running.gateway_url}/ui")
    page.locator("#model option").first.wait_for(state="attached")
    page.fill("#max-tokens", "32")
    for text in ("Tell me in two sentences what a radix tree is.", "And what is it good for?"):
        page.fill("#prompt", text)
        page.locator("#send").click()
        page.locator("#send:not([disabled])").wait_for()
    page.locator(".turn").last.locator("pre").scroll_into_view_if_needed()
    _shoot(page, "chat")


def draw_cache(page: Page, running: Served, chance: random.Random) -> None:
    """Look at the tree while requests run."""
    page.locator("#tab-cache").click()
    page.locator(".node").first.wait_for()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(running.load, chance, 40)
        for kind in ("split", "evicted"):
            page.locator(f'[data-count="{kind}"] dd:not(:text-is("0"))').wait_for(timeout=60_000)
        page.locator('.node[data-locks]:not([data-locks="0"])').first.wait_for(timeout=60_000)
        page.locator(".node").first.hover()
        _shoot(page, "cache")
        asking.result()


def _shoot(page: Page, name: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    page.screenshot(path=IMAGES / f"console-{name}.png")


def main() -> None:
    """Draw them."""
    with served() as running, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        draw(browser, running)
        browser.close()


if __name__ == "__main__":
    main()

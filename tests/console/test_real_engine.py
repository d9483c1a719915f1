"""The console of a real engine with the builtin model, and of a gateway before it, in Chromium.

One engine, which asks for every kind of key and has room for 1,024 tokens, and one gateway serve all tests of this
file; each test opens a page of its own.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect
from support_browser import Watched
from support_programs import needs

from sapwood_tools.bench.servers import free_port

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m"
PAGE_TOKENS = 16
_START_SECONDS = 240
API_KEY, ADMIN_KEY, GATEWAY_KEY, CREDENTIAL = "key-of-a-user", "key-of-an-admin", "key-of-gateway", "credential-1234567"
MARKER = "Xylophone marmalade"
"""In a prompt that no page may show to who has no admin key."""


@dataclass(frozen=True, slots=True)
class Served:
    engine_url: str
    admin_url: str
    gateway_url: str

    def flush(self) -> None:
        """Empty the cache."""
        httpx.post(f"{self.admin_url}/admin/flush", headers=bearer(ADMIN_KEY), timeout=60).raise_for_status()

    def complete(self, prompt: list[int] | str, *, max_tokens: int = 1) -> None:
        """Ask the engine, and wait for the answer."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        httpx.post(
            f"{self.engine_url}/v1/completions", json=body, headers=bearer(API_KEY), timeout=60
        ).raise_for_status()

    @contextlib.contextmanager
    def streaming(self, prompt: list[int]) -> Iterator[None]:
        """Ask the engine, and be answered for as long as the block takes."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 880, "stream": True, "ignore_eos": True}
        url = f"{self.engine_url}/v1/completions"
        with httpx.stream("POST", url, json=body, headers=bearer(API_KEY), timeout=60) as response:
            lines = response.iter_lines()  # kept, for with its iterator the response would be closed
            next(lines)
            yield


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    needs("chromium")  # before an engine is started for nothing
    folder = tmp_path_factory.mktemp("keys")
    for name, key in (("api", API_KEY), ("admin", ADMIN_KEY), ("gateway", GATEWAY_KEY), ("credential", CREDENTIAL)):
        (folder / name).write_text(key)
    ports = [free_port() for _ in range(4)]
    engine_url, gateway_url = f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[2]}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_program(_engine(folder, ports[0], ports[1])))
        stack.enter_context(_program(_gateway(folder, ports)))
        _wait_until(f"{engine_url}/readyz")
        _wait_until(f"{gateway_url}/v1/models", mentions=MODEL)
        yield Served(engine_url, f"http://127.0.0.1:{ports[1]}", gateway_url)


def _engine(folder: Path, port: int, admin_port: int) -> list[str]:
    return [
        *("serve", f"--port={port}", f"--admin-port={admin_port}", "--kv-tokens=1024", f"--page-size={PAGE_TOKENS}"),
        *("--threads=1", "--thread-binding=off", "--mrc-sample-rate=1"),
        *(f"--api-key-file={folder / 'api'}", f"--admin-key-file={folder / 'admin'}"),
        f"--gateway-credential-file={folder / 'credential'}",
    ]


def _gateway(folder: Path, ports: list[int]) -> list[str]:
    engine = f"http://127.0.0.1:{ports[0]},http://127.0.0.1:{ports[1]}"
    return [
        *("gateway", f"--port={ports[2]}", f"--admin-port={ports[3]}", "--load-interval-seconds=0.2"),
        *(f"--engine={engine}", f"--engine-credential-file={folder / 'credential'}"),
        f"--admin-key-file={folder / 'gateway'}",
    ]


@contextlib.contextmanager
def _program(arguments: list[str]) -> Iterator[None]:
    command = [sys.executable, "-m", "sapwood", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def _wait_until(url: str, *, mentions: str = "") -> None:
    """Ask again and again until the answer is a good one."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.get(url, timeout=5)
            if answer.status_code == 200 and mentions in answer.text:
                return
        assert time.monotonic() < deadline, f"{url} is not ready in time"
        time.sleep(0.05)  # what is waited for needs the processor


def give_keys(page: Page, *, api: str = "", admin: str = "", engine: str = "") -> None:
    if page.locator("#keys").is_hidden():
        page.locator("#keys-open").click()
    page.fill("#api-key", api)
    page.fill("#admin-key", admin)
    if engine:
        page.fill("#engine-key", engine)
    page.locator("#keys button").click()


def open_view(page: Page, url: str, view: str, **keys: str) -> None:
    page.goto(f"{url}/ui#{view}")
    give_keys(page, **keys)
    expect(page.locator("#notice")).to_be_hidden()


def prompt_of(first: int, num_tokens: int) -> list[int]:
    """Ids that no other test's prompt begins with."""
    return [1_000 + first * 97 % 20_000, *range(2_000 + first, 2_000 + first + num_tokens - 1)]


def count_of(page: Page, kind: str) -> Locator:
    return page.locator(f'[data-count="{kind}"] dd')


def box(page: Page, serial: str) -> Locator:
    return page.locator(f'.node[data-serial="{serial}"]')


def newest_event(page: Page, kind: str) -> Locator:
    return page.locator(f'#events li[data-kind="{kind}"]').first


def serial_of(event: Locator) -> str:
    serial = event.get_attribute("data-serial")
    assert serial is not None
    return serial


def watch_cache(page: Page, served: Served) -> None:
    """Open the cache view, and wait until the tree has been looked at once."""
    open_view(page, served.engine_url, "cache", api=API_KEY, admin=ADMIN_KEY)
    expect(page.locator("#kv p")).to_contain_text("KV tokens cached")


def test_a_prefix_appears_is_split_locked_and_evicted_before_ones_eyes(seen: Watched, served: Served) -> None:
    page = seen.page
    served.flush()
    watch_cache(page, served)
    long, short = prompt_of(0, 128), prompt_of(0, 64) + prompt_of(500, 64)

    served.complete(long)
    expect(newest_event(page, "appeared")).to_be_visible()
    first = serial_of(page.locator('#events li[data-kind="appeared"]').last)
    expect(box(page, first)).to_have_attribute("data-tokens", "128")
    expect(box(page, first)).to_have_attribute("aria-level", "1")

    served.complete(short)
    expect(newest_event(page, "split")).to_be_visible()
    upper = serial_of(newest_event(page, "split"))
    expect(box(page, upper)).to_have_attribute("data-tokens", "64")
    expect(box(page, upper)).to_have_attribute("aria-level", "1")
    expect(box(page, first)).to_have_attribute("data-tokens", "64")  # the lower part is the node that there was
    expect(box(page, first)).to_have_attribute("aria-level", "2")
    expect(page.locator('.node[aria-level="2"]')).to_have_count(2)

    expect(box(page, upper)).to_have_attribute("data-locks", "0")
    with served.streaming(long):
        expect(box(page, upper)).to_have_attribute("data-locks", "1")
        expect(newest_event(page, "locked")).to_be_visible()
    expect(box(page, upper)).to_have_attribute("data-locks", "0")
    expect(count_of(page, "unlocked")).not_to_have_text("0")

    for number in range(4):
        served.complete(prompt_of(4_000 + 1_000 * number, 320))
    expect(box(page, first)).to_have_count(0)
    expect(box(page, upper)).to_have_count(0)
    expect(page.locator(f'#events li[data-kind="evicted"][data-serial="{upper}"]').first).to_be_visible()
    assert int(count_of(page, "evicted").inner_text()) >= 3
    assert seen.errors == []


def test_colour_follows_hits_or_recency_and_a_node_can_fill_the_width(seen: Watched, served: Served) -> None:
    page = seen.page
    served.flush()
    for last in (1, 2):
        served.complete([*prompt_of(20_000, 63), last])
    served.complete(prompt_of(21_000, 64))
    watch_cache(page, served)
    hot = page.locator('.node[data-heat="4"]').first
    expect(hot).to_be_visible()
    page.get_by_label("hits").check()
    expect(page.locator("#heat-high")).to_have_text("hit most")
    expect(page.locator('.node[data-heat="0"]').first).to_be_visible()
    page.locator(".node").first.click()
    expect(page.locator(".node").first).to_have_attribute("style", re.compile("width: 100%"))
    page.locator("#zoom-out").click()
    expect(page.locator("#zoom-out")).to_be_hidden()


@pytest.mark.parametrize("program", ["engine", "gateway"])
def test_a_chat_shows_answers_and_which_part_of_each_prompt_was_cached(
    seen: Watched, served: Served, program: str
) -> None:
    page = seen.page
    served.flush()
    url, key = (served.engine_url, API_KEY) if program == "engine" else (served.gateway_url, "")
    page.goto(f"{url}/ui")
    expect(page.locator("#program")).to_have_text(program)
    give_keys(page, api=key)
    expect(page.locator("#model option")).to_have_text([MODEL])
    page.fill("#max-tokens", "8")
    for text in ("Name three rivers of Europe, please.", "And three more?"):
        page.fill("#prompt", text)
        page.keyboard.press("Enter")
        expect(page.locator("#send")).to_be_enabled()
    turns = page.locator(".turn")
    expect(turns).to_have_count(2)
    expect(turns.nth(0).locator(".said.assistant")).not_to_be_empty()
    expect(turns.nth(0)).to_have_attribute("data-cached", "0")
    first_prompt, second_prompt, cached = (
        int(turns.nth(number).get_attribute(name) or -1)
        for number, name in ((0, "data-prompt"), (1, "data-prompt"), (1, "data-cached"))
    )
    assert first_prompt <= cached < second_prompt
    said = turns.nth(1).locator("pre .cached").inner_text()
    assert "Name three rivers" in said
    assert "And three more?" in turns.nth(1).locator("pre .computed").inner_text()
    assert (seen.errors, seen.hosts) == ([], {url.removeprefix("http://")})


def test_the_gateway_shows_its_replicas_and_the_tree_of_the_one_that_is_chosen(seen: Watched, served: Served) -> None:
    page = seen.page
    served.complete(prompt_of(8_000, 64))
    open_view(page, served.gateway_url, "replicas", admin=GATEWAY_KEY, engine=ADMIN_KEY)
    row = page.locator("#replicas-body tr")
    expect(row).to_have_count(1)
    expect(row.locator(".state")).to_have_text("fit")
    page.locator("#tab-cache").click()
    expect(page.locator('.node[data-tokens="64"]').first).to_be_visible()
    page.locator("#tab-requests").click()
    expect(page.locator("#requests tr").first).to_be_visible()
    assert seen.errors == []


def test_the_curve_answers_the_sliders(seen: Watched, served: Served) -> None:
    page = seen.page
    for _ in range(2):  # together they do not fit, so that more memory would have helped
        for number in range(3):
            served.complete(prompt_of(9_000 + 500 * number, 400))
    open_view(page, served.engine_url, "curve", admin=ADMIN_KEY)
    answer = page.locator("#curve-answer")
    expect(answer).to_contain_text("of prompt tokens would be cached")
    expect(answer).to_contain_text("were measured over the last")
    expect(answer).to_contain_text("1,024 KV tokens")
    ratios = [predicted(answer)]
    page.locator("#memory").focus()
    page.keyboard.press("End")
    expect(page.locator("#memory-out")).to_have_text("×8")
    expect(answer).to_contain_text("8,192 KV tokens")
    ratios.append(predicted(answer))
    page.locator("#replicas").focus()
    page.keyboard.press("ArrowRight")
    expect(answer).to_contain_text("16,384 KV tokens")
    ratios.append(predicted(answer))
    assert ratios[0] < ratios[1] <= ratios[2] <= 1
    expect(page.locator("#curve-plot circle")).to_have_count(1)
    assert seen.errors == []


def predicted(answer: Locator) -> float:
    return float(answer.get_attribute("data-predicted") or "nan")


def test_a_request_is_a_line_of_its_phases_while_it_runs_and_after(seen: Watched, served: Served) -> None:
    page = seen.page
    open_view(page, served.engine_url, "requests", admin=ADMIN_KEY)
    with served.streaming(prompt_of(12_000, 100)):
        expect(page.locator('#requests tr[data-state="running"]')).to_have_count(1)
    expect(page.locator('#requests tr[data-state="running"]')).to_have_count(0)
    ended = page.locator('#requests tr[data-state="ended"]').first
    expect(ended).to_contain_text("abort")
    for phase in ("prefill", "decode"):
        expect(ended.locator(f'[data-phase="{phase}"]')).to_have_count(1)
    assert seen.errors == []


def test_prompts_are_shown_to_who_gives_an_admin_key_and_asks_for_them(seen: Watched, served: Served) -> None:
    page = seen.page
    served.flush()
    served.complete(f"{MARKER} and {MARKER} again, so that it fills more than a page of the cache.")
    watch_cache(page, served)
    expect(page.locator(".node").first).to_be_visible()
    assert MARKER not in page.content()
    page.locator("#show-text").check()
    expect(page.locator(".node").first).to_contain_text(MARKER)
    page.locator("#show-text").uncheck()
    expect(page.locator(".node").first).not_to_contain_text(MARKER)


@pytest.mark.parametrize("program", ["engine", "gateway"])
def test_a_wrong_key_is_told_in_words_and_shows_nothing(seen: Watched, served: Served, program: str) -> None:
    page = seen.page
    page.goto(f"{served.engine_url if program == 'engine' else served.gateway_url}/ui#cache")
    expect(page.locator("#notice")).to_have_text("This view needs an admin key.")
    give_keys(page, admin="wrong")
    expect(page.locator("#notice")).to_contain_text("The admin key is missing or not known here.")
    expect(page.locator("#keys")).to_be_visible()
    assert page.locator(".node").count() == 0
    assert page.locator("#kv p").count() == 0


def test_the_gateways_key_alone_opens_no_engine_that_wants_another(seen: Watched, served: Served) -> None:
    page = seen.page
    page.goto(f"{served.gateway_url}/ui#cache")
    give_keys(page, admin=GATEWAY_KEY)
    expect(page.locator("#notice")).to_contain_text("The engine asks for an admin key of its own")
    assert page.locator(".node").count() == 0

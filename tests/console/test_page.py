"""The page against scripted answers: keys, polling, hostile texts, small windows, keyboards."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from support_browser import NOWHERE, Watched, serve_files, watched

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>"
OPEN = {"program": "engine", "data": "open", "asks_api_key": False, "shows_text": False}
LOAD = {
    "model": HOSTILE,
    "state": "ready",
    "load": {
        "num_running": 1,
        "num_waiting": 0,
        "kv_capacity_tokens": 1000,
        "kv_active_tokens": 100,
        "kv_protected_tokens": 200,
        "kv_evictable_tokens": 300,
        "kv_free_tokens": 400,
    },
}


def node(serial: int, tokens: int, parent: int | None = None, locks: int = 0, text: str | None = None) -> Any:
    told = {"serial": serial, "parent": parent, "num_tokens": tokens, "lock_ref": locks, "num_children": 0}
    return {**told, "hits": serial, "tick": serial, **({} if text is None else {"text": text})}


def cache(*nodes: Any) -> dict[str, Any]:
    namespaces = [{"namespace": {"extra_key": HOSTILE}, "nodes": list(nodes)}, {"namespace": {}, "nodes": [node(9, 8)]}]
    return {"num_nodes": len(nodes) + 1, "truncated": False, "page_size": 16, "namespaces": namespaces, "curve": None}


REQUEST = {
    "request_id": HOSTILE,
    "state": "ended",
    "finish": "stop",
    "duration_seconds": 1.0,
    "num_prompt_tokens": 10,
    "num_cached_tokens": 5,
    "num_output_tokens": 3,
    "phases": {"prefill": 0.4, HOSTILE: 0.6},
}
REPLICA = {
    "id": HOSTILE,
    "name": HOSTILE,
    "service": HOSTILE,
    "model": HOSTILE,
    "fitness": "fit",
    "num_requests": 1,
    "num_own": 1,
    "num_waiting_tokens": 0,
    "num_blocks": None,
}
PREDICTION = {
    "replicas": 2,
    "memory_factor": 1.0,
    "hit_ratio": 0.5,
    "prefill_use": 0.95,
    "ttft_p90_seconds": "Infinity",
    "itl_seconds": None,
    "kv_use": 0.01,
    "sentence": HOSTILE,
}
SCALING = {
    "scales": True,
    "services": [HOSTILE],
    "mode": "DryRun",
    "desired": 3,
    "num_asked": 2,
    "num_ready": 2,
    "reason": "PrefillSpeed",
    "message": HOSTILE,
}
"""With and without a service in the question."""
ANSWERS = {
    "/ui/data/scaling": SCALING,
    "/ui/data/what-if": {"now": PREDICTION, "then": {**PREDICTION, "replicas": 3}, "policy": {"sentence": HOSTILE}},
    "/ui/about": {**OPEN, "program": "gateway", "shows_text": True},
    "/v1/models": {"data": [{"id": HOSTILE}]},
    "/ui/data/replicas": {"replicas": [REPLICA]},
    "/ui/data/load": LOAD,
    "/ui/data/cache": cache(node(1, 64, text=HOSTILE), node(2, 16, parent=0), node(3, 16, parent=0, locks=1)),
    "/ui/data/requests": {"requests": [REQUEST]},
}
VIEWS = ("chat", "cache", "curve", "requests", "replicas")


def show(page: Page, view: str, answers: dict[str, Any] = ANSWERS) -> None:
    """Open a view and wait until it has been told something."""
    serve_files(page, answers)
    page.goto(f"{NOWHERE}/ui#{view}")
    expect(page.locator(f"#tab-{view}")).to_have_attribute("aria-selected", "true")
    marks = {"chat": "#model option", "cache": ".node", "curve": "#curve-plot svg", "requests": "#requests tr"}
    page.locator(marks.get(view, "#replicas-body tr")).first.wait_for(state="attached")


@pytest.mark.parametrize("view", VIEWS)
def test_what_comes_from_outside_is_text_and_never_markup(seen: Watched, view: str) -> None:
    show(seen.page, view)
    assert HOSTILE in seen.page.content().replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
    assert seen.page.locator('img[src="x"], b').count() == 0
    assert seen.page.title() == "Sapwood"
    assert seen.errors == []


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_fits_a_phone_without_scrolling_sideways(browser: Browser, view: str) -> None:
    with watched(browser, width=360) as phone:
        show(phone.page, view)
        width = phone.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert width[0] <= width[1]


def test_it_asks_nobody_but_the_server_that_it_came_from(seen: Watched) -> None:
    show(seen.page, "chat")
    for view in VIEWS:
        seen.page.locator(f"#tab-{view}").click()
    expect(seen.page.locator("#replicas-body tr")).to_have_count(1)
    assert seen.hosts == {"127.0.0.1:9"}


def test_a_view_that_needs_a_key_asks_for_it_before_it_asks_the_server(seen: Watched) -> None:
    asked: list[str] = []
    seen.page.on("request", lambda request: asked.append(request.url) if "/ui/data/" in request.url else None)
    about = {**OPEN, "data": "key"}
    serve_files(seen.page, {**ANSWERS, "/ui/about": about})
    seen.page.goto(f"{NOWHERE}/ui#cache")
    expect(seen.page.locator("#notice")).to_have_text("This view needs an admin key.")
    expect(seen.page.locator("#keys")).to_be_visible()
    assert asked == []
    seen.page.fill("#admin-key", "secret-key")
    seen.page.keyboard.press("Enter")
    expect(seen.page.locator(".node").first).to_be_visible()
    stored = seen.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
    assert (stored, "secret-key" in seen.page.content()) == ([0, 0, ""], False)


@pytest.mark.parametrize(("status", "said"), [(401, "missing or not known"), (403, "refused with 403")])
def test_a_refused_key_is_told_and_not_sent_again(seen: Watched, status: int, said: str) -> None:
    asked: list[str] = []
    seen.page.on("request", lambda request: asked.append(request.url) if "/ui/data/" in request.url else None)
    serve_files(seen.page, {**ANSWERS, "/ui/about": {**OPEN, "data": "open"}, "/ui/data/requests": status})
    seen.page.goto(f"{NOWHERE}/ui#requests")
    expect(seen.page.locator("#notice")).to_contain_text(said)
    seen.page.clock.install()
    seen.page.clock.run_for(10_000)
    assert len(asked) == 1


def test_closed_data_are_asked_for_by_nobody_and_the_page_says_what_opens_them(seen: Watched) -> None:
    asked: list[str] = []
    seen.page.on("request", lambda request: asked.append(request.url) if "/ui/data/" in request.url else None)
    serve_files(seen.page, {**ANSWERS, "/ui/about": {**OPEN, "data": "closed"}})
    seen.page.goto(f"{NOWHERE}/ui#cache")
    expect(seen.page.locator("#notice")).to_contain_text("--admin-key-file")
    assert asked == []


def test_a_page_that_nobody_looks_at_asks_nothing(seen: Watched) -> None:
    page = seen.page
    page.clock.install()
    show(page, "requests")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    turn = "hidden => { Object.defineProperty(document, 'hidden', { configurable: true, value: hidden }); " + (
        "document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.evaluate(turn, True)
    page.clock.run_for(60_000)
    assert asked == []
    with page.expect_request("**/ui/data/requests**"):
        page.evaluate(turn, False)


def test_there_is_never_more_than_one_question_under_way(seen: Watched) -> None:
    page = seen.page
    page.clock.install()
    show(page, "requests")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/ui/data/requests**", hold)
    with page.expect_request("**/ui/data/requests**"):
        page.clock.run_for(5_000)
    page.clock.run_for(4_000)
    assert len(held) == 1


def test_a_server_that_hangs_is_told_and_asked_again(seen: Watched) -> None:
    page = seen.page
    page.clock.install()
    show(page, "requests")
    page.route("**/ui/data/requests**", lambda _: None)
    with page.expect_request("**/ui/data/requests**"):
        page.clock.run_for(2_000)
    page.clock.run_for(10_000)
    expect(page.locator("#notice")).to_have_text("The server does not answer.")
    page.unroute("**/ui/data/requests**")
    page.clock.run_for(2_000)
    expect(page.locator("#notice")).to_be_hidden()


def test_an_engine_that_was_started_anew_tells_no_evictions(seen: Watched) -> None:
    page = seen.page
    show(page, "cache", {**ANSWERS, "/ui/data/cache": {**cache(node(1, 64), node(2, 16, parent=0)), "epoch": "first"}})
    anew = {**cache(node(1, 32, locks=1)), "epoch": "second"}
    page.route("**/ui/data/cache**", lambda route: route.fulfill(json=anew))
    expect(page.locator('.node[data-serial="1"]')).to_have_attribute("data-tokens", "32")
    assert page.locator("#events li").count() == 0


def test_a_text_that_is_refused_is_no_end_of_the_view(seen: Watched) -> None:
    page = seen.page
    show(page, "cache", {**ANSWERS, "/ui/about": {**OPEN, "data": "open", "shows_text": True}})
    expect(page.locator("#show-text")).to_be_disabled()  # nobody has given a key
    page.locator("#keys-open").click()
    page.fill("#admin-key", "key")
    page.keyboard.press("Enter")
    page.route("**/ui/data/cache?*text=1*", lambda route: route.fulfill(status=403, json={"error": {"message": "no"}}))
    page.locator("#show-text").check()
    expect(page.locator("#notice")).to_have_text("no")
    page.locator("#show-text").uncheck()
    expect(page.locator("#notice")).to_be_hidden()


def test_where_the_chosen_replica_has_gone_another_one_is_shown(seen: Watched) -> None:
    page = seen.page
    show(page, "requests")
    gone = {"error": {"message": "replica: there is none of this id now", "code": "unknown_replica"}}

    def answer(route: Route) -> None:
        if "replica=other" in route.request.url:
            route.fulfill(json={"requests": []})
        else:
            route.fulfill(status=404, json=gone)

    page.route("**/ui/data/requests**", answer)
    page.route("**/ui/data/replicas", lambda route: route.fulfill(json={"replicas": [{**REPLICA, "id": "other"}]}))
    expect(page.locator("#requests-note")).to_have_text("No request has come yet.")
    expect(page.locator("#replica")).to_have_value("other")
    expect(page.locator("#notice")).to_be_hidden()


def test_a_decision_and_what_another_number_would_do_stand_below_the_replicas(seen: Watched) -> None:
    show(seen.page, "replicas")
    decision = "3 wanted, 2 asked for, 2 ready. PrefillSpeed: "
    expect(seen.page.locator("#scaling-decision")).to_contain_text(decision)
    expect(seen.page.locator("#scaling-decision")).to_contain_text("Mode DryRun: nothing is done.")
    rows = seen.page.locator("#scaling-body tr")
    expect(rows.nth(0)).to_have_text("Hit ratio50 %50 %")
    expect(rows.nth(2)).to_have_text("Time to first token, p90without endwithout end")
    expect(rows.nth(3)).to_have_text("Time between tokens??")
    with seen.page.expect_request(lambda asked: "/what-if?" in asked.url and "replicas=7" in asked.url):
        seen.page.locator("#scaling-replicas").fill("7")
        seen.page.locator("#scaling-replicas").press("Tab")


def test_where_there_is_no_operator_the_page_says_that_nobody_scales(seen: Watched) -> None:
    show(seen.page, "replicas", {**ANSWERS, "/ui/data/scaling": {"scales": False, "services": [HOSTILE]}})
    expect(seen.page.locator("#scaling-note")).to_have_text("Nobody scales here: this gateway knows no operator.")
    expect(seen.page.locator("#scaling")).to_be_hidden()
    expect(seen.page.locator("#notice")).to_be_hidden()


def test_tabs_and_the_tree_are_walked_by_arrow_keys(seen: Watched) -> None:
    page = seen.page
    show(page, "chat")
    page.locator("#tab-chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-cache")).to_be_focused()
    expect(page.locator("#view-cache")).to_be_visible()
    page.locator(".node").first.focus()
    for key, serial in (("ArrowDown", "1"), ("ArrowDown", "2"), ("ArrowRight", "3"), ("ArrowUp", "1")):
        page.keyboard.press(key)
        expect(page.locator(":focus")).to_have_attribute("data-serial", serial)
    expect(page.locator("#node-detail")).to_contain_text("Node 1: 64 tokens")
    page.keyboard.press("Enter")
    expect(page.locator("#zoom-out")).to_be_visible()
    assert page.locator('[role="treeitem"][tabindex="0"]').count() == 1


def test_nothing_moves_for_who_wants_no_motion(browser: Browser) -> None:
    with watched(browser, reduced_motion="reduce") as still:
        show(still.page, "cache")
        style = "element => [getComputedStyle(element).transitionDuration, getComputedStyle(element).animationName]"
        assert still.page.locator(".node").first.evaluate(style) == ["0s", "none"]


def test_it_is_dark_where_the_system_is(browser: Browser) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        with watched(browser, color_scheme=scheme) as opened:
            show(opened.page, "cache")
            grounds.append(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(set(grounds)) == 2

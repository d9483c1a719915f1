"""Whatever an engine answers, the view shows it as it is or says that it is not understood."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
from fastapi import FastAPI, Response
from hypothesis import given
from hypothesis import strategies as st
from support_api import served
from support_top import CURVE, LOAD, REQUESTS, figures, sample

from sapwood_contract.curve import describe_curve
from sapwood_contract.http import ADMIN_CACHE, ADMIN_LOAD, ADMIN_REQUESTS, METRICS, EngineLoad
from sapwood_engine.service.metrics import EngineMetrics
from sapwood_tools.top.engines import named
from sapwood_tools.top.history import EngineHistory
from sapwood_tools.top.once import snapshot
from sapwood_tools.top.poller import polling
from sapwood_tools.top.samples import Sample, read_cache, read_load, read_requests

NAMESPACE = {"model_revision": "main", "adapter_id": None, "tenant_salt": "***", "extra_key": "a", "tenant": None}


def listed(node_id: int, parent: int | None) -> dict[str, Any]:
    """A node as the engine describes it."""
    counts = {"num_tokens": 32, "lock_ref": 1, "hits": 2, "tick": 7}
    return {"id": node_id, "serial": node_id + 11, "parent": parent, **counts}


LOADED: dict[str, Any] = asdict(EngineLoad("smollm2-135m", "ready", LOAD))
LISTED: dict[str, Any] = {"requests": [asdict(request) for request in REQUESTS[:2]]}
CACHED: dict[str, Any] = {
    "num_nodes": 3,
    "truncated": False,
    "namespaces": [{"namespace": NAMESPACE, "nodes": [listed(0, None), listed(1, 0), listed(2, 1)]}],
    "curve": describe_curve(replace(CURVE, points=CURVE.points[-3:])),
}
CACHED = json.loads(json.dumps(CACHED))

Path = tuple[str | int, ...]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield where in a JSON value there is something."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from places(each, (*path, key))


def changed(answer: Any, path: Path, value: Any) -> Any:
    """Return the answer with another value in one place."""
    if not path:
        return value
    whole = part = copy.deepcopy(answer)
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return whole


def without(answer: Any, path: Path) -> Any:
    """Return the answer without what is in one place of a mapping."""
    *above, name = path
    whole = part = copy.deepcopy(answer)
    for key in above:
        part = part[key]
    del part[name]
    return whole


def told(before: Sample, after: Sample) -> str:
    """Return what is shown of two answers, one after the other."""
    history = EngineHistory("engine", "http://127.0.0.1:8001")
    history.take(before)
    return snapshot([history.take(after)], None)


READERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "load": (LOADED, read_load),
    "requests": (LISTED, read_requests),
    "cache": (CACHED, read_cache),
}
STRANGE: tuple[Any, ...] = (
    None,
    True,
    -1,
    -0.5,
    1.5,
    float("inf"),
    float("nan"),
    10**400,
    "",
    "x",
    [],
    [1],
    {},
    {"a": 1},
)
TERMINAL = "\x1b]0;mine\x07\x1b[2J"


@given(st.data())
def test_one_strange_value_is_shown_or_not_understood(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(READERS)))
    answer, read = READERS[kind]
    path = data.draw(st.sampled_from(list(places(answer))))
    value = data.draw(st.sampled_from((*STRANGE, TERMINAL, "\ud800")))
    changes = [changed(answer, path, value)]
    if path and isinstance(path[-1], str):
        changes.append(without(answer, path))
    usual = read(answer)
    for each in changes:
        try:
            found = read(each)
        except (LookupError, TypeError, ValueError, AttributeError):
            continue
        first, second = (replace(sample(at), **{kind: it}) for at, it in ((0.0, usual), (1.0, found)))
        shown = told(first, second) + told(second, replace(first, at=2.0))
        assert "\x1b" not in shown
        shown.encode()


def test_what_the_next_version_says_is_shown_as_it_is() -> None:
    load = read_load({**changed(LOADED, ("state",), "resting"), "zone": "b"})
    request = {**LISTED["requests"][0], "state": "swapped", "phases": {"swap": 2.0, "decode": 2.0}, "rank": 1}
    ended = {**LISTED["requests"][0], "state": "ended", "finish": "moved"}
    shown = told(sample(), replace(sample(1.0), load=load, requests=read_requests({"requests": [request, ended]})))
    assert all(word in shown for word in (" · resting · ", " swapped ", " moved ", "?" * 12 + "█" * 12))


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([listed(0, 0)], id="a node above itself"),
        pytest.param([listed(0, 1), listed(1, 0)], id="two above each other"),
        pytest.param([listed(0, None), {**listed(1, 0), "serial": 11}], id="two with one serial"),
    ],
)
def test_a_tree_that_is_none_is_not_followed(nodes: list[dict[str, Any]]) -> None:
    with pytest.raises((KeyError, ValueError)):
        read_cache({**CACHED, "namespaces": [{"namespace": NAMESPACE, "nodes": nodes}]})


def engine(**answers: str) -> FastAPI:
    """A program that answers what an engine does, but for these."""
    usual = {name: json.dumps(answer) for name, (answer, _) in READERS.items()}
    usual["metrics"] = EngineMetrics("m").render("").body.decode()
    app = FastAPI()
    for path, name in (
        (ADMIN_LOAD, "load"),
        (ADMIN_REQUESTS, "requests"),
        (ADMIN_CACHE, "cache"),
        (METRICS, "metrics"),
    ):
        body = {**usual, **answers}[name]
        app.get(path)(lambda body=body: Response(body, media_type="application/json"))
    return app


@pytest.mark.parametrize(
    "wrong",
    [
        {"load": "[" * 100_000},
        {"requests": '{"requests": [1]}'},
        {"cache": "NaN"},
        {"metrics": "sapwood_requests_total{a} x"},
        {"metrics": "{"},
        {"metrics": 'a{b="c} 1\n'},
    ],
    ids=lambda wrong: f"{next(iter(wrong))} {next(iter(wrong.values()))[:12]}",
)
async def test_one_bad_engine_does_not_take_the_view_of_another(wrong: dict[str, str]) -> None:
    async with (
        served(engine(**wrong)) as bad,
        served(engine()) as good,
        polling(named([bad, good], None, None)) as poller,
    ):
        (_, first), (_, second) = (await poller.ask()).engines
    assert first.problem.startswith("answers with something that is not ")
    assert second.problem == ""
    assert told(replace(first, figures=figures()), second)

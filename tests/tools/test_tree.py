"""``sapwood tree`` draws what the admin API says."""

from __future__ import annotations

import asyncio
import os
import sys
from array import array
from typing import Any, Literal

import pytest
from support_api import served
from support_fake_client import FakeClient

from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace
from sapwood_tools import tree

LOAD = {
    "model": "m",
    "state": "ready",
    "load": {
        "num_running": 2,
        "num_waiting": 1,
        "kv_capacity_tokens": 1000,
        "kv_active_tokens": 100,
        "kv_protected_tokens": 200,
        "kv_evictable_tokens": 300,
        "kv_free_tokens": 400,
    },
}


def node(node_id: int, parent: int | None = None, **fields: Any) -> dict[str, Any]:
    defaults = {"num_tokens": 16, "num_pages": 1, "num_children": 0, "lock_ref": 0, "hits": 0, "tick": 0}
    return {"id": node_id, "parent": parent, "priority": 0, **defaults, **fields}


def cache(*nodes: dict[str, Any], total: int | None = None, **namespace: str) -> dict[str, Any]:
    named = {"model_revision": "r", "adapter_id": None, "extra_key": None, "tenant_salt": None, **namespace}
    number = len(nodes) if total is None else total
    entries = [{"namespace": named, "nodes": list(nodes)}]
    return {"num_nodes": number, "truncated": number > len(nodes), "namespaces": entries}


def test_branches_hang_below_their_parent_the_most_used_first() -> None:
    nodes = (
        node(0, num_children=2, num_tokens=1024, num_pages=64, lock_ref=2, hits=9),
        node(1, hits=1),
        node(2, 0),
        node(3, 0, hits=5, num_children=1),
        node(4, 3, num_tokens=1),
    )
    assert tree.tree_lines(cache(*nodes)) == [
        "● revision r",
        "├── 1,024 tokens  64 pages  in use by 2  hit 9 times",
        "│   ├── 16 tokens  1 page  hit 5 times",
        "│   │   └── 1 token  1 page  never hit",
        "│   └── 16 tokens  1 page  never hit",
        "└── 16 tokens  1 page  hit 1 time",
    ]


def test_what_is_not_shown_is_told() -> None:
    lines = tree.tree_lines(cache(node(0, num_children=3), total=4))
    assert lines[1].endswith("3 not shown below")
    assert lines[-1] == "… 3 more nodes; --max-nodes shows more"


def test_a_path_of_thousands_of_nodes_is_drawn() -> None:
    nodes = [node(i, i - 1 if i else None, num_children=1) for i in range(5000)]
    assert len(tree.tree_lines(cache(*nodes))) == 5001


def test_an_empty_tree_says_so() -> None:
    assert tree.tree_lines({"num_nodes": 0, "truncated": False, "namespaces": []}) == ["The tree is empty."]


def test_a_tenants_salt_is_never_shown() -> None:
    (line, _) = tree.tree_lines(cache(node(0), tenant_salt="secret", adapter_id="a"))
    assert "secret" not in line
    assert line == "● revision r · adapter a · a tenant's salt"


def test_what_a_client_named_cannot_drive_the_terminal() -> None:
    (line, _) = tree.tree_lines(cache(node(0), extra_key="\x1b]0;title\x07\n"))
    assert "\x1b" not in line
    assert "\n" not in line


def test_the_head_tells_state_queue_and_shares_of_the_cache() -> None:
    assert tree.head_lines(LOAD) == [
        "m · ready · 2 running, 1 waiting",
        "KV 1,000 tokens: 10% being computed, 20% cached and in use, 30% cached, 40% free",
    ]


def test_a_real_cache_is_drawn_as_it_is() -> None:
    real = PrefixCache(num_pages=64, page_size=4)
    for ids in ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 9, 9, 9]):
        key = array("i", ids).tobytes()
        match = real.match(Namespace("main"), key, limit_tokens=8)
        receipt = real.lock(match)
        fresh = real.allocate(2 - len(match.pages))
        assert isinstance(fresh, list)
        real.release(real.finish(receipt, key, [*match.pages, *fresh]))
    lines = tree.tree_lines(real.snapshot(max_nodes=100))
    drawn = [line.partition("tokens")[0] for line in lines]
    assert drawn == ["● revision main", "└── 4 ", "    ├── 4 ", "    └── 4 "]


class EngineWithTree(FakeClient):
    """Answers the admin API with a tree of one node."""

    async def admin(self, action: Literal["cache", "blocks", "flush", "check"], **arguments: Any) -> dict[str, Any]:
        assert action == "cache"
        assert arguments["max_nodes"] == 7
        return cache(node(0))


async def test_the_command_reads_the_admin_api_of_an_engine() -> None:
    async with served(build_admin_app(EngineWithTree())) as url:
        argv = [sys.executable, "-m", "sapwood", "tree", "--url", url, "--max-nodes", "7"]
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        shown, _ = await process.communicate()
    assert shown.decode() == (
        "fake/model-1 · ready · 0 running, 0 waiting\n\n● revision r\n└── 16 tokens  1 page  never hit\n"
    )


async def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    async with served(build_admin_app(EngineWithTree())) as url:
        argv = [sys.executable, "-m", "sapwood", "tree", "--url", url, "--max-nodes", "7"]
        process = await asyncio.create_subprocess_exec(*argv, stdout=writing, stderr=asyncio.subprocess.PIPE)
        os.close(writing)
        _, said = await process.communicate()
    assert (process.returncode, said) == (0, b"")


@pytest.mark.parametrize("number", ["20000", "0", "-1", "x"])
def test_a_number_of_nodes_that_the_engine_would_refuse_is_refused_at_once(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        tree.main(["--max-nodes", number])
    assert stopped.value.code == 2
    assert number in capsys.readouterr().err


async def test_an_engine_that_refuses_is_an_error_in_one_line() -> None:
    async with served(build_admin_app(FakeClient(state="loading", capacity=None))) as url:
        argv = [sys.executable, "-m", "sapwood", "tree", "--url", url]
        process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
        _, said = await process.communicate()
    assert process.returncode == 1
    (line,) = said.decode().splitlines()
    assert line.startswith(f"sapwood tree: {url} answers 503 Service Unavailable: This engine is still loading")


def test_an_engine_that_does_not_answer_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert tree.main(["--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("sapwood tree: http://127.0.0.1:9 does not answer: ")

"""``sapwood tree``: draws the live radix tree of a running engine.

Reads ``/admin/cache`` and ``/admin/load`` of the engine's admin address and changes nothing::

    smollm2-135m · ready · 2 running, 0 waiting
    KV 24,576 tokens: 3% being computed, 4% cached and in use, 21% cached, 72% free

    ● revision main
    ├── 1,024 tokens  64 pages  in use by 2
    │   ├── 40 tokens  3 pages  hit 5 times
    │   └── 38 tokens  3 pages  never hit
    └── 17 tokens  2 pages  never hit
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sapwood_contract.http import ADMIN_CACHE, ADMIN_LOAD, MAX_CACHE_NODES
from sapwood_tools.admin_client import DEFAULT_URL, Unanswered, add_key_file, admin_client, admin_url
from sapwood_tools.terminal_text import KV_STATES, counted, namespace_name

_TIMEOUT_SECONDS = 30.0


def main(argv: Sequence[str]) -> int:
    """Print the tree, once or (``--watch``) again and again; 1 where the engine cannot be asked.

    A reader that closes the pipe (``| head``) has seen enough: that is no error.
    """
    parser = argparse.ArgumentParser(
        prog="sapwood tree", allow_abbrev=False, description="Show the radix tree of a running engine."
    )
    parser.add_argument(
        "--url", type=admin_url, default=DEFAULT_URL, help="the engine's admin address (default: %(default)s)"
    )
    parser.add_argument(
        "--max-nodes",
        type=_node_count,
        default=200,
        help=f"most nodes shown, up to {MAX_CACHE_NODES} (default: %(default)s)",
    )
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="draw it again every so often, until Ctrl-C")
    add_key_file(parser)
    options = parser.parse_args(list(argv))
    try:
        asyncio.run(_show(options.url, options.key, options.max_nodes, options.watch))
    except Unanswered as error:
        print(f"sapwood tree: {options.url} {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # What is still buffered would be written, and fail again, at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        pass
    return 0


def _node_count(text: str) -> int:
    """Read ``--max-nodes``; what the engine would refuse is refused here."""
    number = int(text)
    if not 1 <= number <= MAX_CACHE_NODES:
        raise argparse.ArgumentTypeError(f"{text} cannot be used: take 1 to {MAX_CACHE_NODES} nodes")
    return number


async def _show(url: str, key: str | None, max_nodes: int, watch_seconds: float | None) -> None:
    async with admin_client(url, key=key, timeout_seconds=_TIMEOUT_SECONDS) as client:
        while True:
            load = await client.json(ADMIN_LOAD)
            cache = await client.json(ADMIN_CACHE, max_nodes=max_nodes)
            if watch_seconds is not None:
                print("\x1b[2J\x1b[H", end="")  # clear the terminal, cursor to its first line
            print("\n".join([*head_lines(load), "", *tree_lines(cache)]), flush=True)
            if watch_seconds is None:
                return
            await asyncio.sleep(watch_seconds)


def head_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return what ``/admin/load`` says, as two lines."""
    load = answer["load"]
    capacity = load["kv_capacity_tokens"]
    running, waiting = load["num_running"], load["num_waiting"]
    first = f"{answer['model']} · {answer['state']} · {running} running, {waiting} waiting"
    if not capacity:
        return [first]
    shares = [f"{load[f'kv_{state}_tokens'] / capacity:.0%} {name}" for state, name in KV_STATES]
    return [first, f"KV {capacity:,} tokens: {', '.join(shares)}"]


def tree_lines(cache: Mapping[str, Any]) -> list[str]:
    """Return what ``/admin/cache`` says, as a drawing of every namespace's tree."""
    lines: list[str] = []
    for entry in cache["namespaces"]:
        lines.append(f"● {namespace_name(entry['namespace'])}")
        children: dict[int | None, list[Mapping[str, Any]]] = {}
        for node in entry["nodes"]:
            children.setdefault(node["parent"], []).append(node)
        lines.extend(_branches(children))
    if not lines:
        lines.append("The tree is empty.")
    if cache["truncated"]:
        shown = sum(len(entry["nodes"]) for entry in cache["namespaces"])
        lines.append(f"… {cache['num_nodes'] - shown:,} more nodes; --max-nodes shows more")
    return lines


def _branches(children: Mapping[int | None, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield a line a node, each subtree below its root, the most used branch first.

    A stack of its own rather than recursion: a long conversation is a path of hundreds of nodes.
    """
    pending = _last_first(children.get(None, ()), margin="")
    while pending:
        node, margin, is_last = pending.pop()
        yield f"{margin}{'└── ' if is_last else '├── '}{_describe(node, children)}"
        below = margin + ("    " if is_last else "│   ")
        pending.extend(_last_first(children.get(node["id"], ()), margin=below))


def _last_first(siblings: Sequence[Mapping[str, Any]], *, margin: str) -> list[tuple[Mapping[str, Any], str, bool]]:
    """Return ``(node, margin, is it drawn last)``, in the order in which a stack takes them in."""
    ordered = sorted(siblings, key=lambda node: (node["hits"], node["tick"]))
    return [(node, margin, index == 0) for index, node in enumerate(ordered)]


def _describe(node: Mapping[str, Any], children: Mapping[int | None, Sequence[Mapping[str, Any]]]) -> str:
    parts = [counted(node["num_tokens"], "token"), counted(node["num_pages"], "page")]
    if node["lock_ref"]:
        parts.append(f"in use by {node['lock_ref']}")
    parts.append(f"hit {counted(node['hits'], 'time')}" if node["hits"] else "never hit")
    if node["priority"]:
        parts.append(f"priority {node['priority']}")
    hidden = node["num_children"] - len(children.get(node["id"], ()))
    if hidden:
        parts.append(f"{hidden} not shown below")
    return "  ".join(parts)

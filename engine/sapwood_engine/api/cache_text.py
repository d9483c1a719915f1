"""The tree's edges as text, for whoever may read prompts; a bounded part of each."""

from __future__ import annotations

import asyncio
from typing import Any

from sapwood_engine.api.engine_port import Engine, Tokenizer
from sapwood_engine.errors import RequestError

MAX_TEXT_TOKENS = 48
"""Of each node's edge, from its start: enough to know a prompt by."""
MAX_TEXT_NODES = 1_000


class TextClosed(RequestError):
    """Nobody has been named who may read prompts."""

    status = 403
    code = "text_closed"

    def __init__(self) -> None:
        super().__init__(
            "text: it shows prompts, which nobody may see while no admin key tells who asks: start the engine with "
            "--admin-key-file, or leave the field out."
        )


async def tree_with_text(engine: Engine, *, max_nodes: int) -> dict[str, Any]:
    """Return the tree as ``/admin/cache`` shows it, each node with ``text``: what its first tokens say.

    Whether the caller may read it is the caller's to know.
    """
    asked = {"max_nodes": min(max_nodes, MAX_TEXT_NODES), "token_ids": MAX_TEXT_TOKENS}
    tree = await engine.admin("cache", **asked)
    await asyncio.to_thread(_write_text, tree, engine.tokenizer)
    return tree


def _write_text(tree: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Put ``text`` in place of each node's ``token_ids``."""
    for namespace in tree["namespaces"]:
        for node in namespace["nodes"]:
            known = [each for each in node.pop("token_ids") if each >= 0]  # below 0: what is no token
            node["text"] = tokenizer.decode(known, skip_special_tokens=False)

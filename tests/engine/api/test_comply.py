"""llm-comply, somebody else's reading of OpenAI's chat API, finds nothing to object to.

Left out by name: what is not built yet and is therefore refused (`tests/engine/api/test_refusals.py`).
The same against any address, with some key whether or not it asks for one:
``python -m llm_comply.cli --format openai-chat -u URL/v1 -k KEY -m MODEL -f IDS``
"""

from __future__ import annotations

import asyncio
import json
import sys

from support_api import MODEL, served
from support_fake_client import FakeClient

from sapwood_engine.api.app import build_app

KEY = "sk-comply"
NOT_BUILT = {"chat-tool-calling", "chat-image-input"}
NOT_FOR_THIS_MODEL = {"chat-reasoning-summary"}
"""The suite itself skips it for models that do not reason."""
BUILT = {
    "chat-basic-response",
    "chat-system-prompt",
    "chat-multi-turn",
    "chat-streaming-response",
    "chat-streaming-usage",
    "chat-error-handling",
}


async def run_comply(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "llm_comply.cli",
        "--format",
        "openai-chat",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return output.decode()


async def test_the_openai_chat_suite_passes_without_errors_or_warnings() -> None:
    async with served(build_app(FakeClient(), api_keys=frozenset({KEY}))) as address:
        output = await run_comply(
            "--json",
            "-u",
            f"{address}/v1",
            "-k",
            KEY,
            "-m",
            MODEL,
            "-f",
            ",".join(BUILT | NOT_FOR_THIS_MODEL),
        )
    results = {result["id"]: result for result in json.loads(output)["results"]}
    assert {name: result["status"] for name, result in results.items()} == (
        dict.fromkeys(BUILT, "passed") | dict.fromkeys(NOT_FOR_THIS_MODEL, "skipped")
    )
    assert not [result["warnings"] for name, result in results.items() if "warnings" in result]


async def test_no_check_of_the_suite_is_left_out_unnamed() -> None:
    listed = await run_comply("--list")
    ids = {line.split()[0] for line in listed.splitlines() if line.startswith("  chat-")}
    assert ids == BUILT | NOT_BUILT | NOT_FOR_THIS_MODEL

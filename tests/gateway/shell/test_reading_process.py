"""Prompts are read in a process of its own, which other people's templates may end but not hold up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import tokenizers
from support_service import byte_tokenizer
from tokenizers.models import WordLevel

from sapwood_gateway.core.reading_turns import RestSettings, ServedModel
from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.shell.prompts import Unread
from sapwood_gateway.shell.reading_process import CannotLoad, ReadingProcess, ReadingSettings
from sapwood_text.bundle import TokenizerBundle, write_bundle
from sapwood_text.chat_template import JinjaTemplate
from sapwood_text.prompt_reader import PromptReader

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLES = (
    "{% set ns = namespace(x='x' * 1024) %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
)
HOARDS = "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}{% set ns.x = ns.x + [['x'] * 999999] %}{% endfor %}"
RAISES = "{{ raise_exception('no') }}"
WELL, ILL = (ServedModel(ServiceKey("team", name), "revision") for name in ("well", "ill"))
DEADLINE_SECONDS = 60.0
FOR_EVER = RestSettings(first=10_000.0, longest=10_000.0)


def body(*contents: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": each} for each in contents]}).encode()


def bundle(template: str = PLAIN, revision: str = "revision") -> bytes:
    return byte_tokenizer(JinjaTemplate(template, {})).bundle(revision)


@asynccontextmanager
async def reading(**settings: Any) -> AsyncIterator[ReadingProcess]:
    limits: dict[str, Any] = {"memory_bytes": 2**28, "read_seconds": 0.2}
    async with aclosing(ReadingProcess(ReadingSettings(**(limits | settings)))) as made:
        yield made


async def read(made: ReadingProcess, model: ServedModel = WELL) -> list[int] | Unread:
    found = await made.read(model, CHAT, body("hi"), None)
    return found if isinstance(found, str) else list(found)


EXPECTED = [*b"user: hi", 256]


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            if await holds():
                return
            await asyncio.sleep(0)


def is_gone(process_id: int) -> bool:
    """Whether it has ended, even if nobody has asked for its exit code."""
    try:
        return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_texts_and_chats_have_the_ids_that_the_reader_finds() -> None:
    reader = PromptReader.from_bundle(bundle())
    asked: list[tuple[str, dict[str, Any]]] = [
        (CHAT, json.loads(body("é", "<|end|>", "😀" * 1_000))),
        (TEXT, {"model": "m", "prompt": "once <|end|>"}),
        (TEXT, {"model": "m", "prompt": ["first", "second"]}),
    ]
    async with reading() as made:
        assert not made.process_ids
        assert await read(made) == "unreadable"
        await made.load(WELL, bundle())
        for path, given in asked:
            found = await made.read(WELL, path, json.dumps(given).encode(), "tenant")
            assert tuple(found) == reader.read(path, given)
        for unreadable in (b"{", b'{"prompt": NaN}', b'"\xff"', b"[" * 9_999, b'{"model": "m", "prompt": ""}', b"5"):
            assert await made.read(WELL, TEXT, unreadable, None) == "unreadable"
        assert await read(made) == EXPECTED
        assert len(made.process_ids) == 1


@pytest.mark.parametrize("template", [LOOPS, DOUBLES, HOARDS], ids=["loops", "doubles", "hoards"])
async def test_a_template_that_ends_the_process_rests_and_others_are_read_again(template: str) -> None:
    async with reading(rest=FOR_EVER, read_seconds=1.0) as made:
        await made.load(WELL, bundle())
        await made.load(ILL, bundle(template))
        waiting = [asyncio.create_task(read(made, ILL)) for _ in range(3)]
        assert await asyncio.gather(*waiting) == ["late"] * 3

        async def is_read() -> bool:
            assert await read(made, ILL) == "late"
            return await read(made) == EXPECTED

        await eventually(is_read)
        assert len(made.process_ids) == 2
        assert is_gone(made.process_ids[0])


SLOW = "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}" + PLAIN
"""Some tens of milliseconds."""


async def test_a_slow_template_rests_and_nobody_else_does() -> None:
    rest = RestSettings(slow=0.001, rests_per_slow=1e9)
    async with reading(rest=rest, read_seconds=30.0) as made:
        await made.load(ILL, bundle(SLOW))
        await made.load(WELL, bundle())
        assert await read(made, ILL) == EXPECTED
        assert made.rests(ILL)
        assert await read(made, ILL) == "late"
        assert not made.rests(WELL)
        assert len(made.process_ids) == 1


async def test_a_template_that_raises_costs_its_own_request_alone() -> None:
    async with reading() as made:
        await made.load(WELL, bundle())
        await made.load(ILL, bundle(RAISES))
        for _ in range(3):
            assert await read(made, ILL) == "unreadable"
            assert await read(made) == EXPECTED
        assert len(made.process_ids) == 1


async def test_a_process_that_is_killed_is_started_again_and_is_nobodys_fault() -> None:
    async with reading(rest=FOR_EVER) as made:
        await made.load(WELL, bundle())
        os.kill(made.process_ids[0], signal.SIGKILL)

        async def is_read() -> bool:
            return len(made.process_ids) == 2 and await read(made) == EXPECTED

        await eventually(is_read)


async def test_whoever_does_not_wait_any_more_is_not_read() -> None:
    async with reading(rest=FOR_EVER) as made:
        await made.load(WELL, bundle())
        await made.load(ILL, bundle(LOOPS))
        first, second = (asyncio.create_task(read(made, each)) for each in (WELL, ILL))
        await asyncio.sleep(0)
        second.cancel()
        assert await first == EXPECTED
        assert await read(made) == EXPECTED
        assert len(made.process_ids) == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (b"", "cannot be read"),
        (bundle(revision="other"), "revision other"),
        (b"x" * 2**20, "together"),
    ],
    ids=["no bundle", "another revision", "too much"],
)
async def test_what_is_no_tokenizer_of_the_model_is_refused(given: bytes, why: str) -> None:
    async with reading(bundle_bytes=2**19) as made:
        with pytest.raises(CannotLoad, match=why):
            await made.load(ILL, given)
        assert not made.has(ILL)
        await made.load(WELL, bundle())
        assert await read(made) == EXPECTED


def words(num: int, revision: str) -> bytes:
    """Return what has a vocabulary of ``num`` words."""
    made = tokenizers.Tokenizer(WordLevel({f"w{number}": number for number in range(num)}, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.decoder = tokenizers.decoders.ByteLevel()
    return write_bundle(TokenizerBundle(revision, made.to_str(), None, {}))


async def test_a_service_that_hoards_tokenizers_keeps_nobody_elses_from_being_read() -> None:
    hoarded = [ServedModel(ILL.service, str(number)) for number in range(3)]
    async with reading(rest=FOR_EVER, memory_bytes=2**26, read_seconds=1.0) as made:
        for model in hoarded[:2]:
            await made.load(model, words(60_000, model.revision))
        with pytest.raises(CannotLoad, match="would take more than 33554432 bytes"):
            await made.load(hoarded[2], words(120_000, hoarded[2].revision))
        await made.load(WELL, words(90_000, WELL.revision))
        assert [made.has(each) for each in (*hoarded, WELL)].count(True) == 2
        assert await made.read(WELL, TEXT, b'{"model": "m", "prompt": "w1 w2"}', None) == array("i", [1, 2])
        num_processes = len(made.process_ids)
        for model in hoarded:  # what they take is known
            if not made.has(model):
                with pytest.raises(CannotLoad, match="together"):
                    await made.load(model, words(60_000, model.revision))
        assert len(made.process_ids) == num_processes
        assert not made.rests(WELL)


async def test_a_tokenizer_that_has_no_room_beside_anothers_larger_one_is_loaded_alone() -> None:
    rest = RestSettings(first=10_000.0, longest=10_000.0, rests_per_slow=0.0)
    async with reading(rest=rest, memory_bytes=2**26, read_seconds=1.0) as made:
        await made.load(ILL, words(150_000, ILL.revision))
        await made.load(WELL, words(125_000, WELL.revision))
        assert len(made.process_ids) == 2
        assert not made.rests(WELL)
        assert (made.has(WELL), made.has(ILL)) == (True, False)
        assert await made.read(WELL, TEXT, b'{"model": "m", "prompt": "w1 w2"}', None) == array("i", [1, 2])


async def test_a_tokenizer_that_has_no_room_even_alone_rests() -> None:
    async with reading(rest=FOR_EVER, memory_bytes=2**26) as made:
        await made.load(WELL, bundle())
        with pytest.raises(CannotLoad, match="ended"):
            await made.load(ILL, words(300_000, ILL.revision))
        assert made.rests(ILL)
        assert not made.rests(WELL)


async def test_one_services_files_take_no_room_from_those_that_have_less() -> None:
    async with reading(bundle_bytes=3 * 2**20) as made:
        hoarded = [ServedModel(ILL.service, str(number)) for number in range(4)]
        for model in hoarded[:3]:
            await made.load(model, bundle(PLAIN + " " * 900_000, model.revision))
        with pytest.raises(CannotLoad, match="have more"):
            await made.load(hoarded[3], bundle(PLAIN + " " * 900_000, hoarded[3].revision))
        await made.load(WELL, bundle(PLAIN + "{#" + " " * 900_000 + "#}"))
        assert [made.has(each) for each in (*hoarded, WELL)].count(True) == 3
        assert await read(made) == EXPECTED


async def test_a_model_that_is_not_kept_is_not_read_any_more() -> None:
    async with reading() as made:
        await made.load(WELL, bundle())
        await made.load(ILL, bundle())
        made.keep({WELL})
        assert await read(made, ILL) == "unreadable"
        assert await read(made) == EXPECTED


async def test_the_process_ends_with_the_gateway() -> None:
    async with reading() as made:
        await made.load(WELL, bundle())
    assert is_gone(made.process_ids[0])


GATEWAY = """
import asyncio, sys
from pathlib import Path
from sapwood_gateway.core.reading_turns import ServedModel
from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.shell.reading_process import ReadingProcess

async def main():
    made = ReadingProcess()
    model = ServedModel(ServiceKey("team", "name"), "revision")
    await made.load(model, Path(sys.argv[1]).read_bytes())
    print(made.process_ids[0], flush=True)
    while True:
        await made.read(model, "/v1/chat/completions", Path(sys.argv[2]).read_bytes(), None)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("template", [PLAIN, LOOPS], ids=["idle", "busy"])
def test_the_process_ends_with_a_gateway_that_is_killed(template: str, tmp_path: Path) -> None:
    files = [tmp_path / "bundle", tmp_path / "body"]
    files[0].write_bytes(bundle(template))
    files[1].write_bytes(body("hi"))
    command = [sys.executable, "-c", GATEWAY, *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        process_id = int(gateway.stdout.readline())
        gateway.kill()
    psutil.wait_procs([each for each in psutil.process_iter() if each.pid == process_id], timeout=DEADLINE_SECONDS)
    assert is_gone(process_id)

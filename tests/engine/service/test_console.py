"""What the person at the terminal reads."""

from __future__ import annotations

import io
import os

from sapwood_engine.checkpoint.sampling_defaults import OPENAI_DEFAULTS, SamplingDefaults
from sapwood_engine.core.ports import Capacity
from sapwood_engine.service.console import Console, ready_card
from sapwood_engine.service.messages import Progress

CAPACITY = Capacity(1024, 16, 8192, 64, 2048, 49152)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def card(
    *,
    sampling: SamplingDefaults = OPENAI_DEFAULTS,
    chat: bool = True,
    needs_key: bool = False,
    has_console: bool = False,
) -> str:
    return ready_card(
        model="m",
        api_url="http://127.0.0.1:8000",
        admin_url="http://127.0.0.1:8001",
        capacity=CAPACITY,
        sampling=sampling,
        facts={
            "instruction set": "AVX-512, because the processor has it",
            "KV cache": "float16 (half the memory)",
            "context": "the model's sliding window",
        },
        seconds=2.34,
        chat=chat,
        needs_key=needs_key,
        has_console=has_console,
    )


def test_without_a_terminal_each_new_phase_is_one_plain_line() -> None:
    stream = io.StringIO()
    console = Console(stream)
    for fraction in (0.1, 0.5, 1.0):
        console.progress(Progress("load", "weights", fraction))
    console.progress(Progress("compile", "kernels"))
    assert stream.getvalue() == "load: weights\ncompile: kernels\n"


def test_on_a_terminal_progress_stays_on_one_line_with_its_share() -> None:
    stream = Terminal()
    console = Console(stream)
    console.progress(Progress("load", "weights", 0.25))
    console.progress(Progress("load", "weights", 1.0))
    console.ready("card")
    assert stream.getvalue() == "\r\x1b[Kload: weights  25%\r\x1b[Kload: weights 100%\r\x1b[Kcard\n"


def test_the_ready_card_tells_what_is_served_where_and_how_to_try_it() -> None:
    text = card()
    for part in (
        "2.3 s",
        "http://127.0.0.1:8000/v1",
        "16,384 tokens",
        "8,192 tokens",
        "AVX-512, because",
        "curl ",
    ):
        assert part in text
    assert "chat/completions" in text
    assert "Bearer" not in text


def test_the_ready_card_tells_where_the_console_is_if_there_is_one() -> None:
    assert "http://127.0.0.1:8000/ui\n" in card(has_console=True)
    assert "/ui" not in card()


def test_the_ready_card_has_one_line_for_the_kv_cache_and_one_for_the_context_each_with_its_reason() -> None:
    lines = [line.split(maxsplit=1) for line in card().replace("KV cache", "KV-cache").splitlines()[1:]]
    assert [value for label, value in lines if label == "KV-cache"] == [
        "16,384 tokens in pages of 16, float16 (half the memory)"
    ]
    assert [value for label, value in lines if label == "context"] == ["8,192 tokens, the model's sliding window"]


def test_a_console_that_nobody_reads_falls_silent() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:  # closing it must not fail either
        console = Console(stream)
        console.progress(Progress("load", "weights"))
        console.ready("card")


def test_the_ready_card_tells_how_it_samples_where_a_request_does_not_say() -> None:
    assert "temperature 1, top_p 1, where a request does not say" in card()
    assert "temperature 0.2, top_p 0.9, top_k 20, where" in card(
        sampling=SamplingDefaults(temperature=0.2, top_p=0.9, top_k=20)
    )


def test_the_example_fits_the_model_and_says_where_a_key_goes() -> None:
    assert "/v1/completions" in card(chat=False)
    assert '"prompt": "The capital' in card(chat=False)
    assert '"messages": [' in card()
    assert "Bearer <key>" in card(needs_key=True)

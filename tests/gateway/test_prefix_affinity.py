"""Prefix affinity with everything in its own process: two engines that publish their caches, and the gateway."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import support_fake_serve
from support_kv_events import decode

from sapwood_tools.bench.servers import free_port

PAGE = 16
FAKE_SERVE = str(Path(support_fake_serve.__file__))
_DEADLINE_SECONDS = 240.0


@dataclass
class Program:
    process: subprocess.Popen[bytes]
    url: str
    admin_url: str

    def num_blocks(self) -> int:
        """Blocks that an engine holds."""
        batch = decode(httpx.get(f"{self.admin_url}/admin/blocks", timeout=_DEADLINE_SECONDS).content)
        return sum(len(event.block_hashes) for event in batch.events if hasattr(event, "block_hashes"))


@contextmanager
def program(*command: str) -> Iterator[Program]:
    """Run ``command`` on two free ports until the end of the block."""
    port, admin_port = free_port(), free_port()
    argv = [sys.executable, *command, f"--port={port}", f"--admin-port={admin_port}"]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        made = Program(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")
        try:
            yield made
        finally:
            process.kill()


def is_ready(made: Program) -> bool:
    assert made.process.poll() is None
    try:
        return httpx.get(f"{made.admin_url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline


@dataclass
class Service:
    engines: list[Program]
    gateway: Program
    http: httpx.Client

    def model(self) -> str:
        """Return the only one that there is."""
        (card,) = self.http.get(f"{self.gateway.url}/v1/models").json()["data"]
        return str(card["id"])

    def series(self, name: str) -> dict[str, float]:
        """Return the samples of one of the gateway's series, by their labels as written."""
        lines = self.http.get(f"{self.gateway.admin_url}/metrics").text.splitlines()
        found = (line.removeprefix(name).rpartition(" ") for line in lines if line.startswith((name + "{", name + " ")))
        return {labels: float(value) for labels, _, value in found}

    def matched_tokens(self) -> tuple[float, float]:
        """Return how many were expected to be cached so far, and how many were."""
        names = ("sapwood_gateway_predicted_match_tokens_total", "sapwood_gateway_actual_match_tokens_total")
        predicted, actual = (sum(self.series(name).values()) for name in names)
        return predicted, actual

    def reads_texts(self) -> bool:
        before = self.series("sapwood_gateway_unread_prompts_total")
        self.ask("Is the tokenizer there?")
        return self.series("sapwood_gateway_unread_prompts_total") == before

    def ask(self, prompt: object) -> int:
        """Return how many tokens of ``prompt`` were cached."""
        request = {"model": self.model(), "prompt": prompt, "max_tokens": 2, "temperature": 0}
        answer = self.http.post(f"{self.gateway.url}/v1/completions", json=request)
        assert answer.status_code == 200, answer.text
        cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached


@dataclass
class Conversation:
    service: Service
    ids: list[int]
    lengths: list[int] = field(default_factory=list)

    def turn(self, *more: int) -> int:
        """Ask with all that was said and ``more``; return how many tokens were cached."""
        self.ids += more
        self.lengths.append(len(self.ids))
        return self.service.ask(self.ids)


@pytest.fixture(params=["told", "guessed"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    publish = ("--kv-events-port=0",) if request.param == "told" else ()
    with two_engines(FAKE_SERVE, *publish) as made:
        yield made


@contextmanager
def two_engines(*command: str) -> Iterator[Service]:
    """Run two engines that ``command`` starts, and a gateway before them."""
    with program(*command) as a, program(*command) as b:
        eventually(lambda: is_ready(a) and is_ready(b))  # one that gets ready under the gateway's eyes starts slowly
        engines = [f"--engine={each.url},{each.admin_url}" for each in (a, b)]
        # The machine may be busy with other things: no prompt is to be late for that.
        options = ("--policy=prefix-affinity", "--load-interval-seconds=0.1", "--prompt-patience-seconds=20", *engines)
        with (
            program("-m", "sapwood", "gateway", *options) as gateway,
            httpx.Client(timeout=_DEADLINE_SECONDS) as http,
        ):
            made = Service([a, b], gateway, http)
            eventually(lambda: is_ready(gateway) and made.series("sapwood_gateway_replicas")['{state="fit"}'] == 2)
            yield made


def test_from_its_second_turn_a_conversation_finds_its_beginning_until_its_engine_dies(service: Service) -> None:
    conversations = [Conversation(service, [number] * 40) for number in range(16)]  # so many that each engine gets some
    assert {each.turn() for each in conversations} == {0}
    for number in range(2):
        for each in conversations:
            before, expected = each.lengths[-1], service.matched_tokens()
            cached = each.turn(*range(100 + number, 120 + number))
            assert cached >= before // PAGE * PAGE
            predicted, actual = (now - then for now, then in zip(service.matched_tokens(), expected, strict=True))
            assert abs(predicted - actual) <= PAGE
    assert service.series("sapwood_gateway_route_total")['{result="prefix"}'] == 32
    going, staying = service.engines
    for engine in service.engines:
        load = service.http.get(f"{engine.admin_url}/admin/load").json()["load"]
        assert load["kv_evictable_tokens"] > 0
    going.process.kill()
    eventually(lambda: service.series("sapwood_gateway_replicas")['{state="fit"}'] == 1)
    for each in conversations:
        each.turn(1, 2, 3)
        assert each.turn(4) >= each.lengths[-2] // PAGE * PAGE
    assert service.http.get(f"{staying.admin_url}/admin/load").json()["state"] == "ready"


@pytest.mark.parametrize("service", ["told"], indirect=True)
def test_the_index_is_what_the_engines_hold_and_what_a_dead_one_held_is_forgotten(service: Service) -> None:
    for number in range(6):
        Conversation(service, [number] * 50).turn()

    def is_exact(*engines: Program) -> bool:
        held = sum(each.num_blocks() for each in engines)
        return held > 0 and service.series("sapwood_gateway_index_blocks")[""] == held

    eventually(lambda: is_exact(*service.engines))
    going, staying = service.engines
    going.process.kill()
    eventually(lambda: is_exact(staying))
    assert service.series("sapwood_gateway_event_gaps_total")['{reason="snapshot"}'] >= 2


@pytest.mark.parametrize("service", ["guessed"], indirect=True)
def test_a_text_is_read_with_the_tokenizer_that_an_engine_hands_out(service: Service) -> None:
    eventually(service.reads_texts)
    for name in ("an", "other"):
        text = f"Once upon a time there was {name} tale. " * 3
        service.ask(text)
        assert service.ask(text + "It ended.") >= len(text) // PAGE * PAGE
    # Its tokens are those of the same prompt in ids.
    assert service.ask(list((text + "It ended.").encode())) >= len(text) // PAGE * PAGE


@dataclass
class Chat:
    """A conversation over chat completions."""

    service: Service
    topic: int
    messages: list[dict[str, str]] = field(default_factory=list)
    num_tokens: int = 0
    """Of the last prompt."""

    def turn(self) -> int:
        """Ask for more; return how many tokens of the last prompt, in whole pages, were not cached."""
        if not self.messages:  # of its own, else all begin alike and one engine is enough for four
            self.messages.append({"role": "system", "content": f"{self.topic} is all that you know of."})
        self.messages.append({"role": "user", "content": f"Tell me {len(self.messages)} things about {self.topic}."})
        request = {"model": self.service.model(), "messages": self.messages, "max_tokens": 8, "temperature": 0}
        answer = self.service.http.post(f"{self.service.gateway.url}/v1/chat/completions", json=request).json()
        self.messages.append(answer["choices"][0]["message"])
        usage, before = answer["usage"], self.num_tokens
        self.num_tokens = usage["prompt_tokens"]
        return max(0, before // PAGE * PAGE - int(usage["prompt_tokens_details"]["cached_tokens"]))


def two_chats_on_each_engine(service: Service) -> list[Chat]:
    """Return four conversations that have had their first turn."""
    chats: list[list[Chat]] = [[], []]
    for topic in range(100, 200):
        before = [engine.num_blocks() for engine in service.engines]
        begun = Chat(service, topic)
        begun.turn()
        grown = [engine.num_blocks() > num for engine, num in zip(service.engines, before, strict=True)]
        if len(chats[grown.index(True)]) < 2:
            chats[grown.index(True)].append(begun)
        if [len(each) for each in chats] == [2, 2]:
            break
    return chats[0] + chats[1]


@pytest.mark.engine
def test_four_chats_with_a_real_model_find_their_beginnings_as_foreseen() -> None:
    command = ("-m", "sapwood", "serve", "--kv-tokens=8192", "--threads=1", "--thread-binding=off")
    num_turns = 4
    with two_engines(*command, "--kv-events-port=0") as service, ThreadPoolExecutor(4) as clients:
        eventually(service.reads_texts)
        chats = two_chats_on_each_engine(service)
        routes, compared = (service.series(f"sapwood_gateway_{name}_total") for name in ("route", "match_predictions"))
        lacking = [list(clients.map(Chat.turn, chats)) for _ in range(num_turns)]
        assert lacking == [[0] * 4] * num_turns, "a request did not go where its prefix is"
        by_prefix = '{result="prefix"}'
        assert service.series("sapwood_gateway_route_total")[by_prefix] - routes[by_prefix] == 4 * num_turns
        num_compared = sum(compared.values()) + 4 * num_turns
        eventually(lambda: sum(service.series("sapwood_gateway_match_predictions_total").values()) == num_compared)
        now = service.series("sapwood_gateway_match_predictions_total")
        results = {labels: number - compared[labels] for labels, number in now.items()}
        assert results['{result="within_page"}'] >= 0.99 * 4 * num_turns
        assert 0 < service.series("sapwood_gateway_event_lag_seconds")[""] < _DEADLINE_SECONDS

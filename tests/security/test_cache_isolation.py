"""What a tenant can learn of another one's prompts through the prefix cache: nothing (J01).

Two real engines without a model, their real APIs and a real gateway. How much was found is counted by the engines
themselves, so that an answer that only hides it would be seen.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from support_api import CHAT as CHAT_PATH
from support_api import TEXT, http, served
from support_gateway import CHAT, Gateway, gateway
from support_service import ThreadEngine, byte_tokenizer, thread_engine

from sapwood_contract.routing import CacheSharing
from sapwood_contract.trust import CREDENTIAL_HEADER, TENANT_HEADER, TRUSTED_HEADERS, engine_credential
from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.api.app import build_app
from sapwood_gateway.core.routes import Replica, Routes, Service
from sapwood_gateway.core.tenants import Tenant, Tenants, key_digest

SECRET = b"0123456789abcdef0123456789abcdef"
CREDENTIAL = engine_credential(SECRET, "team", "chat")
MODEL = "fake"
PROMPT = "a prompt that only its owner knows, of some tokens"


def tenant(name: str, group: str | None = None, namespace: str = "team") -> Tenant:
    digests = frozenset({key_digest(f"sk-{name}")})
    return Tenant(namespace=namespace, name=name, key_digests=digests, group=group)


TENANTS = Tenants([tenant("acme", "both"), tenant("globex", "both"), tenant("initech"), tenant("hooli", "others")])


NOTHING: Mapping[str, Any] = {}


@dataclass
class Asked:
    """What became of a prompt that was sent to each engine."""

    texts: list[str]
    found: list[int]
    """Tokens that each engine found in its cache."""

    @property
    def told(self) -> list[int | None]:
        """How many the answers tell of; None where they do not."""
        return sorted(map(told_in, self.texts), key=str)


@dataclass
class World:
    """A gateway over two engines that take turns."""

    gateway: Gateway
    engines: list[ThreadEngine]

    async def ask(
        self, name: str, path: str = TEXT, headers: Mapping[str, str] = NOTHING, body: Mapping[str, Any] = NOTHING
    ) -> Asked:
        """Ask for a prompt once of each engine."""
        content = {"prompt": PROMPT} if path == TEXT else {"messages": [{"role": "user", "content": PROMPT}]}
        whole = {"model": MODEL, "max_tokens": 1, "temperature": 0, **content, **body}
        given = {"Authorization": f"Bearer sk-{name}", **headers}
        before = self.num_found()
        texts = []
        for _ in self.engines:
            async with self.gateway.client.post(path, json=whole, headers=given) as response:
                texts.append(await response.text())
                assert response.status == 200, texts
        return Asked(texts, [now - then for now, then in zip(self.num_found(), before, strict=True)])

    async def forget(self, name: str) -> None:
        """Drop everything that is cached for ``name``, whatever its bodies said."""
        for engine in self.engines:
            await engine.client.admin("flush", tenant=f"tenant:team/{name}")

    def num_found(self) -> list[int]:
        """Return how many tokens of prompts each engine has found in its cache."""
        return [
            sum(
                int(float(line.rpartition(" ")[2]))
                for line in engine.client.render_metrics().body.decode().splitlines()
                if line.startswith("sapwood_prompt_tokens_total{") and 'source="device"' in line
            )
            for engine in self.engines
        ]


class Lines:
    """A chat template that writes one message a line."""

    source = ""
    special_tokens: Mapping[str, str] = NOTHING

    def render(self, messages: list[dict[str, Any]], **_: Any) -> str:
        return "".join(f"{message['content']}\n" for message in messages)


@asynccontextmanager
async def world(sharing: CacheSharing = "Tenant") -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        engines, replicas = [], []
        for number in range(2):
            engine = await stack.enter_async_context(thread_engine())
            engine.client.checkpoint_found("revision", byte_tokenizer(Lines()))
            app = build_app(engine.client, credentials=frozenset({CREDENTIAL}))
            url = await stack.enter_async_context(served(app))
            engines.append(engine)
            replicas.append(Replica(f"pod-{number}", f"pod-{number}", url, url))
        chat = Service(CHAT, (MODEL,), authentication="ApiKey", cache_sharing=sharing, hosts=("chat.example.com",))
        yield World(
            await stack.enter_async_context(
                gateway(Routes({CHAT: chat}, {CHAT: tuple(replicas)}), tenants=TENANTS, secret=SECRET)
            ),
            engines,
        )


def told_in(text: str) -> int | None:
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: {", "{"))]
    for usage in (json.loads(event).get("usage") for event in reversed(events)):
        if usage:
            details = usage["prompt_tokens_details"]
            return None if details is None else int(details["cached_tokens"])
    raise AssertionError(f"no usage in {text!r}")


WAYS: Mapping[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "plainly": (TEXT, {}, {}),
    "as a chat": (CHAT_PATH, {}, {}),
    "as a stream": (TEXT, {}, {"stream": True, "stream_options": {"include_usage": True}}),
    "as a stream of a chat": (CHAT_PATH, {}, {"stream": True, "stream_options": {"include_usage": True}}),
    "as ids": (TEXT, {}, {"prompt": list(PROMPT.encode())}),
    "among other prompts": (TEXT, {}, {"prompt": ["something else", PROMPT]}),
    "with a salt like a tenant": (TEXT, {}, {"cache_salt": "tenant:team/acme"}),
    "with a key like a tenant": (TEXT, {}, {"extra_key": "tenant:team/acme"}),
    "with both": (TEXT, {}, {"cache_salt": "tenant:team/acme", "extra_key": "tenant:team/acme"}),
    "with null for both": (TEXT, {}, {"cache_salt": None, "extra_key": None}),
    "with the other's session": (TEXT, {"X-Session-Id": "session-of-acme"}, {"prompt_cache_key": "key-of-acme"}),
    "with a forged tenant": (TEXT, {TENANT_HEADER: "tenant:team/acme"}, {}),
    "with a forged tenant in small letters": (TEXT, {TENANT_HEADER.lower(): "tenant:team/acme"}, {}),
    "with all forged": (
        TEXT,
        {CREDENTIAL_HEADER: CREDENTIAL, **dict.fromkeys(TRUSTED_HEADERS, "tenant:team/acme")},
        {},
    ),
    "by the service's own name": (TEXT, {"Host": "chat.team"}, {}),
    "by its name outside": (TEXT, {"Host": "chat.example.com"}, {}),
    "with the other's user field": (TEXT, {}, {"user": "acme"}),
}
"""How one asks: path, headers, body."""


async def test_a_tenant_finds_nothing_of_anothers_prompt_however_it_asks() -> None:
    session = {"X-Session-Id": "session-of-acme"}
    async with world() as here:
        for each in (TEXT, CHAT_PATH):
            await here.ask("acme", each, session, {"prompt_cache_key": "key-of-acme"})
            assert min((await here.ask("acme", each, session)).found) > 0  # its owner does find it
        for way, (path, headers, body) in WAYS.items():
            await here.forget("globex")  # what it has asked in other ways is its own
            probed = await here.ask("globex", path, headers, body)
            assert (probed.found, probed.told) == ([0, 0], [0, 0]), way
        assert min((await here.ask("acme", TEXT, session)).found) > 0


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
@pytest.mark.parametrize("sharing", ["Tenant", "Group", "Public"])
async def test_what_a_tenant_says_in_a_salt_is_its_own_whoever_says_the_same(sharing: CacheSharing, field: str) -> None:
    async with world(sharing) as here:
        said = {field: "guessable"}
        assert (await here.ask("acme", body=said)).found == [0, 0]
        assert min((await here.ask("acme", body=said)).found) > 0
        assert (await here.ask("globex", body=said)).found == [0, 0]
        assert (await here.ask("globex")).found == [0, 0]


@pytest.mark.parametrize(
    ("sharing", "finders"),
    [
        ("Tenant", {"acme"}),
        ("Group", {"acme", "globex"}),
        ("Public", {"acme", "globex", "initech", "hooli"}),
        ("None", set()),
    ],
)
@pytest.mark.parametrize("name", ["acme", "globex", "initech", "hooli"])
async def test_prefixes_are_shared_with_those_whom_the_service_names(
    sharing: CacheSharing, finders: set[str], name: str
) -> None:
    async with world(sharing) as here:
        assert (await here.ask("acme")).found == [0, 0]
        asked = await here.ask(name)
        assert [num > 0 for num in asked.found] == [name in finders] * 2
        assert asked.told == ([None, None] if sharing == "Public" else asked.found)


async def test_who_shares_with_everybody_is_told_no_counts_in_any_way_of_asking() -> None:
    async with world("Public") as here:
        for path, stream in itertools.product((TEXT, CHAT_PATH), (False, True)):
            body = {"stream": True, "stream_options": {"include_usage": True}} if stream else NOTHING
            for _ in range(2):
                asked = await here.ask("acme", path, body=body)
                assert asked.told == [None, None]
                assert not any("cached" in text for text in asked.texts)


async def test_the_engine_itself_takes_no_tenant_from_anybody_but_the_gateway() -> None:
    async with world() as here:
        url = here.gateway.fleet.routes.of(CHAT)[0].url
        async with httpx.AsyncClient(base_url=url) as engine:
            forged = {TENANT_HEADER: "tenant:team/acme"}
            answer = await engine.post(TEXT, json={"model": MODEL, "prompt": PROMPT}, headers=forged)
            assert answer.status_code == 403
            assert (await engine.post(TEXT, json={"model": MODEL, "prompt": PROMPT})).status_code == 401
        assert here.num_found() == [0, 0]


async def test_the_tree_that_an_operator_sees_names_no_tenant_and_no_salt() -> None:
    async with world() as here:
        await here.ask("acme", body={"cache_salt": "hunter2", "extra_key": "visible"})
        async with http(build_admin_app(here.engines[0].client)) as admin:
            seen = (await admin.get("/admin/cache")).text
    assert "visible" in seen
    assert '"tenant":"***"' in seen
    assert "acme" not in seen
    assert "hunter2" not in seen

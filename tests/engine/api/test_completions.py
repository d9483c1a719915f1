"""``/v1/completions``: prompts in four forms, echo, and log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest
from support_api import TEXT, http, strict_json, text_body
from support_fake_client import FakeClient, Say, Script, info, spoken

from sapwood_engine.api.app import build_app


async def ask(client: FakeClient, **fields: Any) -> dict[str, Any]:
    async with http(build_app(client)) as api:
        response = await api.post(TEXT, json=text_body(**fields))
    assert response.status_code == 200, response.text
    return dict(strict_json(response.text))


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([5, 6, 7], [(5, 6, 7)]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
    ],
)
async def test_a_prompt_is_text_or_ids_one_or_many(prompt: Any, ids: list[tuple[int, ...]]) -> None:
    client = FakeClient(reply="x")
    answer = await ask(client, prompt=prompt, n=2)
    assert [asked.prompt_ids for asked in client.asked] == ids
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(ids)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert answer["usage"]["completion_tokens"] == 2 * len(ids)


async def test_the_time_to_tokenize_is_told_of_text_and_not_of_ids() -> None:
    client = FakeClient(reply="x")
    await ask(client, prompt=["ab", "c"])
    await ask(client, prompt=[5, 6, 7])
    seconds = [asked.tokenize_seconds for asked in client.asked]
    assert [taken is not None and taken > 0 for taken in seconds] == [True, True, False]


async def test_choices_are_numbered_prompt_by_prompt() -> None:
    def script(asked: Any) -> Script:
        name = bytes(asked.prompt_ids).decode()
        return [*spoken(f"{name}0", index=0), *spoken(f"{name}1", index=1)]

    answer = await ask(FakeClient(script=script), prompt=["p", "q"], n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["p0", "p1", "q0", "q1"]


async def test_cached_tokens_of_several_prompts_add_up() -> None:
    usage = (await ask(FakeClient(num_cached_tokens=1), prompt=["ab", "cd"], n=2))["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize(("prompt", "text"), [("ab", "ab"), ([97, 98], "ab")])
async def test_echo_puts_the_prompt_before_the_text(prompt: Any, text: str) -> None:
    answer = await ask(FakeClient(reply="cd"), prompt=prompt, echo=True, n=2)
    assert [choice["text"] for choice in answer["choices"]] == [text + "cd"] * 2


async def test_echo_with_logprobs_scores_the_prompt_but_its_first_token() -> None:
    client = FakeClient(reply="c")
    answer = await ask(client, prompt="ab", echo=True, logprobs=1)
    assert client.asked[0].sampling.num_prompt_logprobs == 1
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "c"]
    assert logprobs["token_logprobs"][:2] == [None, -0.25]
    assert logprobs["top_logprobs"][:2] == [None, {"b": -0.25}]
    assert logprobs["text_offset"] == [0, 1, 2]


async def test_a_prompt_can_be_scored_without_new_tokens() -> None:
    client = FakeClient(script=lambda _: [Say(finish="length")])
    answer = await ask(client, prompt="ab", echo=True, logprobs=0, max_tokens=0)
    assert client.asked[0].stop.max_tokens == 0
    assert answer["choices"][0]["text"] == "ab"
    assert answer["choices"][0]["logprobs"]["tokens"] == ["a", "b"]


async def test_echo_alone_without_new_tokens_scores_nothing() -> None:
    client = FakeClient(script=lambda _: [Say(finish="length")])
    answer = await ask(client, prompt="ab", echo=True, max_tokens=0)
    assert client.asked[0].sampling.num_prompt_logprobs is None
    assert answer["choices"][0] == {
        "index": 0,
        "text": "ab",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }


async def test_the_sampled_token_is_among_its_alternatives() -> None:
    rare = info(65, -7.0, [(66, -0.1), (67, -0.2)])
    said: Script = [Say("A", token_ids=(65,), logprobs=(rare,), finish="stop")]
    logprobs = (await ask(FakeClient(script=lambda _: said), logprobs=2))["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"A": -7.0, "B": -0.1, "C": -0.2}]


async def test_offsets_count_characters_not_tokens() -> None:
    ids = "é€x".encode()
    said: Script = [Say("é€x", token_ids=tuple(ids), logprobs=tuple(map(info, ids)), finish="stop")]
    logprobs = (await ask(FakeClient(script=lambda _: said), logprobs=0))["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 0, 1, 1, 1, 2]


async def test_best_of_equal_to_n_changes_nothing() -> None:
    assert len((await ask(FakeClient(), n=2, best_of=2))["choices"]) == 2

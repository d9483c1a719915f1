"""The gateway names a prompt's blocks as the engine does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support_prefix_cache import serve

from sapwood_contract.http import EngineLoad, KvEvents, LoadSnapshot
from sapwood_engine.core.block_log import BlocksStored
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace
from sapwood_gateway.core.block_names import MOST_BLOCKS_OF_PROMPT, CacheFacts, Naming, PromptSpace, facts_of, prompt_of

NAMING = Naming("revision", 4)
EVENTS = KvEvents(epoch="e", topic="t", port=1, replay_port=2, page_size=16)
SAID = EngineLoad("m", "ready", LoadSnapshot(kv_capacity_tokens=1_000, kv_page_tokens=32), model_revision="r")


@pytest.mark.parametrize("extra_key", [None, "", "a"])
@pytest.mark.parametrize("salt", [None, "a", "half a pair: \ud800"])
@pytest.mark.parametrize("tenant", [None, "tenant:team/acme"])
def test_a_prompt_has_the_names_that_the_cache_of_an_engine_gives_it(
    extra_key: str | None, salt: str | None, tenant: str | None
) -> None:
    ids = [*range(9), 2**31 - 1]
    cache = PrefixCache(num_pages=8, page_size=4, log_blocks=True, partial_pages=True)
    serve(cache, ids, Namespace("revision", extra_key=extra_key, tenant_salt=salt, tenant=tenant))
    (stored,) = cache.take_block_events()
    assert isinstance(stored, BlocksStored)
    named = prompt_of(ids, NAMING, PromptSpace(extra_key, salt, tenant), "session")
    assert (named.num_tokens, tuple(named.chain), named.session) == (10, stored.hashes, "session")


def test_of_a_very_long_prompt_the_beginning_is_named() -> None:
    num_tokens = (MOST_BLOCKS_OF_PROMPT + 1) * NAMING.block_tokens
    named = prompt_of(range(num_tokens), NAMING, PromptSpace(), None)
    assert (named.num_tokens, len(named.chain)) == (num_tokens, MOST_BLOCKS_OF_PROMPT)


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (SAID, CacheFacts(Naming("r", 32), 31, None)),
        (replace(SAID, kv_events=EVENTS), CacheFacts(Naming("r", 16), 62, EVENTS)),
        (replace(SAID, model_revision=""), None),
        (replace(SAID, load=LoadSnapshot()), None),
        (replace(SAID, kv_events=replace(EVENTS, page_size=-1)), None),
        (
            replace(SAID, load=LoadSnapshot(kv_capacity_tokens=-5, kv_page_tokens=1)),
            CacheFacts(Naming("r", 1), 0, None),
        ),
    ],
    ids=["guessed", "published", "no revision", "no pages", "nonsense", "less than nothing"],
)
def test_what_a_report_says_of_the_cache(said: EngineLoad, facts: CacheFacts | None) -> None:
    assert facts_of(said) == facts

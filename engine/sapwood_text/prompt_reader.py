"""Which tokens a request's prompt has, for whoever routes by them: read as the engine reads it, or not at all.

Whatever the body, `PromptReader.read` returns: a request that cannot be read is routed by other things, and the engine
says what is wrong with it. What it does return are exactly the ids that the engine computes KV for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import tokenizers
from pydantic import ValidationError

from sapwood_text.bundle import read_bundle
from sapwood_text.chat_template import JinjaTemplate
from sapwood_text.conversation import render
from sapwood_text.errors import UnusableText, UnusableTokenizer
from sapwood_text.schemas import MAX_TOKENIZED_CHARACTERS, ChatCompletionRequest, CompletionRequest
from sapwood_text.tokenizer import Tokenizer
from sapwood_text.turns import TurnCache

CHAT_COMPLETIONS = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_MAX_TOKEN_ID = 2**31 - 1
"""What a key holds (`sapwood_contract.keys.TOKEN_BYTES`)."""

UnreadableReason = Literal["path", "body", "text", "too_long", "empty", "memory", "fault"]
"""``path``: none with a prompt. ``body``: the engine would refuse it, or is newer than this reader. ``text``: tokenizer
or template refuse it. ``too_long``: it would take more than a second. ``empty``: no token. ``memory``: there was not
enough. ``fault``: ours."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A prompt whose tokens are not known."""

    reason: UnreadableReason


class PromptReader:
    """Reads the prompts of one model, for one thread; a long prompt takes up to a second."""

    def __init__(self, tokenizer: Tokenizer, model_revision: str) -> None:
        self._tokenizer = tokenizer
        self._turns = TurnCache(tokenizer)
        self.model_revision = model_revision

    @classmethod
    def from_bundle(cls, data: bytes) -> PromptReader:
        """Return the reader for what an engine answers at ``/admin/tokenizer``; tenths of a second of work.

        Raises `UnusableTokenizer` where it cannot be read.
        """
        bundle = read_bundle(data)
        try:
            backend = tokenizers.Tokenizer.from_str(bundle.tokenizer)
        except Exception as error:  # tokenizers raises bare Exception
            raise UnusableTokenizer(
                f"its JSON cannot be read ({error})", "Run engine and gateway of one version."
            ) from error
        source = bundle.chat_template
        template = None if source is None else JinjaTemplate(source, bundle.special_tokens)
        return cls(Tokenizer(backend, chat_template=template), bundle.model_revision)

    def read(self, path: str, body: Any, tenant: str | None = None) -> tuple[int, ...] | Unreadable:
        """Return the ids of the prompt, of several the first, in ``body``: parsed JSON sent to ``path``.

        ``tenant``: whose it is. What was read before makes no request faster but those of the same namespace.
        """
        try:
            return self._read(path, body, tenant)
        except ValidationError:
            return Unreadable("body")
        except UnusableText:
            return Unreadable("text")
        except MemoryError:
            return Unreadable("memory")
        except Exception:  # nothing that a client writes may cost more than the affinity of its request
            return Unreadable("fault")

    def _read(self, path: str, body: Any, tenant: str | None) -> tuple[int, ...] | Unreadable:
        if path == CHAT_COMPLETIONS:
            chat = ChatCompletionRequest.model_validate(body)
            text = render(
                self._tokenizer,
                chat.messages,
                add_generation_prompt=chat.add_generation_prompt,
                continue_final_message=chat.continue_final_message,
                template_kwargs=chat.chat_template_kwargs,
            )
            if len(text) > MAX_TOKENIZED_CHARACTERS:
                return Unreadable("too_long")
            return tuple(self._turns.encode(text, (tenant, chat.cache_salt, chat.extra_key))) or Unreadable("empty")
        if path == COMPLETIONS:
            prompt = CompletionRequest.model_validate(body).prompt[0]
            if not prompt:
                return Unreadable("empty")
            if not isinstance(prompt, str):
                return tuple(prompt) if min(prompt) >= 0 and max(prompt) <= _MAX_TOKEN_ID else Unreadable("body")
            if len(prompt) > MAX_TOKENIZED_CHARACTERS:
                return Unreadable("too_long")
            return tuple(self._tokenizer.encode(prompt, add_special_tokens=True)) or Unreadable("empty")
        return Unreadable("path")

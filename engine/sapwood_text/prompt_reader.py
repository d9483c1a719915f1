"""Which tokens a request's prompt has, for whoever routes by them: read as the engine reads it, or not at all.

Whatever the body, `PromptReader.read` returns: a request that cannot be read is routed by other things, and the engine
says what is wrong with it. What it does return are exactly the ids that the engine computes KV for.
"""

from __future__ import annotations

from collections.abc import Sequence
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

CHAT_COMPLETIONS = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_MAX_TOKEN_ID = 2**31 - 1
"""What a key holds (`sapwood_contract.keys.TOKEN_BYTES`)."""

UnreadableReason = Literal["path", "body", "text", "too_long", "empty", "fault"]
"""``path``: none with a prompt. ``body``: the engine would refuse it, or is newer than this reader. ``text``: tokenizer
or template refuse it. ``too_long``: it would take more than a second. ``empty``: no token. ``fault``: ours."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A prompt whose tokens are not known."""

    reason: UnreadableReason


class PromptReader:
    """Reads the prompts of one model. May be used from several threads; a long prompt takes up to a second."""

    def __init__(self, tokenizer: Tokenizer, model_revision: str) -> None:
        self._tokenizer = tokenizer
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

    def read(self, path: str, body: Any) -> tuple[int, ...] | Unreadable:
        """Return the ids of the prompt, of several the first, in ``body``: parsed JSON sent to ``path``."""
        try:
            return self._read(path, body)
        except ValidationError:
            return Unreadable("body")
        except UnusableText:
            return Unreadable("text")
        except Exception:  # nothing that a client writes may cost more than the affinity of its request
            return Unreadable("fault")

    def _read(self, path: str, body: Any) -> tuple[int, ...] | Unreadable:
        if path == CHAT_COMPLETIONS:
            chat = ChatCompletionRequest.model_validate(body)
            text = render(
                self._tokenizer,
                chat.messages,
                add_generation_prompt=chat.add_generation_prompt,
                continue_final_message=chat.continue_final_message,
                template_kwargs=chat.chat_template_kwargs,
            )
            return self._encode(text, add_special_tokens=False)
        if path == COMPLETIONS:
            prompt = CompletionRequest.model_validate(body).prompt[0]
            return self._encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else _checked(prompt)
        return Unreadable("path")

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...] | Unreadable:
        if len(text) > MAX_TOKENIZED_CHARACTERS:
            return Unreadable("too_long")
        return _checked(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))


def _checked(ids: Sequence[int]) -> tuple[int, ...] | Unreadable:
    if not ids:
        return Unreadable("empty")
    return tuple(ids) if min(ids) >= 0 and max(ids) <= _MAX_TOKEN_ID else Unreadable("body")

"""What a request counts for, in tokens, before anybody knows what it will cost: in queues and in quotas."""

from __future__ import annotations

from typing import Any

DEFAULT_ANSWER_TOKENS = 256
"""Of an answer whose length nobody has limited: about what a chat's answer has."""
MOST_TOKENS = 10**9
"""No request counts for more: whatever a body says, sums stay numbers that every store can hold."""
_BODY_BYTES_PER_TOKEN = 4
"""English text has a token for four bytes; what JSON adds, and other scripts take away, roughly cancel out."""


def price_of(
    num_body_bytes: int, *, num_prompt_tokens: int | None = None, max_answer_tokens: int = DEFAULT_ANSWER_TOKENS
) -> int:
    """Return a request's price in tokens, from 1 to `MOST_TOKENS`.

    ``num_prompt_tokens``: None where the prompt was not read, so that the body's length must do.
    ``max_answer_tokens``: `answer_limit`.
    """
    if num_prompt_tokens is None:
        num_prompt_tokens = -(-num_body_bytes // _BODY_BYTES_PER_TOKEN)
    return max(1, min(MOST_TOKENS, num_prompt_tokens + max_answer_tokens))


def answer_limit(max_completion_tokens: Any, max_tokens: Any, num_choices: Any, *, num_prompts: int = 1) -> int:
    """Return how long all choices of an answer may get together, by these fields of a body; whatever is in them.

    ``num_prompts``: each has as many choices.

    The engine has the last word on a body. What is no number here is passed over.
    """
    length = next((each for each in (max_completion_tokens, max_tokens) if _is_count(each)), DEFAULT_ANSWER_TOKENS)
    return min(MOST_TOKENS, int(length) * (num_choices if _is_count(num_choices) else 1) * num_prompts)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

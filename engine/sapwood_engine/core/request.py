"""What a caller asks for, as the core sees it: integers, limits and a namespace.

Everything here is immutable; the scheduler keeps its own mutable record beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NewType

RequestId = NewType("RequestId", str)

FinishReason = Literal["stop", "length", "abort", "error"]
"""``abort`` and ``error`` never reach an OpenAI client as a finish_reason; the API turns them into error events."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Who may share cached prefixes with whom; compared field by field, never as joined text."""

    model_revision: str
    adapter_id: str | None = None
    extra_key: str | None = None
    tenant_salt: str | None = None
    """What the request itself says (``cache_salt``)."""
    tenant: str | None = None
    """What the gateway says of who asks; no request can say it itself."""


@dataclass(frozen=True, slots=True)
class ContentSpan:
    """Prompt positions whose input is content (an image, say); the token ids there are mere placeholders.

    Sequences share the KV of such a position only where the content is the same.
    """

    start: int
    """Its first position."""
    length: int
    """Positions that it takes, at least 1."""
    content_hash: bytes
    """A cryptographic digest of the content and of whatever decides how the model sees it."""

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn.

    ``seed`` is always set (the service draws one where the caller gave none): the token at output index ``i``
    depends on the logits, on these parameters and on ``(seed, i)`` alone, never on the batch. The logits themselves
    do depend on it where products round by the number of rows: the same ids come again in float32, but in bfloat16
    (the default where the processor has it) another batch may bring others.
    """

    seed: int
    temperature: float = 1.0
    """0 means greedy."""
    top_k: int = 0
    """0 means all."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_logprobs: int | None = None
    """Alternatives reported with every sampled token; 0 reports the sampled token alone, None reports nothing."""
    num_prompt_logprobs: int | None = None
    """The same for prompt tokens (``echo`` with ``logprobs``); such a prompt is computed whole, no prefix reused."""


@dataclass(frozen=True, slots=True)
class StopRules:
    """When generation ends, as far as token ids can say. Stop strings are found above the engine."""

    max_tokens: int
    """Most output tokens; with 0 the prompt is computed, and scored where asked for."""
    min_tokens: int = 0
    """Output tokens before which no id of ``stop_token_ids`` may be sampled."""
    stop_token_ids: frozenset[int] = frozenset()
    """Ids that end the output, end-of-sequence ids included unless the caller ignores them."""


@dataclass(frozen=True, slots=True)
class Request:
    """One generation asked for."""

    request_id: RequestId
    namespace: Namespace
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopRules
    priority: int = 0
    """Higher is served first, under the policies that look at it."""
    routing_key: str | None = None
    """Groups requests under the ``routing-key`` policy."""
    cache_pin_seconds: float = 0.0
    """Under the eviction policy ``ttl``: how long after its end what it leaves in the cache is kept before what is not
    pinned, and dropped afterwards unless it is in use; 0 pins nothing."""
    content: tuple[ContentSpan, ...] = ()
    """What of the prompt is not text, in order and without overlap."""
    is_sibling: bool = False
    """Another choice of a call whose prompt counts with its first one."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one position, natural logarithm of the distribution before truncation by top-k/p."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """``(token_id, logprob)`` of the most likely tokens, best first."""


@dataclass(slots=True)
class TokenOutput:
    """What one step brought a request; the last one of a request carries ``finish``.

    Slotted but not frozen, because one is made for every token and freezing triples its cost; nobody mutates it.
    """

    request_id: RequestId
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    num_cached_tokens: int | None = None
    """Set in the first output of a request."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of ``token_ids`` where asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """For prompt tokens 1 … n-1, in the first output, where asked for."""
    num_chunks: int | None = None
    """In how many steps the prompt was computed; set in the first output of a request."""

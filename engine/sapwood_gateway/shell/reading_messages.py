"""What the gateway and its reading process tell each other: frames of a length and msgpack, an answer a question."""

from __future__ import annotations

import msgspec

from sapwood_gateway.core.reading_turns import ServedModel

LENGTH_BYTES = 4
"""Before each message, big-endian."""
MOST_ANSWER_BYTES = 16 * 2**20
"""Four million tokens; no prompt that is read has so many."""
EXIT_MEMORY = 3
"""The exit code of a reading process that had not enough memory."""


class Load(msgspec.Struct, tag=True, array_like=True):
    """Have a model's tokenizer; answered by `Loaded` or `Refused`."""

    model: ServedModel
    bundle: bytes


class Forget(msgspec.Struct, tag=True, array_like=True):
    """Have a model's tokenizer no more; answered by `Done`."""

    model: ServedModel


class ReadPrompt(msgspec.Struct, tag=True, array_like=True):
    """Tell the tokens of the prompt in a JSON ``body`` that was sent to ``path``; answered by `Tokens`."""

    model: ServedModel
    path: str
    body: bytes
    tenant: str | None


class Done(msgspec.Struct, tag=True, array_like=True):
    """It is done; at first: the process has begun."""


class Loaded(msgspec.Struct, tag=True, array_like=True):
    """The tokenizer is of this revision."""

    revision: str
    num_bytes: int
    """Of memory, that it takes from now on."""


class Refused(msgspec.Struct, tag=True, array_like=True):
    """It is no tokenizer that is read here."""

    reason: str


class Tokens(msgspec.Struct, tag=True, array_like=True):
    """Ids of a prompt."""

    ids: bytes
    """int32, as this machine writes them; none where they cannot be known."""
    seconds: float = 0.0
    """Of the processor's time, that it took: a machine that is busy with other things makes nobody slow."""


Question = Load | Forget | ReadPrompt
Answer = Done | Loaded | Refused | Tokens

decode_question = msgspec.msgpack.Decoder(Question).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def frame(message: Question | Answer) -> bytes:
    """Return ``message`` as it is written."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data

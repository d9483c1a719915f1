"""What makes a model's tokenizer and chat template anew without its files: the answer of ``/admin/tokenizer``."""

from __future__ import annotations

import msgspec

from sapwood_text.errors import UnusableTokenizer


class TokenizerBundle(msgspec.Struct, frozen=True):
    """A tokenizer as values; a reader passes over fields that it does not know."""

    model_revision: str
    tokenizer: str
    """As in ``tokenizer.json``."""
    chat_template: str | None
    """In Jinja; None where the model has none."""
    special_tokens: dict[str, str]
    """What the template may name: ``bos_token`` and its like -> its text."""


def write_bundle(bundle: TokenizerBundle) -> bytes:
    """Return ``bundle`` in msgpack."""
    return msgspec.msgpack.encode(bundle)


def read_bundle(data: bytes) -> TokenizerBundle:
    """Return what `write_bundle` wrote; raises `UnusableTokenizer` for anything else."""
    try:
        return msgspec.msgpack.decode(data, type=TokenizerBundle)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnusableTokenizer(
            f"the bundle cannot be read ({error})", "Run engine and gateway of one version."
        ) from error

"""Reads a tokenizer and its chat template from where a checkpoint keeps them: a Hugging Face folder or a
GGUF.

transformers does the reading, so that ids and rendered chats are its own, through parts of it that do not
import torch: its `AutoTokenizer` does, and costs this process two seconds and 300 MB. Where it does not read what a
GGUF's ``tokenizer.ggml.pre`` says, that is done here, as llama.cpp's ``llama-vocab.cpp`` has it.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import tokenizers
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS, convert_gguf_tokenizer

from sapwood_engine.checkpoint.gguf_file import read_metadata
from sapwood_engine.checkpoint.source import Checkpoint
from sapwood_engine.errors import CheckpointError
from sapwood_text.chat_template import JinjaTemplate
from sapwood_text.errors import UnusableTokenizer
from sapwood_text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_GGUF_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_GGUF_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
_DIGITS_APART = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
"""Values of ``pre`` that make every digit a piece of its own before GPT-2's split; transformers leaves that out."""
_SPLIT_AS_GPT2 = frozenset({"default", "gpt-2", "phi-2", "mpt", "olmo", "jais"})
"""Those that mean GPT-2's split and nothing else, which is what transformers does with a value it does not know.
``default`` is said of vocabularies that the converter did not know: llama.cpp's split for it is a guess as well."""
_WHOLE_TOKENS_FIRST = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken"})
"""Those where a piece that is a token needs no merges, and where BOS begins a text unless the file says otherwise."""


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """Read the tokenizer that comes with the weights; raises `CheckpointError`."""
    return _from_gguf(checkpoint.weights[0]) if checkpoint.kind == "gguf" else _from_folder(checkpoint.folder)


def _from_folder(folder: Path) -> Tokenizer:
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(
            str(folder),
            "has no tokenizer.json",
            "Save it with transformers' save_pretrained, which writes one.",
        )
    try:
        reader = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # tokenizers raises bare Exception for a malformed file
        raise CheckpointError(
            str(folder / "tokenizer.json"), f"cannot be read: {error}", "Download it again."
        ) from error
    ends = [reader.eos_token_id]
    for name in ("generation_config.json", "config.json"):
        ends += _end_ids(folder / name)
    return _tokenizer(reader, ends, folder)


def _end_ids(path: Path) -> list[int]:
    """``eos_token_id`` of a configuration file, which may be absent, null, a number or a list."""
    if not path.is_file():
        return []
    try:
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise CheckpointError(str(path), f"is not a JSON object: {error}", "Download it again.") from error
    return value if isinstance(value, list) else [value]


def _from_gguf(path: Path) -> Tokenizer:
    metadata = read_metadata(path)
    ggml = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    if "tokens" not in ggml:
        raise CheckpointError(str(path), "holds no tokenizer", "Convert the model again, with its vocabulary.")
    parts = {
        "tokenizer_type": ggml.get("model"),
        "pre_tokenizer_type": ggml.get("pre"),
        "tokens": ggml["tokens"],
    }
    parts |= {name: ggml[name] for name in ("scores", "token_type", "merges") if name in ggml}
    try:
        backend, _ = convert_gguf_tokenizer(metadata.get("general.architecture", "llama"), parts)
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            str(path), f"its tokenizer cannot be built: {error}", "Convert the model again."
        ) from error
    pre = ggml.get("pre", "default")
    if ggml.get("model") == "gpt2":
        _apply_pre_tokenizer(backend, pre, path)
    named = {name: ggml["tokens"][ggml[key]] for name, key in _GGUF_SPECIAL_TOKENS.items() if key in ggml}
    reader = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        tokenizer_object=backend,
        chat_template=metadata.get("tokenizer.chat_template"),
        # llama.cpp begins a sentencepiece text with BOS unless the file says otherwise
        add_bos_token=ggml.get("add_bos_token", ggml.get("model") == "llama" or pre in _WHOLE_TOKENS_FIRST),
        add_eos_token=ggml.get("add_eos_token", False),
        **named,
    )
    return _tokenizer(reader, [ggml.get(key) for key in _GGUF_END_TOKENS], path)


def _apply_pre_tokenizer(backend: tokenizers.Tokenizer, pre: str, path: Path) -> None:
    """Give a byte-level vocabulary what ``pre`` means and transformers does not read."""
    if pre in _DIGITS_APART:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    elif pre in _WHOLE_TOKENS_FIRST:
        backend.model.ignore_merges = True
    elif pre not in _SPLIT_AS_GPT2 and pre not in GGUF_PRE_TOKENIZER_SPLITS:
        _log.warning(
            "tokenizer.ggml.pre %r is not known here: text is split as for GPT-2, perhaps not as the model learnt it",
            pre,
            extra={"path": str(path)},
        )


def _tokenizer(reader: PreTrainedTokenizerFast, end_ids: list[int | None], path: Path) -> Tokenizer:
    source = reader.chat_template
    if isinstance(source, dict):  # templates by name, of which transformers renders this one unless told otherwise
        source = source.get("default")
    try:
        return Tokenizer(
            reader.backend_tokenizer,
            eos_token_ids=tuple(dict.fromkeys(i for i in end_ids if i is not None)),
            chat_template=JinjaTemplate(source, reader.special_tokens_map) if source else None,
        )
    except UnusableTokenizer as error:
        raise CheckpointError(str(path), error.problem, error.fix) from error

"""Tokenizers read from GGUF files and Hugging Face folders give transformers' own ids and chats, without
torch.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import AutoTokenizer

from sapwood_engine.checkpoint.source import Checkpoint, open_checkpoint
from sapwood_engine.errors import CheckpointError
from sapwood_engine.service.tokenizer_files import load_tokenizer
from sapwood_text.errors import UnusableText
from sapwood_text.prompt_reader import PromptReader

TEXTS = [
    "Hello world",
    "  two  spaces   three\n\n\ttab\r\n",
    "naïve café – “quotes” … ½ ² ١٢٣",
    "日本語のテキスト 한국어 हिन्दी עברית",
    "😀👩‍👩‍👧‍👦🇫🇷 e\u0301",
    "def f(x):\n    return x ** 2  # 12345",
    "<|im_start|>user\nhi<|im_end|><|endoftext|> <|unknown|>",
    "a\u0000b\ufffdc\u200bd",
    "",
    " ",
    "x" * 300,
    "https://example.org/a?b=c&d=%20#e I'll we've don't IT'S",
]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "alpha\u0000omega"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "and <|im_end|> now?"},
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{% generation %}[{{ m['role'] }}] {{ m['content'] | tojson }}\n{% endgeneration %}{% endfor %}"
    "{% if add_generation_prompt %}[answer]{% endif %}"
)


def reference(path: Path) -> Any:
    """What transformers itself reads."""
    if path.is_file():
        return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    return AutoTokenizer.from_pretrained(str(path))


def gguf_checkpoint(path: Path) -> Checkpoint:
    return Checkpoint("gguf", "tiny", "revision", path.parent, (path,))


def folder_checkpoint(path: Path) -> Checkpoint:
    return Checkpoint("safetensors", "tiny", "revision", path, ())


def around_digits(text: str) -> list[str]:
    """``text`` cut before and behind every numeral of Unicode."""
    pieces = [""]
    for char in text:
        if unicodedata.category(char).startswith("N"):
            pieces += [char, ""]
        else:
            pieces[-1] += char
    return pieces


def write_gguf(path: Path, *, model: str, add_bos: bool | None, pre: str = "default") -> Checkpoint:
    """A GGUF that holds nothing but a small tokenizer."""
    space = "\N{LOWER ONE EIGHTH BLOCK}" if model == "llama" else "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"
    letters = [chr(code) for code in range(0x21, 0x7F)]
    tokens = ["<unk>", "<s>", "</s>", space, *letters, "he", "ll", "hell", "hello", space + "hello", "unmerged"]
    kinds = [2, 3, 3, *[1] * (len(tokens) - 3)]
    if model == "llama":
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
        kinds += [6] * 256
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types(kinds)
    if model == "gpt2":
        writer.add_token_merges(["h e", "l l", "he ll", "hell o", f"{space} hello"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    writer.add_chat_template(TEMPLATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return gguf_checkpoint(path)


def assert_same(checkpoint: Checkpoint, expected: Any, texts: list[str]) -> None:
    tokenizer = load_tokenizer(checkpoint)
    for text in texts:
        for special in (True, False):
            ids = expected.encode(text, add_special_tokens=special)
            assert tokenizer.encode(text, add_special_tokens=special) == ids, text
            assert tokenizer.decode(ids) == expected.decode(ids, skip_special_tokens=True), text
            assert tokenizer.decode(ids, skip_special_tokens=False) == expected.decode(ids), text
    reader = PromptReader.from_bundle(tokenizer.bundle("revision"))
    chat = tuple(tokenizer.encode(tokenizer.render_chat(CHAT), add_special_tokens=False))
    assert reader.read("/v1/chat/completions", {"model": "m", "messages": CHAT}) == chat
    for text in filter(None, texts):
        expected_ids = tuple(expected.encode(text, add_special_tokens=True))
        assert reader.read("/v1/completions", {"model": "m", "prompt": text}) == expected_ids
    assert tokenizer.eos_token_ids == (expected.eos_token_id,)
    assert tokenizer.vocab_size == len(expected)
    for prompt in (True, False):
        rendered = expected.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=prompt)
        assert tokenizer.render_chat(CHAT, add_generation_prompt=prompt) == rendered


@pytest.fixture(scope="module")
def builtin() -> Checkpoint:
    return open_checkpoint("builtin:smollm2-135m")


@pytest.fixture(scope="module")
def builtin_reference(builtin: Checkpoint) -> Any:
    return reference(builtin.weights[0])


def test_the_builtin_model_is_read_as_transformers_reads_it(
    builtin: Checkpoint, builtin_reference: Any, tmp_path: Path
) -> None:
    assert_same(builtin, builtin_reference, [text for text in TEXTS if around_digits(text) == [text]])
    builtin_reference.save_pretrained(tmp_path)
    assert_same(folder_checkpoint(tmp_path), builtin_reference, TEXTS)


@pytest.mark.parametrize(
    "text",
    ["in 1990", "a  12 b", "    7\n\n  8", "3.14 and 1,000", "x2y", "v2\u00bd \u0661\u0662", "12345 67"],
)
def test_every_digit_of_smollm2_is_a_piece_of_its_own(text: str, builtin: Checkpoint, builtin_reference: Any) -> None:
    tokenizer = load_tokenizer(builtin)
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = [builtin_reference.encode(piece, add_special_tokens=False) for piece in around_digits(text)]
    assert ids == [token_id for piece in pieces for token_id in piece]
    assert tokenizer.decode(ids) == text


def test_spaces_before_a_digit_of_smollm2_stay_together(builtin: Checkpoint) -> None:
    tokenizer = load_tokenizer(builtin)
    ids = tokenizer.encode("a   1", add_special_tokens=False)
    assert [tokenizer.token_bytes(token_id) for token_id in ids] == [b"a", b"   ", b"1"]


@pytest.mark.parametrize("pre", ["default", "gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_a_split_that_transformers_reads_is_its_own(pre: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    checkpoint = write_gguf(path, model="gpt2", add_bos=False, pre=pre)
    assert_same(checkpoint, reference(path), ["hello   123 hello'S", "12345", "!?\n\n hello", "HELLO hello"])


@pytest.mark.parametrize(("pre", "add_bos", "begins"), [("llama-bpe", None, True), ("llama-bpe", False, False)])
def test_a_llama_3_vocabulary_takes_whole_tokens_first_and_begins_with_bos(
    pre: str, add_bos: bool | None, begins: bool, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "tiny.gguf", model="gpt2", add_bos=add_bos, pre=pre))
    ids = tokenizer.encode("unmerged", add_special_tokens=True)
    texts = [tokenizer.token_bytes(token_id) for token_id in ids]
    assert texts == ([b"<s>"] if begins else []) + [b"unmerged"]


def test_without_that_a_token_that_no_merges_lead_to_is_not_used(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "tiny.gguf", model="gpt2", add_bos=None))
    assert len(tokenizer.encode("unmerged", add_special_tokens=True)) == len("unmerged")


def test_a_split_that_nobody_knows_is_warned_of_by_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tiny.gguf"
    with caplog.at_level(logging.WARNING):
        load_tokenizer(write_gguf(path, model="gpt2", add_bos=False, pre="qwen2"))
        load_tokenizer(write_gguf(path, model="gpt2", add_bos=False, pre="smollm"))
        assert not caplog.records
        checkpoint = write_gguf(path, model="gpt2", add_bos=False, pre="of-next-year")
        assert_same(checkpoint, reference(path), ["hello   123 hello"])
    assert "'of-next-year'" in caplog.text


@pytest.mark.parametrize("add_bos", [True, False, None])
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_a_gguf_tokenizer_is_read_as_transformers_reads_it(model: str, add_bos: bool | None, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    checkpoint = write_gguf(path, model=model, add_bos=add_bos)
    assert_same(checkpoint, reference(path), ["hello", " hello", "hello hello!", "ho  he", "<s>he</s>"])


def test_a_template_that_refuses_is_a_bad_request_that_repeats_no_content(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "tiny.gguf", model="gpt2", add_bos=False))
    with pytest.raises(UnusableText, match="no tools") as refusal:
        tokenizer.render_chat([{"role": "tool", "content": "a secret"}])
    assert refusal.value.field == "messages"
    assert "secret" not in str(refusal.value)


def test_every_end_token_that_a_folder_names_ends_an_answer(tmp_path: Path, builtin_reference: Any) -> None:
    builtin_reference.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": None}))
    assert load_tokenizer(folder_checkpoint(tmp_path)).eos_token_ids == (2, 0)


def test_a_vocabulary_that_writes_bytes_in_an_unknown_way_is_refused_with_its_folder(
    tmp_path: Path, builtin_reference: Any
) -> None:
    builtin_reference.save_pretrained(tmp_path)
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    described["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match="WordPiece") as refusal:
        load_tokenizer(folder_checkpoint(tmp_path))
    assert str(tmp_path) in str(refusal.value)


def test_of_several_chat_templates_of_a_folder_the_default_is_taken(tmp_path: Path, builtin_reference: Any) -> None:
    builtin_reference.save_pretrained(tmp_path)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("never")
    expected = reference(tmp_path)
    assert isinstance(expected.chat_template, dict)
    assert_same(folder_checkpoint(tmp_path), expected, ["hi"])


@pytest.mark.parametrize("content", [None, "{", '{"version": "1.0"}'])
def test_a_folder_without_a_readable_tokenizer_is_refused_by_name(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(folder_checkpoint(tmp_path))


def test_a_gguf_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="no tokenizer"):
        load_tokenizer(gguf_checkpoint(tmp_path / "tiny.gguf"))


def test_reading_and_using_a_tokenizer_does_not_import_torch(tmp_path: Path) -> None:
    checkpoint = write_gguf(tmp_path / "tiny.gguf", model="llama", add_bos=True)
    code = (
        "import sys; from pathlib import Path\n"
        "from sapwood_engine.checkpoint.source import Checkpoint\n"
        "from sapwood_engine.service.tokenizer_files import load_tokenizer\n"
        "path = Path(sys.argv[1])\n"
        "tokenizer = load_tokenizer(Checkpoint('gguf', '', '', path.parent, (path,)))\n"
        "tokenizer.render_chat([{'role': 'user', 'content': 'hello'}])\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(checkpoint.weights[0])], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr

"""The compiled step says what torch's composition in float32 says over the same 16-bit weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support_checkpoints import VOCAB_SIZE
from support_compiled_models import (
    WEIGHT_DTYPES,
    Checkpoint,
    Compiled,
    compile_decoder,
    write_checkpoint,
)
from support_kernels import keep_kernels
from support_tiny_models import PagedModel, Run, assert_same_greedy, greedy
from support_torch_executor import TINY

NUM_TOKENS = 8
LENGTHS = (1, 3, 3, 8, 21, 40)
LONG = (300, 1, 270, 40, 65)
"""Prompts that together pass over a panel more than once, and whose keys come in several parts."""


@dataclass(frozen=True, slots=True)
class Case:
    model_type: str
    settings: dict[str, Any] = field(default_factory=dict)
    rotary_dim: int | None = None


CASES = {
    "llama": Case("llama"),
    "llama with tied embeddings": Case("llama", {"tie_word_embeddings": True}),
    "llama with biases": Case("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with one KV head for all": Case("llama", {"num_key_value_heads": 1}),
    "llama with a KV head for each": Case("llama", {"num_key_value_heads": 4}),
    "llama with gelu": Case("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama with biases and gelu in odd sizes": Case(
        "llama",
        {"hidden_size": 76, "intermediate_size": 101, "vocab_size": 163, "attention_bias": True, "mlp_bias": True}
        | {"hidden_act": "gelu_pytorch_tanh"},
    ),
    "llama with heads of 80": Case("llama", {"head_dim": 80}),
    "llama with half heads rotating": Case("llama", rotary_dim=32),
    "llama with a scaled rotation": Case(
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "mistral": Case("mistral", {"sliding_window": None}),
    "qwen2": Case("qwen2"),
    "qwen2 with tied embeddings": Case("qwen2", {"tie_word_embeddings": True}),
    "qwen3": Case("qwen3"),
    "qwen3 with heads of 80": Case("qwen3", {"head_dim": 80}),
    "qwen3 with narrow heads": Case("qwen3", {"head_dim": 8, "num_attention_heads": 6}),
}


def prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


def prefill(texts: list[list[int]]) -> list[Run]:
    return [Run(s, 0, text) for s, text in enumerate(texts)]


def paged(compiled: Compiled, num_sequences: int) -> PagedModel:
    return PagedModel(
        compiled.model, compiled.spec, num_sequences=num_sequences, max_tokens=320, dtype=compiled.kv_dtype
    )


def tolerance(compiled: Compiled) -> float:
    """Of final states, relative: what is multiplied in bfloat16 is rounded to 8 bits, keys and values to 11 else."""
    return 0.03 if compiled.kv_dtype == torch.bfloat16 else 0.003


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest distance of a row, in lengths of the row."""
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


@pytest.fixture(scope="module", params=WEIGHT_DTYPES, ids=str)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("plain"), "llama", request.param)


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_family_and_shape_computes_what_torch_does(
    name: str, dtype: torch.dtype, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    case = CASES[name]
    checkpoint = write_checkpoint(tmp_path, case.model_type, dtype, rotary_dim=case.rotary_dim, **case.settings)
    compiled, (decoder, spec) = checkpoint.compiled(pytestconfig), checkpoint.composed()
    texts = prompts(LENGTHS)
    theirs = PagedModel(decoder, spec, num_sequences=len(texts), max_tokens=320)
    ours = paged(compiled, len(texts))
    for runs in (prefill(texts), [Run(s, len(text), [5 + s]) for s, text in enumerate(texts)]):
        assert distance(ours.hidden(runs), theirs.hidden(runs)) < tolerance(compiled)
    found = greedy(compiled.model, spec, texts, NUM_TOKENS, kv_dtype=compiled.kv_dtype)
    # Logits are about 1 wide, so this is how far they may be off.
    assert_same_greedy(found, greedy(decoder, spec, texts, NUM_TOKENS), near_tie=4 * tolerance(compiled))


def test_long_prompts_and_their_next_tokens_are_what_torch_computes(
    plain: Checkpoint, pytestconfig: pytest.Config
) -> None:
    compiled, (decoder, spec) = plain.compiled(pytestconfig), plain.composed()
    texts = prompts(LONG)
    theirs = PagedModel(decoder, spec, num_sequences=len(texts), max_tokens=320)
    ours = paged(compiled, len(texts))
    for runs in (prefill(texts), [Run(s, len(text), [5 + s]) for s, text in enumerate(texts)]):
        assert distance(ours.hidden(runs), theirs.hidden(runs)) < tolerance(compiled)


def test_a_sequence_has_the_same_states_to_the_bit_alone_in_a_batch_and_in_chunks(
    plain: Checkpoint, pytestconfig: pytest.Config
) -> None:
    compiled = plain.compiled(pytestconfig)
    texts = prompts(LONG)
    together = paged(compiled, len(texts))
    wanted = torch.split(together.hidden(prefill(texts)), list(LONG))
    wanted_next = together.hidden([Run(s, len(text), [9]) for s, text in enumerate(texts)])
    for s, text in enumerate(texts):
        alone = paged(compiled, len(texts))
        assert torch.equal(alone.hidden([Run(s, 0, text)]), wanted[s])
        assert torch.equal(alone.hidden([Run(s, len(text), [9])])[0], wanted_next[s])
    chunked = paged(compiled, len(texts))
    for first in range(0, max(LONG), 97):
        runs = [Run(s, first, text[first : first + 97]) for s, text in enumerate(texts) if len(text) > first]
        parts = torch.split(chunked.hidden(runs), [len(run.token_ids) for run in runs])
        for run, part in zip(runs, parts, strict=True):
            assert torch.equal(part, wanted[run.sequence][first : first + 97])


def test_any_number_of_threads_gives_the_same_states_and_logits_to_the_bit(
    plain: Checkpoint, pytestconfig: pytest.Config
) -> None:
    texts = prompts(LONG)
    several, one = (plain.compiled(pytestconfig, num_threads=count) for count in (2, 1))
    pairs = [paged(compiled, len(texts)) for compiled in (several, one)]
    for runs in (prefill(texts), [Run(0, len(texts[0]), [7])]):
        a, b = (model.hidden(runs) for model in pairs)
        assert torch.equal(a, b)
        assert torch.equal(several.model.logits(a), one.model.logits(b))


def test_a_sequence_of_nan_spoils_no_other_then_or_later(plain: Checkpoint, pytestconfig: pytest.Config) -> None:
    decoder, spec = plain.load(plain.dtype)
    decoder.embedding.weight[0] = torch.nan
    compiled = compile_decoder(decoder, spec, pytestconfig)
    lengths = [70, 33, 5]
    texts = prompts(tuple(lengths))
    wanted = torch.split(paged(compiled, 4).hidden(prefill(texts)), lengths)
    spoilt = paged(compiled, 4)
    found = spoilt.hidden([Run(3, 0, [0] * 90), *prefill(texts)])
    assert found[:90].isnan().all()
    for mine, right in zip(torch.split(found[90:], lengths), wanted, strict=True):
        assert torch.equal(mine, right)
    assert torch.equal(paged(compiled, 4).hidden(prefill(texts)), torch.cat(wanted))


@pytest.mark.parametrize("num_rows", [0, 1, 8, 30])
def test_logits_are_float32_for_any_number_of_rows_and_each_rows_own(
    plain: Checkpoint, pytestconfig: pytest.Config, num_rows: int
) -> None:
    compiled, (decoder, _) = plain.compiled(pytestconfig), plain.composed()
    hidden = torch.randn(num_rows, compiled.spec.hidden_size, generator=torch.Generator().manual_seed(3))
    # What bfloat16 products see; float32 products see it exactly.
    hidden = hidden.bfloat16().float()
    logits = compiled.model.logits(hidden).clone()
    assert logits.shape == (num_rows, compiled.spec.vocab_size)
    torch.testing.assert_close(logits, decoder.logits(hidden), rtol=1e-5, atol=1e-5)
    for row in range(num_rows):
        assert torch.equal(compiled.model.logits(hidden[row : row + 1])[0], logits[row])


@pytest.mark.parametrize("tied", [True, False])
def test_the_decoders_matrices_are_given_up(tied: bool, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    checkpoint = write_checkpoint(tmp_path, "llama", torch.bfloat16, tie_word_embeddings=tied)
    decoder, spec = checkpoint.load(torch.bfloat16)
    compile_decoder(decoder, spec, pytestconfig)
    held = decoder.embedding.weight.numel()
    assert held == (0 if tied else spec.vocab_size * spec.hidden_size)
    matrices = [decoder.head.weight]
    for block in decoder.blocks:
        for linear in (block.attention.qkv, block.attention.output, block.mlp.gate_up, block.mlp.down):
            matrices.append(linear.weight)
    assert sum(matrix.untyped_storage().nbytes() for matrix in matrices) == 0


@pytest.mark.parametrize(
    ("changes", "dtype", "reason"),
    [
        ({}, torch.bfloat16, None),
        ({}, torch.float16, None),
        ({"activation": "gelu_tanh"}, torch.bfloat16, None),
        ({}, torch.float32, "it has 16-bit weights, and these are float32"),
        ({"activation": "gelu"}, torch.bfloat16, "it has the activations silu, gelu_tanh, and this is gelu"),
        ({"hidden_size": 34}, torch.bfloat16, "it takes multiples of 4, and the hidden size is 34"),
        ({"head_dim": 10}, torch.bfloat16, "it takes multiples of 4, and the head_dim is 10"),
        ({"head_dim": 20}, torch.bfloat16, "it takes multiples of 4, and the half rotation is 10"),
        ({"intermediate_size": 51}, torch.bfloat16, None),
    ],
)
def test_what_the_step_cannot_express_is_said_from_the_dimensions(
    changes: dict[str, Any], dtype: torch.dtype, reason: str | None, pytestconfig: pytest.Config
) -> None:
    keep_kernels(pytestconfig)
    from sapwood_engine.models.compiled import hindrance  # noqa: PLC0415

    assert hindrance(replace(TINY, **changes), dtype) == reason

"""The compiled step over int8 weights says what torch says over what those weights stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support_checkpoints import VOCAB_SIZE
from support_compiled_models import WEIGHT_DTYPES, Checkpoint, Compiled, compile_decoder, write_checkpoint
from support_tiny_models import PagedModel, Run

from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.models.decoder import Decoder

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with tied embeddings": ("llama", {"tie_word_embeddings": True}),
    "llama with biases in odd sizes": (
        "llama",
        {"hidden_size": 76, "intermediate_size": 101, "vocab_size": 163, "attention_bias": True, "mlp_bias": True},
    ),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}
"""Type of the model, and settings."""
LENGTHS = [300, 1, 8, 9, 270, 40, 65]
"""Prompts that together pass over a panel more than once; alone, on both sides of where panels are widened."""
MOST = 127


def quantised(weight: torch.Tensor) -> torch.Tensor:
    """What the int8 weights of ``weight`` [out, in] stand for, float32: written apart from what is tested."""
    scales = weight.float().abs().amax(1, keepdim=True) / MOST
    return torch.where(scales > 0, (weight.float() / scales).round() * scales, 0)


def oracle(checkpoint: Checkpoint) -> Decoder:
    """Torch's operators in float32 over quantised matrices."""
    decoder, spec = checkpoint.composed()
    matrices = [decoder.head.weight]
    for block in decoder.blocks:
        for linear in (block.attention.qkv, block.attention.output, block.mlp.gate_up, block.mlp.down):
            matrices.append(linear.weight)
    for matrix in matrices:
        matrix.copy_(quantised(matrix))
    assert spec.tied_embeddings == (decoder.embedding.weight.data_ptr() == decoder.head.weight.data_ptr())
    return decoder


def compiled_int8(checkpoint: Checkpoint, config: pytest.Config) -> Compiled:
    return compile_decoder(*checkpoint.load(checkpoint.dtype), config, int8=True)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in LENGTHS]


def prefill(texts: list[list[int]]) -> list[Run]:
    return [Run(s, 0, text) for s, text in enumerate(texts)]


def paged(compiled: Compiled) -> PagedModel:
    return PagedModel(
        compiled.model, compiled.spec, num_sequences=len(LENGTHS), max_tokens=320, dtype=compiled.kv_dtype
    )


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest distance of a row, in lengths of the row."""
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


@pytest.fixture(scope="module", params=WEIGHT_DTYPES, ids=str)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("plain"), "llama", request.param, tie_word_embeddings=True)


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_family_computes_what_torch_does_over_the_same_quantised_weights(
    name: str, dtype: torch.dtype, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    model_type, settings = CASES[name]
    checkpoint = write_checkpoint(tmp_path, model_type, dtype, **settings)
    compiled, decoder = compiled_int8(checkpoint, pytestconfig), oracle(checkpoint)
    texts = prompts()
    theirs = PagedModel(decoder, compiled.spec, num_sequences=len(LENGTHS), max_tokens=320)
    ours = paged(compiled)
    # What is multiplied in bfloat16 is rounded to 8 bits, keys and values to 11 else.
    tolerance = 0.03 if compiled.kv_dtype == torch.bfloat16 else 0.003
    for runs in (prefill(texts), [Run(s, len(text), [5 + s]) for s, text in enumerate(texts)]):
        found, wanted = ours.hidden(runs), theirs.hidden(runs)
        assert distance(found, wanted) < tolerance
        assert distance(compiled.model.logits(found), decoder.logits(wanted)) < tolerance


def test_a_sequence_has_the_same_states_and_logits_to_the_bit_alone_in_a_batch_and_in_chunks(
    plain: Checkpoint, pytestconfig: pytest.Config
) -> None:
    compiled = compiled_int8(plain, pytestconfig)
    texts = prompts()
    together, chunked = paged(compiled), paged(compiled)
    wanted = torch.split(together.hidden(prefill(texts)), LENGTHS)
    wanted_next = together.hidden([Run(s, len(text), [9]) for s, text in enumerate(texts)])
    wanted_logits = compiled.model.logits(wanted_next.repeat(2, 1)).clone()
    for s, text in enumerate(texts):
        alone = paged(compiled)
        assert torch.equal(alone.hidden([Run(s, 0, text)]), wanted[s])
        assert torch.equal(alone.hidden([Run(s, len(text), [9])])[0], wanted_next[s])
        assert torch.equal(compiled.model.logits(wanted_next[s : s + 1])[0], wanted_logits[s])
    for first in range(0, max(LENGTHS), 97):
        runs = [Run(s, first, text[first : first + 97]) for s, text in enumerate(texts) if len(text) > first]
        parts = torch.split(chunked.hidden(runs), [len(run.token_ids) for run in runs])
        for run, part in zip(runs, parts, strict=True):
            assert torch.equal(part, wanted[run.sequence][first : first + 97])


def test_any_number_of_threads_gives_the_same_states_and_logits_to_the_bit(
    plain: Checkpoint, pytestconfig: pytest.Config
) -> None:
    found = []
    for num_threads in (1, 2):
        compiled = compile_decoder(*plain.load(plain.dtype), pytestconfig, num_threads=num_threads, int8=True)
        hidden = paged(compiled).hidden(prefill(prompts()))
        found.append((hidden, compiled.model.logits(hidden[:20]).clone()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_an_embedding_of_its_own_stays_as_it_is_and_all_matrices_are_given_up(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    loaded: tuple[Decoder, ModelSpec] = write_checkpoint(tmp_path, "llama", torch.bfloat16).load(torch.bfloat16)
    decoder = loaded[0]
    before = decoder.embedding.weight.clone()
    compile_decoder(*loaded, pytestconfig, int8=True)
    assert torch.equal(decoder.embedding.weight, before)
    matrices = [decoder.head.weight]
    for block in decoder.blocks:
        for linear in (block.attention.qkv, block.attention.output, block.mlp.gate_up, block.mlp.down):
            matrices.append(linear.weight)
    assert sum(matrix.untyped_storage().nbytes() for matrix in matrices) == 0

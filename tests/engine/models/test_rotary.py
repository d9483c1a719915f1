"""Frequencies and angles of every rope variant."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support_checkpoints import tiny_model
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from sapwood_engine.checkpoint.spec import RopeSpec, RopeVariant
from sapwood_engine.layers.rotary import Rotary, Rotation, frequencies, rotate

HEAD_DIM = 16
CPU = torch.device("cpu")
FACTORS = {
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}
VARIANTS: dict[str, tuple[RopeVariant, dict[str, Any]]] = {
    "default": ("default", {}),
    "linear": ("linear", {"factor": 3.0}),
    "dynamic": ("dynamic", {"factor": 3.0, "original_max_position_embeddings": 128}),
    "yarn": ("yarn", {"factor": 4.0, "original_max_position_embeddings": 32}),
    "yarn with its amplitude": (
        "yarn",
        {"factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.3},
    ),
    "longrope": ("longrope", {"factor": 4.0, "original_max_position_embeddings": 20, **FACTORS}),
    "longrope with its amplitude": (
        "longrope",
        {"factor": 4.0, "original_max_position_embeddings": 20, "attention_factor": 1.7, **FACTORS},
    ),
    "llama3": (
        "llama3",
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
}


def theirs(variant: str, parameters: dict[str, Any], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of transformers for one sequence of ``length``, [length, HEAD_DIM]."""
    model = tiny_model("llama", rope_parameters={"rope_type": variant, "rope_theta": 500.0, **parameters})
    cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(length)[None])
    return cos[0], sin[0]


def ours(variant: RopeVariant, parameters: dict[str, Any], positions: torch.Tensor, context: int) -> Rotation:
    rope = RopeSpec(500.0, variant, parameters)
    return Rotary(rope, head_dim=HEAD_DIM, context_length=context, device=CPU)(positions)


@pytest.mark.parametrize("name", VARIANTS)
def test_angles_and_amplitude_equal_transformers_over_the_whole_context(name: str) -> None:
    variant, parameters = VARIANTS[name]
    cos, sin = theirs(variant, parameters, 128)
    rotation = ours(variant, parameters, torch.arange(128), context=128)
    q = torch.randn(128, 4, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    expected, _ = apply_rotary_pos_emb(q, q, cos, sin, unsqueeze_dim=1)
    torch.testing.assert_close(rotate(q, rotation), expected, rtol=1e-5, atol=1e-5)


def test_a_dynamic_context_served_beyond_the_original_equals_transformers_at_that_length() -> None:
    parameters = {"factor": 3.0, "original_max_position_embeddings": 128}
    cos, _ = theirs("dynamic", parameters, 300)
    rotation = ours("dynamic", parameters, torch.arange(300), context=300)
    torch.testing.assert_close(rotation.cos[:, 0], cos, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_an_angle_depends_on_its_position_alone_and_not_on_the_batch(name: str) -> None:
    variant, parameters = VARIANTS[name]
    rotary = Rotary(RopeSpec(500.0, variant, parameters), head_dim=HEAD_DIM, context_length=128, device=CPU)
    alone, among = rotary(torch.tensor([5])), rotary(torch.tensor([120, 5, 0]))
    assert torch.equal(alone.cos[0], among.cos[1])
    assert torch.equal(alone.sin[0], among.sin[1])


def test_longrope_takes_the_short_factors_where_no_context_exceeds_the_original() -> None:
    rope = RopeSpec(500.0, "longrope", VARIANTS["longrope"][1])
    short, _ = frequencies(rope, HEAD_DIM, context_length=20)
    long, _ = frequencies(rope, HEAD_DIM, context_length=21)
    plain, _ = frequencies(RopeSpec(500.0), HEAD_DIM, context_length=20)
    torch.testing.assert_close(plain / short, torch.tensor(FACTORS["short_factor"]))
    torch.testing.assert_close(plain / long, torch.tensor(FACTORS["long_factor"]))


def test_dimensions_beyond_the_rotary_ones_stay_as_they_are() -> None:
    rotary = Rotary(RopeSpec(500.0), head_dim=8, context_length=64, device=CPU)
    heads = torch.randn(3, 2, HEAD_DIM)
    rotation = rotary(torch.tensor([0, 9, 33]))
    out = rotate(heads, rotation)
    assert torch.equal(out[..., 8:], heads[..., 8:])
    torch.testing.assert_close(out[..., :8], rotate(heads[..., :8].contiguous(), rotation))


def test_bfloat16_heads_are_rotated_in_float32_and_rounded_once() -> None:
    rotation = ours("default", {}, torch.arange(100, 116), context=128)
    heads = torch.randn(16, 3, HEAD_DIM, generator=torch.Generator().manual_seed(2)).bfloat16()
    out = rotate(heads, rotation)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, rotate(heads.float(), rotation).bfloat16())

"""What int8 weights cost the builtin model: how far its predictions are from those of float32."""

from __future__ import annotations

import pytest
import torch
from support_compiled_models import compile_decoder
from support_smollm2 import load_smollm2, smollm2_prompts
from support_tiny_models import PagedModel, Run

from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.models.decoder import Decoder
from sapwood_engine.runtime.model_runner import Model

pytestmark = pytest.mark.engine

AT_ONCE = 16
"""Prompts of a step"""


def log_probabilities(
    model: Decoder | Model, spec: ModelSpec, texts: list[list[int]], dtype: torch.dtype
) -> torch.Tensor:
    """After every token of ``texts``, in their order; ``dtype`` is that of the pages."""
    found = []
    for first in range(0, len(texts), AT_ONCE):
        some = texts[first : first + AT_ONCE]
        paged = PagedModel(model, spec, num_sequences=len(some), max_tokens=max(map(len, some)), dtype=dtype)
        found.append(paged.all_logits([Run(s, 0, text) for s, text in enumerate(some)]).log_softmax(-1))
    return torch.cat(found)


def test_int8_weights_keep_94_percent_of_the_float32_choices_and_cost_less_than_a_hundredth_of_a_nat(
    pytestconfig: pytest.Config,
) -> None:
    prompts = smollm2_prompts()
    compiled = compile_decoder(*load_smollm2(torch.bfloat16), pytestconfig, int8=True)
    wanted = log_probabilities(*load_smollm2(torch.float32), prompts, torch.float32)
    found = log_probabilities(compiled.model, compiled.spec, prompts, compiled.kv_dtype)
    divergences = (wanted.exp() * (wanted - found)).sum(-1)
    assert float(divergences.mean()) < 0.01
    assert float((found.argmax(-1) == wanted.argmax(-1)).float().mean()) >= 0.94

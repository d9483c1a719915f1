"""The builtin model says what transformers says, with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support_smollm2 import load_smollm2, smollm2_prompts
from support_tiny_models import PagedModel, Run, assert_same_greedy, greedy, transformers_greedy
from transformers import LlamaConfig, LlamaForCausalLM

from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.kernels.cpu_features import detect_cpu_features
from sapwood_engine.models.decoder import Decoder

pytestmark = pytest.mark.engine

NUM_TOKENS = 16
NEAR_TIE = 2e-3


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return smollm2_prompts()


@pytest.fixture(scope="module")
def full() -> tuple[Decoder, ModelSpec]:
    return load_smollm2(torch.float32)


def in_transformers(model: Decoder, spec: ModelSpec) -> Any:
    """Llama of transformers over the very tensors of ``model``."""
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        max_position_embeddings=spec.max_positions,
        rms_norm_eps=spec.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope.theta},
        tie_word_embeddings=spec.tied_embeddings,
    )
    state = {
        "model.embed_tokens.weight": model.embedding.weight,
        "lm_head.weight": model.head.weight,
        "model.norm.weight": model.norm.weight,
    }
    kv = spec.num_kv_heads * spec.head_dim
    for layer, block in enumerate(model.blocks):
        q, k, v = torch.split(block.attention.qkv.weight, [spec.num_heads * spec.head_dim, kv, kv])
        gate, up = block.mlp.gate_up.weight.chunk(2)
        parts = {
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": block.attention.output.weight,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": block.mlp.down.weight,
            "input_layernorm": block.attention_norm.weight,
            "post_attention_layernorm": block.mlp_norm.weight,
        }
        state |= {f"model.layers.{layer}.{part}.weight": weight for part, weight in parts.items()}
    with torch.device("meta"):
        theirs: Any = LlamaForCausalLM(config)
    theirs.load_state_dict(state, assign=True)
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config)
    return theirs.eval()


def test_greedy_ids_in_float32_equal_transformers_on_64_prompts(
    full: tuple[Decoder, ModelSpec], prompts: list[list[int]]
) -> None:
    model, spec = full
    assert len(prompts) == 64
    ours = greedy(model, spec, prompts, NUM_TOKENS)
    theirs = transformers_greedy(in_transformers(model, spec), prompts, NUM_TOKENS)
    assert_same_greedy(ours, theirs, near_tie=NEAR_TIE)


def test_in_bfloat16_98_percent_of_tokens_are_the_float32_choice(
    full: tuple[Decoder, ModelSpec], prompts: list[list[int]]
) -> None:
    """By teacher forcing: after the float32 model's own words, what comes next?"""
    # Emulated products are slow, and as exact as native ones: fewer prompts tell enough there.
    asked = prompts if detect_cpu_features().native_bf16 else prompts[::8]
    chosen = greedy(*full, asked, NUM_TOKENS).token_ids
    model, spec = load_smollm2(torch.bfloat16)
    longest = max(map(len, asked)) + NUM_TOKENS
    paged = PagedModel(model, spec, num_sequences=len(asked), max_tokens=longest, dtype=torch.bfloat16)
    texts = [prompt + words[:-1] for prompt, words in zip(asked, chosen, strict=True)]
    runs = [Run(s, 0, text) for s, text in enumerate(texts)]
    hidden = torch.split(paged.hidden(runs), [len(text) for text in texts])
    with torch.inference_mode():
        best = [model.logits(rows[-NUM_TOKENS:]).argmax(-1).tolist() for rows in hidden]
    equal = sum(a == b for x, y in zip(best, chosen, strict=True) for a, b in zip(x, y, strict=True))
    assert equal >= 0.98 * NUM_TOKENS * len(asked)

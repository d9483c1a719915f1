"""The builtin model, as a decoder over torch, and prompts of several kinds for it."""

from __future__ import annotations

from itertools import product

import torch

from sapwood_engine.checkpoint.source import open_checkpoint, open_tensors, read_spec
from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.models.decoder import Decoder
from sapwood_engine.models.load import load_model
from sapwood_engine.service.tokenizer_files import load_tokenizer

MODEL = "builtin:smollm2-135m"
TOPICS = ("rain", "the Moon", "bread", "Paris", "prime numbers", "bees", "a violin", "trade winds")
REQUESTS = (
    "Explain {} to a child.",
    "The history of {} begins",
    "def describe():\n    # about {}\n    return",
    "Question: what is known about {}?\nAnswer:",
    "Here are three facts about {}:\n1.",
    "{} and the sea have in common that",
    "Translate into French: I like {}.",
    "It was late when the talk came to {}, and",
)


def smollm2_prompts() -> list[list[int]]:
    """Every request about every topic, in tokens."""
    tokenizer = load_tokenizer(open_checkpoint(MODEL))
    texts = [request.format(topic) for request, topic in product(REQUESTS, TOPICS)]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def load_smollm2(dtype: torch.dtype) -> tuple[Decoder, ModelSpec]:
    checkpoint = open_checkpoint(MODEL)
    spec = read_spec(checkpoint)
    return load_model(spec, open_tensors(checkpoint), where=MODEL, dtype=dtype), spec

"""The decoder that every family composes: embedding, blocks, final norm, vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.kernels.attention.base import AttentionBackend
from sapwood_engine.layers.attention import Attention
from sapwood_engine.layers.batch import ForwardBatch, StepBatch
from sapwood_engine.layers.linear import Linear
from sapwood_engine.layers.mlp import GatedMlp
from sapwood_engine.layers.norm import RmsNorm
from sapwood_engine.layers.rotary import Rotary, Rotation
from sapwood_engine.layers.vocabulary import Embedding, Head
from sapwood_engine.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Block:
    """Attention and MLP, each behind a norm and added to the residual."""

    attention_norm: RmsNorm
    attention: Attention
    mlp_norm: RmsNorm
    mlp: GatedMlp

    def add_to(self, residual: torch.Tensor, rotation: Rotation, batch: ForwardBatch, layer: int) -> None:
        """Add this block's two contributions to ``residual``, float32 [num_tokens, hidden_size], in place."""
        residual.add_(self.attention(self.attention_norm(residual), rotation, batch, layer))
        residual.add_(self.mlp(self.mlp_norm(residual)))


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model. Stateless once its weights are filled: everything that changes lies in the batch.

    The residual is float32 whatever the weights are: sixty roundings to bfloat16 would cost SmolLM2 one
    choice in a hundred, and adding in float32 costs nothing.
    """

    embedding: Embedding
    rotary: Rotary
    blocks: Sequence[Block]
    norm: RmsNorm
    head: Head
    """Shares the embedding's weight where they are tied"""

    def forward(self, batch: StepBatch, attention: AttentionBackend) -> torch.Tensor:
        """Return the hidden states of ``batch.logits_rows`` after the final norm, float32 [num_logits, hidden_size].

        Writes K and V of every token into ``batch.kv_layers``.
        """
        attention.plan(batch.metadata)
        seen = ForwardBatch(batch.slots, batch.kv_layers, attention)
        rotation = self.rotary(batch.positions)
        residual = self.embedding(batch.token_ids)
        for layer, block in enumerate(self.blocks):
            block.add_to(residual, rotation, seen, layer)
        return self.norm(residual[batch.logits_rows])

    def pack(self) -> None:
        """Re-lay the weights of all layers for oneDNN's products (see `Linear.pack`)."""
        for block in self.blocks:
            for linear in (block.attention.qkv, block.attention.output, block.mlp.gate_up, block.mlp.down):
                linear.pack()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] rows of `forward`'s result -> float32 [n, vocab_size]."""
        return self.head(hidden)


@dataclass(frozen=True, slots=True)
class ComposedModel:
    """`runtime.model_runner.Model`: a decoder of torch operators with the attention backend it computes with."""

    decoder: Decoder
    attention: AttentionBackend

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """See `Decoder.forward`."""
        return self.decoder.forward(batch, self.attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Decoder.logits`."""
        return self.decoder.logits(hidden)


BlockComposer = Callable[[ModelSpec, str, Weights], Block]
"""From dimensions and the prefix of a layer's tensor names to the layer."""


def compose(spec: ModelSpec, weights: Weights, block: BlockComposer, rotary: Rotary) -> Decoder:
    """Return the decoder around the family's blocks, its weights not yet filled."""
    embedding = Embedding(weights.tensor("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size))
    if spec.tied_embeddings:
        weights.ignore("lm_head.weight")
        head = Head(embedding.weight)
    else:
        head = Head(weights.tensor("lm_head.weight", spec.vocab_size, spec.hidden_size))
    return Decoder(
        embedding=embedding,
        rotary=rotary,
        blocks=tuple(block(spec, f"model.layers.{layer}", weights) for layer in range(spec.num_layers)),
        norm=weights.norm("model.norm", spec.hidden_size, spec.norm_eps, dtype=torch.float32),
        head=head,
    )


def gated_mlp(spec: ModelSpec, prefix: str, weights: Weights) -> GatedMlp:
    """The MLP that all our families have."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    return GatedMlp(
        gate_up=weights.linear(hidden, {f"{prefix}.gate_proj": inner, f"{prefix}.up_proj": inner}, bias=spec.mlp_bias),
        down=weights.linear(inner, {f"{prefix}.down_proj": hidden}, bias=spec.mlp_bias),
        activation=spec.activation,
    )


def qkv(spec: ModelSpec, prefix: str, weights: Weights) -> Linear:
    """q, k and v as one matrix."""
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    rows = {f"{prefix}.q_proj": q, f"{prefix}.k_proj": kv, f"{prefix}.v_proj": kv}
    return weights.linear(spec.hidden_size, rows, bias=spec.qkv_bias)

"""From logits to tokens: penalties, truncation, the draw, log-probabilities. Tensors in, tensors out.

A row's result depends on that row alone: its logits, its parameters and its uniform number. The uniform comes from
``(seed, output index)`` by a counter-based generator, so the same request draws the same tokens in every batch.

Order of the steps, as in Hugging Face transformers: penalties, logit bias, suppressed ids, temperature, top-k, top-p,
min-p, draw. The draw inverts the cumulative distribution over the kept ids in ascending order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

_MASK_64 = (1 << 64) - 1
_FIRST_CANDIDATES = 256
"""Most likely tokens that are sorted first; enough for nearly every top-p in use."""
_MORE_CANDIDATES = 16
"""How many times more are sorted where they were not enough."""
_STRETCH = 512
"""Ids whose weights are summed at once when drawing."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """How each row's distribution is shaped; all tensors [num_rows] on the device of the logits."""

    temperature: torch.Tensor
    """float32; 0 takes the most likely token"""
    top_k: torch.Tensor
    """int64; 0 keeps all"""
    top_p: torch.Tensor
    """float32 in (0, 1]; 1 keeps all"""
    min_p: torch.Tensor
    """float32 in [0, 1]; 0 keeps all"""


def uniform(seed: int, index: int) -> float:
    """Return the number in [0, 1) that belongs to ``(seed, index)``, any two integers.

    Two rounds of SplitMix64's finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
    generators"), one over the seed and one over the result plus the index's Weyl step; 53 bits are kept.
    """
    return (_mix(_mix(seed) + index * 0x9E3779B97F4A7C15) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    z = (value + 0x9E3779B97F4A7C15) & _MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return z ^ (z >> 31)


def argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (best id, whether the row is usable), [num_rows] each.

    ``logits`` [num_rows, vocab_size], any float dtype. The lowest id wins a tie. A row is unusable where it holds
    NaN or +inf, or nothing but -inf.
    """
    best, ids = logits.max(dim=-1)
    return ids, torch.isfinite(best)


def penalise(
    logits: torch.Tensor,
    *,
    seen: torch.Tensor,
    output_counts: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """Lower, in place, the float32 ``logits`` [num_rows, vocab_size] of tokens that occurred.

    ``seen`` bool [num_rows, vocab_size]: in prompt or output; their logits are divided by ``repetition`` where
    positive, else multiplied (Keskar et al. 2019, "CTRL"). ``output_counts`` float32 [num_rows, vocab_size]: times in
    the output; ``presence`` once and ``frequency`` for each time is subtracted, as OpenAI documents. The
    penalties are float32 [num_rows].
    """
    factor = repetition[:, None]
    logits.copy_(torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits))
    logits.sub_(output_counts * frequency[:, None])
    logits.sub_((output_counts > 0) * presence[:, None])


def add_at(logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
    """Add ``values`` float32 [n] to ``logits[rows, ids]`` in place; -inf bans an id. ``rows``, ``ids`` int64 [n]."""
    logits.index_put_((rows, ids), values, accumulate=True)


def sample(logits: torch.Tensor, truncation: Truncation, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row; return (ids int64, whether the row is usable), [num_rows] each.

    ``logits`` float32 [num_rows, vocab_size], ``uniforms`` float64 [num_rows] in [0, 1). Unusable rows are those of
    `argmax`; their ids mean nothing. ``logits`` is not changed. Tokens exactly as likely as the last one that top-k
    or top-p keeps are kept too, so that the result does not hang on the order of equals.
    """
    greedy_ids, usable = argmax(logits)
    draws = truncation.temperature > 0
    # A temperature of 0 would divide by zero; such rows take the greedy id at the end.
    temperature = torch.where(draws, truncation.temperature, 1.0)
    # Relative to the row's best token, whose weight is 1: so min-p compares without a sum.
    weights = logits - logits.amax(dim=-1, keepdim=True)
    weights = weights.div_(temperature[:, None]).exp_()
    floors = truncation.min_p.clone()
    limited = ((truncation.top_k > 0) | (truncation.top_p < 1)).nonzero()[:, 0]
    if len(limited):
        limits = _floors(weights[limited], truncation.top_k[limited], truncation.top_p[limited])
        floors[limited] = torch.maximum(floors[limited], limits)
    if len(limited) or bool((floors > 0).any()):
        weights.mul_(weights >= floors[:, None])
    drawn = _draw(weights, uniforms)
    return torch.where(draws, drawn, greedy_ids), usable


def log_probabilities(
    logits: torch.Tensor, ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (log-probability of ``ids`` [num_rows], best ids, their log-probabilities [num_rows, num_top]).

    ``logits`` float32 [num_rows, vocab_size]; natural logarithm, float32. Best first, equals by ascending id.
    """
    normaliser = torch.logsumexp(logits, dim=-1, keepdim=True)
    chosen = logits.gather(1, ids[:, None]) - normaliser
    top, top_ids = logits.topk(num_top, dim=-1)
    by_id = top_ids.argsort(dim=-1)
    top, top_ids = top.gather(1, by_id), top_ids.gather(1, by_id)
    best_first = top.argsort(dim=-1, descending=True, stable=True)
    return chosen[:, 0], top_ids.gather(1, best_first), top.gather(1, best_first) - normaliser


def _draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the id at which each row's running sum passes its uniform number's share of the total, [num_rows].

    In two stages, stretches and then ids, for a running sum of float64 over a vocabulary takes half a millisecond.
    """
    stretches = F.pad(weights, (0, -weights.shape[-1] % _STRETCH)).view(len(weights), -1, _STRETCH)
    sums = stretches.sum(dim=-1, dtype=torch.float64)
    stretch, within = _pass(sums, uniforms * sums.sum(dim=-1))
    chosen = stretches[torch.arange(len(weights)), stretch].double()
    return stretch * _STRETCH + _pass(chosen, within)[0]


def _pass(weights: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the running sum of float64 rows passes ``targets``, and by how much the targets lie behind it.

    What is returned has weight, whatever rounding did to a target.
    """
    running = weights.cumsum(dim=-1)
    total = running[:, -1]
    targets = targets.clamp(min=0.0).minimum(torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(running, targets[:, None], right=True).clamp_(max=weights.shape[-1] - 1)
    return index[:, 0], targets - (running - weights).gather(1, index)[:, 0]


def _floors(weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return the least weight that top-k, then top-p of what is left, keep, [num_rows]."""
    vocab_size = weights.shape[-1]
    num_candidates = min(vocab_size, max(_FIRST_CANDIDATES, int(top_k.max())))
    floors, complete = _floors_among(weights, top_k, top_p, num_candidates)
    rest = (~complete).nonzero()[:, 0]
    while len(rest):
        num_candidates = min(vocab_size, num_candidates * _MORE_CANDIDATES)
        found, complete = _floors_among(weights[rest], top_k[rest], top_p[rest], num_candidates)
        floors[rest] = found
        rest = rest[~complete]
    return floors


def _floors_among(
    weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`_floors` from the ``num_candidates`` largest weights; also returns whether they were enough."""
    best = weights.topk(num_candidates, dim=-1).values
    last_of_k = best.gather(1, (top_k.clamp(1, num_candidates) - 1)[:, None])[:, 0]
    k_floors = torch.where(top_k > 0, last_of_k, 0.0)
    total = weights.masked_fill(weights < k_floors[:, None], 0.0).sum(dim=-1, dtype=torch.float64)
    reached = best.cumsum(dim=-1, dtype=torch.float64) >= (top_p.double() * total)[:, None]
    last_of_p = best.gather(1, reached.to(torch.uint8).argmax(dim=-1, keepdim=True))[:, 0]
    p_floors = torch.where(reached[:, -1], last_of_p, 0.0)
    everything = num_candidates == weights.shape[-1]
    complete = reached[:, -1] | (top_p >= 1) | everything
    return torch.maximum(k_floors, torch.where(top_p < 1, p_floors, 0.0)), complete

"""From logits to tokens: penalties, truncation, the draw, log-probabilities. Tensors in, tensors out.

A row's result depends on that row alone: its logits, its parameters and its uniform number. The uniform comes from
``(seed, output index)`` by a counter-based generator, so the same request draws the same tokens in every batch.

Order of the steps, as in Hugging Face transformers: penalties, logit bias, suppressed ids, temperature, top-k, top-p,
min-p, draw. The draw inverts the cumulative distribution over the kept ids in ascending order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_WEYL = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Truncation:
    """How each row's distribution is shaped; all arrays [num_rows]."""

    temperature: Singles
    """0 takes the most likely token"""
    top_k: Ids
    """0 keeps all"""
    top_p: Singles
    """in (0, 1]; 1 keeps all"""
    min_p: Singles
    """in [0, 1]; 0 keeps all"""


def uniforms(seeds: npt.NDArray[np.uint64], indices: npt.NDArray[np.uint64]) -> Doubles:
    """Return the numbers in [0, 1) that belong to ``(seed, index)``, [num_rows] each.

    Two rounds of SplitMix64's finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
    generators"), one over the seed and one over the result plus the index's Weyl step; 53 bits are kept.
    """
    return (_mix(_mix(seeds) + indices * _WEYL) >> np.uint64(11)) * np.float64(2.0**-53)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = values + _WEYL
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Tokens that occurred in some rows' prompts or outputs, each once a row; all tensors [n]."""

    rows: torch.Tensor
    """int64"""
    ids: torch.Tensor
    """int64"""
    output_counts: torch.Tensor
    """float32: times in the output"""
    repetition: torch.Tensor
    """float32, as the next two: the penalties of the row"""
    presence: torch.Tensor
    frequency: torch.Tensor


def penalise(logits: torch.Tensor, seen: Occurrences) -> None:
    """Lower, in place, the float32 ``logits`` [num_rows, vocab_size] of tokens that occurred.

    A logit is divided by the repetition penalty where positive, else multiplied (Keskar et al. 2019, "CTRL"). Of
    tokens of the output the presence penalty is subtracted once and the frequency penalty for each time, as OpenAI
    documents.
    """
    old = logits[seen.rows, seen.ids]
    new = torch.where(old > 0, old / seen.repetition, old * seen.repetition)
    new -= seen.output_counts * seen.frequency + (seen.output_counts > 0) * seen.presence
    logits[seen.rows, seen.ids] = new


def add_at(logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
    """Add ``values`` float32 [n] to ``logits[rows, ids]`` in place; -inf bans an id. ``rows``, ``ids`` int64 [n]."""
    logits.index_put_((rows, ids), values, accumulate=True)


def sample(logits: torch.Tensor, truncation: Truncation, uniforms: Doubles) -> tuple[Ids, Flags]:
    """Draw one token a row; return (ids, whether the row is usable), new arrays [num_rows].

    ``logits`` float32 [num_rows, vocab_size], ``uniforms`` [num_rows] in [0, 1). ``logits`` is not changed. A row is
    unusable where it holds NaN or +inf, or nothing but -inf; its id means nothing. Where the temperature is 0 the
    lowest id of the most likely tokens is taken. Tokens exactly as likely as the last one that top-k or top-p keeps are
    kept too, so that the result does not hang on the order of equals.

    The plain definition, for any device; `kernels.cpu_sampling` does without the sorting.
    """
    best, ids = logits.max(dim=-1)
    drawing = torch.from_numpy((truncation.temperature > 0).nonzero()[0]).to(logits.device)
    if len(drawing):
        temperature, top_k, top_p, min_p, uniform = (
            torch.from_numpy(column).to(logits.device)[drawing, None]
            for column in (truncation.temperature, truncation.top_k, truncation.top_p, truncation.min_p, uniforms)
        )
        # Relative to the row's best token, whose weight is 1: so min-p compares without a sum.
        weights = logits[drawing]
        weights = weights.sub_(weights.amax(dim=-1, keepdim=True)).div_(temperature).exp_()
        floors = torch.maximum(_floors(weights, top_k, top_p), min_p)
        ids[drawing] = _draw(weights.mul_(weights >= floors), uniform)
    return ids.cpu().numpy(), torch.isfinite(best).cpu().numpy()


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


def _floors(weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return the least weight that top-k, then top-p of what is left, keep; parameters and result [num_rows, 1]."""
    best = weights.sort(dim=-1, descending=True).values
    k_floors = best.gather(1, torch.where(top_k > 0, top_k, weights.shape[-1]).clamp_(max=weights.shape[-1]) - 1)
    running = best.masked_fill(best < k_floors, 0.0).cumsum(dim=-1, dtype=torch.float64)
    reached = running >= top_p.double() * running[:, -1:]
    p_floors = best.gather(1, reached.to(torch.uint8).argmax(dim=-1, keepdim=True))
    return torch.maximum(k_floors, torch.where(top_p < 1, p_floors, 0.0))


def _draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the id at which each row's running sum passes its uniform number's share of the total, [num_rows].

    ``uniforms`` [num_rows, 1]. What is returned has weight, whatever rounding did to the share.
    """
    running = weights.cumsum(dim=-1, dtype=torch.float64)
    total = running[:, -1:]
    targets = (uniforms * total).minimum(torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(running, targets, right=True).clamp_(max=weights.shape[-1] - 1)[:, 0]

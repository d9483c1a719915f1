"""What each seat needs to draw its next token, and the draw itself.

Keeps by seat: parameters, the output index, the last token, and token counts where penalties look at them. A batch in
which every row is greedy and plain costs one argmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sapwood_engine.core.request import SamplingParams, TokenLogprobs
from sapwood_engine.core.step import SeatOpened
from sapwood_engine.kernels import sampling


@dataclass(slots=True)
class _Counts:
    """What penalties look at: made only for seats that use them."""

    seen: torch.Tensor
    """bool [vocab_size]: in prompt or output"""
    output: torch.Tensor
    """float32 [vocab_size]: times in the output"""


@dataclass(slots=True)
class _Seat:
    params: SamplingParams
    suppressible_ids: tuple[int, ...]
    num_outputs: int
    counts: _Counts | None

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken; the k = 1 most likely tokens are that one, ties or not."""
        return self.params.temperature == 0 or self.params.top_k == 1


class UnusableLogits(Exception):
    """The model gave a row NaN or infinite logits, or every token was banned; nothing can be drawn from it."""


class Sampler:
    """Draws tokens for seats; see `SamplingParams` for what they depend on."""

    def __init__(self, *, max_seats: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._seats: list[_Seat | None] = [None] * max_seats
        self.last_tokens = np.zeros(max_seats, np.int64)
        """[max_seats] the token drawn last for each seat; 0 where none was."""

    def open(self, opened: SeatOpened) -> None:
        """Give the seat to a request, whose output so far is ``opened.output_ids``."""
        params = opened.sampling
        counts = None
        if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0:
            counts = self._count(opened)
        self._seats[opened.seat] = _Seat(params, opened.suppressible_ids, len(opened.output_ids), counts)
        self.last_tokens[opened.seat] = opened.output_ids[-1] if opened.output_ids else 0

    def _count(self, opened: SeatOpened) -> _Counts:
        output = torch.bincount(torch.tensor(opened.output_ids, dtype=torch.int64), minlength=self._vocab_size)
        seen = output > 0
        seen[torch.tensor(opened.prompt_ids, dtype=torch.int64)] = True
        return _Counts(seen, output.float())

    def sample(
        self, logits: torch.Tensor, seats: Sequence[int], suppress: Sequence[bool]
    ) -> tuple[list[int], dict[int, TokenLogprobs]]:
        """Draw a token for each of ``seats`` and move them on.

        ``logits`` [len(seats), vocab_size] in the model's dtype; ``suppress`` says whose suppressible ids are banned.
        Returns the ids, and by index into ``seats`` the log-probabilities that were asked for. Raises
        `UnusableLogits`, in which case no seat has moved.
        """
        states = [self._state(seat) for seat in seats]
        plain = all(s.greedy and s.counts is None and not s.params.logit_bias for s in states) and not any(suppress)
        if plain:
            ids, usable = sampling.argmax(logits)
        else:
            shaped = self._shape(logits, states, suppress)
            ids, usable = sampling.sample(shaped, _truncation(states), _uniforms(states))
        if not bool(usable.all()):
            row = int((~usable).nonzero()[0, 0])
            raise UnusableLogits(f"logits of seat {seats[row]} are NaN or infinite, or every token is banned")
        tokens: list[int] = ids.tolist()
        for seat, state, token in zip(seats, states, tokens, strict=True):
            self._move_on(seat, state, token)
        return tokens, _logprobs(logits, states, ids)

    def _state(self, seat: int) -> _Seat:
        state = self._seats[seat]
        assert state is not None, f"seat {seat} samples and was never opened"
        return state

    def _move_on(self, seat: int, state: _Seat, token: int) -> None:
        self.last_tokens[seat] = token
        state.num_outputs += 1
        if state.counts is not None:
            state.counts.seen[token] = True
            state.counts.output[token] += 1

    def _shape(self, logits: torch.Tensor, states: list[_Seat], suppress: Sequence[bool]) -> torch.Tensor:
        """Return float32 logits with penalties, bias and bans applied; ``logits`` stays as it is."""
        shaped = logits.to(torch.float32, copy=True)
        penalised = [row for row, s in enumerate(states) if s.counts is not None]
        if penalised:
            part = shaped[penalised]
            _penalise(part, [states[row] for row in penalised])
            shaped[penalised] = part
        edits = [(row, i, v) for row, s in enumerate(states) for i, v in s.params.logit_bias]
        edits += [
            (row, i, -torch.inf)
            for row, (s, banned) in enumerate(zip(states, suppress, strict=True))
            if banned
            for i in s.suppressible_ids
        ]
        if edits:
            rows, ids, values = zip(*edits, strict=True)
            sampling.add_at(shaped, torch.tensor(rows), torch.tensor(ids), torch.tensor(values))
        return shaped


def _penalise(logits: torch.Tensor, states: list[_Seat]) -> None:
    counts = [s.counts for s in states if s.counts is not None]
    sampling.penalise(
        logits,
        seen=torch.stack([c.seen for c in counts]),
        output_counts=torch.stack([c.output for c in counts]),
        repetition=torch.tensor([s.params.repetition_penalty for s in states]),
        presence=torch.tensor([s.params.presence_penalty for s in states]),
        frequency=torch.tensor([s.params.frequency_penalty for s in states]),
    )


def _truncation(states: list[_Seat]) -> sampling.Truncation:
    return sampling.Truncation(
        temperature=torch.tensor([0.0 if s.greedy else s.params.temperature for s in states]),
        top_k=torch.tensor([0 if s.greedy else s.params.top_k for s in states]),
        top_p=torch.tensor([1.0 if s.greedy else s.params.top_p for s in states]),
        min_p=torch.tensor([0.0 if s.greedy else s.params.min_p for s in states]),
    )


def _uniforms(states: list[_Seat]) -> torch.Tensor:
    return torch.tensor([sampling.uniform(s.params.seed, s.num_outputs) for s in states], dtype=torch.float64)


def _logprobs(logits: torch.Tensor, states: list[_Seat], ids: torch.Tensor) -> dict[int, TokenLogprobs]:
    wanted = {row: s.params.num_logprobs for row, s in enumerate(states) if s.params.num_logprobs is not None}
    if not wanted:
        return {}
    rows = list(wanted)
    found = token_logprobs(logits[rows], ids[rows], list(wanted.values()))
    return dict(zip(rows, found, strict=True))


def token_logprobs(logits: torch.Tensor, ids: torch.Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Return the log-probability of each row's id with its ``num_top`` alternatives.

    ``logits`` [num_rows, vocab_size] as the model gave them, before penalties, bias and temperature; ``ids`` int64
    [num_rows].
    """
    widest = min(max(num_top), logits.shape[-1])
    chosen, top_ids, top = sampling.log_probabilities(logits.float(), ids, widest)
    rows = zip(ids.tolist(), chosen.tolist(), top_ids.tolist(), top.tolist(), num_top, strict=True)
    return [
        TokenLogprobs(token, logprob, tuple(zip(alternatives[:n], values[:n], strict=True)))
        for token, logprob, alternatives, values, n in rows
    ]

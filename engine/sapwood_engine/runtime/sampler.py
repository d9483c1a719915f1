"""What each seat needs to draw its next token, and the draw itself.

Keeps by seat: parameters, the output index, the last token, and the tokens that occurred where penalties look at them.
What a step costs depends on the rows that ask for something beside the draw, not on those that might.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sapwood_engine.core.request import TokenLogprobs
from sapwood_engine.core.step import NO_TOKEN, SeatOpened
from sapwood_engine.kernels import sampling
from sapwood_engine.kernels.sampling import Doubles, Flags, Ids, Occurrences, Truncation

Draw = Callable[[torch.Tensor, Truncation, Doubles], tuple[Ids, Flags]]
"""`kernels.sampling.sample`, or what gives the same."""
_MASK_64 = (1 << 64) - 1
_UNPICKED = [-1]
"""Seats that nobody asks for."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn for the seats of one call; indices are into these seats."""

    token_ids: list[int]
    """`NO_TOKEN` for those of ``unusable``"""
    unusable: list[int]
    """Nothing could be drawn: their logits are NaN or infinite, or every token is banned. They have not moved on."""
    logprobs: dict[int, TokenLogprobs]
    """Where they were asked for"""


class _History:
    """The tokens of a seat's prompt and output, each once."""

    def __init__(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        self.ids, inverse = np.unique(np.array([*prompt_ids, *output_ids], np.int64), return_inverse=True)
        counts = np.bincount(inverse[len(prompt_ids) :], minlength=len(self.ids))
        self.output_counts = counts.astype(np.float32)
        self._index = {token: index for index, token in enumerate(self.ids.tolist())}

    def add(self, token: int) -> None:
        """``token`` was drawn."""
        index = self._index.setdefault(token, len(self.ids))
        if index == len(self.ids):
            self.ids = np.append(self.ids, token)
            self.output_counts = np.append(self.output_counts, np.float32(0))
        self.output_counts[index] += 1


class _Seat:
    """What of a request is not a column."""

    def __init__(self, opened: SeatOpened) -> None:
        params = opened.sampling
        self.params = params
        self.suppressible = np.array(opened.suppressible_ids, np.int64)
        self.bias_ids = np.array([token for token, _ in params.logit_bias], np.int64)
        self.biases = np.array([bias for _, bias in params.logit_bias], np.float32)
        self.history: _History | None = None
        if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0:
            self.history = _History(opened.prompt_ids, opened.output_ids)


class _Columns:
    """What every draw needs, [max_seats] each."""

    def __init__(self, max_seats: int) -> None:
        singles = np.zeros((3, max_seats), np.float32)
        self.truncation = Truncation(singles[0], np.zeros(max_seats, np.int64), singles[1], singles[2])
        self.seeds = np.zeros(max_seats, np.uint64)
        self.num_outputs = np.zeros(max_seats, np.uint64)
        self._picked: tuple[list[int], Truncation, bool] = (_UNPICKED, self.truncation, False)
        """For these seats, what they truncate, and whether any of them looks at a uniform number: step after step the
        same seats ask."""

    def open(self, opened: SeatOpened) -> None:
        seat, params = opened.seat, opened.sampling
        # The most likely token is taken; the k = 1 most likely tokens are that one, ties or not.
        self.truncation.temperature[seat] = 0.0 if params.top_k == 1 else params.temperature
        self.truncation.top_k[seat] = params.top_k
        self.truncation.top_p[seat] = params.top_p
        self.truncation.min_p[seat] = params.min_p
        self.seeds[seat] = params.seed & _MASK_64
        self.num_outputs[seat] = len(opened.output_ids)
        self._picked = (_UNPICKED, self.truncation, False)

    def pick(self, seats: list[int], at: Ids) -> tuple[Truncation, Doubles]:
        """Return what `Draw` needs for ``seats``, ``at`` as an array; a uniform number is 0 where nobody looks."""
        if seats != self._picked[0]:
            every = self.truncation
            picked = Truncation(every.temperature[at], every.top_k[at], every.top_p[at], every.min_p[at])
            self._picked = (seats, picked, bool(picked.temperature.any()))
        _, picked, looks = self._picked
        return picked, sampling.uniforms(self.seeds[at], self.num_outputs[at]) if looks else np.zeros(len(seats))


class Sampler:
    """Draws tokens for seats; see `SamplingParams` for what they depend on."""

    def __init__(self, *, max_seats: int, draw: Draw = sampling.sample) -> None:
        self._draw = draw
        self._columns = _Columns(max_seats)
        self._seats: list[_Seat | None] = [None] * max_seats
        self.last_tokens = np.zeros(max_seats, np.int64)
        """[max_seats] the token drawn last for each seat; 0 where none was."""

    def open(self, opened: SeatOpened) -> None:
        """Give the seat to a request, whose output so far is ``opened.output_ids``."""
        self._seats[opened.seat] = _Seat(opened)
        self._columns.open(opened)
        self.last_tokens[opened.seat] = opened.output_ids[-1] if opened.output_ids else 0

    def sample(self, logits: torch.Tensor, seats: Sequence[int], suppress: Sequence[bool]) -> Drawn:
        """Draw a token for each of ``seats`` and move them on.

        ``logits`` [len(seats), vocab_size] in any float dtype, float32 is overwritten; ``suppress`` says whose
        suppressible ids are banned.
        """
        logits = logits.float()
        states = [self._state(seat) for seat in seats]
        asking = [row for row, state in enumerate(states) if state.params.num_logprobs is not None]
        # Reported is what the model said, before anything else changes it.
        untouched = logits[asking] if asking else None
        _penalise(logits, states)
        _edit(logits, states, suppress)
        at = np.array(seats, np.int64)
        ids, usable = self._draw(logits, *self._columns.pick(list(seats), at))
        unusable: list[int] = np.flatnonzero(~usable).tolist()
        logprobs: dict[int, TokenLogprobs] = {}
        if untouched is not None:
            wanted = [states[row].params.num_logprobs or 0 for row in asking]
            found = token_logprobs(untouched, torch.from_numpy(ids[asking]), wanted)
            logprobs = {row: found[i] for i, row in enumerate(asking) if usable[row]}
        ids[~usable] = NO_TOKEN
        token_ids: list[int] = ids.tolist()
        self.last_tokens[at[usable]] = ids[usable]
        self._columns.num_outputs[at[usable]] += np.uint64(1)
        for state, token in zip(states, token_ids, strict=True):
            if state.history is not None and token != NO_TOKEN:
                state.history.add(token)
        return Drawn(token_ids, unusable, logprobs)

    def _state(self, seat: int) -> _Seat:
        state = self._seats[seat]
        assert state is not None, f"seat {seat} samples and was never opened"
        return state


def _penalise(logits: torch.Tensor, states: list[_Seat]) -> None:
    """Apply the penalties of ``states``, whose rows ``logits`` are, in place."""
    seen = [(row, state.params, state.history) for row, state in enumerate(states) if state.history is not None]
    if not seen:
        return
    lengths = [len(history.ids) for _, _, history in seen]

    def spread(values: Sequence[float], dtype: type[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.array(values, dtype), lengths))

    sampling.penalise(
        logits,
        Occurrences(
            rows=spread([row for row, _, _ in seen], np.int64),
            ids=torch.from_numpy(np.concatenate([history.ids for _, _, history in seen])),
            output_counts=torch.from_numpy(np.concatenate([history.output_counts for _, _, history in seen])),
            repetition=spread([params.repetition_penalty for _, params, _ in seen], np.float32),
            presence=spread([params.presence_penalty for _, params, _ in seen], np.float32),
            frequency=spread([params.frequency_penalty for _, params, _ in seen], np.float32),
        ),
    )


def _edit(logits: torch.Tensor, states: list[_Seat], suppress: Sequence[bool]) -> None:
    """Apply biases and bans to the rows ``logits`` of ``states``, in place."""
    edits = [(row, s.bias_ids, s.biases) for row, s in enumerate(states) if len(s.biases)]
    for row, (state, banned) in enumerate(zip(states, suppress, strict=True)):
        if banned:
            edits.append((row, state.suppressible, np.full(len(state.suppressible), -np.inf, np.float32)))
    if edits:
        rows, ids, values = zip(*edits, strict=True)
        every_row = np.repeat(rows, [len(row_ids) for row_ids in ids])
        every_id, every_value = np.concatenate(ids), np.concatenate(values)
        sampling.add_at(logits, *(torch.from_numpy(column) for column in (every_row, every_id, every_value)))


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

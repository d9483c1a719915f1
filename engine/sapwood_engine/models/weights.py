"""The tensors that a model wants: allocated while it is composed, filled from a checkpoint afterwards.

Allocation touches no memory, so what a checkpoint lacks is found before anything is read. Each tensor is
converted straight into its place; nothing holds a second copy of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from sapwood_engine.checkpoint.blocks import decode
from sapwood_engine.checkpoint.tensors import BLOCK_SIZES, StoredTensor, TensorSource
from sapwood_engine.errors import CheckpointError
from sapwood_engine.layers.linear import Linear
from sapwood_engine.layers.norm import RmsNorm

Progress = Callable[[int, int], None]
"""Called with bytes read so far and bytes in all."""

_PLAIN_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_DECODED_ELEMENTS = 4 * 1024 * 1024
"""Of a quantised tensor, decoded to float32 at a time: 16 MB."""
_IGNORED_ENDINGS = ("rotary_emb.inv_freq",)
"""Buffers that old checkpoints carry; we compute them."""
_MAX_NAMES_TOLD = 5


class Weights:
    """Hands out uninitialised tensors by name, and remembers them until `fill`."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._wanted: dict[str, torch.Tensor] = {}
        self._ignored: set[str] = set()

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor that is one of the checkpoint's."""
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        self._wanted[name] = tensor
        return tensor

    def linear(self, inputs: int, outputs: Mapping[str, int], *, bias: bool = False) -> Linear:
        """One matrix of the layers named in ``outputs``, each with its number of rows, top to bottom."""
        stacked = sum(outputs.values())
        linear = Linear(
            torch.empty((stacked, inputs), dtype=self._dtype, device=self._device),
            torch.empty(stacked, dtype=self._dtype, device=self._device) if bias else None,
        )
        first = 0
        for name, count in outputs.items():
            rows = slice(first, first + count)
            self._wanted[f"{name}.weight"] = linear.weight[rows]
            if linear.bias is not None:
                self._wanted[f"{name}.bias"] = linear.bias[rows]
            first += count
        return linear

    def norm(self, name: str, size: int, eps: float, dtype: torch.dtype | None = None) -> RmsNorm:
        """A norm over ``size`` elements, whose result has ``dtype``, by default the model's."""
        weight = torch.empty(size, dtype=torch.float32, device=self._device)
        self._wanted[f"{name}.weight"] = weight
        return RmsNorm(weight, eps, dtype or self._dtype)

    def ignore(self, name: str) -> None:
        """The checkpoint may hold this tensor, and the model does not want it."""
        self._ignored.add(name)

    def fill(self, source: TensorSource, where: str, *, num_threads: int = 1, progress: Progress | None = None) -> None:
        """Read every tensor asked for, ``num_threads`` at a time; ``where`` names the checkpoint in errors.

        Raises `CheckpointError` before reading where tensors are missing, left over or of another shape.
        """
        self._check(source, where)
        stored = [source[name] for name in self._wanted]
        total, done = sum(tensor.num_bytes for tensor in stored), 0
        with ThreadPoolExecutor(num_threads) as threads:
            reads = threads.map(read_into, self._wanted.values(), stored)
            for tensor, _ in zip(stored, reads, strict=True):
                done += tensor.num_bytes
                if progress is not None:
                    progress(done, total)

    def _check(self, source: TensorSource, where: str) -> None:
        fix = "The file is damaged or of another model: download it again, or choose another."
        missing = [name for name in self._wanted if name not in source]
        if missing:
            raise CheckpointError(where, f"lacks {_told(missing)}", fix)
        left_over = [
            name
            for name in source
            if name not in self._wanted and name not in self._ignored and not name.endswith(_IGNORED_ENDINGS)
        ]
        if left_over:
            raise CheckpointError(where, f"holds what the model has no place for: {_told(left_over)}", fix)
        for name, target in self._wanted.items():
            if source[name].shape != tuple(target.shape):
                shapes = f"{list(source[name].shape)}, where the model needs {list(target.shape)}"
                raise CheckpointError(where, f"tensor {name} has shape {shapes}", fix)


def read_into(target: torch.Tensor, stored: StoredTensor) -> None:
    """Fill ``target``, contiguous and of the same shape, in its own dtype."""
    rows = stored.rows()
    plain = _PLAIN_DTYPES.get(stored.dtype)
    if plain is not None:
        target.copy_(torch.from_numpy(rows).view(plain).view(target.shape))
        return
    elements, size = BLOCK_SIZES[stored.dtype]
    row_elements = rows.shape[1] // size * elements
    target_rows = target.view(-1, row_elements)
    step = max(1, _DECODED_ELEMENTS // row_elements)
    buffer = np.empty(min(step, len(rows)) * row_elements, np.float32)
    for first in range(0, len(rows), step):
        chunk = rows[first : first + step]
        values = buffer[: len(chunk) * row_elements]
        decode(stored.dtype, chunk.reshape(-1), values)
        target_rows[first : first + step].copy_(torch.from_numpy(values).view(-1, row_elements))


def _told(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES_TOLD
    return ", ".join(names[:_MAX_NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")

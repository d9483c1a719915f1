"""A tensor as it lies in a file: bytes, and what they mean. Nothing is read before it is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

StoredDtype = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"]

Bytes = npt.NDArray[np.uint8]

BLOCK_SIZES: dict[StoredDtype, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q4_K": (256, 144),
    "Q6_K": (256, 210),
}
"""Elements of a block, and its bytes. A row is a whole number of blocks."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint under the name that Hugging Face's model classes give it."""

    name: str
    dtype: StoredDtype
    shape: tuple[int, ...]
    """Outermost first; the last axis is contiguous."""
    data: Bytes
    """[num_bytes], memory-mapped: a page of the file is read when it is touched."""
    interleaved_heads: int = 0
    """Heads whose rows the file keeps in the order 0, n/2, 1, n/2 + 1, … (see `rows`); 0 where rows are in
    order."""

    @property
    def num_rows(self) -> int:
        """Rows of a matrix; a vector is one row."""
        return math.prod(self.shape[:-1])

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return self.data.size

    def rows(self) -> Bytes:
        """Return the bytes as ``[num_rows, bytes of a row]``, rows in the order of Hugging Face's model
        classes.

        A view of the file, except where heads are interleaved: then a copy. Interleaved is how GGUF keeps q
        and k of the Llama family, whose rotary embedding turns neighbours there, where ours turns the halves
        of a head.
        """
        data = self.data
        if self.interleaved_heads:
            # Along the first axis whatever lies there: the rows of a matrix, the elements of a bias.
            size = self.num_bytes // self.shape[0]
            pairs = data.reshape(self.interleaved_heads, -1, 2, size)
            data = np.ascontiguousarray(pairs.swapaxes(1, 2))
        return data.reshape(self.num_rows, -1)


TensorSource = Mapping[str, StoredTensor]
"""Every tensor of a checkpoint by its Hugging Face name."""

"""Large memory that the system is asked to back with huge pages, where it has them and lets programs ask.

A step reads every weight, and attention pages all over the pool: with pages of 4 KiB the processor looks up an address
for each of them, and its prefetching stops at their ends.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
from collections.abc import Sequence

import torch

_HUGE_BYTES = 2**21
_CHUNK_BYTES = 16 * _HUGE_BYTES
_LINE_BYTES = 64


class HugePages:
    """Hands out tensors one behind the other, so that small ones share a huge page.

    A mapping of 32 MiB is made for what fits into one, and given back when the last tensor in it is gone; what is never
    touched takes no memory. Any thread may ask.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros that begin at a cache line."""
        size = math.prod(shape) * dtype.itemsize
        taken = -(-size // _LINE_BYTES) * _LINE_BYTES
        if taken > _CHUNK_BYTES:
            block = _map(size)
        else:
            with self._lock:
                if taken > len(self._free):
                    self._free = _map(_CHUNK_BYTES)
                block, self._free = self._free[:taken], self._free[taken:]
        return block[:size].view(dtype).view(*shape)


def ask_for_huge_pages(mapping: mmap.mmap) -> None:
    """Ask the system; one that was built without them refuses, and small pages do as well."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)


def _map(size: int) -> torch.Tensor:
    """Return ``size`` new bytes from the beginning of a huge page on; they live as long as views of them."""
    whole = -(-size // _HUGE_BYTES) * _HUGE_BYTES + _HUGE_BYTES
    if hasattr(mmap, "MAP_ANONYMOUS"):
        mapping = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        mapping = mmap.mmap(-1, whole)
    ask_for_huge_pages(mapping)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    return memory[-memory.data_ptr() % _HUGE_BYTES :][:size]

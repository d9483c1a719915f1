"""The safetensors format: an 8-byte length, a JSON header, tensors. Memory-mapped.

Our own reader because the library hands bfloat16 to numpy not at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from sapwood_engine.checkpoint.tensors import BLOCK_SIZES, Bytes, StoredDtype, StoredTensor, TensorSource
from sapwood_engine.errors import CheckpointError

_DTYPES = frozenset(get_args(StoredDtype)) & {"F32", "F16", "BF16"}
_METADATA = "__metadata__"


def read_safetensors(files: Sequence[Path]) -> TensorSource:
    """Map the tensors of all ``files``; raises `CheckpointError` naming file and tensor."""
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        for tensor in _read(path):
            if tensor.name in tensors:
                raise CheckpointError(str(path), f"repeats tensor {tensor.name} of another shard", "Remove one.")
            tensors[tensor.name] = tensor
    return tensors


def _read(path: Path) -> list[StoredTensor]:
    try:
        # Copy-on-write, because torch refuses to view memory that it could not write.
        data = np.memmap(path, dtype=np.uint8, mode="c")
        start = 8 + int.from_bytes(data[:8].tobytes(), "little")
        entries = json.loads(data[8:start].tobytes()).items()
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(
            str(path), f"is not a readable safetensors file ({error})", "Download it again."
        ) from error
    return [_tensor(path, name, entry, data[start:]) for name, entry in entries if name != _METADATA]


def _tensor(path: Path, name: str, entry: Any, data: Bytes) -> StoredTensor:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        first, last = entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(str(path), f"tensor {name} is not described ({error!r})", "Download it again.") from error
    if dtype not in _DTYPES:
        raise CheckpointError(
            str(path),
            f"tensor {name} has type {dtype}, which is not read here",
            f"Take a checkpoint in one of {', '.join(sorted(_DTYPES))}.",
        )
    if not 0 <= first <= last <= data.size or last - first != math.prod(shape) * BLOCK_SIZES[dtype][1]:
        raise CheckpointError(str(path), f"tensor {name} does not fit the file's length", "Download it again.")
    return StoredTensor(name, dtype, shape, data[first:last])

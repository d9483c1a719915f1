"""GGUF versions 2 and 3, little-endian: the header read in one pass, the tensors left where they are.

Specification: ggml's ``docs/gguf.md``. Our own reader because the ``gguf`` package takes two seconds for a
header with a vocabulary of 49,152, which every start would pay, in both processes.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sapwood_engine.checkpoint.tensors import BLOCK_SIZES, Bytes, StoredDtype
from sapwood_engine.errors import CheckpointError

_CONVERT = "Convert the model with a current llama.cpp."
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
"""Of tensors, in bytes, where the file says nothing."""
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}
"""Value type -> its struct format."""
_TENSOR_TYPES: dict[int, StoredDtype] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    8: "Q8_0",
    12: "Q4_K",
    14: "Q6_K",
    30: "BF16",
}
_OTHER_TENSOR_TYPES = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
"""Known by name only, so that the refusal says it."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor under the name that the file gives it."""

    name: str
    dtype: StoredDtype
    shape: tuple[int, ...]
    """Outermost first, the reverse of what the file writes."""
    data: Bytes
    """[num_bytes], memory-mapped"""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The header of a file, and its tensors by name."""

    path: Path
    metadata: dict[str, Any]
    """Values as Python's own: int, float, bool, str, and lists of them."""
    tensors: dict[str, GgufTensor]


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the key-value part of the header, tokenizer included; raises `CheckpointError`."""
    return _Reader(path).metadata()


def read_gguf(path: Path) -> GgufFile:
    """Return header and tensors; the file stays mapped as long as a tensor is kept.

    Raises `CheckpointError` for what is not GGUF, is cut short, or holds a tensor of a type that is not read
    here.
    """
    reader = _Reader(path)
    metadata = reader.metadata()
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise CheckpointError(str(path), f"general.alignment is {alignment!r}, not a positive number", _CONVERT)
    return GgufFile(path, metadata, reader.tensors(alignment))


class _Reader:
    """Walks the header of one file from start to end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Copy-on-write, because torch refuses to view memory that it could not write.
            self._data = np.memmap(path, dtype=np.uint8, mode="c")
        except (OSError, ValueError) as error:
            raise CheckpointError(str(path), f"cannot be opened ({error})", "Check the path and the file.") from error
        self._view = self._data.data
        self._at = 0
        try:
            magic = self._take(4)
            (version,) = self._unpack("I")
            if magic != _MAGIC or version not in _VERSIONS:
                raise CheckpointError(
                    str(path),
                    f"begins with {magic!r}, version {version}: not GGUF of version 2 or 3, little-endian",
                    _CONVERT,
                )
            self._num_tensors, self._num_values = self._unpack("QQ")
        except (struct.error, ValueError) as error:
            raise self._cut_short() from error

    def metadata(self) -> dict[str, Any]:
        try:
            return {self._string(): self._value() for _ in range(self._num_values)}
        except (struct.error, ValueError) as error:
            raise self._cut_short() from error

    def tensors(self, alignment: int) -> dict[str, GgufTensor]:
        """Must follow `metadata`."""
        try:
            infos = [self._tensor_info() for _ in range(self._num_tensors)]
        except (struct.error, ValueError) as error:
            raise self._cut_short() from error
        start = -(-self._at // alignment) * alignment
        return {name: self._tensor(name, kind, shape, start + offset) for name, kind, shape, offset in infos}

    def _tensor_info(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._string()
        (num_axes,) = self._unpack("I")
        shape = self._unpack(f"{num_axes}Q")
        kind, offset = self._unpack("IQ")
        return name, kind, tuple(reversed(shape)), offset

    def _tensor(self, name: str, kind: int, shape: tuple[int, ...], start: int) -> GgufTensor:
        dtype = _TENSOR_TYPES.get(kind)
        if dtype is None:
            told = _OTHER_TENSOR_TYPES.get(kind, f"number {kind}")
            raise CheckpointError(
                str(self._path),
                f"tensor {name} has type {told}, which is not read here",
                f"Take a file quantised as one of {', '.join(_TENSOR_TYPES.values())}.",
            )
        elements, size = BLOCK_SIZES[dtype]
        if not shape or shape[-1] % elements:
            raise CheckpointError(
                str(self._path),
                f"tensor {name} of shape {list(shape)} is not whole blocks of {dtype} ({elements})",
                _CONVERT,
            )
        end = start + math.prod(shape) // elements * size
        if end > self._data.size:
            raise self._cut_short()
        return GgufTensor(name, dtype, shape, self._data[start:end])

    def _take(self, num_bytes: int) -> bytes:
        end = self._at + num_bytes
        if end > len(self._view):
            raise ValueError("past the end")
        taken = bytes(self._view[self._at : end])
        self._at = end
        return taken

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        values = struct.unpack_from(layout, self._view, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        return self._take(length).decode("utf-8", errors="replace")

    def _value(self) -> Any:
        (kind,) = self._unpack("I")
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._unpack(self._number_format(kind))[0]

    def _array(self) -> list[Any]:
        kind, length = self._unpack("IQ")
        if kind == _STRING:
            return self._strings(length)
        if kind == _ARRAY:
            return [self._array() for _ in range(length)]
        return list(self._unpack(f"{length}{self._number_format(kind)}"))

    def _strings(self, count: int) -> list[str]:
        """A vocabulary has hundreds of thousands of strings: one loop over local names, no call for each."""
        view, at, strings = self._view, self._at, []
        read_length = struct.Struct("<Q").unpack_from
        for _ in range(count):
            (length,) = read_length(view, at)
            end = at + 8 + length
            strings.append(str(view[at + 8 : end], "utf-8", "replace"))
            at = end
        if at > len(view):
            raise ValueError("past the end")
        self._at = at
        return strings

    def _number_format(self, kind: int) -> str:
        try:
            return _NUMBERS[kind]
        except KeyError:
            raise CheckpointError(
                str(self._path),
                f"holds a value of unknown type {kind}",
                _CONVERT,
            ) from None

    def _cut_short(self) -> CheckpointError:
        return CheckpointError(
            str(self._path), f"ends early, after {len(self._view)} bytes", "Download or copy it again."
        )

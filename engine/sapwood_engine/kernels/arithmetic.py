"""In which number format the model computes, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sapwood_contract.launch import DtypeName
from sapwood_engine.kernels.cpu_features import CpuFeatures

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class ArithmeticChoice:
    """The dtype of weights and activations, with the reason that the ready card shows."""

    dtype: torch.dtype
    reason: str


def choose_dtype(requested: DtypeName, features: CpuFeatures) -> ArithmeticChoice:
    """Return what was requested, or for ``auto`` the format that this processor multiplies fastest.

    bfloat16 only where the processor has products of it: emulated ones run at a quarter of float32's speed.
    """
    if requested != "auto":
        return ArithmeticChoice(_DTYPES[requested], "as requested")
    if features.native_bf16:
        return ArithmeticChoice(torch.bfloat16, f"{features.instruction_set} multiplies bfloat16 natively")
    return ArithmeticChoice(torch.float32, f"{features.instruction_set} has no bfloat16 products")

"""How weights lie in memory for the compiled step, and the packing into it.

A product's columns come in panels of PANEL, the widest tile: two vectors. A panel holds all of the depth, so a tile
reads it from front to back, and so does the memory. Where the processor multiplies pairs of bfloat16 (``pairs``), two
depths lie beside each other in every lane::

    pairs     panel 0                                        panel 1
              ┌ depth 0,1 ────────────┬ depth 2,3 ────────┬─ …
    vector 0  │ c0: k0 k1 │ c1: k0 k1 │ c0: k2 k3 │ …
    vector 1  │ c16: …                │

Where it does not, a bfloat16 is widened by shifting it up. So lane ``j`` of one 32-bit load carries column ``j`` in
its low half and column ``LANES + j`` in its high half: one shift and one mask give both vectors of the panel::

    halves    depth 0: │ c0 c16 │ c1 c17 │ …    depth 1: │ …

float16 and int8 are widened by instructions of their own and lie in the order of the columns. An int8 weight stands for
itself times its column's scale, and a panel of them ends with its PANEL scales, float32.

Columns and depths that a weight does not have are zeros: no tile needs a mask, and what is multiplied with them is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sapwood_engine.kernels.huge_pages import HugePages
from sapwood_engine.kernels.simd import BF16_DOT, LANES

PANEL = 2 * LANES
"""Columns of a panel."""
DEPTH_MULTIPLE = 2
"""Depths are padded to this, so that pairs are whole."""
MOST_INT8 = 127
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Packed:
    """One weight in panels."""

    panels: torch.Tensor
    """[num_panels, bytes of a panel as above / element size]: bfloat16, float16 or int8"""
    num_columns: int
    """Of the weight, without padding"""
    num_panels: int
    depth: int
    """Padded"""


def padded(size: int, multiple: int) -> int:
    """``size`` rounded up."""
    return -(-size // multiple) * multiple


def pack(weight: torch.Tensor, memory: HugePages, *, depth: int | None = None, int8: bool = False) -> Packed:
    """Lay ``weight`` [num_columns, depth], bfloat16 or float16, out in panels, in new ``memory``.

    ``depth`` is what the activations are padded to, at least the weight's. With ``int8`` every column is divided by
    a 127th of its largest magnitude and rounded to nearest.
    """
    columns, own_depth = weight.shape
    depth = padded(depth or own_depth, DEPTH_MULTIPLE)
    num_panels = padded(columns, PANEL) // PANEL
    dtype, behind = (torch.int8, SCALE_BYTES) if int8 else (weight.dtype, 0)
    out = memory.zeros((num_panels, (depth + behind) * PANEL), dtype)
    # A bounded number of panels at a time: the padded copy beside the result stays small.
    step = max(1, _PACKED_ELEMENTS // (depth * PANEL))
    for first in range(0, num_panels, step):
        rows = weight[first * PANEL : (first + step) * PANEL]
        count = min(step, num_panels - first)
        if rows.shape != (count * PANEL, depth):
            whole = weight.new_zeros(count * PANEL, depth)
            whole[: len(rows), :own_depth] = rows
            rows = whole
        panels = rows.reshape(count, PANEL, depth)
        if int8:
            _quantise(panels, out[first : first + count])
        else:
            ordered = _order(panels)
            out[first : first + count].view(ordered.shape).copy_(ordered)
    return Packed(out, columns, num_panels, depth)


_PACKED_ELEMENTS = 4 * 1024 * 1024


def _quantise(panels: torch.Tensor, out: torch.Tensor) -> None:
    """[count, PANEL, depth] -> ``out``, int8 [count, (depth + SCALE_BYTES) * PANEL]."""
    values = panels.float()
    scales = values.abs().amax(2) / MOST_INT8
    # A column of zeros has no scale to divide by. The smallest scales are coarse, and quotients by them larger.
    divisors = torch.where(scales == 0, 1, scales)
    rounded = (values / divisors[:, :, None]).round().clamp(-MOST_INT8, MOST_INT8)
    size = out.shape[1] - SCALE_BYTES * PANEL
    out[:, :size] = rounded.transpose(1, 2).reshape(len(out), size)
    out[:, size:] = scales.view(torch.int8)


def _order(panels: torch.Tensor) -> torch.Tensor:
    """[count, PANEL, depth] -> the order in memory."""
    count, _, depth = panels.shape
    if panels.dtype == torch.float16:
        return panels.transpose(1, 2)
    if BF16_DOT:
        return panels.view(count, PANEL, depth // 2, 2).transpose(1, 2)
    return panels.view(count, 2, LANES, depth).permute(0, 3, 2, 1)


def unpack_rows(packed: Packed, columns: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return ``columns`` [n] of a packed weight as float32 [n, depth]: how a tied embedding is read.

    With numpy, whose calls cost a third of torch's: for a single token there is little else to do.
    """
    panel, column = np.divmod(columns, PANEL)
    depth = packed.depth
    if packed.panels.dtype == torch.int8:
        panels = packed.panels.numpy()
        values = panels[:, : depth * PANEL].reshape(-1, depth, PANEL)
        scales = panels[:, depth * PANEL :].view(np.float32)
        dequantised: npt.NDArray[np.float32] = values[panel, :, column] * scales[panel, column, None]
        return dequantised
    if packed.panels.dtype == torch.float16:
        halves = packed.panels.numpy().reshape(-1, depth, PANEL)
        return halves[panel, :, column].astype(np.float32)
    # numpy has no bfloat16: it is the upper half of a float32.
    bits = packed.panels.view(torch.int16).numpy().view(np.uint16)
    if BF16_DOT:
        found = bits.reshape(-1, depth // 2, PANEL, 2)[panel, :, column].reshape(len(columns), depth)
    else:
        found = bits.reshape(-1, depth, LANES, 2)[panel, :, column % LANES, column // LANES]
    return (found.astype(np.uint32) << 16).view(np.float32)


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return [2 * padded rows, depth] in which every panel holds LANES rows of ``gate`` and the same rows of ``up``.

    So one tile yields both factors of ``activation(gate) * up``.
    """
    rows, depth = gate.shape
    groups = padded(rows, LANES) // LANES
    out = gate.new_zeros(groups, 2, LANES, *gate.shape[1:])
    for index, part in enumerate((gate, up)):
        whole = rows // LANES
        out[:whole, index] = part[: whole * LANES].view(whole, LANES, depth)
        if rows % LANES:
            out[whole, index, : rows % LANES] = part[whole * LANES :]
    return out.view(-1, depth)

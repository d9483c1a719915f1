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

float16 is widened by an instruction of its own and lies in the order of the columns.

Columns and depths that a weight does not have are zeros: no tile needs a mask, and what is multiplied with them is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sapwood_engine.kernels.simd import BF16_DOT, LANES

PANEL = 2 * LANES
"""Columns of a panel."""
DEPTH_MULTIPLE = 2
"""Depths are padded to this, so that pairs are whole."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One weight in panels."""

    panels: torch.Tensor
    """[num_panels, depth, PANEL] elements of 16 bits in one of the orders above, flat"""
    num_columns: int
    """Of the weight, without padding"""
    num_panels: int
    depth: int
    """Padded"""


def padded(size: int, multiple: int) -> int:
    """``size`` rounded up."""
    return -(-size // multiple) * multiple


def pack(weight: torch.Tensor, *, depth: int | None = None) -> Packed:
    """Lay ``weight`` [num_columns, depth], bfloat16 or float16, out in panels; a new tensor.

    ``depth`` is what the activations are padded to, at least the weight's.
    """
    columns, own_depth = weight.shape
    depth = padded(depth or own_depth, DEPTH_MULTIPLE)
    num_panels = padded(columns, PANEL) // PANEL
    out = torch.zeros(num_panels, depth * PANEL, dtype=weight.dtype)
    # A bounded number of panels at a time: the padded copy beside the result stays small.
    step = max(1, _PACKED_ELEMENTS // (depth * PANEL))
    for first in range(0, num_panels, step):
        rows = weight[first * PANEL : (first + step) * PANEL]
        count = min(step, num_panels - first)
        block = weight.new_zeros(count * PANEL, depth)
        block[: len(rows), :own_depth] = rows
        out[first : first + count] = _order(block.view(count, PANEL, depth)).reshape(count, -1)
    return Packed(out, columns, num_panels, depth)


_PACKED_ELEMENTS = 4 * 1024 * 1024


def _order(panels: torch.Tensor) -> torch.Tensor:
    """[count, PANEL, depth] -> the order in memory."""
    count, _, depth = panels.shape
    if panels.dtype == torch.float16:
        return panels.transpose(1, 2)
    if BF16_DOT:
        return panels.view(count, PANEL, depth // 2, 2).transpose(1, 2)
    return panels.view(count, 2, LANES, depth).permute(0, 3, 2, 1)


def unpack_rows(packed: Packed, columns: torch.Tensor) -> torch.Tensor:
    """Return ``columns`` (int64 [n]) of a packed weight as float32 [n, depth]: how a tied embedding is read."""
    panel, column = columns // PANEL, columns % PANEL
    panels = packed.panels
    if panels.dtype == torch.float16:
        found = panels.view(packed.num_panels, packed.depth, PANEL)[panel, :, column]
    elif BF16_DOT:
        found = panels.view(packed.num_panels, packed.depth // 2, PANEL, 2)[panel, :, column].flatten(1)
    else:
        ordered = panels.view(packed.num_panels, packed.depth, LANES, 2)
        found = ordered[panel, :, column % LANES, column // LANES]
    return found.float()


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

"""A whole step as one compiled function: one parallel region, every thread walks all layers, barriers between phases.

A layer has six phases, and what each thread does in them::

    1  norm, then q, k and v       its share of the panels, all rows
    2  rotate, store k and v       its share of the tokens
    3  attention                   units, whoever is free takes the next
    4  output, added to x          its share of the panels
    5  norm, gate and up, act      its share of the panels
    6  down, added to x            its share of the panels

With few rows every thread normalises all of them for itself, which is quicker than waiting for a share; with many they
share the rows and wait.

The function knows no model: all dimensions and addresses come in tables, so one compilation serves every model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

from sapwood_engine.kernels.compiled import EXACT_INNER, EXACT_OPTIONS
from sapwood_engine.kernels.cpu_step.attention import Workspace, attend_unit
from sapwood_engine.kernels.cpu_step.layout import PANEL
from sapwood_engine.kernels.cpu_step.rows import (
    activate_row,
    add_scaled,
    keep_row,
    rotate_row,
    scale_row,
    sum_squares,
)
from sapwood_engine.kernels.cpu_step.threads import add_atomically, wait_for
from sapwood_engine.kernels.cpu_step.tiles import MOST_ROWS
from sapwood_engine.kernels.cpu_step.weights import bytes_of_panel, multiply_weight
from sapwood_engine.kernels.simd import BF16_DOT, LANES

ROWS_AT_ONCE = 192 if BF16_DOT else 96
"""Rows that pass over a panel before the next one is read: their activations stay in the second-level cache."""
OWN_NORM_ROWS = 16
"""Up to this many rows every thread normalises all rows for itself."""
_ONE = np.float32(1)

LAYER_FIELDS = 14
(
    ATTENTION_NORM,
    QKV,
    QKV_BIAS,
    Q_NORM,
    K_NORM,
    OUTPUT,
    OUTPUT_BIAS,
    MLP_NORM,
    GATE_UP,
    GATE_UP_BIAS,
    DOWN,
    DOWN_BIAS,
    K_PAGES,
    V_PAGES,
) = range(LAYER_FIELDS)
"""Columns of the layer table, addresses: norms float32; weights as panels (`layout`); biases float32 padded to whole
panels, 0 where there is none; pages of this layer."""


class ModelShape(NamedTuple):
    """A dense decoder as numbers; sizes in elements."""

    hidden: int
    hidden_width: int
    """Padded to whole panels"""
    heads: int
    inner: int
    """Of the MLP, padded to whole panels of gate and up"""
    qkv_width: int
    """Padded to whole panels"""
    rotary_half: int
    """0: nothing rotates"""
    eps: float
    scale: float
    """On scores, log2(e) included"""
    slope: float
    cubic: float
    """Of the activation, see `rows.activate_row`"""


class Buffers(NamedTuple):
    """Memory of the step: addresses, of float32 unless said. Rows are tokens of the step."""

    x: int
    """[rows, hidden_width] the residual"""
    normed: int
    """[threads + 1, …, hidden_width] activations: every thread's own OWN_NORM_ROWS rows, then all rows"""
    qkv: int
    """[rows, qkv_width]"""
    queries: int
    """[kv_heads, rows, group, dim] activations"""
    attended: int
    """[rows, heads * dim] activations"""
    gated: int
    """[rows, inner] activations"""
    panel: int
    """[threads, ROWS_AT_ONCE, PANEL]"""
    wide: int
    """[threads, depth of the deepest product, PANEL] activations, see `weights`"""
    wide_bytes: int
    """From one thread's to the next one's"""
    barrier: int
    """int64 [3] zeros before the step, see `threads.wait_for`"""
    next_unit: int
    """int64 [num_layers] counters, 0 before the step"""


class Rotation(NamedTuple):
    """How heads turn: the frequencies, and memory for one step's cosines and sines, which every layer reads."""

    inverse: Any
    """float32 [rotary_half] angle of a position"""
    amplitude: float
    cos: Any
    """float32 [most rows, 2 * rotary_half]"""
    sin: Any
    """The same; the first half negated"""


class Batch(NamedTuple):
    """What this step computes."""

    num_rows: int
    token_rows: int
    """Address, float32 [rows, hidden]: the embeddings"""
    slots: Any
    """int64 [rows]"""
    positions: Any
    """int64 [rows]"""
    kv_indices: Any
    """int32, as in `attention.base`"""
    num_units: int
    wanted: Any
    """int64 [num_wanted] rows whose final state is wanted"""
    out: int
    """Address, float32 [num_wanted, hidden]"""
    final_norm: int
    """Address, float32 [hidden]"""


@njit(**EXACT_INNER)
def normalise(out_tag, out, out_bytes, x, x_bytes, weight, hidden, eps, begin, end):  # type: ignore[no-untyped-def]
    """Rows ``begin`` … ``end`` of ``x`` by their root mean square, times ``weight``."""
    for m in range(begin, end):
        row = x + m * x_bytes
        factor = _ONE / np.sqrt(sum_squares(row, hidden) / np.float32(hidden) + np.float32(eps))
        scale_row(out_tag, out + m * out_bytes, row, weight, hidden, factor)


@njit(**EXACT_INNER)
def share(count, t, num_threads):  # type: ignore[no-untyped-def]
    """What thread ``t`` does of ``count``: from, to."""
    return count * t // num_threads, count * (t + 1) // num_threads


@njit(**EXACT_INNER)
def multiply(x_tag, w_tag, x, x_bytes, rows, weight, depth, wide, init, y, y_bytes, begin, end):  # type: ignore[no-untyped-def]
    """Panels ``begin`` … ``end`` of y = init + x @ weight; ``wide`` as in `weights.multiply_weight`.

    ``init`` is a bias, or ``y`` itself, to which then is added, or 0 for neither.
    """
    panel_bytes = bytes_of_panel(w_tag, depth)
    init_bytes = y_bytes if init == y else 0
    for first in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - first)
        of = x + first * x_bytes
        for p in range(begin, end):
            to = y + first * y_bytes + p * PANEL * 4
            start = init + first * init_bytes + p * PANEL * 4 if init != 0 else 0
            panel = weight + p * panel_bytes
            multiply_weight(x_tag, w_tag, of, x_bytes, count, panel, depth, wide, start, init_bytes, to, y_bytes)


@njit(**EXACT_INNER)
def add_product(x_tag, w_tag, x, x_bytes, rows, weight, depth, wide, bias, y, y_bytes, begin, end):  # type: ignore[no-untyped-def]
    """Panels ``begin`` … ``end`` of y += bias + x @ weight; no ``bias`` where it is 0."""
    if bias != 0:
        for m in range(rows):
            for p in range(begin, end):
                add_scaled(y + m * y_bytes + p * PANEL * 4, _ONE, bias + p * PANEL * 4, _ONE, PANEL)
    multiply(x_tag, w_tag, x, x_bytes, rows, weight, depth, wide, y, y, y_bytes, begin, end)


@njit(**EXACT_INNER)
def multiply_gated(x_tag, w_tag, model, x, x_bytes, rows, weight, wide, bias, scratch, y, y_bytes, begin, end):  # type: ignore[no-untyped-def]
    """Panels ``begin`` … ``end`` of gate and up, LANES columns of y each; ``scratch``: [ROWS_AT_ONCE, PANEL]."""
    depth = model.hidden
    panel_bytes = bytes_of_panel(w_tag, depth)
    slope, cubic = np.float32(model.slope), np.float32(model.cubic)
    for first in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - first)
        of = x + first * x_bytes
        for p in range(begin, end):
            panel, start = weight + p * panel_bytes, bias + p * PANEL * 4 if bias != 0 else 0
            multiply_weight(x_tag, w_tag, of, x_bytes, count, panel, depth, wide, start, 0, scratch, PANEL * 4)
            to = y + first * y_bytes + p * LANES * x_tag.itemsize
            for m in range(count):
                activate_row(x_tag, to + m * y_bytes, scratch + m * PANEL * 4, slope, cubic, y_bytes * MOST_ROWS)


@njit(**EXACT_INNER)
def turn_to(rotation, m, position):  # type: ignore[no-untyped-def]
    """Fill row ``m`` of ``rotation`` for a token at ``position``."""
    half = len(rotation.inverse)
    amplitude = np.float32(rotation.amplitude)
    for i in range(half):
        angle = np.float32(position) * rotation.inverse[i]
        cos, sin = np.cos(angle) * amplitude, np.sin(angle) * amplitude
        rotation.cos[m, i] = rotation.cos[m, half + i] = cos
        rotation.sin[m, i], rotation.sin[m, half + i] = -sin, sin


@njit(**EXACT_INNER)
def place_token(x_tag, kv_tag, model, shape, layer, buffers, batch, rotation, m):  # type: ignore[no-untyped-def]
    """Normalise and rotate the heads of token ``m``; store its key and value, and its queries for attention."""
    dim, group = shape.dim, shape.group
    row = buffers.qkv + m * model.qkv_width * 4
    for head in range(model.heads + shape.num_kv_heads):
        at = row + head * dim * 4
        norm = layer[Q_NORM] if head < model.heads else layer[K_NORM]
        if norm != 0:
            normalise(_FLOATS, at, 0, at, 0, norm, dim, model.eps, 0, 1)
        if model.rotary_half > 0:
            turn = m * model.rotary_half * 8
            cos, sin = np.int64(rotation.cos.ctypes.data) + turn, np.int64(rotation.sin.ctypes.data) + turn
            rotate_row(at, cos, sin, model.rotary_half)
    slot = batch.slots[m] * shape.kv_slot
    for head in range(shape.num_kv_heads):
        key = row + (model.heads + head) * dim * 4
        value = key + shape.num_kv_heads * dim * 4
        keep_row(kv_tag, layer[K_PAGES] + slot + head * shape.kv_head, key, dim, _ONE)
        keep_row(kv_tag, layer[V_PAGES] + slot + head * shape.kv_head, value, dim, _ONE)
        to = buffers.queries + head * shape.q_head + m * group * dim * x_tag.itemsize
        keep_row(x_tag, to, row + head * group * dim * 4, group * dim, np.float32(model.scale))


@njit(**EXACT_INNER)
def of_thread(space, t):  # type: ignore[no-untyped-def]
    """One thread's part of a `Workspace`."""
    return Workspace(
        space.queries[t],
        space.keys[t],
        space.values[t],
        space.scores[t],
        space.weights[t],
        space.part[t],
        space.total[t],
        space.maxima[t],
        space.sums[t],
        space.rows[t],
    )


@njit(**EXACT_INNER)
def normed_for(x_tag, model, buffers, rows, weight, t, num_threads, waited):  # type: ignore[no-untyped-def]
    """Normalise the residual; return where thread ``t`` finds all rows, and the barrier's new count."""
    x_bytes, out_bytes = model.hidden_width * 4, model.hidden_width * x_tag.itemsize
    own = t if rows <= OWN_NORM_ROWS else num_threads
    out = buffers.normed + own * OWN_NORM_ROWS * out_bytes
    begin, end = (0, rows) if rows <= OWN_NORM_ROWS else share(rows, t, num_threads)
    normalise(x_tag, out, out_bytes, buffers.x, x_bytes, weight, model.hidden, model.eps, begin, end)
    if rows > OWN_NORM_ROWS:
        waited += num_threads
        wait_for(buffers.barrier, waited)
    return out, waited


@njit(**EXACT_INNER)
def walk(x_tag, w_tag, kv_tag, model, shape, layers, buffers, batch, rotation, work, t, num_threads, space, parts):  # type: ignore[no-untyped-def]
    """Thread ``t``'s part of the step."""
    rows, hidden = batch.num_rows, model.hidden
    x_bytes, act = model.hidden_width * 4, x_tag.itemsize
    qkv_bytes, attended_bytes, gated_bytes = model.qkv_width * 4, model.heads * shape.dim * act, model.inner * act
    normed_bytes = model.hidden_width * act
    wide = buffers.wide + t * buffers.wide_bytes
    waited = 0
    begin, end = share(rows, t, num_threads)
    for m in range(begin, end):
        keep_row(_FLOATS, buffers.x + m * x_bytes, batch.token_rows + m * hidden * 4, hidden, _ONE)
        turn_to(rotation, m, batch.positions[m])
    waited += num_threads
    wait_for(buffers.barrier, waited)
    q_begin, q_end = share(model.qkv_width // PANEL, t, num_threads)
    o_begin, o_end = share(model.hidden_width // PANEL, t, num_threads)
    g_begin, g_end = share(model.inner // LANES, t, num_threads)
    for number in range(layers.shape[0]):
        layer = layers[number]
        normed, waited = normed_for(x_tag, model, buffers, rows, layer[ATTENTION_NORM], t, num_threads, waited)
        multiply(
            x_tag, w_tag, normed, normed_bytes, rows, layer[QKV], hidden, wide, layer[QKV_BIAS],
            buffers.qkv, qkv_bytes, q_begin, q_end,
        )  # fmt: skip
        waited += num_threads
        wait_for(buffers.barrier, waited)
        for m in range(begin, end):
            place_token(x_tag, kv_tag, model, shape, layer, buffers, batch, rotation, m)
        waited += num_threads
        wait_for(buffers.barrier, waited)
        while True:
            u = add_atomically(buffers.next_unit + number * 8, 1)
            if u >= batch.num_units:
                break
            attend_unit(
                x_tag, kv_tag, shape, work.units[u], work, batch.kv_indices, buffers.queries, layer[K_PAGES],
                layer[V_PAGES], buffers.attended, space, parts,
            )  # fmt: skip
        waited += num_threads
        wait_for(buffers.barrier, waited)
        add_product(
            x_tag, w_tag, buffers.attended, attended_bytes, rows, layer[OUTPUT], model.heads * shape.dim,
            wide, layer[OUTPUT_BIAS], buffers.x, x_bytes, o_begin, o_end,
        )  # fmt: skip
        waited += num_threads
        wait_for(buffers.barrier, waited)
        normed, waited = normed_for(x_tag, model, buffers, rows, layer[MLP_NORM], t, num_threads, waited)
        scratch = buffers.panel + t * ROWS_AT_ONCE * PANEL * 4
        multiply_gated(
            x_tag, w_tag, model, normed, normed_bytes, rows, layer[GATE_UP], wide, layer[GATE_UP_BIAS],
            scratch, buffers.gated, gated_bytes, g_begin, g_end,
        )  # fmt: skip
        waited += num_threads
        wait_for(buffers.barrier, waited)
        add_product(
            x_tag, w_tag, buffers.gated, gated_bytes, rows, layer[DOWN], model.inner, wide,
            layer[DOWN_BIAS], buffers.x, x_bytes, o_begin, o_end,
        )  # fmt: skip
        waited += num_threads
        wait_for(buffers.barrier, waited)
    begin, end = share(batch.wanted.shape[0], t, num_threads)
    for i in range(begin, end):
        row = buffers.x + batch.wanted[i] * x_bytes
        normalise(_FLOATS, batch.out + i * hidden * 4, 0, row, 0, batch.final_norm, hidden, model.eps, 0, 1)


_FLOATS = np.empty(0, np.float32)


@njit(parallel=True, **EXACT_OPTIONS)
def run_step(x_tag, w_tag, kv_tag, num_threads, model, shape, layers, buffers, batch, rotation, work, space, parts):  # type: ignore[no-untyped-def]
    """Compute ``batch``: write K and V to the pages and the wanted final states, after the norm, to ``batch.out``.

    ``x_tag``, ``w_tag``, ``kv_tag``: arrays whose dtypes name the elements of activations, weights and pages.
    ``num_threads`` threads must be had at once: they wait for each other.
    """
    for t in prange(num_threads):
        walk(
            x_tag, w_tag, kv_tag, model, shape, layers, buffers, batch, rotation, work, t, num_threads,
            of_thread(space, t), parts,
        )  # fmt: skip


@njit(parallel=True, **EXACT_OPTIONS)
def run_product(x_tag, w_tag, num_threads, x, rows, hidden, weight, columns, scratch, wide, y):  # type: ignore[no-untyped-def]
    """y[rows, columns] = x @ weight for float32 ``x`` [rows, hidden]; ``columns`` are whole panels.

    ``scratch``: address of activations [rows, hidden]; ``wide``: of [num_threads, hidden, PANEL].
    """
    for m in range(rows):
        keep_row(x_tag, scratch + m * hidden * x_tag.itemsize, x + m * hidden * 4, hidden, _ONE)
    for t in prange(num_threads):
        begin, end = share(columns // PANEL, t, num_threads)
        own = wide + t * hidden * PANEL * x_tag.itemsize
        multiply(
            x_tag, w_tag, scratch, hidden * x_tag.itemsize, rows, weight, hidden, own, 0, y, columns * 4, begin, end
        )

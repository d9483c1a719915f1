"""A decoder whose whole step is one compiled function: its weights packed, its dimensions and addresses in tables.

Made from a composed `Decoder`, whose matrices it takes one by one, so that no second copy of the model exists. What it
cannot express is said by `hindrance`, from the dimensions and not from the model's name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from sapwood_engine.checkpoint.spec import Activation, ModelSpec
from sapwood_engine.kernels.attention.base import AttentionMetadata
from sapwood_engine.kernels.cpu_step import attention, step, units
from sapwood_engine.kernels.cpu_step.layout import PANEL, interleave, pack, padded, unpack_rows
from sapwood_engine.kernels.huge_pages import HugePages
from sapwood_engine.kernels.simd import BF16_DOT, LANES, SMALL_LANES, TAGS
from sapwood_engine.layers.batch import StepBatch
from sapwood_engine.layers.linear import Linear
from sapwood_engine.layers.norm import RmsNorm
from sapwood_engine.models.compiled_memory import StepMemory
from sapwood_engine.models.crew import Crew
from sapwood_engine.models.decoder import Block, Decoder

_LOG2_E = 1.4426950408889634
_ACTIVATIONS: dict[Activation, tuple[float, float]] = {
    "silu": (1.0, 0.0),
    "gelu_tanh": (2 * math.sqrt(2 / math.pi), 0.044715),
}
"""Slope and cubic of `kernels.cpu_step.rows.activate_row`."""


def hindrance(spec: ModelSpec, dtype: torch.dtype) -> str | None:
    """Return why the compiled step cannot run a model of ``spec`` with weights of ``dtype``, or None."""
    if dtype not in (torch.bfloat16, torch.float16):
        return f"it has 16-bit weights, and these are {str(dtype).removeprefix('torch.')}"
    if spec.activation not in _ACTIVATIONS:
        return f"it has the activations {', '.join(_ACTIVATIONS)}, and this is {spec.activation}"
    rotary = (spec.rope.rotary_dim or spec.head_dim) // 2
    for name, size in (("hidden size", spec.hidden_size), ("head_dim", spec.head_dim), ("half rotation", rotary)):
        if size % SMALL_LANES:
            return f"it takes multiples of {SMALL_LANES}, and the {name} is {size}"
    return None


class CompiledDecoder:
    """`runtime.model_runner.Model` over `kernels.cpu_step`; called from one thread at a time."""

    def __init__(
        self,
        decoder: Decoder,
        spec: ModelSpec,
        *,
        max_rows: int,
        max_logits: int,
        num_threads: int,
        bind_threads: bool = False,
        int8: bool = False,
    ) -> None:
        """Take the weights out of ``decoder``, which cannot compute afterwards; `hindrance` must be None.

        ``max_rows``: most tokens of a step; ``max_logits``: rows of `logits` that memory is kept for; ``num_threads``
        and ``bind_threads`` as in `models.crew`. ``int8`` quantises all matrices, a vocabulary matrix that is the
        embedding too among them; an embedding of its own stays as it is.
        """
        dtype = decoder.embedding.weight.dtype
        self._spec = spec
        self._max_rows = max_rows
        self._crew = Crew(num_threads, bind=bind_threads)
        self._norm: RmsNorm = decoder.norm
        in_pairs = BF16_DOT and (int8 or dtype == torch.bfloat16)
        self.activations = torch.bfloat16 if in_pairs else torch.float32
        """What is multiplied with the weights; everything else is float32."""
        self._model = model_shape(spec)
        self._memory = StepMemory(
            self._model,
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            dim=spec.head_dim,
            activations=self.activations,
            max_rows=max_rows,
            num_threads=self._crew.size.most,
        )
        half = (max_rows, 2 * self._model.rotary_half)
        self._rotation = step.Rotation(
            decoder.rotary.inverse.numpy(),
            decoder.rotary.amplitude,
            np.zeros(half, np.float32),
            np.zeros(half, np.float32),
        )
        memory = HugePages()
        self._head = pack(decoder.head.weight, memory, int8=int8)
        self._weights_tag = TAGS[self._head.panels.dtype]
        self._embedding = decoder.embedding if not spec.tied_embeddings else None
        for weight in (decoder.head.weight, *(() if self._embedding else (decoder.embedding.weight,))):
            weight.set_()
        self._table = np.zeros((spec.num_layers, step.LAYER_FIELDS), np.int64)

        def fill(row: npt.NDArray[np.int64], block: Block) -> list[torch.Tensor]:
            return _fill_layer(row, block, self._model, memory, int8=int8)

        with ThreadPoolExecutor(self._crew.size.most) as threads:
            self._kept = list(threads.map(fill, self._table, decoder.blocks))
        self._pages_at: tuple[object, ...] = ()
        """Where the pool's pages lie; kept instead of the pages, which are the pool's to give back"""
        self._logits = torch.zeros(max_logits, self._head.num_panels * PANEL)
        self._logits_scratch = torch.zeros(max_logits, spec.hidden_size, dtype=self.activations)

    @property
    def num_threads(self) -> int:
        """How many threads there are; known once a step has run."""
        return self._crew.size.most

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """See `runtime.model_runner.Model.forward`."""
        num_rows = len(batch.token_ids)
        assert num_rows <= self._max_rows, f"{num_rows} rows, and there is memory for {self._max_rows}"
        pages = batch.kv_layers[0][0]
        at = (pages.data_ptr(), batch.kv_layers[-1][1].data_ptr(), pages.shape, pages.dtype)
        if at != self._pages_at:
            self._table[:, step.K_PAGES] = [k.data_ptr() for k, _ in batch.kv_layers]
            self._table[:, step.V_PAGES] = [v.data_ptr() for _, v in batch.kv_layers]
            self._pages_at = at
        num_threads = self._crew.ready()
        begin = time.perf_counter()
        shape = self._attention_shape(pages, num_rows)
        num_units = self._divide(batch.metadata, shape, num_threads)
        embedded = self._embed(batch.token_ids)
        out = torch.empty(len(batch.logits_rows), self._spec.hidden_size)
        self._memory.begin()
        step.run_step(
            TAGS[self.activations],
            self._weights_tag,
            TAGS[pages.dtype],
            num_threads,
            self._model,
            shape,
            self._table,
            self._memory.buffers,
            step.Batch(
                num_rows=num_rows,
                token_rows=embedded.ctypes.data,
                slots=batch.slots.numpy(),
                positions=batch.positions.numpy(),
                kv_indices=batch.metadata.kv_indices.numpy(),
                num_units=num_units,
                wanted=batch.logits_rows.numpy(),
                out=out.data_ptr(),
                final_norm=self._norm.weight.data_ptr(),
            ),
            self._rotation,
            self._memory.work,
            self._memory.space,
            self._memory.parts,
        )
        self._crew.size.observe(time.perf_counter() - begin, self._memory.slept_seconds)
        return out

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `runtime.model_runner.Model.logits`; valid until the next call."""
        rows = len(hidden)
        if rows > len(self._logits):
            self._logits = self._logits.new_zeros(rows, self._logits.shape[1])
            self._logits_scratch = self._logits_scratch.new_zeros(rows, self._logits_scratch.shape[1])
        hidden = hidden.contiguous()
        step.run_product(
            TAGS[self.activations],
            self._weights_tag,
            self._crew.size.current,
            hidden.data_ptr(),
            rows,
            self._spec.hidden_size,
            self._head.panels.data_ptr(),
            self._logits.shape[1],
            self._logits_scratch.data_ptr(),
            self._memory.buffers.wide,
            self._logits.data_ptr(),
        )
        return self._logits[:rows, : self._head.num_columns]

    def _embed(self, token_ids: torch.Tensor) -> npt.NDArray[np.float32]:
        """[num_tokens] -> [num_tokens, hidden_size]"""
        if self._embedding is None:
            return np.ascontiguousarray(unpack_rows(self._head, token_ids.numpy()))
        return self._embedding(token_ids).numpy()

    def _attention_shape(self, pages: torch.Tensor, num_rows: int) -> attention.AttentionShape:
        spec, element = self._spec, pages.element_size()
        _, slot, head, _ = pages.stride()
        group = spec.num_heads // spec.num_kv_heads
        return attention.AttentionShape(
            group=group,
            num_kv_heads=spec.num_kv_heads,
            dim=spec.head_dim,
            page_size=pages.shape[1],
            kv_slot=slot * element,
            kv_head=head * element,
            q_head=num_rows * group * spec.head_dim * self.activations.itemsize,
            out_token=spec.num_heads * spec.head_dim * self.activations.itemsize,
        )

    def _divide(self, metadata: AttentionMetadata, shape: attention.AttentionShape, num_threads: int) -> int:
        """Divide attention's work into the memory's units; return how many there are."""
        qo_indptr, kv_indptr = metadata.qo_indptr.numpy(), metadata.kv_indptr.numpy()
        kv_lens = (np.diff(kv_indptr).astype(np.int64) - 1) * shape.page_size + metadata.kv_last_page_len.numpy()
        sizes = (shape.page_size, shape.group, shape.num_kv_heads)
        self._memory.make_room_for_units(units.most_units(qo_indptr, kv_indptr, *sizes))
        counts = units.list_units(
            qo_indptr, kv_indptr, kv_lens, metadata.kv_indices.numpy(), *sizes, num_threads, self._memory.work
        )
        num_units, num_joins, _, num_slots = counts.tolist()
        self._memory.make_room_for_parts(num_slots, num_joins)
        return int(num_units)


def model_shape(spec: ModelSpec) -> step.ModelShape:
    """Return the step's numbers for ``spec``."""
    slope, cubic = _ACTIVATIONS[spec.activation]
    return step.ModelShape(
        hidden=spec.hidden_size,
        hidden_width=padded(spec.hidden_size, PANEL),
        heads=spec.num_heads,
        inner=padded(spec.intermediate_size, LANES),
        qkv_width=padded((spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim, PANEL),
        rotary_half=(spec.rope.rotary_dim or spec.head_dim) // 2,
        eps=spec.norm_eps,
        scale=spec.head_dim**-0.5 * _LOG2_E,
        slope=slope,
        cubic=cubic,
    )


def _fill_layer(
    row: npt.NDArray[np.int64], block: Block, model: step.ModelShape, memory: HugePages, *, int8: bool
) -> list[torch.Tensor]:
    """Pack a block's matrices into ``memory`` and ``row`` of the layer table; return the tensors to keep alive."""
    kept: list[torch.Tensor] = []

    def put(column: int, tensor: torch.Tensor) -> None:
        kept.append(tensor)
        row[column] = tensor.data_ptr()

    def put_linear(
        linear: Linear, weight: int, bias: int, depth: int, order: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        matrix = linear.weight if order is None else order(linear.weight)
        put(weight, pack(matrix, memory, depth=depth, int8=int8).panels)
        if linear.bias is not None:
            column = linear.bias[:, None]
            column = column if order is None else order(column)
            values = torch.zeros(padded(len(column), PANEL))
            values[: len(column)] = column[:, 0]
            put(bias, values)
        linear.weight = linear.weight.new_empty((0, linear.weight.shape[1]))

    attention_, mlp = block.attention, block.mlp
    put(step.ATTENTION_NORM, block.attention_norm.weight)
    put(step.MLP_NORM, block.mlp_norm.weight)
    if attention_.q_norm is not None and attention_.k_norm is not None:
        put(step.Q_NORM, attention_.q_norm.weight)
        put(step.K_NORM, attention_.k_norm.weight)
    put_linear(attention_.qkv, step.QKV, step.QKV_BIAS, model.hidden)
    put_linear(attention_.output, step.OUTPUT, step.OUTPUT_BIAS, attention_.output.weight.shape[1])
    put_linear(mlp.gate_up, step.GATE_UP, step.GATE_UP_BIAS, model.hidden, lambda w: interleave(*w.chunk(2)))
    put_linear(mlp.down, step.DOWN, step.DOWN_BIAS, model.inner)
    return kept

"""The step's attention agrees with the definition, and a row's result is its own to the bit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_attention import PagedCase, Shape, make_case, run
from support_cpu_step import ATTENTIONS
from support_step_attention import LOG2_E, StepAttention, scaled

from sapwood_engine.kernels.attention.base import AttentionMetadata
from sapwood_engine.kernels.attention.reference import ReferenceAttention
from sapwood_engine.kernels.cpu_step.units import PART_KEYS

HEAD_DIMS = (8, 64, 80, 96, 128)
PAGE_SIZES = (1, 3, 4, 16, 64, 100)
MANY = 1000
"""Threads, so many that everything is divided for them."""
MIXED = ((1, 300), (90, 90), (1, 1), (40, 600), (1, 600), (7, 263))
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
"""Absolute, of values about 1: sums in another order; weights and results of 8 bits."""

pytestmark = pytest.mark.parametrize(("q_dtype", "kv_dtype"), ATTENTIONS, ids=str)

WHOLE, DIVIDED = StepAttention(2, divided_for=1), StepAttention(2, divided_for=MANY)


def expected(case: PagedCase) -> torch.Tensor:
    """By the definition in float32, from queries as they are multiplied."""
    q, k, v = scaled(case.q, case.scale).float(), case.k_pages.float(), case.v_pages.float()
    return run(ReferenceAttention(), replace(case, q=q, k_pages=k, v_pages=v, scale=1 / LOG2_E))


def part_of(case: PagedCase, s: int, begin: int = 0, end: int | None = None) -> PagedCase:
    """Queries ``begin`` … ``end`` of sequence ``s`` alone, with the keys that there were when they came."""
    m = case.metadata
    first, last = m.qo_indptr[s : s + 2].tolist()
    num_queries = last - first
    end = num_queries if end is None else end
    pages = m.kv_indices[m.kv_indptr[s] : m.kv_indptr[s + 1]]
    num_keys = (len(pages) - 1) * m.page_size + int(m.kv_last_page_len[s]) - (num_queries - end)
    pages = pages[: -(-num_keys // m.page_size)]
    metadata = AttentionMetadata(
        qo_indptr=torch.tensor([0, end - begin], dtype=torch.int32),
        kv_indptr=torch.tensor([0, len(pages)], dtype=torch.int32),
        kv_indices=pages,
        kv_last_page_len=torch.tensor([(num_keys - 1) % m.page_size + 1], dtype=torch.int32),
        page_size=m.page_size,
        max_qo_len=end - begin,
    )
    return replace(case, metadata=metadata, q=case.q[first + begin : first + end])


def sequences(case: PagedCase, out: torch.Tensor) -> list[torch.Tensor]:
    """The rows of each sequence."""
    return [out[a:b] for a, b in itertools.pairwise(case.metadata.qo_indptr.tolist())]


@st.composite
def shapes(draw: st.DrawFn, q_dtype: torch.dtype, kv_dtype: torch.dtype) -> Shape:
    """Mixed batches whose contexts lie anywhere, and often close to where a part ends."""
    before = st.integers(0, 140) | st.integers(-4, 4).map(lambda n: PART_KEYS + n) | st.integers(500, 530)
    queries = st.just(1) | st.integers(1, 12) | st.integers(60, 110)
    lengths = [(n, n + draw(before)) for n in draw(st.lists(queries, min_size=1, max_size=5))]
    # The definition is walked through query by query and head by head: few heads where there are many queries.
    few = sum(n for n, _ in lengths) > 100
    return Shape(
        tuple(lengths),
        page_size=draw(st.sampled_from(PAGE_SIZES)),
        num_kv_heads=1 if few else draw(st.integers(1, 3)),
        group=draw(st.integers(1, 3 if few else 8)),
        head_dim=draw(st.sampled_from(HEAD_DIMS)),
        q_dtype=q_dtype,
        kv_dtype=kv_dtype,
        seed=draw(st.integers(0, 1000)),
    )


@settings(max_examples=40)
@given(data=st.data())
def test_any_batch_gives_what_the_definition_gives_however_it_is_divided(
    q_dtype: torch.dtype, kv_dtype: torch.dtype, data: st.DataObject
) -> None:
    case = make_case(data.draw(shapes(q_dtype, kv_dtype)))
    whole = run(WHOLE, case)
    torch.testing.assert_close(whole.float(), expected(case), rtol=TOLERANCES[q_dtype], atol=TOLERANCES[q_dtype])
    assert torch.equal(run(DIVIDED, case), whole)


@settings(max_examples=20)
@given(data=st.data())
def test_a_sequence_has_the_same_result_to_the_bit_alone_and_in_chunks(
    q_dtype: torch.dtype, kv_dtype: torch.dtype, data: st.DataObject
) -> None:
    case = make_case(data.draw(shapes(q_dtype, kv_dtype)))
    chunk = data.draw(st.integers(1, 50), label="chunk")
    for s, wanted in enumerate(sequences(case, run(WHOLE, case))):
        assert torch.equal(run(DIVIDED, part_of(case, s)), wanted)
        for begin in range(0, len(wanted), chunk):
            end = min(begin + chunk, len(wanted))
            assert torch.equal(run(WHOLE, part_of(case, s, begin, end)), wanted[begin:end])


@pytest.mark.parametrize("page_size", [16, 7])
@pytest.mark.parametrize("divided_for", [1, 2, MANY])
def test_one_thread_and_two_give_the_same_to_the_bit(
    q_dtype: torch.dtype, kv_dtype: torch.dtype, page_size: int, divided_for: int
) -> None:
    case = make_case(Shape(MIXED, page_size=page_size, q_dtype=q_dtype, kv_dtype=kv_dtype))
    one, two = (run(StepAttention(count, divided_for=divided_for), case) for count in (1, 2))
    assert torch.equal(one, two)


def with_shared_pages(case: PagedCase, shared: list[int]) -> PagedCase:
    """Let sequence ``s`` begin with the first ``shared[s]`` keys' pages of sequence 0, and the last with the middle's.

    The last of each sequence's pages stays its own: the tree shares whole pages that are computed already.
    """
    m = case.metadata
    indices = m.kv_indices.clone()
    begins, ends = m.kv_indptr[:-1].tolist(), m.kv_indptr[1:].tolist()
    middle = len(shared) // 2
    for s, num_keys in enumerate(shared):
        source = begins[middle if s == len(shared) - 1 else 0]
        owner_end = ends[middle if s == len(shared) - 1 else 0]
        count = min(num_keys // m.page_size, ends[s] - begins[s] - 1, owner_end - source - 1)
        indices[begins[s] : begins[s] + count] = indices[source : source + count]
    return replace(case, metadata=replace(m, kv_indices=indices))


@settings(max_examples=25)
@given(data=st.data())
def test_sequences_that_share_pages_have_each_the_same_result_as_alone(
    q_dtype: torch.dtype, kv_dtype: torch.dtype, data: st.DataObject
) -> None:
    keys = st.integers(1, 40) | st.integers(PART_KEYS - 3, PART_KEYS + 3) | st.integers(480, 900)
    lengths = data.draw(st.lists(st.tuples(st.sampled_from((1, 1, 1, 5)), keys), min_size=2, max_size=7))
    shape = Shape(
        tuple((n, n + before) for n, before in lengths),
        page_size=data.draw(st.sampled_from((1, 4, 16, 64, 256, 10))),
        num_kv_heads=data.draw(st.integers(1, 2)),
        group=data.draw(st.integers(1, 8)),
        head_dim=data.draw(st.sampled_from(HEAD_DIMS)),
        q_dtype=q_dtype,
        kv_dtype=kv_dtype,
    )
    shared = data.draw(st.lists(st.integers(0, 900), min_size=len(lengths), max_size=len(lengths)), label="shared")
    case = with_shared_pages(make_case(shape), shared)
    outs = [run(backend, case) for backend in (WHOLE, DIVIDED)]
    assert torch.equal(*outs)
    for s, found in enumerate(sequences(case, outs[0])):
        assert torch.equal(found, run(WHOLE, part_of(case, s)))


@pytest.mark.parametrize(("page_size", "together"), [(16, True), (1, True), (256, True), (10, False), (512, False)])
def test_a_part_of_whole_shared_pages_is_computed_once_for_all_that_decode(
    q_dtype: torch.dtype, kv_dtype: torch.dtype, page_size: int, together: bool
) -> None:
    """Otherwise the comparison above compares nothing."""
    lengths = tuple((1, 600 + 30 * s) for s in range(5))
    case = make_case(Shape(lengths, page_size=page_size, q_dtype=q_dtype, kv_dtype=kv_dtype))
    case = with_shared_pages(case, [1000] * 5)
    backend = StepAttention(2)
    torch.testing.assert_close(
        run(backend, case).float(), expected(case), rtol=TOLERANCES[q_dtype], atol=TOLERANCES[q_dtype]
    )
    assert (backend.most_members == len(lengths)) is together


def test_more_sequences_share_a_part_than_one_unit_takes(q_dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    lengths = tuple((1, 258 + s % 3) for s in range(40))
    shape = Shape(lengths, page_size=64, group=8, num_kv_heads=1, q_dtype=q_dtype, kv_dtype=kv_dtype)
    case = with_shared_pages(make_case(shape), [1000] * 40)
    backend = StepAttention(2)
    out = run(backend, case)
    assert 1 < backend.most_members < 40
    for s, found in enumerate(sequences(case, out)):
        assert torch.equal(found, run(WHOLE, part_of(case, s)))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_a_sequence_of_nan_leaves_nothing_for_what_comes_after(
    q_dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int
) -> None:
    shape = Shape(MIXED, head_dim=head_dim, q_dtype=q_dtype, kv_dtype=kv_dtype)
    case = make_case(shape)
    nothing = {name: torch.full_like(getattr(case, name), torch.nan) for name in ("q", "k_pages", "v_pages")}
    for divided_for in (1, MANY):
        clean, used = (StepAttention(2, divided_for=divided_for) for _ in range(2))
        assert run(used, replace(case, **nothing)).isnan().all()  # type: ignore[arg-type]  # tensors, by name
        assert torch.equal(run(used, case), run(clean, case))


def test_scores_far_apart_do_not_overflow(q_dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    case = make_case(Shape(((1, 300), (30, 300)), q_dtype=q_dtype, kv_dtype=kv_dtype))
    case = replace(case, q=case.q * 1e4)
    torch.testing.assert_close(run(WHOLE, case).float(), expected(case), rtol=8e-3, atol=8e-3)

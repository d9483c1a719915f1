"""What every attention backend owes its callers; a new backend is added to BACKENDS and must pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_attention import DTYPES, PagedCase, Shape, make_case, run

from sapwood_engine.kernels.attention.base import AttentionBackend
from sapwood_engine.kernels.attention.reference import ReferenceAttention
from sapwood_engine.kernels.attention.select import select
from sapwood_engine.kernels.cpu_features import detect_cpu_features

BACKENDS = ("reference", "cpu", "cpu in parts")
_TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Relative and absolute: the rounding of the output, or of float32 sums in another order."""


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> AttentionBackend:
    assert pytestconfig.cache is not None
    choice = select(
        "reference" if request.param == "reference" else "cpu",
        detect_cpu_features(),
        head_dim=64,
        num_threads=3,
        cache_folder=pytestconfig.cache.mkdir("kernels"),
    )
    made = choice.make()
    if request.param != "cpu in parts":
        return made
    from sapwood_engine.kernels.attention.cpu import CpuAttention  # noqa: PLC0415

    # However little there is, all threads share it: so sequences are split.
    return CpuAttention(5, least_cost=1)


def check(backend: AttentionBackend, case: PagedCase) -> None:
    tolerance = _TOLERANCES[case.q.dtype]
    torch.testing.assert_close(run(backend, case).float(), case.expected, rtol=tolerance, atol=tolerance)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    def length(most_queries: int) -> tuple[int, int]:
        queries = draw(st.integers(1, most_queries))
        return queries, queries + draw(st.integers(0, 140))

    kind = draw(st.sampled_from(("decode", "prefill", "mixed")))
    most = {"decode": 1, "prefill": 30, "mixed": 12}[kind]
    lengths = [length(most) for _ in range(draw(st.integers(1, 4)))]
    if kind == "mixed":
        lengths.insert(draw(st.integers(0, len(lengths))), length(1))
    q_dtype, kv_dtype = draw(st.sampled_from(DTYPES))
    return Shape(
        tuple(lengths),
        page_size=draw(st.sampled_from((1, 4, 16, 64))),
        num_kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 9)),
        head_dim=draw(st.sampled_from((4, 20, 64, 80, 96, 128))),
        q_dtype=q_dtype,
        kv_dtype=kv_dtype,
        seed=draw(st.integers(0, 1000)),
    )


@settings(max_examples=60)
@given(shape=shapes())
def test_any_batch_gives_what_the_definition_gives(backend: AttentionBackend, shape: Shape) -> None:
    check(backend, make_case(shape))


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8, 9, 17])
def test_every_group_and_page_size_decodes(backend: AttentionBackend, page_size: int, group: int) -> None:
    lengths = ((1, 1), (1, 63), (1, 64), (1, 65), (1, 200))
    check(backend, make_case(Shape(lengths, page_size=page_size, group=group, head_dim=32)))


@pytest.mark.parametrize("head_dim", [4, 8, 16, 20, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_every_head_dim_prefills_and_decodes_in_every_dtype(
    backend: AttentionBackend, head_dim: int, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    shape = Shape(((21, 21), (1, 70), (9, 130)), head_dim=head_dim, q_dtype=dtypes[0], kv_dtype=dtypes[1])
    check(backend, make_case(shape))


@pytest.mark.parametrize("stale", [float("inf"), float("-inf"), float("nan"), 3e38])
def test_stale_slots_do_not_influence_the_result(backend: AttentionBackend, stale: float) -> None:
    shape = Shape(((1, 3), (33, 70), (1, 129)), page_size=64)
    clean = run(backend, make_case(shape, stale=0.0))
    assert torch.equal(run(backend, make_case(shape, stale=stale)), clean)


@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_where_pages_lie_and_how_large_they_are_changes_no_bit(backend: AttentionBackend, page_size: int) -> None:
    shape = Shape(((1, 77), (40, 90)), page_size=16)
    case, other = make_case(shape), make_case(replace(shape, page_size=page_size))
    assert torch.equal(run(backend, case), run(backend, other))


def test_a_prompt_in_chunks_gives_what_it_gives_at_once(backend: AttentionBackend) -> None:
    whole = make_case(Shape(((200, 200),)))
    for first, end in ((0, 30), (30, 31), (31, 150), (150, 200)):
        # The same keys, cut off at the chunk's end; page_size 16.
        metadata = replace(
            whole.metadata,
            qo_indptr=torch.tensor([0, end - first], dtype=torch.int32),
            kv_indptr=torch.tensor([0, -(-end // 16)], dtype=torch.int32),
            kv_indices=whole.metadata.kv_indices[: -(-end // 16)],
            kv_last_page_len=torch.tensor([(end - 1) % 16 + 1], dtype=torch.int32),
            max_qo_len=end - first,
        )
        check(
            backend,
            replace(whole, metadata=metadata, q=whole.q[first:end], expected=whole.expected[first:end]),
        )


def test_one_plan_serves_many_layers(backend: AttentionBackend) -> None:
    shape = Shape(((1, 100), (20, 40)))
    layers = [make_case(replace(shape, seed=0)), make_case(replace(shape, seed=1))]
    pages = layers[0].metadata.kv_indices.long()
    backend.plan(layers[0].metadata)
    for case in layers:
        pool = [torch.full_like(c, torch.nan) for c in (case.k_pages, case.v_pages)]
        for cache, source in zip(pool, (case.k_pages, case.v_pages), strict=True):
            cache[pages] = source[case.metadata.kv_indices.long()]
        out = torch.empty_like(case.q)
        backend.run(case.q, pool[0], pool[1], scale=case.scale, out=out)
        torch.testing.assert_close(out, case.expected, rtol=1e-5, atol=1e-5)


def test_queries_may_lie_inside_a_larger_tensor(backend: AttentionBackend) -> None:
    case = make_case(Shape(((1, 40), (24, 24))))
    num_tokens, num_heads, head_dim = case.q.shape
    larger = torch.full((num_tokens, num_heads + 4, head_dim), torch.nan)
    larger[:, 2:-2] = case.q
    check(backend, replace(case, q=larger[:, 2:-2]))


def test_scores_far_apart_do_not_overflow(backend: AttentionBackend) -> None:
    case = make_case(Shape(((1, 150), (30, 150))))
    case = replace(case, q=case.q * 1e4)
    out = run(backend, case)
    torch.testing.assert_close(out, run(ReferenceAttention(), case), rtol=1e-3, atol=1e-3)

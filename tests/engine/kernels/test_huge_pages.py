"""Tensors share large mappings, and keep them as long as they need them."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sapwood_engine.kernels.huge_pages import HugePages, ask_for_huge_pages

SHAPES = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), max_size=8)
DTYPES = st.sampled_from((torch.int8, torch.bfloat16, torch.float32))


@given(shapes=SHAPES, dtype=DTYPES)
def test_each_tensor_is_zero_and_nobody_elses(shapes: list[tuple[int, int]], dtype: torch.dtype) -> None:
    memory = HugePages()
    tensors = [memory.zeros(shape, dtype) for shape in shapes]
    for number, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
        assert (tuple(tensor.shape), tensor.dtype, tensor.data_ptr() % 64) == (shape, dtype, 0)
        assert not tensor.any()
        tensor.fill_(number + 1)
    assert all((tensor == number + 1).all() for number, tensor in enumerate(tensors))


def test_small_tensors_lie_behind_each_other() -> None:
    memory = HugePages()
    first, second = (memory.zeros((100,), torch.int8) for _ in range(2))
    assert second.data_ptr() - first.data_ptr() == 128


def test_what_is_larger_than_a_mapping_gets_one_of_its_own_from_the_beginning_of_a_huge_page_on() -> None:
    large = HugePages().zeros((40, 2**20), torch.int8)
    assert large.data_ptr() % 2**21 == 0
    large[-1, -1] = 1
    assert large.sum() == 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the size of a process")
def test_the_last_tensor_gives_a_mapping_back() -> None:
    def mapped_kib() -> int:
        gc.collect()
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
        return int(line.split()[1])

    before = mapped_kib()
    kept = [HugePages().zeros((40, 2**20), torch.int8) for _ in range(8)]
    assert mapped_kib() - before >= 8 * 40 * 2**10
    kept.clear()
    assert mapped_kib() - before < 40 * 2**10


class Refusing(mmap.mmap):
    """A mapping of a system that was built without huge pages."""

    def madvise(self, *_: object) -> None:
        raise OSError(22, "Invalid argument")


def test_a_system_without_huge_pages_is_asked_in_vain() -> None:
    with Refusing(-1, mmap.PAGESIZE) as mapping:
        ask_for_huge_pages(mapping)
        mapping[0] = 1

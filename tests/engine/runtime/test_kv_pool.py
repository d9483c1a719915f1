from __future__ import annotations

import torch
from support_torch_executor import capacity, tiny_pool

from sapwood_engine.core.step import PageCopy


def test_a_copy_takes_the_first_slots_of_all_layers_and_leaves_the_rest() -> None:
    pool = tiny_pool(capacity(num_pages=4, page_size=4))
    generator = torch.Generator().manual_seed(0)
    for layer in pool.layers:
        for cache in layer:
            cache.copy_(torch.randn(cache.shape, generator=generator))
    before = [tuple(cache.clone() for cache in layer) for layer in pool.layers]
    pool.copy([PageCopy(source=1, target=3, num_tokens=3)])
    for layer, old in zip(pool.layers, before, strict=True):
        for cache, was in zip(layer, old, strict=True):
            assert torch.equal(cache[3, :3], was[1, :3])
            assert torch.equal(cache[3, 3:], was[3, 3:])
            assert torch.equal(cache[:3], was[:3])


def test_copies_run_in_order() -> None:
    pool = tiny_pool(capacity(num_pages=3))
    for page in range(3):
        pool.layers[0][0][page] = page
    pool.copy([PageCopy(0, 1, 4), PageCopy(1, 2, 4)])
    assert bool((pool.layers[0][0] == 0).all())


def test_the_largest_value_of_what_was_written_is_found_beside_what_was_not() -> None:
    pool = tiny_pool(capacity(num_pages=4, page_size=4))
    for layer in pool.layers:
        for cache in layer:
            cache.flatten(0, 1)[:6] = 0.5
    pool.layers[1][1][1, 1, 0, 3] = -7.0
    assert pool.largest(6) == 7.0
    assert pool.largest(5) == 0.5

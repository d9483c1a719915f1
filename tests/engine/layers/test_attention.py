"""What the attention layer puts into the pages."""

from __future__ import annotations

import torch

from sapwood_engine.layers.attention import store_kv


def test_keys_beyond_the_range_of_float16_are_cut_to_it_and_stay_finite() -> None:
    pages = torch.zeros(2, 2, 1, 4, dtype=torch.float16)
    values = torch.tensor([[[1e6, -1e6, 1.5, -0.25]]])
    store_kv(pages, torch.tensor([3]), values)
    assert pages[1, 1, 0].tolist() == [65504.0, -65504.0, 1.5, -0.25]
    assert not pages[0].any()

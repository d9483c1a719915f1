"""Logits are exact to float32, whatever the weights are kept in."""

from __future__ import annotations

import pytest
import torch

from sapwood_engine.layers.vocabulary import Embedding, Head


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_logits_are_the_float32_product_over_pieces_of_the_vocabulary(dtype: torch.dtype, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    # 2,500 rows of 1,024 are two whole pieces and a part of one.
    weight = torch.randn(2500, 1024, generator=generator).to(dtype)
    hidden = torch.randn(num_rows, 1024, generator=generator)
    logits = Head(weight)(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, (hidden.double() @ weight.double().T).float(), rtol=1e-4, atol=1e-3)


def test_the_residual_begins_in_float32_with_the_rows_of_the_embedding() -> None:
    weight = torch.randn(10, 4).bfloat16()
    rows = Embedding(weight)(torch.tensor([3, 0, 3]))
    assert torch.equal(rows, weight[[3, 0, 3]].float())

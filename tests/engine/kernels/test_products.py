from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support_kernels import keep_kernels

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def multiply(pytestconfig: pytest.Config) -> Multiply:
    keep_kernels(pytestconfig)
    from sapwood_engine.kernels.products import multiply_rows  # noqa: PLC0415

    return lambda x, weight: multiply_rows(x, weight, num_threads=3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [0, 1, 3, 5, 9])
@pytest.mark.parametrize(("num_outputs", "num_columns"), [(4, 4), (31, 20), (33, 64), (250, 576)])
def test_sums_are_float32_over_every_row_and_output(
    multiply: Multiply, dtype: torch.dtype, num_rows: int, num_outputs: int, num_columns: int
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(num_outputs, num_columns, generator=generator).to(dtype)
    x = torch.randn(num_rows, num_columns, generator=generator)
    wanted = (x.double() @ weight.double().T).float()
    torch.testing.assert_close(multiply(x, weight), wanted, rtol=1e-5, atol=1e-4)


def test_a_row_does_not_depend_on_its_neighbours(multiply: Multiply) -> None:
    x, weight = torch.randn(8, 64), torch.randn(100, 64).bfloat16()
    assert torch.equal(multiply(x, weight)[5:6], multiply(x[5:6].contiguous(), weight))

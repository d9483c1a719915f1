"""A limit counts only what was really done: probes read every byte and compute every product."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch
from support_kernels import keep_kernels

from sapwood_engine.checkpoint.spec import ModelSpec, RopeSpec
from sapwood_engine.kernels.huge_pages import HugePages

SPEC = ModelSpec("llama", 200, 64, 3, 4, 2, 16, 176, 1024, 1e-5, RopeSpec(10000.0))
NUM_THREADS = 2


@pytest.fixture(scope="module")
def probes(pytestconfig: pytest.Config) -> ModuleType:
    keep_kernels(pytestconfig)
    # The folder for compiled functions had to be set first.
    import probes  # noqa: PLC0415

    return probes


def test_every_byte_of_every_matrix_is_read_once(probes: ModuleType) -> None:
    matrices = probes.model_matrices(SPEC)
    reading = probes.Reading(matrices, NUM_THREADS)
    reading.run()
    words = np.concatenate([matrix.panels.view(torch.int64).numpy().ravel() for matrix in matrices])
    assert reading.sums.sum() == words.sum(), "as int64 that wraps"
    assert (reading.sums[:, 0] != 0).all()


def test_the_matrices_are_those_that_a_step_of_the_model_multiplies_with(probes: ModuleType) -> None:
    shapes = [tuple(matrix.panels.shape) for matrix in probes.model_matrices(SPEC)]
    panel = probes.PANEL
    columns = [num_panels * panel for num_panels, _, _ in shapes]
    assert len(shapes) == 4 * SPEC.num_layers + 1
    assert [depth for _, depth, _ in shapes[:4]] == [64, 64, 64, 176]
    assert all(0 <= have - need < panel for have, need in zip(columns[:4], (128, 64, 352, 64), strict=True))
    assert 0 <= columns[-1] - SPEC.vocab_size < panel


@pytest.mark.parametrize("num_rows", [1, 5, 16])
def test_a_kept_product_is_the_product(probes: ModuleType, num_rows: int) -> None:
    # After the fixture, for this module has compiled functions as well.
    from sapwood_engine.kernels.cpu_step.layout import pack  # noqa: PLC0415

    weight = torch.randn(3 * probes.PANEL, 64).to(probes.WEIGHTS)
    panels = pack(weight, HugePages()).panels.view(3, 64, probes.PANEL)
    products = probes.Products([probes.Matrix(panels, probes.KEPT)], num_rows, num_rows, NUM_THREADS)
    products.run()
    x = products.activations.view(num_rows, 64).double()
    torch.testing.assert_close(
        products.results.view(num_rows, -1), (x @ weight.double().T).float(), rtol=1e-4, atol=1e-3
    )
    assert products.flops == 2 * num_rows * weight.numel()


def test_only_rows_that_sample_pass_through_the_vocabulary(probes: ModuleType) -> None:
    matrices = probes.model_matrices(SPEC)
    vocabulary = matrices[-1].panels.numel()
    others = sum(matrix.panels.numel() for matrix in matrices[:-1])
    products = probes.Products(matrices, 40, 1, NUM_THREADS)
    products.run()
    assert products.flops == 2 * (40 * others + vocabulary)

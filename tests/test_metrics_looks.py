"""The feature space of looks: fewer rows than columns, and votes among labeled rows."""

from __future__ import annotations

import pytest
import torch

from jointenergy.metrics import looks
from jointenergy.metrics.looks import Space


def wide(n=40, d=300, seed=0):
    """Rows whose columns vary by different amounts, so that their components are distinct."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g).double() * torch.linspace(3.0, 0.5, d)


def test_components_of_few_wide_rows_are_those_of_their_covariance():
    x = wide()
    variance, directions = looks._components(x, 10)
    expected, vectors = torch.linalg.eigh(torch.cov(x.T))
    assert torch.allclose(variance, expected.flip(0)[:10])
    assert torch.allclose((directions.T @ vectors.flip(1)[:, :10]).abs(), torch.eye(10).double(), atol=1e-8)


def test_directions_without_variance_have_length_one():
    """Fails if samples that leave the few directions in which rows vary are not seen to."""
    x = wide(3).repeat(10, 1)
    variance, directions = looks._components(x, 7)
    assert torch.allclose(variance[2:], torch.zeros(5).double(), atol=1e-8)
    assert torch.allclose(directions.T @ directions, torch.eye(7).double(), atol=1e-8)


@pytest.mark.parametrize("shape", [(60, 1, 16_000), (60, 4000)])
def test_wide_rows_are_compared_without_a_matrix_as_wide(shape, monkeypatch):
    """A covariance of 16,000 columns takes hours to decompose."""
    sizes, decompose = [], torch.linalg.eigh

    def counted(matrix):
        assert len(matrix) <= 60
        sizes.append(len(matrix))
        return decompose(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", counted)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    space = Space(x, x)
    assert sizes == [60]
    assert space.looks(x).copies > 0.9


def test_rows_at_least_as_many_as_columns_have_components_of_the_covariance():
    """Fails to the last bit: limits of the verdict were set with these."""
    x = wide(64, 64)
    variance, directions = looks._components(x, 16)
    expected, vectors = torch.linalg.eigh(torch.cov(x.T))
    assert torch.equal(variance, expected.flip(0)[:16])
    assert torch.equal(directions, vectors.flip(1)[:, :16])

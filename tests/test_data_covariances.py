"""The covariance of a table's rows: against scikit-learn's, within classes, and of rows too few or constant."""

import torch
from sklearn.covariance import ledoit_wolf

from jointenergy.data.covariances import covariance_of


def test_it_is_ledoit_and_wolfs_of_standardized_columns():
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ torch.randn(5, 5).double()
    x = x * torch.tensor([1.0, 10.0, 0.1, 100.0, 1.0], dtype=torch.float64) + 3.0
    scale = x.std(0, correction=0)
    wanted = torch.from_numpy(ledoit_wolf((x / scale).numpy())[0]) * scale * scale[:, None]
    assert torch.allclose(covariance_of(x), wanted, rtol=1e-6)


def test_classes_have_their_means_taken_away_and_few_or_constant_rows_can_be_inverted():
    # Fails where two distant classes count as one wide one, or where a constant column makes the matrix singular.
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    y = torch.arange(200)[:, None] % 2
    apart = x + 50.0 * y
    assert float(covariance_of(apart, y).diagonal().max()) < 2 < 500 < float(covariance_of(apart).diagonal().min())
    constant = torch.cat((x, torch.ones(200, 1)), 1)
    for rows in (constant, x[:1], torch.randn(3, 8)):
        assert int(torch.linalg.cholesky_ex(covariance_of(rows))[1]) == 0

"""A regressor with the whole law of its target: means, quantiles, draws, densities; gaps; targets that are missing."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import torch

from jointenergy import InputError, JointEnergyRegressor
from jointenergy.models import LogitModel
from jointenergy.tables.grids import POINTS, TargetGrid, log_conditional

QUICK = {"max_iter": 60, "random_state": 0}


def bent(n, seed=0):
    """A mean that is no line and a spread that depends on a feature."""
    g = np.random.default_rng(seed)
    x = g.normal(size=(n, 3))
    spread = 0.2 + 0.4 * (x[:, 2] > 0)
    return x, 10 + 2 * np.sin(1.5 * x[:, 0]) + x[:, 1] + spread * g.normal(size=n), spread


X, Y, _ = bent(300)


@pytest.fixture(scope="module")
def model():
    return JointEnergyRegressor(**QUICK).fit(X, Y)


def test_means_quantiles_draws_and_densities_are_of_one_law(model):
    x, y, _ = bent(40, seed=1)
    draws, mean = model.predict_draws(x, 4000), model.predict(x)
    assert draws.shape == (40, 4000)
    spread = draws.std(1)
    # A false failure in a thousand over 40 rows: 4.2 standard errors.
    assert (np.abs(draws.mean(1) - mean) < 4.2 * spread / 4000**0.5).all()
    low, middle, high = model.predict_quantiles(x, [0.1, 0.5, 0.9]).T
    assert (low < middle).all()
    assert (middle < high).all()
    np.testing.assert_allclose((draws < high[:, None]).mean(1), 0.9, atol=0.03)
    at = np.linspace(0, 20, 2001)
    p = np.exp(model.log_predictive_density(np.repeat(x[:3], len(at), 0), np.tile(at, 3))).reshape(3, -1)
    np.testing.assert_allclose(p.sum(1) * (at[1] - at[0]), 1.0, atol=0.01)
    np.testing.assert_allclose((p * at).sum(1) / p.sum(1), mean[:3], atol=0.02)
    assert np.isfinite(model.log_predictive_density(x, y)).all()


def test_the_law_on_the_grid_is_the_joint_density_as_a_function_of_the_target(model):
    row = np.repeat(X[:1], 2, 0)
    asked = np.array([9.0, 10.5])
    table = model._with_target(model._read_features(row), asked)
    x, y = model._encoded(table)
    exact = model._density.log_density(x, y).numpy()
    found = model.log_predictive_density(row, asked)
    assert found[1] - found[0] == pytest.approx(exact[1] - exact[0], abs=0.02)


@pytest.mark.slow
def test_it_learns_what_no_line_tells_and_covers_as_stated():
    x, y, _ = bent(1000)
    model = JointEnergyRegressor(random_state=0).fit(x, y)
    x, y, spread = bent(1000, seed=1)
    assert model.score(x, y) > 0.9  # a line has 0.7
    low, high = model.predict_quantiles(x, [0.05, 0.95]).T
    assert 0.86 < ((low < y) & (y < high)).mean() < 0.97
    # Wider where the noise is three times as large, though by far less than that: docs/scikit-learn.md says so.
    assert (high - low)[spread > 0.5].mean() > (high - low)[spread < 0.5].mean()


def test_gaps_and_targets_that_are_missing(model):
    gaps = X[:30].copy()
    gaps[:, 0] = np.nan
    low, high = model.predict_quantiles(gaps, [0.05, 0.95]).T
    sharp = model.predict_quantiles(X[:30], [0.05, 0.95])
    assert (high - low).mean() > (sharp[:, 1] - sharp[:, 0]).mean()
    assert ((low < Y[:30]) & (Y[:30] < high)).mean() > 0.75
    some = np.where(np.arange(300) % 2, Y, np.nan)
    half = JointEnergyRegressor(**QUICK).fit(X, some)
    assert half.score(X, Y) > 0.5
    with pytest.raises(InputError, match="no target at all"):
        JointEnergyRegressor(**QUICK).fit(X, np.full(300, np.nan))


def test_frames_have_the_target_as_their_last_column():
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=pd.Categorical(np.where(X[:, 0] > 0, "u", "v")))
    model = JointEnergyRegressor(max_iter=5, random_state=0).fit(frame, Y)
    assert model.predict(frame[:4]).shape == (4,)
    filled = model.impute(frame[:4], n_draws=5).X
    assert list(filled.columns) == ["a", "b", "c", "kind", "target"]
    assert filled["target"].notna().all()
    drawn = model.conditional("target", given={"b": 2.0}).sample(5, random_state=0)
    assert list(drawn.columns) == ["target"]
    assert np.isfinite(model.score_samples(frame[:3])).all()
    with pytest.raises(InputError, match="X has a column called 'target'"):
        JointEnergyRegressor(max_iter=3).fit(frame.assign(target=1.0), Y)


def test_a_target_that_never_changes_is_predicted():
    model = JointEnergyRegressor(max_iter=3, random_state=0).fit(X[:40], np.full(40, 2.5))
    assert model.predict(X[:3]).tolist() == [2.5] * 3


def test_the_term_is_exact_for_a_gaussian():
    """A mutant without the distance of points, or with another center, fails by far more than the tolerance."""
    g = torch.Generator().manual_seed(0)
    root = torch.randn(3, 3, generator=g, dtype=torch.float64)
    covariance = root @ root.mT + torch.eye(3, dtype=torch.float64)
    from jointenergy.tables.gaussians import Gaussians

    zero = torch.zeros(1, dtype=torch.float64)
    reference = Gaussians(zero, torch.ones(1, 3, dtype=torch.float64), covariance, zero.new_zeros(1, 0))

    class Law(LogitModel):
        def log_density_unchecked(self, x, y):
            away = x - 1.0
            return -0.5 * ((away @ reference.precision) * away).sum(1)

    law = Law(torch.nn.Identity(), {"y": ["a", "b"]})
    grid = TargetGrid.of(reference, 1)
    x = 1.0 + torch.randn(50, 3, generator=g, dtype=torch.float64) @ torch.linalg.cholesky(covariance).mT
    y = torch.zeros(50, 1, dtype=torch.int64)
    found = log_conditional(law, grid, x, y, 0.5)
    mean = x @ grid.slope + grid.offset
    exact = torch.distributions.Normal(mean, grid.deviation).log_prob(x[:, 1])
    # The row's own value counts as one point more of the grid.
    own = exact.exp() * 2 * 6.0 * grid.deviation / POINTS
    torch.testing.assert_close(found, exact - torch.log1p(own), atol=1e-6, rtol=0)


def test_integers_come_back_as_integers_within_what_was_seen():
    visits = np.random.default_rng(0).poisson(np.exp(0.4 * X[:, 0]))
    model = JointEnergyRegressor(**QUICK).fit(pd.DataFrame(X, columns=["a", "b", "c"]), visits)
    rows = pd.DataFrame(X[:20], columns=["a", "b", "c"])
    draws, ends = model.predict_draws(rows, 50), model.predict_quantiles(rows)
    for found in (draws, ends):
        assert (found == np.rint(found)).all()
        assert found.min() >= 0
        assert found.max() <= visits.max()
    assert model.predict(rows).std() > 0.1  # a mean is no integer
    assert (model.predict(rows) != np.rint(model.predict(rows))).all()
    assert np.isfinite(model.log_predictive_density(rows, visits[:20])).all()
    drawn = model.conditional("target", given={"a": 0.0}).sample(50, random_state=0)
    assert drawn["target"].dtype == np.int64
    assert drawn["target"].between(0, visits.max()).all()
    assert model.conform(rows, visits[:20], coverage=0.5).predict_interval(rows, coverage=0.5).min() >= 0
    some = pd.Series(visits, dtype="Int64").mask(visits == 1)
    assert JointEnergyRegressor(max_iter=1, random_state=0).fit(X, some)._columns.scaling.unit[-1] == 1.0


def test_amounts_stay_within_what_was_seen_from_below():
    paid = np.exp(1.5 * X[:, 0])
    model = JointEnergyRegressor(**QUICK).fit(X, paid)
    assert model.predict_draws(X[:20], 50).min() == model.predict_quantiles(X[:20]).min() == paid.min()
    losses = JointEnergyRegressor(max_iter=1, random_state=0).fit(X, paid - 1.0)
    assert losses.predict_draws(X, 50).min() < paid.min() - 1.0  # negative numbers are possible


def test_scores_and_plots_of_rows_without_a_target(model):
    some = np.where(np.arange(300) % 2, Y, np.nan)
    assert model.score(X, some) == pytest.approx(model.score(X[1::2], Y[1::2]))
    with pytest.raises(InputError, match="no target at all"):
        model.score(X, np.full(300, np.nan))
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    shown = JointEnergyRegressor(max_iter=1, random_state=0).fit(frame, Y).explain(frame[:2]).plot(1)
    assert "target" in " ".join(t.get_text() for t in shown.get_yticklabels())
    plt.close("all")


@pytest.mark.parametrize("y", [pd.Series(pd.date_range("2020", periods=300)), np.arange(300).astype("m8[D]")])
def test_dates_as_targets_are_refused_with_the_remedy(y):
    for target in (y, pd.Series(y).astype(object)):
        with pytest.raises(InputError, match=r"convert it, for example to days by \(y - y.min"):
            JointEnergyRegressor().fit(X, target)

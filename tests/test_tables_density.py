"""What the estimators claim of their density, against sums and quadrature: densities, missing features, imputations."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from sklearn.datasets import make_moons

from jointenergy import JointEnergyClassifier, streams
from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import TiltedGaussianModel
from jointenergy.models.base import JointModel
from jointenergy.networks import MLP
from jointenergy.tables import density as density_room
from jointenergy.tables.density import TableDensity
from jointenergy.tables.gaussians import Gaussians
from jointenergy.tables.reading import InputTable
from tests.small_tables import Quick, flags
from tests.tables import make, tilted

GRID = np.linspace(-9, 9, 721)


def small_density(labels=None, n_targets=1, seed=0, strength=3.0):
    """A density of two features whose network matters: nothing of it is Gaussian."""
    labels = labels or LabelSpace({"class": 3})
    n_classes = labels.cardinalities[0]
    others = labels.subspace(labels.names[n_targets:])
    g = torch.Generator().manual_seed(seed)
    means = torch.randn(n_classes, 2, generator=g, dtype=torch.float64) * 1.5
    covariance = torch.tensor([[1.0, 0.5], [0.5, 0.8]], dtype=torch.float64)
    blocks = [torch.rand(n_classes, c, generator=g, dtype=torch.float64) + 0.2 for c in others.cardinalities]
    log_values = (
        torch.cat([(b / b.sum(1, keepdim=True)).log() for b in blocks], 1) if blocks else torch.zeros(n_classes, 0)
    )
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    gaussians = Gaussians(weights, means, covariance, log_values.double())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = MLP((2 + others.n_codes, 16, n_classes)).double()
        with torch.no_grad():
            list(network.parameters())[2].mul_(strength)
    white = means @ gaussians.whitening
    model = TiltedGaussianModel(
        network,
        labels,
        n_targets=n_targets,
        center=torch.zeros(2),
        whitening=gaussians.whitening,
        slope=torch.cat((white, gaussians.log_values), dim=1),
        offset=weights - 0.5 * white.square().sum(1),
        event_shape=(2,),
    )
    return TableDensity(
        model.double().requires_grad_(False), gaussians, 0.4, torch.zeros(1, 2), torch.zeros(1, len(labels)).long()
    )


def without_network(labels):
    density = small_density(labels, strength=0.0)
    list(density.model.network.parameters())[3].data.zero_()
    return density


def keys_of(n):
    return streams.chain_keys(n, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def moons():
    x, y = make_moons(300, noise=0.2, random_state=0)
    return JointEnergyClassifier(max_iter=100, random_state=0).fit(x, y), x, y


# The model.


def test_a_tilted_gaussian_sums_all_labels_alike(monkeypatch):
    """By the closed sum over its targets, however many states these have."""
    model = make("tilted, mixed")
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(model.log_density_of_x(x), model.log_density(x))
    monkeypatch.setattr("jointenergy.labels.ENUMERATION_LIMIT", 6)
    torch.testing.assert_close(model.log_density_of_x(x), model.log_density(x))


def test_a_tilted_gaussian_without_a_network_is_its_gaussians_and_frequencies():
    labels = LabelSpace({"class": 3, "a": 2, "b": 3})
    density = without_network(labels)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(20, 2, generator=g, dtype=torch.float64)
    y = torch.stack([torch.randint(c, (20,), generator=g) for c in labels.cardinalities], 1)
    gaussians = density.gaussians
    normal = torch.distributions.MultivariateNormal(gaussians.means[y[:, 0]], gaussians.covariance)
    values = gaussians.log_values[y[:, 0]]
    wanted = (
        gaussians.log_weights[y[:, 0]]
        + normal.log_prob(x)
        + (labels.subspace(["a", "b"]).one_hot(y[:, 1:], torch.float64) * values).sum(1)
    )
    found = density.model.log_density(x, y) - wanted
    torch.testing.assert_close(found, found[:1].expand(20))  # one constant


def test_trust_changes_the_log_odds_of_the_reference_and_not_its_density():
    model = without_network(LabelSpace({"class": 3, "a": 2})).model
    g = torch.Generator().manual_seed(1)
    x = torch.randn(20, 2, generator=g, dtype=torch.float64)
    y = torch.cat((torch.full((20, 1), MISSING), torch.randint(2, (20, 1), generator=g)), 1)
    sure, log_density = model.label_probs(x, y)["class"], model.log_density(x, y)
    model.trust.fill_(0.5)
    torch.testing.assert_close(model.log_density(x, y), log_density)
    torch.testing.assert_close(model.label_probs(x, y)["class"], (0.5 * sure.log()).softmax(1))
    for n_targets, trust in ((2, 0.5), (1, 1.5)):
        with pytest.raises(InputError, match="trust must lie between 0 and 1"):
            tilted(n_targets=n_targets, trust=trust)


@pytest.mark.parametrize("n_targets", [0, 1, 2])
def test_completions_by_one_look_for_all_targets_are_those_of_one_look_for_each_state(n_targets):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = tilted(n_targets=n_targets).double()
    g = torch.Generator().manual_seed(2)
    x = torch.randn(300, 3, generator=g, dtype=torch.float64)
    y = torch.stack([torch.randint(-1, c, (300,), generator=g) for c in model.labels.cardinalities], 1)
    found, wanted = list(model.completions(x, y)), list(JointModel.completions(model, x, y))
    assert len(found) == len(wanted) == 8  # all patterns of what is missing
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a.rows, b.rows)
        assert torch.equal(a.states, b.states)
        torch.testing.assert_close(a.log_density, b.log_density)


@pytest.mark.parametrize("labels", [LabelSpace({"class": 3}), LabelSpace({"class": 3, "a": 2})])
def test_the_gradient_without_a_graph_is_torchs(labels):
    density = small_density(labels)
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.zeros(8, len(labels), dtype=torch.int64)
    for known in (y, None) if len(labels) == 1 else (y,):
        value, gradient = density.model.with_gradient(x, known)
        at = x.clone().requires_grad_()
        wanted = density.model.log_density(at, known)
        torch.testing.assert_close(value, wanted.detach())
        torch.testing.assert_close(gradient, torch.autograd.grad(wanted.sum(), at)[0])


# Its density, against quadrature.


@pytest.mark.parametrize("given", [None, 1])
def test_chains_at_temperature_1_complete_rows_by_the_density_of_quadrature(given):
    """Sees a distribution function that is off by .03; a right program fails once in a thousand seeds."""
    density = small_density()
    n = 2000
    x = torch.tensor([[0.7, math.nan]], dtype=torch.float64).repeat(n, 1)
    y = torch.full((n, 1), MISSING if given is None else given)
    drawn_x, _ = density.complete_rows(x, y, keys_of(n), n_draws=1, steps=20)
    assert (drawn_x[0, :, 0] == 0.7).all()
    points = torch.stack((torch.full((721,), 0.7, dtype=torch.float64), torch.from_numpy(GRID)), 1)
    log_p = density.log_density(points, torch.full((721, 1), MISSING if given is None else given))
    mass = log_p.softmax(0).cumsum(0).numpy()
    distance = kstest(drawn_x[0, :, 1].numpy(), lambda v: np.interp(v, GRID, mass))
    assert distance.pvalue > 1e-3
    # The reference alone is another density: the network's part is seen.
    joint = density.gaussians.log_joint(points, torch.zeros(721, 0, dtype=torch.float64))
    reference = (joint.logsumexp(1) if given is None else joint[:, given]).softmax(0).cumsum(0).numpy()
    assert kstest(drawn_x[0, :, 1].numpy(), lambda v: np.interp(v, GRID, reference)).pvalue < 1e-6


@pytest.mark.parametrize("enough", [64.0, math.inf], ids=["by weights", "by chains"])
def test_the_density_and_the_classes_of_rows_with_missing_features_are_those_of_quadrature(monkeypatch, enough):
    density = small_density()
    monkeypatch.setattr(density_room, "WITNESSES", 4000)
    monkeypatch.setattr(density_room, "ENOUGH", enough)
    monkeypatch.setattr(density_room, "DRAWS", 3000)
    at = torch.tensor([[0.7, math.nan], [-1.5, math.nan]], dtype=torch.float64)
    y, keys = torch.full((2, 1), MISSING), keys_of(2)
    known = density.log_known(at, y, keys)
    probs = density.expected(density.target_probs, at, y, keys, chains=True)
    for row in range(2):
        points = torch.stack((at[row, 0].expand(721), torch.from_numpy(GRID)), 1)
        log_p = torch.stack([density.log_density(points, torch.full((721, 1), k)) for k in range(3)], 1)
        exact = log_p.flatten().logsumexp(0) + math.log(GRID[1] - GRID[0])
        assert float(known[row]) == pytest.approx(float(exact), abs=0.03)
        torch.testing.assert_close(probs[row], log_p.logsumexp(0).softmax(0), atol=0.02, rtol=0)


def test_missing_discrete_features_are_drawn_from_their_distribution(monkeypatch):
    labels = LabelSpace({"class": 3, "a": 2, "b": 3})
    density = small_density(labels)
    monkeypatch.setattr(density_room, "CANDIDATES", 64)
    n = 4000
    x = torch.tensor([[0.3, -0.4]], dtype=torch.float64).repeat(n, 1)
    y = torch.tensor([[MISSING, 1, MISSING]]).repeat(n, 1)
    _, drawn_y = density.complete_rows(x, y, keys_of(n), n_draws=1, steps=3)
    assert (drawn_y[0, :, 1] == 1).all()
    wanted = density.model.label_probs(x[:1], torch.tensor([[MISSING, 1, MISSING]]))
    for column, name in ((0, "class"), (2, "b")):
        shares = torch.bincount(drawn_y[0, :, column], minlength=3).double() / n
        torch.testing.assert_close(shares, wanted[name][0], atol=0.03, rtol=0)


# What estimators answer by it.


def test_probabilities_densities_and_joint_densities_are_one_density(moons):
    model, x, _ = moons
    probs = model.predict_proba(x)
    np.testing.assert_allclose(probs.sum(1), 1)
    joint = np.stack([model.joint_log_density(x, np.full(len(x), k)) for k in (0, 1)], 1)
    np.testing.assert_allclose(np.logaddexp(joint[:, 0], joint[:, 1]), model.score_samples(x), rtol=1e-9)
    np.testing.assert_allclose(joint - model.score_samples(x)[:, None], model.predict_log_proba(x), atol=1e-9)
    np.testing.assert_allclose(model.decision_function(x), joint[:, 1] - joint[:, 0], atol=1e-8)
    np.testing.assert_allclose(model.joint_log_density(x, np.full(len(x), -1)), model.score_samples(x))


@pytest.mark.slow
def test_a_trained_density_is_that_of_a_known_mixture():
    """Two Gaussian classes of different covariance, which the reference cannot have: log p(x) is known."""
    g = np.random.default_rng(0)
    n = 1500
    y = g.integers(0, 2, n)
    x = np.where(y[:, None] == 0, g.normal(size=(n, 2)) * [1.0, 0.4], g.normal(size=(n, 2)) * [0.4, 1.2] + 2.5)
    model = JointEnergyClassifier(max_iter=400, random_state=0, label_weight=2.0).fit(x, y)

    def exact(rows):
        parts = []
        for mean, scale in ((0.0, [1.0, 0.4]), (2.5, [0.4, 1.2])):
            z = (rows - mean) / scale
            parts.append(math.log(0.5) - 0.5 * (z**2).sum(1) - np.log(scale).sum())
        return np.logaddexp(*parts)

    found, wanted = model.score_samples(x), exact(x)
    standardized = model._columns.encode(InputTable(list(x.T), ("number", "number"), n))[0]
    joint = model._density.gaussians.log_joint(standardized, torch.zeros(n, 0).double())
    reference = joint.logsumexp(1).numpy()
    spread = np.std(found - wanted)
    assert spread < 0.5
    assert spread < 0.6 * np.std(reference - wanted)


def fitted(n=150, seed=0, **settings):
    g = np.random.default_rng(seed)
    y = g.integers(0, 2, n)
    x = g.normal(size=(n, 2)) + 3 * y[:, None] * [1, -1]
    return JointEnergyClassifier(max_iter=30, random_state=0, **settings).fit(x, y), x, y


def test_imputations_keep_what_is_known_and_follow_the_class():
    model, x, y = fitted()
    holes = x.copy()
    holes[::2, 1] = np.nan
    found = model.impute(holes, y, n_draws=39, random_state=1)
    assert not np.isnan(found.X).any()
    known = ~np.isnan(holes)
    np.testing.assert_array_equal(found.X[known], holes[known])
    assert (found.low <= found.X + 1e-9).all()
    assert (found.high + 1e-9 >= found.X).all()
    assert found.draws.shape == (39, *x.shape)
    missing = ~known[:, 1]
    inside = (found.low[missing, 1] <= x[missing, 1]) & (x[missing, 1] <= found.high[missing, 1])
    assert inside.mean() > 0.75
    other = model.impute(holes, 1 - y, n_draws=39, random_state=1)
    # The classes lie 3 apart in the feature that is missing.
    assert np.abs(other.X[missing, 1] - found.X[missing, 1]).mean() > 1.5


@pytest.mark.parametrize("enough", [64.0, math.inf], ids=["by weights", "by chains"])
def test_what_is_found_of_a_row_with_gaps_is_its_own(moons, monkeypatch, enough):
    """Alone, repeated, or among others: chains and draws of a row are a function of the row."""
    monkeypatch.setattr(density_room, "ENOUGH", enough)
    model, x, _ = moons
    gaps = x[:30].copy()
    gaps[::2, 1] = math.nan
    for ask in (model.predict_proba, model.score_samples):
        alone = ask(gaps[[8]])[0]
        for rows in (gaps, gaps[[8, 8, 8]], np.concatenate((x[:9], gaps[[8]]))):
            for here in np.flatnonzero((rows[:, 0] == gaps[8, 0]) & np.isnan(rows[:, 1])):
                np.testing.assert_allclose(ask(rows)[here], alone, rtol=1e-9)


@pytest.mark.parametrize("enough", [64.0, math.inf], ids=["by weights", "by chains"])
def test_a_row_without_its_category_moves_no_row_beside_it(monkeypatch, enough):
    monkeypatch.setattr(density_room, "ENOUGH", enough)
    frame, y = flags()
    model = Quick().fit(frame, y)
    before = frame[:6].copy()
    before.loc[:4, "size"] = math.nan
    after = before.copy()
    after.loc[5, "color"] = None
    np.testing.assert_allclose(model.predict_proba(before)[:5], model.predict_proba(after)[:5], rtol=1e-9)
    first, second = (model.impute(rows, n_draws=5, random_state=3).draws for rows in (before, after))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one["size"][:5], other["size"][:5], rtol=1e-9)


def test_an_imputed_row_keeps_its_draws_whichever_rows_follow(moons):
    model, x, _ = moons
    gaps = x[:20].copy()
    gaps[3::2, 1] = math.nan
    whole, part = model.impute(gaps, random_state=5).draws, model.impute(gaps[:8], random_state=5).draws
    np.testing.assert_allclose(whole[:, :8], part, rtol=1e-9)
    twice = model.impute(gaps[[3, 3]], random_state=5).draws
    assert not np.allclose(twice[:, 0], twice[:, 1])  # the same row again has draws of its own


def test_probabilities_of_rows_with_gaps_hardly_depend_on_the_random_state(moons):
    """Of the row that is least certain: the deviation of a probability over seeds, .1 with a few draws."""
    model, row = copy.copy(moons[0]), np.array([[0.5, math.nan]])
    found = [model.set_params(random_state=seed).predict_proba(row)[0, 1] for seed in range(12)]
    assert 0.1 < np.mean(found) < 0.9  # the moons overlap there
    assert np.std(found) < 0.05

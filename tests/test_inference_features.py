"""Scores that a classifier has: ODIN, Mahalanobis and k-nearest neighbors of features."""

import pytest
import torch
from torch import nn

import jointenergy
from jointenergy import InputError, inference
from jointenergy.inference import SCORES, Reference, penultimate, score
from jointenergy.inference import features as room
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Box, EnergyModel, LogitModel
from jointenergy.networks import MLP

NEW = ("odin", "mahalanobis", "knn")


def rows(n=300, seed=0):
    """Three well separated clouds in [-1, 1]^4, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    centers = torch.tensor([[0.6, 0.0, 0.0, 0.0], [-0.3, 0.5, 0.0, 0.0], [-0.3, -0.5, 0.0, 0.0]])
    return centers[y] + 0.08 * torch.randn(n, 4, generator=generator), y[:, None]


@pytest.fixture(scope="module")
def classifier():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = MLP((4, 32, 16, 3))
        x, y = rows()
        optimizer = torch.optim.Adam(network.parameters(), 1e-2)
        for _ in range(150):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y[:, 0]).backward()
            optimizer.step()
    return network


@pytest.fixture
def run(classifier):
    made = jointenergy.wrap(classifier, {"kind": 3}, bounds=(-1, 1), event_shape=(4,))
    made.fit_features(*rows())
    return made


def test_features_are_what_the_last_called_linear_layer_sees():
    class Backwards(nn.Module):
        """The layer that was made first is called last."""

        def __init__(self):
            super().__init__()
            self.head, self.body = nn.Linear(5, 2), nn.Linear(4, 5)

        def forward(self, x):
            return self.head(self.body(x).relu())

    network, x = Backwards(), torch.randn(7, 4)
    assert torch.equal(penultimate(network, x), network.body(x).relu())
    assert not network.head._forward_pre_hooks
    with pytest.raises(InputError, match="no linear layer and so no features"):
        penultimate(nn.Conv1d(1, 1, 1), torch.randn(2, 1, 3))


@pytest.mark.parametrize("name", NEW)
def test_scores_tell_far_from_near_and_rows_are_independent(run, name):
    near, _ = rows(200, seed=1)
    # Not -x, which ODIN likes as well: a classifier has no opinion far away.
    far = 0.9 * torch.rand(200, 4, generator=torch.Generator().manual_seed(2)) * torch.tensor([0.0, 0.0, 1.0, 1.0])
    before = near.clone()
    own, other = run.score(near, name), run.score(far, name)
    auroc = float((own[:, None] > other).double().mean())
    assert auroc > 0.9
    assert torch.equal(near, before)
    torch.testing.assert_close(run.score(near[:3], name), own[:3], rtol=1e-4, atol=1e-5)
    assert all(p.grad is None for p in run.model.parameters() if not p.requires_grad)
    run.fit_threshold(near, score=name, quantile=0.1)
    assert int(run.detect(near, score=name, quantile=0.1).inside.sum()) == 180


def test_odin_by_hand(run, classifier):
    x, _ = rows(5)
    at = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((classifier(at) / 1000).log_softmax(1).amax(1).sum(), at)
    moved = classifier(x + 0.0014 * 2 * gradient.sign()).double()
    wanted = 1000 * ((moved / 1000).log_softmax(1).amax(1) + torch.tensor(3.0).double().log())
    torch.testing.assert_close(run.score(x, "odin"), wanted, rtol=1e-4, atol=1e-4)


def test_mahalanobis_and_neighbors_by_hand(run, classifier):
    x, y = rows()
    new, _ = rows(6, seed=3)
    features, seen = (penultimate(classifier, t).double() for t in (x, new))
    means = torch.stack([features[y[:, 0] == c].mean(0) for c in range(3)])
    centered = features - means[y[:, 0]]
    covariance = centered.T @ centered / len(x)
    covariance += 1e-3 * covariance.diagonal().mean() * torch.eye(len(covariance))
    apart = seen[:, None] - means
    wanted = -torch.stack([(a @ torch.linalg.inv(covariance) * a).sum(1) for a in apart]).amin(1)
    torch.testing.assert_close(run.score(new, "mahalanobis"), wanted, rtol=1e-6, atol=1e-8)
    bank, unit = (nn.functional.normalize(t, dim=1) for t in (features, seen))
    wanted = -torch.cdist(unit, bank).sort(1).values[:, 9]
    torch.testing.assert_close(run.score(new, "knn"), wanted, rtol=1e-6, atol=1e-6)


def test_what_has_no_features_is_told_in_one_sentence(classifier, monkeypatch):
    run = jointenergy.wrap(classifier, {"kind": 3}, bounds=(-1, 1), event_shape=(4,))
    with pytest.raises(InputError, match=r"a wrapped classifier does not have: pass them to run.fit_features\(x, y\)"):
        run.score(torch.zeros(2, 4), "knn")
    energy = EnergyModel(MLP((4, 8, 1)), domain=Box(-1.0, 1.0), event_shape=(4,))
    with pytest.raises(InputError, match="features need a classifier of x"):
        Reference.fit(energy, torch.zeros(5, 4), torch.zeros(5, 0, dtype=torch.int64))
    with pytest.raises(InputError, match="ODIN needs the logits of a classifier"):
        score(energy, torch.zeros(2, 4), "odin")
    # Labels of some rows alone, and none at all, still give a reference; many rows are taken evenly.
    x, y = rows()
    model = run.model
    some = Reference.fit(model, x, torch.where(torch.arange(300)[:, None] % 2 == 0, y, MISSING))
    assert len(some.means) == 3
    assert len(Reference.fit(model, x, torch.full_like(y, MISSING)).means) == 1
    several = LogitModel(MLP((4, 8, 5)), LabelSpace({"a": 3, "b": 2}), domain=Box(-1.0, 1.0), event_shape=(4,))
    assert len(Reference.fit(several, x, torch.cat((y, y.clamp(max=1)), 1)).means) == 1
    assert score(several, x, "odin").shape == (300,)
    monkeypatch.setattr(room, "BANK", 50)
    assert len(Reference.fit(model, x, y).bank) == 50
    assert set(NEW) <= set(SCORES)
    assert inference.SCORES is SCORES

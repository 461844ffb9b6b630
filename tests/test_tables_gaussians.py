"""The Gaussian classes: conditioned, fitted by EM, and begun where labels spread along the nearest rows."""

from __future__ import annotations

import pytest
import torch

from jointenergy.labels import MISSING, LabelSpace
from jointenergy.tables import gaussians
from jointenergy.tables.gaussians import ConditionalGaussian, fit, spread


def test_gaussians_condition_as_gaussians_do():
    g = torch.Generator().manual_seed(0)
    root = torch.randn(4, 4, generator=g, dtype=torch.float64)
    covariance = root @ root.mT + torch.eye(4)
    mask = torch.tensor([[True, False, True, False], [True] * 4, [False] * 4])
    x = torch.randn(3, 4, generator=g, dtype=torch.float64)
    conditions = ConditionalGaussian.of(covariance.inverse(), mask)
    mean = conditions.mean(torch.where(mask, x, 0.0))
    o, m = [0, 2], [1, 3]
    inner = covariance[m][:, o] @ covariance[o][:, o].inverse()
    torch.testing.assert_close(mean[0, m], inner @ x[0, o])
    torch.testing.assert_close(conditions.covariance()[0][m][:, m], covariance[m][:, m] - inner @ covariance[o][:, m])
    assert (mean[1:] == 0).all()
    torch.testing.assert_close(conditions.covariance()[2], covariance)


def test_em_finds_classes_from_few_labels_and_features_that_are_missing():
    g = torch.Generator().manual_seed(0)
    n = 600
    y = torch.randint(2, (n,), generator=g)
    x = torch.randn(n, 2, generator=g, dtype=torch.float64) + 4.0 * y[:, None] * torch.tensor([1.0, -1.0])
    few = torch.where(torch.arange(n) < 6, y, MISSING)
    mask = torch.rand(n, 2, generator=g) > 0.2
    nothing, equal = torch.zeros(n, 0).long(), torch.ones(n, dtype=torch.float64)
    found = fit(x, mask, few, nothing, equal, n_classes=2, space=LabelSpace.none())
    torch.testing.assert_close(found.means, torch.tensor([[0.0, 0.0], [4.0, -4.0]]).double(), atol=0.4, rtol=0)
    whole = torch.ones(6, 2, dtype=torch.bool)
    alone = fit(x[:6], whole, y[:6], nothing[:6], equal[:6], n_classes=2, space=LabelSpace.none())
    assert float((alone.means - torch.tensor([[0.0, 0.0], [4.0, -4.0]])).abs().max()) > 0.4


def test_labels_spread_along_rows_that_are_near_and_no_further():
    along = torch.linspace(0, 3, 12, dtype=torch.float64)
    lines = [torch.stack((along, torch.full_like(along, height)), 1) for height in (0.0, 9.0, 18.0)]
    classes = torch.full((36,), -1)
    classes[0], classes[23] = 2, 0
    shares = spread(torch.cat(lines), classes, 4)
    assert shares.shape == (36, 4)
    assert (shares[:12].argmax(1) == 2).all()
    assert (shares[12:24].argmax(1) == 0).all()
    torch.testing.assert_close(shares[:24].sum(1), torch.ones(24, dtype=torch.float64))
    assert (shares[24:] == 0).all()


@pytest.mark.parametrize("broken", [False, True])
def test_a_reference_of_few_labels_begins_with_what_neighbors_say(broken, monkeypatch):
    if broken:  # the labels alone, at opposite ends of two long strips, which they would cut across
        own = lambda _x, classes, k: torch.nn.functional.one_hot(classes + 1, k + 1)[:, 1:].double()  # noqa: E731
        monkeypatch.setattr(gaussians, "spread", own)
    y = torch.arange(80) % 2
    along = torch.linspace(0, 8, 80)
    noise = 0.2 * torch.randn(80, generator=torch.Generator().manual_seed(0))
    x = torch.stack((along, 1.8 * y + noise), dim=1).double()
    few = torch.full_like(y, -1)
    few[:10:2], few[-9::2] = 0, 1
    every, nothing = torch.ones_like(x, dtype=torch.bool), torch.empty(80, 0, dtype=torch.int64)
    reference = gaussians.fit(x, every, few, nothing, torch.ones_like(x[:, 0]), n_classes=2, space=LabelSpace({}))
    right = (reference.log_joint(x, x[:, :0]).argmax(1) == y).double().mean()
    assert (right > 0.9) == (not broken), right

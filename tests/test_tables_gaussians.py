"""Where the reference of few labels begins: labels that spread along the nearest rows, then a few rounds of EM."""

from __future__ import annotations

import pytest
import torch

from jointenergy.labels import LabelSpace
from jointenergy.tables import gaussians
from jointenergy.tables.gaussians import spread


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

"""Terms that tables need: rows that count more or less, and targets given x and the other labels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import TiltedGaussianModel
from jointenergy.objectives import (
    Batch,
    Draws,
    LogPTargetsGivenRest,
    LogPX,
    LogPXY,
    LogPYGivenX,
    Objective,
    Samples,
)
from tests.tables import MIXED, D, make

Y = torch.tensor([[0, 1, 0], [2, MISSING, 1], [MISSING, 0, 1], [1, 0, MISSING], [MISSING] * 3])


def rows(n=5):
    return torch.randn(n, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def negatives():
    g = torch.Generator().manual_seed(1)
    y = torch.stack([torch.randint(c, (7,), generator=g) for c in MIXED.cardinalities], 1)
    return Samples(torch.randn(7, D, generator=g, dtype=torch.float64), y)


def targets_by_hand(model, x, y, n_targets):
    """log p(targets | x, the other labels), all states gone through."""
    states, total = MIXED.enumerate(), x.new_zeros(())
    for row, labels in zip(x, y, strict=True):
        if (labels[:n_targets] == MISSING).all():
            continue
        f = model.log_density_of_complete(row.expand(len(states), D), states)
        rest = ((states == labels) | (labels == MISSING))[:, n_targets:].all(1)
        own = ((states == labels) | (labels == MISSING)).all(1)
        total = total + f[own].logsumexp(0) - f[rest].logsumexp(0)
    return total / len(x)


@pytest.mark.parametrize("n_targets", [1, 2])
@pytest.mark.parametrize("name", ["pair", "tilted, mixed"])
def test_targets_given_the_rest_are_those_of_enumeration(name, n_targets):
    model, x = make(name), rows()
    loss = Objective((LogPTargetsGivenRest(2.0, n_targets),))(model, Batch(x, Y))
    wanted = targets_by_hand(model, x, Y, n_targets)
    parameters = [p for p in model.parameters() if p.requires_grad]
    torch.testing.assert_close(loss.total, -2.0 * wanted)
    found, exact = (torch.autograd.grad(v, parameters, allow_unused=True) for v in (loss.total, -2.0 * wanted))
    for a, b in zip(found, exact, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    # The labels together are another question.
    whole = Objective((LogPYGivenX(2.0),))(model, Batch(x, Y))
    assert abs(float((whole.total - loss.total).detach())) > 1e-3


def test_all_labels_as_targets_are_the_labels_given_x():
    model, batch = make("pair"), Batch(rows(), Y)
    values = [Objective((t,))(model, batch).total for t in (LogPTargetsGivenRest(1.0, 3), LogPYGivenX())]
    torch.testing.assert_close(*values)


def test_completed_rows_are_asked_for_their_targets():
    model, x = make("pair"), rows()
    mask = torch.ones(5, D, dtype=torch.bool)
    mask[:, 0] = False
    filled = torch.where(Y == MISSING, 0, Y)
    completed = Samples(x, filled)
    term = LogPTargetsGivenRest(1.0, 1)
    assert term.needs(model, masked_x=True) == {"given_xy"}
    assert term.needs(model, missing_labels=True) == frozenset()
    found = Objective((term,))(model, Batch(x, Y, mask), Draws(given_xy=completed)).total
    asked = torch.cat((Y[:, :1], filled[:, 1:]), 1)
    torch.testing.assert_close(found, -targets_by_hand(model, x, asked, 1))


@pytest.mark.parametrize("name", ["logits", "pair", "tilted, mixed"])
def test_a_row_of_weight_two_is_the_row_twice(name):
    model, x = make(name), rows()
    weight = torch.tensor([2.0, 0.0, 1.0, 3.0, 1.0])
    again = torch.arange(5).repeat_interleave(weight.long())
    draws = Draws(negatives=negatives())
    objective = LogPX() + LogPYGivenX(0.5) + LogPXY(0.3) + LogPTargetsGivenRest(2.0, 1)
    weighed = objective(model, Batch(x, Y, weight=weight), draws).total * 5
    repeated = objective(model, Batch(x[again], Y[again]), draws).total * 7
    torch.testing.assert_close(weighed, repeated)
    plain = objective(model, Batch(x, Y), draws).total * 5
    assert abs(float((plain - weighed).detach())) > 1e-3


@pytest.mark.parametrize("weight", [torch.ones(4), torch.full((5,), -1.0), torch.full((5,), torch.nan)])
def test_wrong_weights_are_refused(weight):
    with pytest.raises(InputError, match="weights must be 5 finite numbers"):
        Objective((LogPYGivenX(),))(make("logits"), Batch(rows(), Y, weight=weight))


def test_log_prob_of_targets_uses_all_of_a_network_that_has_a_part_called_logits():
    """Fails if that part alone, which here sees other numbers than the network, is taken for the whole."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.logits = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            value: torch.Tensor = self.logits(self.body(x).tanh())
            return value

    torch.manual_seed(0)
    model = TiltedGaussianModel(
        Net(),
        LabelSpace({"class": 2}),
        n_targets=1,
        center=torch.zeros(3),
        whitening=torch.eye(3),
        slope=torch.zeros(2, 3),
        offset=torch.zeros(2),
        event_shape=(3,),
    ).double()
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.tensor([[0], [1], [0], [1], [MISSING]])
    rest = model.log_density_unchecked(x, torch.full_like(y, MISSING))
    assert torch.allclose(model.log_prob_of_first(x, y, 1), model.log_density_unchecked(x, y) - rest, atol=1e-12)

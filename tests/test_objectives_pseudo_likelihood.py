"""The pseudo-likelihood of labels: its value by hand, its minimizer on a known law, missing labels, what is refused."""

import pytest
import torch
from torch import nn

import jointenergy as je
from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import PairModel
from jointenergy.objectives import Batch, LogPYGivenX, Objective, PseudoLikelihood
from jointenergy.runs.description import describe, rebuild
from tests.tables import make
from tests.test_kernels_exact import sharpened

TERM = Objective((PseudoLikelihood(),))


def rows(model, n=20):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=g, dtype=torch.float64)
    y = torch.stack([torch.randint(c, (n,), generator=g) for c in model.labels.cardinalities], 1)
    return x, y


def test_it_is_the_sum_of_the_conditionals_of_each_label():
    model = sharpened("pair")
    x, y = rows(model)
    found = float(TERM(model, Batch(x, y)).parts["pseudo_likelihood"])
    total = 0.0
    for k, name in enumerate(model.labels.names):
        given = y.clone()
        given[:, k] = MISSING
        probs = model.label_probs(x, given)[name].detach()
        total += float(probs.gather(1, y[:, k, None]).log().sum())
    assert found == pytest.approx(total / len(x), abs=1e-10)


def test_where_labels_are_independent_it_is_the_likelihood_of_labels():
    model = make("logits")
    x, y = rows(model)
    likelihood = Objective((LogPYGivenX(),))(model, Batch(x, y)).total
    assert float(TERM(model, Batch(x, y)).total.detach()) == pytest.approx(float(likelihood.detach()), abs=1e-10)


def test_rows_that_miss_a_label_have_no_part():
    model = sharpened("pair")
    x, y = rows(model)
    missing = y.clone()
    missing[10:, 1] = MISSING
    whole = float(TERM(model, Batch(x[:10], y[:10])).total.detach())
    assert float(TERM(model, Batch(x, missing)).total.detach()) == pytest.approx(whole / 2, abs=1e-10)


class Ising(nn.Module):
    """Three binary labels with couplings and fields to be learned."""

    def __init__(self):
        super().__init__()
        self.coupling = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.field = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, features, code):
        on = code[:, 1::2]
        pairs = torch.stack((on[:, 0] * on[:, 1], on[:, 1] * on[:, 2], on[:, 0] * on[:, 2]), 1)
        return (self.coupling * pairs).sum(1) + (self.field * on).sum(1) + 0.0 * features.sum(1)


@pytest.mark.parametrize("factor", [1.0, 2.0], ids=["right", "mutant"])
def test_its_minimizer_has_the_law_of_the_data(factor):
    """Every state weighed by its exact probability: the minimizer is the law itself; at a doubled law it is not."""
    labels = LabelSpace.binary(["a", "b", "c"])
    truth, model = (PairModel(Ising(), labels) for _ in range(2))
    with torch.no_grad():
        for p, values in zip(truth.parameters(), ([1.2, -0.8, 0.5], [-0.4, 0.3, 0.1]), strict=True):
            p.copy_(torch.tensor(values))
    states = labels.enumerate()
    x = torch.zeros(8, 1, dtype=torch.float64)
    law = (factor * truth.log_density(x, states)).softmax(0).detach()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)

    def loss():
        optimizer.zero_grad()
        value = TERM(model, Batch(x, states, weight=8 * law)).total
        value.backward()
        return value

    optimizer.step(loss)
    off = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), truth.parameters(), strict=True))
    assert off < 1e-5 if factor == 1.0 else off > 0.1


def test_fit_and_recipes_take_it():
    recipe = recipes.load("toy-mixed", ["objective.pseudo_likelihood=0.5"])
    assert recipe.objective.pseudo_likelihood == 0.5
    assert rebuild(describe(PseudoLikelihood(0.3)), "objective") == PseudoLikelihood(0.3)
    g = torch.Generator().manual_seed(0)
    y = torch.randint(2, (60, 2), generator=g)
    x = torch.randn(60, 2, generator=g) + y
    head = je.Concat(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
    model = PairModel(head, LabelSpace.binary(["a", "b"]), event_shape=(2,))
    quick = {"iterations": 3, "sampling_steps": 3, "verbose": False}
    run = je.fit(model, (x, y), objective=PseudoLikelihood(), **quick)
    assert len(run.predict(x)) == 60
    assert not run.origin.density  # nothing was learned of x


def test_what_is_refused():
    model = sharpened("pair")
    x, y = rows(model)
    with pytest.raises(InputError, match="needs complete x"):
        TERM(model, Batch(x, y, mask=torch.zeros(20, 3, dtype=torch.bool)))

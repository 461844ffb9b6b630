"""Parallel tempering over (x, y): swaps in balance, the law of every rung, mixing between far modes, and mutants."""

import itertools
import math

import pytest
import torch

from jointenergy.errors import InputError
from jointenergy.kernels import (
    HMC,
    MALA,
    BlockGibbs,
    ExactGibbs,
    Ladder,
    Langevin,
    Target,
    annealed,
    parallel_tempering,
    rungs_needed,
    tempering,
)
from jointenergy.labels import LabelSpace
from jointenergy.models import JointModel, PairModel, Reals
from tests.checks import ALPHA, chi_square, histogram
from tests.exact import Grid, index_of, joint_toy
from tests.tables import make
from tests.test_kernels_exact import sharpened
from tests.test_kernels_mixed import Classes


class Swapped(JointModel):
    """A model that swaps compare in place of the rungs' own: a mutant of which f a swap takes."""

    def __init__(self, model, f):
        super().__init__(model.labels, domain=model.domain)
        self.f = f

    def log_density_unchecked(self, x, y):
        return self.f(x, y)


def imbalance(cold, hot, monkeypatch, ratio=None, compared=None):
    """How far the two flows of a swap are apart, in nats, over pairs of states; and how far it moves the joint law.

    Exact, float64: a grid of 5 points x with all labels, on a rung each; the log-ratio is what the swap decides by.
    """
    model = make("pair, reference")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2.0)
    labels = model.labels.enumerate()
    g = torch.Generator().manual_seed(0)
    points = 1.5 * torch.randn(5, 3, generator=g, dtype=torch.float64)
    x, y = points.repeat_interleave(len(labels), 0), labels.repeat(5, 1)
    n = len(x)
    rungs = [model.tempered(b).log_density(x, y).detach().log_softmax(0) for b in (cold, hot)]
    here, there = torch.cartesian_prod(torch.arange(n), torch.arange(n)).T
    target = Target(model if compared is None else Swapped(model, lambda x, y: compared(model, x, y)))
    kernel = BlockGibbs(ExactGibbs(), MALA(0.1))
    states = [kernel.init(Target(model), x[i], y[i], generator=g) for i in (here, there)]
    seen = []

    def decided(key, log_ratio):
        seen.append(log_ratio)
        return torch.zeros(len(log_ratio), dtype=torch.bool), log_ratio

    monkeypatch.setattr(tempering, "metropolis", decided)
    if ratio is not None:
        monkeypatch.setattr(tempering, "swap_log_ratio", ratio)
    tempering._swap(target, cold, hot, *states)
    accept = seen[0].view(n, n).clamp(max=0)
    law = rungs[0][:, None] + rungs[1][None, :]
    flow = (law + accept).exp()
    moved = law.exp() - flow + flow.T
    return float((law + accept - (law + accept).T).abs().max()), float((moved - law.exp()).abs().sum())


LADDERS = ((1.0, 0.5), (0.3, 0.29), (1.0, 1e-3))


@pytest.mark.parametrize(("cold", "hot"), LADDERS)
def test_every_swap_is_in_detailed_balance(cold, hot, monkeypatch):
    """The joint law of two rungs times the acceptance, both ways, with the reference term, and labels of the states."""
    apart, moved = imbalance(cold, hot, monkeypatch)
    assert apart < 1e-10
    assert moved < 1e-12


MUTANTS = {
    "flipped": {"ratio": lambda c, h, a, b: (c - h) * (a - b)},
    "always": {"ratio": lambda c, h, a, b: 0 * a},
    "half": {"ratio": lambda c, h, a, b: (c - h) * (b - a) / 2},
    "by the colder rung alone": {"ratio": lambda c, h, a, b: c * (b - a)},
    "labels summed out": {"compared": lambda m, x, y: m.log_density(x).detach()},
    "no reference term": {"compared": lambda m, x, y: m.log_density(x, y).detach() - m.domain.log_reference(x)},
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_swap_mutants_are_out_of_balance(mutant, monkeypatch):
    apart, moved = imbalance(1.0, 0.5, monkeypatch, **MUTANTS[mutant])
    assert apart > 0.1
    assert moved > 1e-3


def test_the_two_ladders_are_different():
    # exp(b LSE f) and the sum of exp(b f) differ at b < 1: swaps by the one on rungs of the other would be wrong.
    model = sharpened("pair", 3.0)
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    summed, tempered = 0.5 * model.log_density(x), model.tempered(0.5).log_density(x)
    apart = (summed - tempered) - (summed - tempered)[0]
    assert float(apart.abs().max().detach()) > 1e-2


def law_p_values(n=4000, steps=25):
    """Chi-square of (y, cell of x) at every rung after some steps from exact draws of the coldest."""
    model, ladder = joint_toy(), Ladder((1.0, 0.6, 0.35))
    grid, g = Grid.of(model, n=600), torch.Generator().manual_seed(0)
    x, _ = grid.draw(n, g)
    found = parallel_tempering(
        BlockGibbs(ExactGibbs(), MALA(0.3)), Target(model), x, ladder, steps=steps, swap_every=2, generator=g
    )
    values = []
    for b, state in zip(ladder.inverse_temperatures, found.states, strict=True):
        rung = Grid.of(model.tempered(b), low=-9.0, high=9.0, n=600)
        cells = rung.law.view(6, 20, 30).sum(2)
        edges = (rung.x[29:-1:30] + rung.x[30::30]) / 2
        place = index_of(model.labels, state.y) * 20 + torch.bucketize(state.x[:, 0].contiguous(), edges)
        values.append(chi_square(histogram(place, 120), cells.flatten()))
    return min(values), found


def test_every_rung_has_its_law():
    # Sees a probability that is off by 0.03; three checks at ALPHA each.
    value, found = law_p_values(steps=80)
    assert value > ALPHA
    assert all(0.5 < rate < 1 for rate in found.swap_rates)
    assert found.round_trips > 0


@pytest.mark.parametrize(
    "mutant",
    [lambda c, h, a, b: (c - h) * (a - b), lambda c, h, a, b: 0 * a],
    ids=["flipped", "always"],
)
def test_swap_mutants_have_another_law(mutant, monkeypatch):
    monkeypatch.setattr(tempering, "swap_log_ratio", mutant)
    assert law_p_values(steps=40)[0] < ALPHA


def test_tempering_crosses_where_a_single_chain_does_not():
    model = PairModel(Classes(9.0, 3), LabelSpace({"class": 3}), event_shape=(3,), domain=Reals(50.0))
    n, g = 200, torch.Generator().manual_seed(0)
    start = torch.zeros(n, 3, dtype=torch.float64) + torch.tensor([9 / math.sqrt(2), 0.0, 0.0])
    kernel = BlockGibbs(ExactGibbs(), MALA(0.5))
    ladder = Ladder.geometric(6, 0.02)
    found = parallel_tempering(kernel, Target(model), start, ladder, steps=200, generator=g)
    shares = torch.bincount(found.cold.y[:, 0], minlength=3) / n
    alone = parallel_tempering(kernel, Target(model), start, Ladder((1.0, 0.999)), steps=200, generator=g)
    assert float((alone.cold.y[:, 0] == 0).double().mean()) > 0.95
    assert float(shares[0]) < 0.7
    assert min(found.swap_rates) > 0.1


def test_how_many_rungs_a_dimension_needs():
    """The stated number gives about the stated swap rate on Gaussians; cold image chains would need hundreds."""
    for dimension in (10, 100):
        n = rungs_needed(dimension, 0.1, swapped=0.3)
        ladder = Ladder.geometric(n, 0.1)
        g = torch.Generator().manual_seed(0)
        rates = []
        for b, c in itertools.pairwise(ladder.inverse_temperatures):
            a, d = (-torch.randn(20_000, dimension, generator=g).square().sum(1) / 2 / t for t in (b, c))
            rates.append(float(tempering.swap_log_ratio(b, c, a, d).clamp(max=0).exp().mean()))
        assert 0.25 < sum(rates) / len(rates) < 0.5
    assert rungs_needed(3072, 5e-5) > 200
    assert rungs_needed(1, 0.5) == 2


def test_annealed_starts_go_down_the_ladder_and_are_only_starts():
    model = PairModel(Classes(9.0, 3), LabelSpace({"class": 3}), event_shape=(3,), domain=Reals(50.0))
    g = torch.Generator().manual_seed(0)
    start = torch.zeros(300, 3, dtype=torch.float64) + torch.tensor([9 / math.sqrt(2), 0.0, 0.0])
    kernel = BlockGibbs(ExactGibbs(), Langevin.at_temperature(0.3))
    state = annealed(kernel, Target(model), start, Ladder.geometric(8, 0.02), steps=30, generator=g)
    shares = torch.bincount(state.y[:, 0], minlength=3) / 300
    assert float(shares.min()) > 0.05  # every class was found, which no chain at temperature 1 does


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Ladder((1.0,)), "two or more inverse temperatures"),
        (lambda: Ladder((0.5, 1.0)), "each below the one before"),
        (lambda: Ladder((1.0, -0.5)), "positive inverse temperature"),
        (lambda: Ladder((0.5, 0.1)), "begins with 1"),
        (lambda: Ladder(1.0), "needs a sequence of inverse temperatures"),
        (lambda: Ladder.geometric(3, 2.0), "hottest must be an inverse temperature between 0 and 1, got 2"),
        (lambda: rungs_needed(10, 1.0), "hottest must be an inverse temperature between 0 and 1"),
        (lambda: rungs_needed(10, 0.1, swapped=1.0), "swapped must be a rate between 0 and 1"),
        (lambda: tempered_by(MALA(0.1), (1.0, 0.5)), "needs a Ladder such as"),
        (lambda: tempered_by(Langevin(0.1, 0.1)), "parallel tempering needs MALA, HMC or MixedHMC at temperature 1"),
        (lambda: tempered_by(HMC(0.1, temperature=2.0)), "at temperature 1"),
    ],
)
def test_what_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def tempered_by(kernel, ladder=Ladder((1.0, 0.5))):  # noqa: B008 (frozen)
    x = torch.zeros(2, 3, dtype=torch.float64)
    return parallel_tempering(kernel, Target(make("pair")), x, ladder, steps=2, generator=torch.Generator())

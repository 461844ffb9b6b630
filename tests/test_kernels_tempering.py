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
from jointenergy.models import PairModel, Reals
from tests.checks import ALPHA, chi_square, histogram
from tests.exact import Grid, index_of, joint_toy
from tests.tables import make
from tests.test_kernels_exact import sharpened
from tests.test_kernels_mixed import Classes


def test_every_swap_is_in_detailed_balance():
    """The joint law of two rungs times the acceptance, both ways, with the reference term; labels as in the states."""
    model = make("pair, reference")
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(200, 3, generator=g, dtype=torch.float64) for _ in range(2)]
    y = [torch.stack([torch.randint(c, (200,), generator=g) for c in model.labels.cardinalities], 1) for _ in range(2)]
    f = [model.log_density(a, b).detach() for a, b in zip(x, y, strict=True)]
    for cold, hot in ((1.0, 0.5), (0.3, 0.29), (1.0, 1e-3)):
        tempered = [
            [model.tempered(b).log_density(a, c).detach() for a, c in zip(x, y, strict=True)] for b in (cold, hot)
        ]
        flows = []
        for here, there in ((0, 1), (1, 0)):
            accept = tempering.swap_log_ratio(cold, hot, f[here], f[there]).clamp(max=0)
            flows.append(tempered[0][here] + tempered[1][there] + accept)
        assert float((flows[0] - flows[1]).abs().max()) < 1e-10


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
        (lambda: tempered_by(Langevin(0.1, 0.1)), "parallel tempering needs MALA, HMC or MixedHMC at temperature 1"),
        (lambda: tempered_by(HMC(0.1, temperature=2.0)), "at temperature 1"),
    ],
)
def test_what_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def tempered_by(kernel):
    x = torch.zeros(2, 3, dtype=torch.float64)
    return parallel_tempering(kernel, Target(make("pair")), x, Ladder((1.0, 0.5)), steps=2, generator=torch.Generator())

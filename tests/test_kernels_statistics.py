"""Kernels against known laws by sampling: from exact draws they stay, from far away they arrive; mutants do neither.

Each check has the false-failure rate ALPHA; seeds are fixed. With 20,000 chains the distribution function of x is known
to .01 and a label's probability to .004: each test's comment says what it would see.
"""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from jointenergy import streams
from jointenergy.kernels import (
    MALA,
    BlockGibbs,
    ExactGibbs,
    GibbsWithGradients,
    Langevin,
    PolynomialDecay,
    SingleSiteGibbs,
    Target,
    last,
)
from jointenergy.labels import LabelSpace
from jointenergy.models import Box, EnergyModel, PairModel
from tests.checks import ALPHA, chi_square, histogram, kolmogorov_smirnov
from tests.exact import (
    Grid,
    biased_variance,
    block_stationary,
    index_of,
    joint_toy,
    label_law,
    langevin_matrices,
    transition_matrices,
)
from tests.tables import Y_KERNELS, make

N = 20_000


class Asymmetric(nn.Module):
    """The log-density of .7 N(-1, .5^2) + .3 N(1.5, .8^2), up to a constant."""

    def forward(self, x):
        low = np.log(0.7 / 0.5) - (x + 1.0) ** 2 / (2 * 0.5**2)
        high = np.log(0.3 / 0.8) - (x - 1.5) ** 2 / (2 * 0.8**2)
        return torch.logaddexp(low, high)[:, 0]


class Tilted(nn.Module):
    """Highest at the right edge of the box: most proposals there fall outside."""

    def forward(self, x):
        return 3.0 * x[:, 0]


TARGETS = {
    "asymmetric": lambda: EnergyModel(Asymmetric(), event_shape=(1,)),
    "asymmetric, in a box": lambda: EnergyModel(Asymmetric(), event_shape=(1,), domain=Box(-1.2, 2.0)),
    "tilted, in a box": lambda: EnergyModel(Tilted(), event_shape=(1,), domain=Box(0.0, 1.0)),
}


def fine_grid(model, temperature=1.0):
    low, high = (model.domain.low, model.domain.high) if isinstance(model.domain, Box) else (-8.0, 10.0)
    n = 4001
    edges = torch.linspace(low, high, n + 1, dtype=torch.float64)
    centers = (edges[1:] + edges[:-1]) / 2
    law = (model.log_density(centers[:, None]) / temperature).softmax(0)
    return centers, law, edges, torch.cat((torch.zeros(1), law.cumsum(0)))


def p_value(kernel, model, *, steps, begin="exact", temperature=1.0):
    """How well N chains agree with the law after some steps, begun from exact draws or all from one far point."""
    centers, law, edges, cdf = fine_grid(model, temperature)
    g = torch.Generator().manual_seed(0)
    if begin == "exact":
        x = centers[torch.multinomial(law, N, replacement=True, generator=g)][:, None]
    else:
        x = torch.full((N, 1), float(begin), dtype=torch.float64)
    target = Target(model)
    state = last(kernel, target, kernel.init(target, x, generator=g), steps)
    return kolmogorov_smirnov(state.x, edges, cdf)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("clamp", [None, 1.0])
def test_mala_stays(name, temperature, clamp):
    # Sees a shift of the distribution function by .02.
    assert p_value(MALA(0.2, temperature, clamp), TARGETS[name](), steps=30, temperature=temperature) > ALPHA


@pytest.mark.parametrize(
    ("name", "begin"), [("asymmetric", 6.0), ("asymmetric, in a box", 2.0), ("tilted, in a box", 0.0)]
)
def test_mala_arrives(name, begin):
    assert p_value(MALA(0.3), TARGETS[name](), steps=400, begin=begin) > ALPHA
    # One step is not enough: the check has teeth.
    assert p_value(MALA(0.3), TARGETS[name](), steps=1, begin=begin) < ALPHA


@dataclass(frozen=True)
class Mala0(MALA):
    """Accepts by the densities alone."""

    def log_acceptance(self, target, to, there, x, here):
        ratio = (there.log_density - here.log_density) / self.temperature
        return ratio.masked_fill(~target.model.domain.contains(to), -torch.inf)


@dataclass(frozen=True)
class MalaClamped(MALA):
    """Clamps into the box what it should reject."""

    def step(self, target, state):
        free = Target(EnergyModel(target.model.network, event_shape=(1,)))
        after, info = super().step(free, state)
        domain = target.model.domain
        return replace(after, x=after.x.clamp(domain.low, domain.high), evaluation=None), info


@dataclass(frozen=True)
class MalaDoubledNoise(MALA):
    """Draws twice the noise that its proposal density knows of."""

    def step(self, target, state):
        x = state.x + self.noise_scale * 3**0.5 * streams.normal_like(streams.split(state.keys, 4)[3], state.x)
        return super().step(target, replace(state, x=x, evaluation=None))


@dataclass(frozen=True)
class MalaFlipped(MALA):
    def log_acceptance(self, target, to, there, x, here):
        there, here = (replace(e, log_density=-e.log_density) for e in (there, here))
        return super().log_acceptance(target, to, there, x, here)


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (Mala0(0.2), "asymmetric"),
        (MalaClamped(0.2), "tilted, in a box"),
        (MalaDoubledNoise(0.2), "asymmetric"),
        (MalaFlipped(0.2), "asymmetric"),
    ],
    ids=lambda m: type(m).__name__ if isinstance(m, MALA) else m,
)
def test_mala_mutants_do_not_stay(mutant, name):
    assert p_value(mutant, TARGETS[name](), steps=30) < ALPHA


@dataclass(frozen=True)
class MalaNeverMoves(MALA):
    def step(self, target, state):
        after, info = super().step(target, state)
        return replace(after, x=state.x, evaluation=None), info


def test_a_kernel_that_never_moves_stays_and_does_not_arrive():
    assert p_value(MalaNeverMoves(0.3), TARGETS["asymmetric"](), steps=30) > ALPHA
    assert p_value(MalaNeverMoves(0.3), TARGETS["asymmetric"](), steps=400, begin=6.0) < ALPHA


class Gaussian(nn.Module):
    """Independent Gaussians with variances 1, 4 and means 0, 1."""

    variance = torch.tensor([1.0, 4.0], dtype=torch.float64)
    mean = torch.tensor([0.0, 1.0], dtype=torch.float64)

    def forward(self, x):
        return -((x - self.mean) ** 2 / (2 * self.variance)).sum(1)


def langevin_p_values(kernel, sampled=None):
    """Mean and variance of N chains after many steps, against those of the biased law of `kernel`."""
    target = Target(EnergyModel(Gaussian(), event_shape=(2,)))
    g = torch.Generator().manual_seed(0)
    begin = torch.full((N, 2), 5.0, dtype=torch.float64)
    mover = kernel if sampled is None else sampled
    x = last(mover, target, mover.init(target, begin, generator=g), 150).x
    values = []
    for k in range(2):
        variance = biased_variance(float(Gaussian.variance[k]), kernel.step_size, kernel.noise_scale)
        z = float((x[:, k].mean() - Gaussian.mean[k]) / (variance / N) ** 0.5)
        ratio = float(((x[:, k] - Gaussian.mean[k]) ** 2).sum() / variance)
        values += [2 * stats.norm.sf(abs(z)), 2 * min(stats.chi2.sf(ratio, N), stats.chi2.cdf(ratio, N))]
    return min(values)


@pytest.mark.parametrize("kernel", [Langevin(0.5, 1.0), Langevin(0.2, 0.3), Langevin.at_temperature(0.3)])
def test_langevin_has_its_known_biased_variance(kernel):
    # Sees a variance wrong by 5 %: doubled noise, a lost factor 2, a flipped sign.
    assert langevin_p_values(kernel) > ALPHA


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_langevin_at_a_temperature_has_its_variance(temperature):
    # The noise is written out here, so that a temperature that is lost or squared on the way is seen.
    by_hand = Langevin(0.3, math.sqrt(2 * 0.3 * temperature))
    assert langevin_p_values(by_hand, Langevin.at_temperature(0.3, temperature)) > ALPHA
    assert biased_variance(4.0, 0.3, by_hand.noise_scale) == pytest.approx(4.0 * temperature / (1 - 0.3 / 8.0))


@dataclass(frozen=True)
class LangevinHalfStep(Langevin):
    """The papers' alpha / 2 forgotten or applied twice."""

    def step(self, target, state):
        return Langevin(self.step_size / 2, self.noise_scale).step(target, state)


@dataclass(frozen=True)
class LangevinDoubledNoise(Langevin):
    def step(self, target, state):
        return Langevin(self.step_size, self.noise_scale * 2).step(target, state)


@pytest.mark.parametrize("mutant", [LangevinHalfStep(0.5, 1.0), LangevinDoubledNoise(0.5, 1.0)])
def test_langevin_mutants_fail(mutant):
    assert langevin_p_values(Langevin(0.5, 1.0), mutant) < ALPHA


def test_langevin_with_decaying_steps_loses_its_bias():
    # At the constant step .5 the variance of the first coordinate is 1.33 instead of 1; after decay it is 1 to 3 %.
    target = Target(EnergyModel(Gaussian(), event_shape=(2,)))
    g = torch.Generator().manual_seed(0)
    kernel = replace(Langevin.at_temperature(0.5), schedule=PolynomialDecay(0.6, 5.0))
    begin = torch.full((N, 2), 5.0, dtype=torch.float64)
    x = last(kernel, target, kernel.init(target, begin, generator=g), 600).x
    assert float(x[:, 0].var()) == pytest.approx(1.0, abs=0.06)
    assert biased_variance(1.0, 0.5, 1.0) > 1.3


def label_p_value(kernel, *, steps, exact, given=None, name="pair"):
    model = make(name)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2.0)
    x = torch.randn(1, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64).expand(N, -1)
    law = label_law(model, x[:1], model.labels.encode(given or {})[0])[0]
    target = Target(model, given_y=given)
    g = torch.Generator().manual_seed(0)
    if exact:
        y = model.labels.enumerate()[torch.multinomial(law, N, replacement=True, generator=g)]
    else:
        y = model.labels.enumerate()[law.argmin()].expand(N, -1)
    state = last(kernel, target, kernel.init(target, x, y, generator=g), steps)
    return chi_square(histogram(index_of(model.labels, state.y), model.labels.n_states), law)


@pytest.mark.parametrize("given", [None, {"round": 0}], ids=["none", "round"])
@pytest.mark.parametrize("kernel", Y_KERNELS.values(), ids=Y_KERNELS)
def test_label_kernels_stay_and_arrive(kernel, given):
    # Sees a state's probability wrong by .01. An exact draw has arrived after one step.
    stay, arrive = (2, 1) if isinstance(kernel, ExactGibbs) else (10, 100)
    assert label_p_value(kernel, steps=stay, exact=True, given=given) > ALPHA
    assert label_p_value(kernel, steps=arrive, exact=False, given=given) > ALPHA
    assert label_p_value(kernel, steps=0, exact=False, given=given) < ALPHA


class BigIsing(nn.Module):
    """An Ising chain of binary labels: nearest neighbors agree, and a field favors 1; the law is known by transfer."""

    coupling, field = 0.7, 0.15

    def forward(self, features, code):
        spin = code.unflatten(1, (-1, 2))
        agree = (spin[:, 1:] * spin[:, :-1]).sum((1, 2))
        return self.coupling * agree + self.field * spin[:, :, 1].sum(1) + 0.0 * features.sum(1)


@pytest.mark.parametrize("kernel", [GibbsWithGradients(), SingleSiteGibbs()], ids=lambda k: type(k).__name__)
def test_label_kernels_on_more_labels_than_can_be_enumerated(kernel):
    # 30 binary labels, 10^9 states: the mean number of ones and of agreeing neighbors, exact by transfer matrices.
    n_labels, n_chains = 30, 2000
    model = PairModel(BigIsing(), LabelSpace.binary([f"s{i}" for i in range(n_labels)])).double()

    def log_z(coupling, field):
        bond = torch.tensor([[coupling, 0.0], [0.0, coupling]], dtype=torch.float64).exp()
        site = torch.tensor([0.0, field], dtype=torch.float64).exp()
        vector = site.clone()
        for _ in range(n_labels - 1):
            vector = (vector @ bond) * site
        return vector.sum().log()

    step = 1e-5
    ones = (log_z(0.7, 0.15 + step) - log_z(0.7, 0.15 - step)) / (2 * step)
    agreeing = (log_z(0.7 + step, 0.15) - log_z(0.7 - step, 0.15)) / (2 * step)
    target = Target(model)
    g = torch.Generator().manual_seed(0)
    state = kernel.init(target, torch.zeros(n_chains, 1, dtype=torch.float64), generator=g)
    y = last(kernel, target, state, 600).y
    for value, exact in ((y.sum(1), ones), ((y[:, 1:] == y[:, :-1]).sum(1), agreeing)):
        error = value.double().std() / n_chains**0.5
        assert abs(float((value.double().mean() - exact) / error)) < 5  # false-failure rate 6e-7


class IndependentLabels(nn.Module):
    """Binary labels that are independent, each with log-odds -1, 0 or 1 in turn: every marginal is known."""

    def __init__(self, n_labels):
        super().__init__()
        self.register_buffer(
            "log_odds", torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64).repeat(n_labels)[:n_labels]
        )

    def forward(self, features, code):
        return (code[:, 1::2] * self.log_odds).sum(1)


def p_value_of_a_mask(kernel, n_labels=784, n_chains=20, steps=1500):
    """Ones among the labels of each log-odds after many steps from uniform labels: binomial counts."""
    head = IndependentLabels(n_labels)
    target = Target(PairModel(head, LabelSpace.binary([f"pixel{i}" for i in range(n_labels)])))
    g = torch.Generator().manual_seed(0)
    state = kernel.init(target, torch.zeros(n_chains, 1, dtype=torch.float64), generator=g)
    y = last(kernel, target, state, steps).y
    values = []
    for log_odds in (-1.0, 0.0, 1.0):
        group = y[:, head.log_odds == log_odds]
        ones, p = int(group.sum()), 1 / (1 + math.exp(-log_odds))
        values.append(stats.binomtest(ones, group.numel(), p).pvalue)
    return min(values)


def test_gibbs_with_gradients_has_the_marginals_of_784_labels():
    # Sees a marginal wrong by .03. What the uniform start leaves after 1500 steps is below .003.
    assert p_value_of_a_mask(GibbsWithGradients()) > ALPHA


@dataclass(frozen=True)
class GwgWithoutReverse(GibbsWithGradients):
    """Accepts by the densities alone: with 784 labels the law is sharpened by half."""

    def log_acceptance(self, target, forward, reverse, there, here):
        return there.log_density - here.log_density


def test_a_mutant_misses_the_marginals_of_many_labels():
    assert p_value_of_a_mask(GwgWithoutReverse(), n_labels=96, n_chains=60, steps=300) < ALPHA


# Block Gibbs: a joint density over a 1-D x and two labels with 6 states, everything known on a grid.

Y_KERNELS_OF_BLOCKS = [ExactGibbs(), SingleSiteGibbs(), GibbsWithGradients()]


def block_p_values(kernel, law, x_grid, *, steps, exact=True, n=8000):
    """Chi-square over (state of y, cell of x) after some steps of a block kernel, from exact draws or from afar."""
    model = joint_toy()
    grid = Grid(x_grid, law)
    g = torch.Generator().manual_seed(0)
    if exact:
        x, s = grid.draw(n, g)
        y = model.labels.enumerate()[s]
    else:
        x, y = torch.full((n, 1), 5.0, dtype=torch.float64), torch.zeros(n, 2, dtype=torch.int64)
    target = Target(model)
    state = last(kernel, target, kernel.init(target, x, y, generator=g), steps)
    # Cells of 30 grid points: borders lie halfway between points, as the law's mass does.
    per_cell = 30
    edges = (x_grid[per_cell - 1 : -1 : per_cell] + x_grid[per_cell::per_cell]) / 2
    cell = torch.bucketize(state.x[:, 0], edges)
    n_cells = len(edges) + 1
    cells = torch.stack([law[:, i * per_cell : (i + 1) * per_cell].sum(1) for i in range(n_cells)], 1)
    counts = histogram(index_of(model.labels, state.y) * n_cells + cell, model.labels.n_states * n_cells)
    return chi_square(counts, cells.flatten())


@pytest.mark.parametrize("x_steps", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("y_kernel", Y_KERNELS_OF_BLOCKS, ids=lambda k: type(k).__name__)
def test_block_gibbs_with_mala_is_exact(y_kernel, x_steps):
    grid = Grid.of(joint_toy(), n=600)
    kernel = BlockGibbs(y_kernel, MALA(0.3), x_steps)
    assert block_p_values(kernel, grid.law, grid.x, steps=20) > ALPHA
    assert block_p_values(kernel, grid.law, grid.x, steps=100, exact=False) > ALPHA


def test_block_gibbs_has_the_known_marginal_of_the_labels():
    model = joint_toy()
    grid = Grid.of(model, low=-9.0, high=9.0, n=3001)
    exact = grid.law.sum(1)
    kernel, target = BlockGibbs(GibbsWithGradients(), MALA(0.3)), Target(model)
    g = torch.Generator().manual_seed(1)
    state = kernel.init(target, torch.zeros(8000, 1, dtype=torch.float64), generator=g)
    y = last(kernel, target, state, 100).y
    assert chi_square(histogram(index_of(model.labels, y), 6), exact) > ALPHA


def stationary(step_size, y_kernel, n=600):
    model = joint_toy()
    grid = Grid.of(model, n=n)
    langevin = Langevin.at_temperature(step_size)
    y_matrices = transition_matrices(y_kernel, Target(model), grid.x[:, None])
    x_matrices = langevin_matrices(langevin, model, grid.x)
    return langevin, grid, block_stationary(y_matrices, x_matrices, steps=int(60 / step_size))


@pytest.mark.parametrize("y_kernel", Y_KERNELS_OF_BLOCKS, ids=lambda k: type(k).__name__)
def test_block_gibbs_with_langevin_has_the_law_of_its_matrix(y_kernel):
    langevin, grid, law = stationary(0.3, y_kernel)
    kernel = BlockGibbs(y_kernel, langevin)
    n = 60_000
    assert block_p_values(kernel, law, grid.x, steps=20, n=n) > ALPHA
    if isinstance(y_kernel, SingleSiteGibbs):  # the cheapest
        # The bias at this step size is real and the check sees it: the target itself is refused.
        assert block_p_values(kernel, grid.law, grid.x, steps=60, n=n) < ALPHA


def test_the_bias_of_langevin_within_gibbs_vanishes_with_the_step():
    distances = []
    for step_size in (0.4, 0.2, 0.1, 0.05):
        _, grid, law = stationary(step_size, ExactGibbs())
        distances.append(float((law - grid.law).abs().sum() / 2))
    # First order in the step: halving the step halves the distance, nearly.
    ratios = [a / b for a, b in itertools.pairwise(distances)]
    assert distances[0] > 0.02
    assert all(1.6 < r < 2.6 for r in ratios), distances


@dataclass(frozen=True)
class StaleLabels(BlockGibbs):
    """Never moves the labels."""

    def step(self, target, state):
        after, info = super().step(target, state)
        return replace(after, y=state.y), info


@pytest.mark.parametrize(
    "mutant",
    [
        StaleLabels(ExactGibbs(), MALA(0.3)),
        BlockGibbs(ExactGibbs(), MALA(0.3, temperature=0.5)),
        BlockGibbs(ExactGibbs(), Langevin(0.3, 0.3)),
    ],
    ids=["stale labels", "colder on x alone", "too little noise"],
)
def test_block_mutants_fail(mutant):
    grid = Grid.of(joint_toy(), n=600)
    outcomes = [block_p_values(mutant, grid.law, grid.x, steps=s, exact=e) for s, e in ((20, True), (100, False))]
    assert min(outcomes) < ALPHA

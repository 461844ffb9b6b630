"""Bounds on log Z and on likelihoods against exact values: closed forms, enumeration, quadrature.

Statistical tests are seeded. An estimate must lie within 5 of its standard errors of the truth, so a right program
fails one check in a million or so; a wrong normalizer, Jacobian or sign is off by tenths of a nat, tens of errors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.neighbors import KernelDensity
from torch import Tensor, nn

from jointenergy.data import Logit
from jointenergy.kernels import MALA, GibbsWithGradients, Kernel, Langevin, SingleSiteGibbs, State
from jointenergy.labels import MISSING
from jointenergy.metrics.likelihood import (
    Annealer,
    Effort,
    How,
    Path,
    Pilot,
    Points,
    Schedule,
    effective_share,
    forward,
    how_labels,
    log_mean_exp,
    offsets,
    regressed,
    reverse,
    temperature_grid,
)
from jointenergy.metrics.likelihood import Path as LawPath
from jointenergy.metrics.reference_densities import Gaussian, Kernels, log_box_mass
from jointenergy.models import Box, ConditionalModel, EnergyModel, JointModel, PairModel, Reals
from tests.exact import joint_toy

DOUBLE = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Quadratic(nn.Module):
    """-(x - mean)^2 / (2 scale^2), added up: an independent Gaussian without its normalizer."""

    def __init__(self, mean: list[float], scale: list[float]) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(mean, dtype=DOUBLE))
        self.scale = nn.Parameter(torch.tensor(scale, dtype=DOUBLE))

    def forward(self, x: Tensor) -> Tensor:
        return (-((x - self.mean) ** 2) / (2 * self.scale**2)).sum(1)


class Mixture(nn.Module):
    """Two Gaussians of unequal weight and width in 2-D, far enough apart that chains seldom cross."""

    def __init__(self) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.tensor([[-1.5, -1.0], [1.5, 1.2]], dtype=DOUBLE))
        self.scales = nn.Parameter(torch.tensor([0.3, 0.5], dtype=DOUBLE))
        self.weights = nn.Parameter(torch.tensor([1.0, 0.0], dtype=DOUBLE))

    def forward(self, x: Tensor) -> Tensor:
        squares = ((x[:, None] - self.centers) ** 2).sum(2)
        return (self.weights - squares / (2 * self.scales**2)).logsumexp(1)


def rough_energy() -> nn.Module:
    """A network with fixed random weights and several humps, steep at the walls of [-1, 1]^2."""
    torch_generator = seeded(5)
    network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).to(DOUBLE)
    for parameter in network.parameters():
        parameter.data = 2.0 * torch.randn(parameter.shape, generator=torch_generator, dtype=DOUBLE)
    return network


def quadrature(model: JointModel, temperature: float, low: float, high: float, n: int = 801) -> float:
    """log Z of exp(f / T) over a square by the midpoint rule."""
    width = (high - low) / n
    line = low + width * (torch.arange(n, dtype=DOUBLE) + 0.5)
    grid = torch.cartesian_prod(line, line)
    with torch.no_grad():
        f = torch.cat([model.log_density(piece) for piece in grid.split(50_000)])
    return float((f / temperature).logsumexp(0)) + 2 * math.log(width)


def log_box_integral(quadratic: Quadratic, temperature: float, box: Box) -> float:
    """log of the integral of exp(f / T) over a box, by the error function."""
    scale = quadratic.scale.detach() * math.sqrt(temperature)
    law = torch.distributions.Normal(quadratic.mean.detach(), scale)
    mass = law.cdf(torch.tensor(box.high, dtype=DOUBLE)) - law.cdf(torch.tensor(box.low, dtype=DOUBLE))
    return float((mass * scale * math.sqrt(2 * math.pi)).log().sum())


BOX = Box(-1.0, 1.0)


def boxed_gaussian() -> EnergyModel:
    """Mass in the middle, against a wall, and with its top far outside."""
    return EnergyModel(Quadratic([0.2, -1.0, 1.6], [0.2, 0.1, 0.3]), domain=BOX, event_shape=(3,))


def exact_draws_of_boxed_gaussian(n: int) -> Tensor:
    model = boxed_gaussian()
    network = model.network
    assert isinstance(network, Quadratic)
    law = torch.distributions.Normal(network.mean.detach(), network.scale.detach())
    low, high = law.cdf(torch.tensor(-1.0, dtype=DOUBLE)), law.cdf(torch.tensor(1.0, dtype=DOUBLE))
    drawn: Tensor = law.icdf(low + (high - low) * torch.rand(n, 3, generator=seeded(9), dtype=DOUBLE))
    return drawn


def free_gaussian() -> EnergyModel:
    return EnergyModel(Quadratic([1.0, -2.0], [0.5, 1.5]), domain=Reals(scale=2.0, mean=0.5), event_shape=(2,))


def log_z_of_free_gaussian(temperature: float) -> float:
    """Precisions add; what is left of the two squares is the constant."""
    total = 0.0
    for mean, scale in ((1.0, 0.5), (-2.0, 1.5)):
        p, q = 1 / scale**2, 1 / 2.0**2
        constant = -0.5 * p * q / (p + q) * (mean - 0.5) ** 2
        total += constant / temperature + 0.5 * math.log(2 * math.pi * temperature / (p + q))
    return total


CASES: dict[str, tuple[Callable[[], EnergyModel], Callable[[float], float]]] = {
    "gaussian on R^2": (free_gaussian, log_z_of_free_gaussian),
    "gaussian in a box": (
        boxed_gaussian,
        lambda t: log_box_integral(Quadratic([0.2, -1.0, 1.6], [0.2, 0.1, 0.3]), t, BOX),
    ),
    "mixture in a box": (
        lambda: EnergyModel(Mixture(), domain=Box(-4.0, 4.0), event_shape=(2,)),
        lambda t: quadrature(EnergyModel(Mixture(), domain=Box(-4.0, 4.0), event_shape=(2,)), t, -4.0, 4.0),
    ),
    "mixture on R^2": (
        lambda: EnergyModel(Mixture(), domain=Reals(scale=1.5), event_shape=(2,)),
        lambda t: quadrature(EnergyModel(Mixture(), domain=Reals(scale=1.5), event_shape=(2,)), t, -9.0, 9.0),
    ),
    "network in a box": (
        lambda: EnergyModel(rough_energy(), domain=BOX, event_shape=(2,)),
        lambda t: quadrature(EnergyModel(rough_energy(), domain=BOX, event_shape=(2,)), t, -1.0, 1.0),
    ),
}


def unlabeled(n: int) -> Tensor:
    return torch.zeros(n, 0, dtype=torch.int64)


def tuned(model: JointModel, temperatures: list[float], how: How = "summed", seed: int = 3) -> Annealer:
    y = torch.zeros(1, len(model.labels), dtype=torch.int64)
    x = torch.zeros(1, *(model.event_shape or ()), dtype=DOUBLE)
    points = Points(x, y, torch.zeros(1, dtype=DOUBLE))
    return Annealer.tuned(model, points, temperatures, how=how, generator=seeded(seed))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("name", list(CASES))
def test_log_z_is_exact_to_its_error(name: str, temperature: float) -> None:
    make, exact = CASES[name]
    model = make()
    n_dims = (model.event_shape or ())[0]
    annealer = tuned(model, [2.0, temperature])
    schedule = annealer.pilot.schedule(temperature, 200, 2)
    like = torch.zeros(1, n_dims, dtype=DOUBLE)
    weights = forward(annealer.path, schedule, unlabeled(1000), like, generator=seeded(1))
    share = float(effective_share(weights))
    error = math.sqrt((1 / share - 1) / len(weights))
    assert error < 0.1
    truth = exact(temperature)
    assert abs(float(log_mean_exp(weights)) - truth) < 5 * error
    # In expectation below; the mean over all chains shows the sign where the weights vary at all.
    assert float(weights.mean()) < truth + 3 * float(weights.std()) / math.sqrt(len(weights))


def test_more_temperatures_close_the_bound_from_below() -> None:
    model, truth = boxed_gaussian(), log_box_integral(Quadratic([0.2, -1.0, 1.6], [0.2, 0.1, 0.3]), 1.0, BOX)
    annealer, like = tuned(model, [1.0]), torch.zeros(1, 3, dtype=DOUBLE)
    below = []
    for n_temperatures in (4, 20, 100):
        schedule = annealer.pilot.schedule(1.0, n_temperatures, 2)
        below.append(truth - float(forward(annealer.path, schedule, unlabeled(400), like, generator=seeded(2)).mean()))
    assert below[0] > 2 * below[1] > 4 * below[2] > 0
    assert below[2] < 0.5


def test_exact_draws_sandwich_log_z() -> None:
    """Forward from the start and back from exact draws: the truth lies between their means, and they meet."""
    model, truth = boxed_gaussian(), log_box_integral(Quadratic([0.2, -1.0, 1.6], [0.2, 0.1, 0.3]), 1.0, BOX)
    annealer, x = tuned(model, [1.0]), exact_draws_of_boxed_gaussian(400)
    gaps = []
    for n_temperatures in (8, 200):
        schedule = annealer.pilot.schedule(1.0, n_temperatures, 2)
        low = float(forward(annealer.path, schedule, unlabeled(400), x[:1], generator=seeded(2)).mean())
        high = float(reverse(annealer.path, schedule, x, unlabeled(400), generator=seeded(3)).mean())
        assert low < truth < high
        gaps.append(high - low)
    assert gaps[1] < gaps[0] / 3
    assert gaps[1] < 0.5


def raised(x_kernel: Callable[[float], Kernel], step_size: float) -> tuple[float, float, float]:
    """RAISE's mean log-likelihood of exact draws, its error, and the true one, at a fixed step size."""
    model, x = boxed_gaussian(), exact_draws_of_boxed_gaussian(500)
    path = Path(model, 1.0, x_kernel=x_kernel)
    schedule = Schedule(tuple(k / 100 for k in range(101)), (step_size,) * 100, 2)
    with torch.no_grad():
        f = model.log_density(x)
    found = f - reverse(path, schedule, x, unlabeled(len(x)), generator=seeded(4))
    truth = float(f.mean()) - log_box_integral(Quadratic([0.2, -1.0, 1.6], [0.2, 0.1, 0.3]), 1.0, BOX)
    return float(found.mean()), float((found - f).std()) / math.sqrt(len(x)), truth


def test_raise_lies_below_the_likelihood_and_unadjusted_chains_do_not() -> None:
    found, error, truth = raised(MALA, 0.6)
    assert truth - 1 < found < truth - 3 * error
    mutant, error, truth = raised(lambda step: Langevin.at_temperature(step), 0.6)
    assert mutant > truth + 10 * error


def test_raise_bounds_what_the_annealing_draws_and_not_the_model() -> None:
    """Rows wider than the model's own are likelier under a law that lags behind: there the two figures contradict."""
    model = EnergyModel(Quadratic([0.0, 0.0], [0.05, 0.05]), domain=BOX, event_shape=(2,))
    x = (0.2 * torch.randn(200, 2, generator=seeded(1), dtype=DOUBLE)).clamp(-0.9, 0.9)
    points = Points.of(model, x, unlabeled(200), "summed")
    truth = float(points.f.mean()) - log_box_integral(Quadratic([0.0, 0.0], [0.05, 0.05]), 1.0, BOX)
    annealer = Annealer.tuned(model, points, [1.0], how="summed", generator=seeded(2))
    # Chains that hardly move draw the first law, which is uniform: its density is what RAISE then finds, exactly.
    still = replace(annealer, pilot=Pilot([0.0, 1.0], [0.0, 1.0], [1e-12, 1e-12]))
    lagging = still.bounds(points, 1.0, Effort(20, 3000, 50), generator=seeded(3))
    assert lagging.annealed == pytest.approx(-2 * math.log(2), abs=1e-3)
    assert lagging.annealed > truth + 10
    assert lagging.crossed
    assert lagging.lower is None
    slow = annealer.bounds(points, 1.0, Effort(300, 200, 200), generator=seeded(3))
    assert abs(slow.upper - truth) < 0.3
    assert not slow.crossed
    assert slow.lower == pytest.approx(truth, abs=0.5)


def test_unadjusted_chains_miss_log_z() -> None:
    """The mutant's law is too wide at a large step: the mean of its weights is not Z."""
    model, truth = boxed_gaussian(), log_box_integral(Quadratic([0.2, -1.0, 1.6], [0.2, 0.1, 0.3]), 1.0, BOX)
    schedule = Schedule(tuple(k / 100 for k in range(101)), (0.5,) * 100, 2)
    like, miss = torch.zeros(1, 3, dtype=DOUBLE), {}
    for name, path in (
        ("adjusted", Path(model, 1.0)),
        ("mutant", Path(model, 1.0, x_kernel=lambda step: Langevin.at_temperature(step))),
    ):
        weights = forward(path, schedule, unlabeled(1000), like, generator=seeded(6))
        error = math.sqrt((1 / float(effective_share(weights)) - 1) / len(weights))
        miss[name] = abs(float(log_mean_exp(weights)) - truth) / error
    assert miss["adjusted"] < 5 < miss["mutant"]


def test_weights_above_log_z_are_as_rare_as_markov_says() -> None:
    """P(log weight > log Z + 1) < exp(-1), also of a poor annealing."""
    model, truth = boxed_gaussian(), log_box_integral(Quadratic([0.2, -1.0, 1.6], [0.2, 0.1, 0.3]), 1.0, BOX)
    annealer = tuned(model, [1.0])
    schedule = annealer.pilot.schedule(1.0, 6, 1)
    weights = forward(annealer.path, schedule, unlabeled(500), torch.zeros(1, 3, dtype=DOUBLE), generator=seeded(7))
    assert float((weights > truth + 1).double().mean()) < math.exp(-1)


# Labels.


def joint_in_box() -> PairModel:
    """x of 1-D in a box with 6 label states."""
    toy = joint_toy()
    return PairModel(toy.head, toy.labels, domain=Box(-4.0, 4.0), event_shape=(1,))


def log_z_by_states(model: JointModel) -> Tensor:
    """log Z of each label state by quadrature, `[S]`."""
    states, n = model.labels.enumerate(), 4001
    width = 8.0 / n
    line = (-4.0 + width * (torch.arange(n, dtype=DOUBLE) + 0.5))[:, None]
    with torch.no_grad():
        values = [model.log_density_of_complete(line, s.expand(n, -1)).logsumexp(0) for s in states]
    return torch.stack(values) + math.log(width)


@pytest.mark.parametrize("y_kernel", [None, SingleSiteGibbs(), GibbsWithGradients()])
def test_labels_summed_or_moved_give_one_log_z(y_kernel: SingleSiteGibbs | GibbsWithGradients | None) -> None:
    model = joint_in_box()
    truth = float(log_z_by_states(model).logsumexp(0))
    assert how_labels(model) == "summed"
    pilot = tuned(model, [1.0]).pilot
    path = Path(model, 1.0, y_kernel)
    y = torch.full((600, 2), MISSING)
    weights = forward(path, pilot.schedule(1.0, 60, 1), y, torch.zeros(1, 1, dtype=DOUBLE), generator=seeded(8))
    error = math.sqrt((1 / float(effective_share(weights)) - 1) / len(weights))
    assert error < 0.06
    assert abs(float(log_mean_exp(weights)) - truth) < 5 * error


class ByState(nn.Module):
    """The pair model's f as one of label indices, with a constant for each state that nobody knows."""

    def __init__(self, model: PairModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model.log_density_of_complete(x, y) + 3.0 * y[:, 0]


def test_offsets_make_a_conditional_model_joint() -> None:
    """With the right log Z_y the posterior is that of the class-conditional densities and the prior."""
    pair = joint_in_box()
    model = ConditionalModel(ByState(pair), pair.labels, domain=pair.domain, event_shape=(1,))
    assert how_labels(model) == "given"
    annealer = tuned(model, [1.0], "given")
    prior = torch.tensor([0.3, 0.1, 0.2, 0.1, 0.2, 0.1], dtype=DOUBLE).log()
    effort, like = Effort(60, 300, 0), torch.zeros(1, 1, dtype=DOUBLE)
    found = offsets(annealer, prior, like, 1.0, effort, generator=seeded(1))
    assert found.shape == (3, 2)
    truth = log_z_by_states(model) - prior
    assert float((found.flatten() - truth).abs().max()) < 0.2
    joint = model.with_offsets(found)
    x = torch.tensor([[-1.0], [0.4], [2.0]], dtype=DOUBLE)
    states = model.labels.enumerate()
    by_hand = torch.stack([model.log_density_of_complete(x, s.expand(3, -1)) for s in states], 1) - truth
    marginal = by_hand.softmax(1).view(3, 3, 2).sum(2)
    assert float((joint.label_probs(x)["a"] - marginal).abs().max().detach()) < 0.05


def test_bounds_of_a_conditional_model_are_of_p_x_given_y() -> None:
    pair = joint_in_box()
    model = ConditionalModel(ByState(pair), pair.labels, domain=pair.domain, event_shape=(1,))
    generator = seeded(2)
    y = pair.labels.enumerate().repeat(20, 1)
    x = 2 * torch.randn(len(y), 1, generator=generator, dtype=DOUBLE).clamp(-1.9, 1.9)
    points = Points.of(model, x, y, "given")
    log_z = log_z_by_states(model).repeat(20)
    truth = float((points.f - log_z).mean())
    annealer = Annealer.tuned(model, points, [1.0], how="given", generator=generator)
    found = annealer.bounds(points, 1.0, Effort(80, 200, 120), generator=generator)
    assert abs(found.upper - truth) < 0.1
    assert abs(found.annealed - truth) < 0.3
    assert found.margin == pytest.approx(math.log(6 / 0.05))


def test_bounds_are_the_same_for_the_same_seed_and_leave_the_model_alone() -> None:
    model = boxed_gaussian()
    x = exact_draws_of_boxed_gaussian(50)
    points = Points.of(model, x, unlabeled(50), "summed")
    found = []
    for _ in range(2):
        generator = seeded(5)
        annealer = Annealer.tuned(model, points, temperature_grid(points, 1.0), how="summed", generator=generator)
        found.append(annealer.bounds(points, 1.0, Effort(20, 50, 20), generator=generator))
    assert found[0].upper == found[1].upper
    assert found[0].annealed == found[1].annealed
    assert all(p.grad is None for p in model.parameters())


def test_a_schedule_ends_at_the_temperature_asked_for() -> None:
    pilot = Pilot([0.0, 1.0, 10.0], [0.0, 2.0, 3.0], [0.5, 0.4, 0.1])
    schedule = pilot.schedule(0.2, 10, 1)
    a = schedule.inverse_temperatures
    assert (a[0], a[-1], len(a), schedule.n_temperatures) == (0.0, 5.0, 11, 10)
    assert all(first < second for first, second in itertools.pairwise(a))
    # Two thirds of the length lie before a = 1.
    assert a[8] == pytest.approx(0.8 * (2 + 4 / 9) / 2 * 1.0, rel=0.1)


def test_a_model_without_a_domain_is_refused() -> None:
    with pytest.raises(ValueError, match=r"domain=Box\(low, high\)"):
        Path(EnergyModel(Mixture(), event_shape=(2,)), 1.0)


def test_what_is_measured_on_some_rows_is_carried_over_to_all() -> None:
    known = torch.linspace(0, 10, 100, dtype=DOUBLE)
    mean, variance = regressed(3 * known[:10] + 1, known[:10], known)
    assert mean == pytest.approx(16.0)
    assert variance == pytest.approx(0.0, abs=1e-20)
    flat, variance = regressed(known[:10], torch.ones(10, dtype=DOUBLE), known)
    assert flat == pytest.approx(float(known[:10].mean()))
    assert variance > 0


def test_coordinates_of_a_box_have_the_jacobian_of_the_logit() -> None:
    path = LawPath(EnergyModel(nn.Linear(3, 1).to(DOUBLE), domain=Box(0.0, 1.0), event_shape=(3,)), 1.0)
    x = torch.rand(5, 3, generator=seeded(), dtype=DOUBLE)
    state = path.enter(x, torch.zeros(5, 0, dtype=torch.int64), torch.zeros(5, dtype=torch.int64))
    transform = Logit(1e-12)
    torch.testing.assert_close(state.x, transform(x), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(path.look(state).log_volume, -transform.log_jacobian(x), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("domain", [Box(-1.0, 2.0), Reals(scale=1.5, mean=0.3)])
def test_gradients_in_coordinates_are_those_of_the_law(domain: Box | Reals) -> None:
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(DOUBLE)
    path = LawPath(EnergyModel(network, domain=domain, event_shape=(3,)), 2.0)
    z = torch.randn(4, 3, generator=seeded(), dtype=DOUBLE)
    y, keys = torch.zeros(4, 0, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    for a in (0.2, 3.0):

        def value(at: Tensor, a: float = a) -> Tensor:
            return path.evaluation(a, path.look(State(at, y, keys, known="complete"))).log_density

        found = path.evaluation(a, path.look(State(z, y, keys, known="complete"))).gradient
        for d in range(3):
            step = torch.zeros(3, dtype=DOUBLE)
            step[d] = 1e-5
            slope = (value(z + step) - value(z - step)) / 2e-5
            torch.testing.assert_close(found[:, d], slope, rtol=1e-6, atol=1e-6)


def test_mass_of_a_gaussian_in_a_box_is_that_of_scipy() -> None:
    mean = torch.tensor([0.9, -0.4, 0.0], dtype=DOUBLE)
    root = torch.tensor([[0.6, 0.0, 0.0], [0.3, 0.5, 0.0], [-0.2, 0.4, 0.7]], dtype=DOUBLE)
    exact = multivariate_normal(mean.numpy(), (root @ root.T).numpy()).cdf(np.ones(3), lower_limit=-np.ones(3))
    assert log_box_mass(mean, root, Box(-1.0, 1.0), seeded(), 20_000) == pytest.approx(math.log(exact), abs=0.01)


@pytest.mark.parametrize("domain", [Box(-1.0, 1.0), Reals(scale=1.0)])
def test_simple_densities_integrate_to_one(domain: Box | Reals) -> None:
    x = (torch.randn(300, 2, generator=seeded(), dtype=DOUBLE) * 0.5).clamp(-0.99, 0.99)
    x[:, 1] = 0.5 * x[:, 0] + 0.5 * x[:, 1]
    low, high = (-1.0, 1.0) if isinstance(domain, Box) else (-5.0, 5.0)
    width = (high - low) / 300
    line = low + width * (torch.arange(300, dtype=DOUBLE) + 0.5)
    grid = torch.cartesian_prod(line, line)
    densities = (Gaussian.fit(x[:200], x[200:], domain, generator=seeded()), Kernels.fit(x[:200], x[200:], domain))
    for density in densities:
        mass = float(density.log_density(grid).exp().sum()) * width**2
        assert mass == pytest.approx(1.0, abs=0.02)


def test_kernels_are_those_of_scikit_learn_in_few_dimensions() -> None:
    x = torch.randn(200, 2, generator=seeded(), dtype=DOUBLE)
    found = Kernels.of(x[:150], 0.3, Reals(scale=1.0)).log_density(x[150:])
    oracle = KernelDensity(bandwidth=0.3).fit(x[:150].numpy()).score_samples(x[150:].numpy())
    np.testing.assert_allclose(found.numpy(), oracle, rtol=1e-6)

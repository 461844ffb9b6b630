"""Motion with momentum: reversibility, volume, the acceptance term, the laws, Geweke's joint test, and adaptation."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from jointenergy.errors import InputError
from jointenergy.kernels import (
    HMC,
    MALA,
    BlockGibbs,
    DiagonalMetric,
    ExactGibbs,
    Langevin,
    State,
    Target,
    UnderdampedLangevin,
    adapt,
    effective_sample_size,
    last,
    run,
)
from jointenergy.kernels.adaptation import ACCEPTANCES, DualAveraging
from jointenergy.kernels.base import evaluate_x
from jointenergy.kernels.hmc import van_der_corput
from jointenergy.kernels.motion import Place
from jointenergy.labels import MISSING
from jointenergy.models import Box, EnergyModel
from jointenergy.networks import MLP
from tests.checks import ALPHA
from tests.exact import Grid, joint_toy
from tests.tables import SCALES, D, make
from tests.test_kernels_statistics import TARGETS, Gaussian, block_p_values, p_value

WIDE = DiagonalMetric(SCALES.scale.double())
BOX = Box(-1.0, 1.0)


def model_of(box=None):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = EnergyModel(MLP((D, 16, 1), activation="tanh").double(), event_shape=(D,), domain=box)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2.0)
    return model


def place(kernel, target, n=50, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, D, generator=g, dtype=torch.float64) * 2 - 1
    state = kernel.init(target, x, generator=g)
    velocity = target.moving(torch.randn(n, D, generator=g, dtype=torch.float64)) * math.sqrt(kernel.temperature)
    return state, velocity


KERNELS = {
    "plain": HMC(0.4, 7),
    "scales, warm": HMC(0.3, 5, temperature=2.0, metric=WIDE),
    "rejecting": HMC(0.3, 5, walls="reject"),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("box", [None, BOX])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_trajectory_is_an_involution_with_the_velocity_reversed(kernel, box, masked):
    mask = torch.tensor([True, False, False]) if masked else torch.zeros(D, dtype=torch.bool)
    target = Target(model_of(box), given_x=torch.zeros(1, D, dtype=torch.float64) + 0.3, mask=mask)
    state, velocity = place(kernel, target)
    end = kernel.trajectory(target, state, velocity, evaluate_x(target, state), kernel.leapfrog_steps)
    back = kernel.trajectory(target, replace(state, x=end.x), -end.velocity, end.seen, kernel.leapfrog_steps)
    torch.testing.assert_close(back.x, state.x, rtol=0, atol=1e-10)
    torch.testing.assert_close(-back.velocity, velocity, rtol=0, atol=1e-10)
    assert float((end.x - state.x)[:, 1:].abs().min(1).values.max()) > 0.1, "nothing moved"
    if box is not None and kernel.walls == "reflect":
        assert bool(box.contains(end.x).all())
        free = kernel.trajectory(Target(model_of()), state, velocity, evaluate_x(target, state), kernel.leapfrog_steps)
        assert bool((~box.contains(free.x)).any()), "no wall was met"


@pytest.mark.parametrize("box", [None, BOX])
@pytest.mark.parametrize("kernel", [KERNELS["plain"], KERNELS["scales, warm"]], ids=["plain", "scales"])
def test_a_trajectory_keeps_volumes(kernel, box):
    # The Jacobian by central differences in all 6 directions: a determinant off by 1e-5 is seen.
    target = Target(model_of(box))
    state, velocity = place(kernel, target, n=20, seed=3)
    step, columns = 1e-6, []

    def flow(x, v):
        s = replace(state, x=x, evaluation=None)
        end = kernel.trajectory(target, s, v, evaluate_x(target, s), 4)
        return torch.cat((end.x, end.velocity), 1)

    for k in range(2 * D):
        move = torch.zeros(2 * D, dtype=torch.float64)
        move[k] = step
        ends = [flow(state.x + s * move[:D], velocity + s * move[D:]) for s in (1, -1)]
        columns.append((ends[0] - ends[1]) / (2 * step))
    determinant = torch.linalg.det(torch.stack(columns, 2)).abs()
    # A path that meets a corner of wall and time between the two ends has no derivative there: at most one of 20.
    assert int(((determinant - 1).abs() > 1e-5).sum()) <= 1


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_acceptance_term_is_the_change_of_the_energy(kernel):
    model = model_of(BOX)
    target = Target(model)
    state, velocity = place(kernel, target)
    here = evaluate_x(target, state)
    end = kernel.trajectory(target, state, velocity, here, 5)
    ratio = kernel.log_acceptance(target, end, Place(state.x, velocity, here))
    for i in range(len(ratio)):  # by torch's own normal law of velocities
        law = torch.distributions.Normal(*torch.tensor([0.0, kernel.temperature], dtype=torch.float64).sqrt())
        inside = bool(((end.x[i] >= -1) & (end.x[i] <= 1)).all())
        f = [float(model.log_density(v[i][None]).detach()) / kernel.temperature for v in (end.x, state.x)]
        kinetic = [float(law.log_prob(v[i].detach()).sum()) for v in (end.velocity, velocity)]
        exact = f[0] + kinetic[0] - f[1] - kinetic[1] if inside else -math.inf
        assert float(ratio[i]) == pytest.approx(exact, abs=1e-10)


def test_the_lengths_of_trajectories_are_spread_evenly():
    assert [van_der_corput(n) for n in (1, 2, 3, 4)] == [0.5, 0.25, 0.75, 0.125]
    lengths = [HMC(0.1, 8).length(t) for t in range(255)]
    assert min(lengths) == 1
    assert max(lengths) == 8
    assert max(lengths.count(k) for k in range(1, 9)) - min(lengths.count(k) for k in range(1, 9)) <= 1
    assert {HMC(0.1, 8, jitter=False).length(t) for t in range(9)} == {8}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    "kernel",
    [
        HMC(0.5, 4),
        HMC(0.6, 3, temperature=2.0, metric=DiagonalMetric(torch.tensor([0.8]))),
        HMC(0.4, 3, walls="reject"),
    ],
    ids=["plain", "scales, warm", "rejecting"],
)
def test_hmc_stays(kernel, name):
    # 20,000 chains see a shift of the distribution function by 0.02.
    assert p_value(kernel, TARGETS[name](), steps=12, temperature=kernel.temperature) > ALPHA


@pytest.mark.parametrize(
    ("name", "begin"), [("asymmetric", 6.0), ("asymmetric, in a box", 2.0), ("tilted, in a box", 0.0)]
)
def test_hmc_arrives(name, begin):
    assert p_value(HMC(0.6, 6), TARGETS[name](), steps=60, begin=begin) > ALPHA
    assert p_value(HMC(0.6, 1), TARGETS[name](), steps=1, begin=begin) < ALPHA


def test_hmc_within_gibbs_passes_gewekes_joint_test():
    """Draws of the joint law from the grid against chains that begin there and alternate y given x, x given y."""
    grid = Grid.of(joint_toy(), n=600)
    assert block_p_values(BlockGibbs(ExactGibbs(), HMC(0.5, 4)), grid.law, grid.x, steps=15) > ALPHA
    for mutant in (HMC(0.5, 4, temperature=0.6), AlwaysAccepts(1.1, 3)):
        assert block_p_values(BlockGibbs(ExactGibbs(), mutant), grid.law, grid.x, steps=15) < ALPHA


@dataclass(frozen=True)
class AlwaysAccepts(HMC):
    def log_acceptance(self, target, end, begin):
        return torch.zeros_like(end.seen.log_density)


@dataclass(frozen=True)
class NoKinetic(HMC):
    def log_acceptance(self, target, end, begin):
        return (end.seen.log_density - begin.seen.log_density) / self.temperature


@dataclass(frozen=True)
class ForgetsTemperature(HMC):
    def log_acceptance(self, target, end, begin):
        return super().log_acceptance(target, end, begin) * self.temperature


@dataclass(frozen=True)
class OldVelocity(HMC):
    """Counts the kinetic energy of the end by half of its velocity."""

    def log_acceptance(self, target, end, begin):
        return super().log_acceptance(target, end._replace(velocity=0.5 * end.velocity), begin)


@pytest.mark.parametrize(
    "mutant",
    [AlwaysAccepts(0.9, 3), NoKinetic(0.5, 4), ForgetsTemperature(1.2, 3, temperature=2.0), OldVelocity(0.5, 4)],
    ids=lambda m: type(m).__name__,
)
def test_hmc_mutants_do_not_stay(mutant):
    assert p_value(mutant, TARGETS["asymmetric"](), steps=12, temperature=mutant.temperature) < ALPHA


def test_walls_that_clamp_do_not_stay():
    @dataclass(frozen=True)
    class Clamps(HMC):
        def trajectory(self, target, state, velocity, here, steps):
            free = Target(EnergyModel(target.model.network, event_shape=(1,)))
            end = super().trajectory(free, state, velocity, here, steps)
            return end._replace(x=end.x.clamp(0.0, 1.0))

    assert p_value(Clamps(0.4, 3), TARGETS["tilted, in a box"](), steps=12) < ALPHA


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_mala_with_scales_is_in_detailed_balance(temperature):
    model, kernel, g = model_of(), MALA(0.3, temperature, metric=WIDE), torch.Generator().manual_seed(2)
    x, to = (torch.randn(100, D, generator=g, dtype=torch.float64) * 0.7 for _ in range(2))
    target = Target(model)
    y = torch.full((100, 0), MISSING)
    here, there = (evaluate_x(target, State(v, y, torch.zeros(100))) for v in (x, to))

    def flow(a, at_a, b, at_b, kernel):
        spread = WIDE.scale
        law = torch.distributions.Normal(a + 0.3 * spread**2 * at_a.gradient, spread * math.sqrt(2 * 0.3 * temperature))
        accept = kernel.log_acceptance(target, b, at_b, a, at_a).clamp(max=0)
        return at_a.log_density / temperature + law.log_prob(b).sum(1) + accept

    for each, right in ((kernel, True), (replace(kernel, metric=None), False)):
        off = (flow(x, here, to, there, each) - flow(to, there, x, here, each)).abs().max()
        assert float(off) < 1e-10 if right else float(off) > 1e-3


# Underdamped Langevin: on a Gaussian its chain is linear, so its law is known.


def lyapunov(variance, kernel):
    """The stationary covariance of (x, velocity) on a Gaussian: the splitting's matrices, written out."""
    h, kept = kernel.step_size, math.exp(-kernel.friction * kernel.step_size)
    kick = torch.tensor([[1.0, 0.0], [-h / (2 * variance), 1.0]], dtype=torch.float64)
    move = torch.tensor([[1.0, h / 2], [0.0, 1.0]], dtype=torch.float64)
    rub = torch.diag(torch.tensor([1.0, kept], dtype=torch.float64))
    whole, after = kick @ move @ rub @ move @ kick, kick @ move
    noise = torch.diag(torch.tensor([0.0, kernel.temperature * (1 - kept**2)], dtype=torch.float64))
    added = after @ noise @ after.mT
    solved = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - torch.kron(whole, whole), added.flatten())
    return solved.view(2, 2)


@pytest.mark.parametrize("kernel", [UnderdampedLangevin(0.8), UnderdampedLangevin(0.5, 3.0, temperature=2.0)])
def test_underdamped_langevin_has_its_known_law_on_a_gaussian(kernel):
    # 20,000 chains: sees a variance that is off by 5 %; false failures are rarer than 1e-6.
    target, n = Target(EnergyModel(Gaussian(), event_shape=(2,))), 20_000
    g = torch.Generator().manual_seed(0)
    state = kernel.init(target, torch.full((n, 2), 3.0, dtype=torch.float64), generator=g)
    end = last(kernel, target, state, 60)
    assert end.velocity is not None
    for k, variance in enumerate(Gaussian.variance.tolist()):
        exact = lyapunov(variance, kernel)
        away = end.x[:, k] - Gaussian.mean[k]
        assert float(away.mean()) == pytest.approx(0.0, abs=5 * math.sqrt(float(exact[0, 0]) / n))
        assert float(away.var() / exact[0, 0]) == pytest.approx(1.0, abs=0.05)
        assert float(end.velocity[:, k].var() / exact[1, 1]) == pytest.approx(1.0, abs=0.05)
        # BAOAB has no bias in x on a Gaussian; that of velocities is the price.
        assert float(exact[0, 0]) == pytest.approx(variance * kernel.temperature, rel=1e-9)


def test_the_bias_of_underdamped_langevin_shows_at_large_steps_and_vanishes():
    model = TARGETS["asymmetric"]()
    assert p_value(UnderdampedLangevin(0.9), model, steps=40) < ALPHA
    assert p_value(UnderdampedLangevin(0.1), model, steps=40) > ALPHA


def test_underdamped_mutants_have_another_law():
    @dataclass(frozen=True)
    class TwiceTheNoise(UnderdampedLangevin):
        def step(self, target, state):
            return replace(UnderdampedLangevin(self.step_size, temperature=2.0)).step(target, state)

    assert p_value(TwiceTheNoise(0.1), TARGETS["asymmetric"](), steps=40) < ALPHA


def test_the_velocity_lives_on_and_goes_with_its_rows():
    kernel, target = UnderdampedLangevin(0.1, friction=1e-3), Target(model_of())
    state, _ = place(kernel, target)
    state = last(kernel, target, state, 1)
    after = last(kernel, target, state, 1)
    assert state.velocity is not None
    assert after.velocity is not None
    turned = (after.velocity * state.velocity).sum(1) / (after.velocity.norm(dim=1) * state.velocity.norm(dim=1))
    assert float(turned.median()) > 0.9
    part = state.rows(torch.tensor([4, 2]))
    assert part.velocity is not None
    assert torch.equal(part.velocity, state.velocity[[4, 2]])
    assert torch.equal(last(kernel, target, part, 3).x, last(kernel, target, state, 3).x[[4, 2]])


# Adaptation.


def accepted_share(kernel, target, state):
    shares = [info.x_acceptance for _, info in run(kernel, target, state, 100)]
    return float(torch.stack([s for s in shares if s is not None]).mean())


class Stretched(nn.Module):
    """Gaussians whose standard deviations span a factor of 100."""

    std = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)

    def forward(self, x):
        return -((x / self.std.to(x)) ** 2).sum(1) / 2


def stretched():
    return Target(EnergyModel(Stretched(), event_shape=(3,)))


def warmed(kernel, steps=300, n=64, **options):
    target = stretched()
    g = torch.Generator().manual_seed(0)
    start = torch.randn(n, 3, generator=g, dtype=torch.float64)
    return target, *adapt(kernel, target, kernel.init(target, start, generator=g), steps, **options)


@pytest.mark.parametrize(
    ("kernel", "acceptance"),
    [(MALA(1e-3), None), (MALA(30.0), None), (HMC(1e-3, 10), None), (HMC(5.0, 10, jitter=False), 0.8)],
    ids=["mala, small", "mala, large", "hmc, small", "hmc, large"],
)
def test_adaptation_finds_step_sizes_and_scales_from_any_start(kernel, acceptance):
    target, adapted, state = warmed(kernel, acceptance=acceptance)
    wanted = acceptance or ACCEPTANCES[type(kernel)]
    assert accepted_share(adapted, target, state) == pytest.approx(wanted, abs=0.12)
    torch.testing.assert_close(adapted.metric.scale, Stretched.std, rtol=0.35, atol=0)
    # The scales are worth their warm-up: in the wide direction chains forget where they were within a few steps.
    path = torch.stack([s.x[:, 2] for s, _ in run(adapted, target, state, 200)], 1)
    assert effective_sample_size(path) > 0.05 * path.numel()


@pytest.mark.parametrize("accepted", [0.0, 1.0])
def test_a_step_size_stays_a_number_where_all_or_nothing_is_accepted(accepted):
    """On a flat density every step is accepted: 10,000 of them would overflow the exponential."""
    guide = DualAveraging(0.574, 0.1)
    for _ in range(10_000):
        guide.update(accepted)
    assert min(guide.step_size, guide.final) > 0
    assert max(guide.step_size, guide.final) < 1e30


def test_the_longest_trajectory_is_found_on_a_round_gaussian():
    # On a standard Gaussian the best length is of the order of a quarter turn, pi / 2.
    model = EnergyModel(nn.Sequential(_Round()), event_shape=(20,))
    for leaps in (1, 12):
        target, g, kernel = Target(model), torch.Generator().manual_seed(0), HMC(0.3, leaps)
        start = kernel.init(target, torch.randn(64, 20, generator=g, dtype=torch.float64), generator=g)
        adapted, _ = adapt(kernel, target, start, 400)
        assert 0.8 < adapted.step_size * adapted.leapfrog_steps < 6.0


class _Round(nn.Module):
    def forward(self, x):
        return -(x**2).sum(1) / 2


def test_adaptation_stops_when_it_says_so():
    target, adapted, state = warmed(HMC(0.1, 5), steps=60)
    assert state.step == 0
    fixed = (adapted.step_size, adapted.leapfrog_steps, adapted.metric.scale.clone())
    last(adapted, target, state, 50)
    assert (adapted.step_size, adapted.leapfrog_steps) == fixed[:2]
    assert torch.equal(adapted.metric.scale, fixed[2])
    # A frozen kernel is a function of each chain alone, which one that goes on adapting is not.
    part = last(adapted, target, state.rows(torch.tensor([3])), 20)
    torch.testing.assert_close(part.x, last(adapted, target, state, 20).x[3:4], rtol=1e-9, atol=1e-9)


def test_an_adapted_kernel_is_exact():
    model = TARGETS["asymmetric"]()
    for kernel in (MALA(1.0), HMC(1.0, 5)):
        g, target = torch.Generator().manual_seed(0), Target(model)
        start = kernel.init(target, torch.zeros(200, 1, dtype=torch.float64), generator=g)
        adapted, _ = adapt(kernel, target, start, 60)
        assert p_value(adapted, model, steps=10) > ALPHA


def test_each_block_has_a_step_size_of_its_own():
    model = joint_toy()
    target, g = Target(model), torch.Generator().manual_seed(0)
    kernel = BlockGibbs(ExactGibbs(), MALA(50.0), x_steps=2)
    state = kernel.init(target, torch.zeros(100, 1, dtype=torch.float64), generator=g)
    adapted, state = adapt(kernel, target, state, 150)
    assert adapted.x_steps == 2
    assert isinstance(adapted.y_kernel, ExactGibbs)
    assert accepted_share(adapted, target, state) == pytest.approx(0.574, abs=0.12)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: HMC(0.1, 0), "leapfrog_steps must be an integer of at least 1"),
        (lambda: HMC(0.0), "HMC needs a finite positive step_size"),
        (lambda: HMC(0.1, walls="soft"), "walls must be 'reflect' or 'reject', got 'soft'"),
        (lambda: UnderdampedLangevin(0.1, friction=0.0), "positive friction"),
        (lambda: HMC(0.1, jitter=3), "jitter must be True or False, got 3"),
        (lambda: DiagonalMetric(torch.tensor([1.0, 0.0])), "finite positive scales"),
        (lambda: DiagonalMetric([1.0, 2.0]), "a tensor of finite positive scales"),
        (lambda: HMC(0.1, metric=torch.ones(3)), "HMC needs a DiagonalMetric, got Tensor"),
        (lambda: MALA(0.1, metric="flat"), "MALA needs a DiagonalMetric, got str"),
        (lambda: warmed(MALA(0.1), steps=10), "at least 30"),
        (lambda: warmed(MALA(0.1), acceptance=1.5), "between 0 and 1"),
        (lambda: warmed(Langevin(0.1, 0.1)), "Langevin has no step size to adapt"),
        (lambda: warmed(HMC(0.1, metric=DiagonalMetric(torch.ones(2)))), r"the metric is for x of shape \(2,\)"),
    ],
)
def test_what_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def test_hmc_starts_inside_the_box():
    kernel = HMC(0.1)
    with pytest.raises(InputError, match="HMC must start inside the model's domain"):
        kernel.init(Target(model_of(BOX)), torch.full((2, D), 3.0, dtype=torch.float64), generator=torch.Generator())


def test_noise_of_hmc_is_of_its_temperature():
    kernel, target = HMC(1e-9, 1, temperature=4.0, jitter=False), Target(make("pair"))
    g = torch.Generator().manual_seed(0)
    state = kernel.init(target, torch.zeros(5000, D, dtype=torch.float64), generator=g)
    _, info = kernel.step(target, state)
    assert info.reached is not None
    assert float(info.reached[1].std()) == pytest.approx(2.0, rel=0.03)

"""Kernels that move x and labels together: balance of paths, reversibility, volume, acceptance terms, laws, mutants."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from jointenergy.errors import InputError
from jointenergy.kernels import (
    MALA,
    BlockGibbs,
    Cycle,
    DiagonalMetric,
    ExactGibbs,
    LabelJump,
    MixedHMC,
    SingleSiteGibbs,
    State,
    Target,
    adapt,
    last,
    run,
)
from jointenergy.kernels.base import evaluate_x
from jointenergy.labels import LabelSpace
from jointenergy.models import Box, PairModel
from tests.checks import ALPHA
from tests.exact import Grid, joint_toy
from tests.tables import SCALES, D, make
from tests.test_kernels_exact import sharpened
from tests.test_kernels_statistics import block_p_values

WIDE = DiagonalMetric(SCALES.scale.double())


def labels_of(model, n, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(c, (n,), generator=g) for c in model.labels.cardinalities], 1)


# Joint moves of a label and x.


def imbalance(kernel, n=60):
    """log of p(x, y) q(path) a minus that of the way back, at random paths; q by torch's own normal law."""
    model, g = sharpened("pair"), torch.Generator().manual_seed(2)
    target = Target(model)
    path = [torch.randn(n, D, generator=g, dtype=torch.float64) * 0.5 for _ in range(kernel.steps + 1)]
    y, to = labels_of(model, n, 0), labels_of(model, n, 1)
    keys = torch.zeros(n, dtype=torch.int64)

    def slope(x, first, second, share):
        at = x.clone().requires_grad_()
        f = (1 - share) * model.log_density(at, first) + share * model.log_density(at, second)
        return torch.autograd.grad(f.sum(), at)[0]

    def flow(path, y, to):
        state = State(path[0], y, keys)
        begin = here = kernel.look(target, state, path[0], to)
        heat, log_q = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
        scale = math.sqrt(2 * kernel.step_size * kernel.temperature)
        for k in range(1, kernel.steps + 1):
            ahead = here.slope(k / kernel.steps)
            here = kernel.look(target, state, path[k], to)
            heat = heat + kernel.log_heat(path[k - 1], path[k], ahead, here.slope((k - 1) / kernel.steps))
            law = torch.distributions.Normal(
                path[k - 1] + kernel.step_size * slope(path[k - 1], y, to, k / kernel.steps),
                torch.tensor(scale, dtype=torch.float64),
            )
            log_q = log_q + law.log_prob(path[k]).sum(1)
        accept = kernel.log_acceptance(target, path[-1], heat, here, begin).clamp(max=0)
        return model.log_density(path[0], y).detach() / kernel.temperature + log_q + accept

    return float((flow(path, y, to) - flow(path[::-1], to, y)).abs().max())


@pytest.mark.parametrize("kernel", [LabelJump(0.3), LabelJump(0.2, 2), LabelJump(0.1, 5, temperature=3.0)])
def test_a_jump_is_in_balance_with_the_way_back(kernel):
    assert imbalance(kernel) < 1e-10


@dataclass(frozen=True)
class JumpWithoutHeat(LabelJump):
    def log_heat(self, x, to, ahead, back):
        return torch.zeros(len(x), dtype=x.dtype)


@dataclass(frozen=True)
class JumpBackAtTheNewLabel(LabelJump):
    """Scores the way back by the gradient at the new label, as if it were a step of MALA."""

    def log_heat(self, x, to, ahead, back):
        return super().log_heat(x, to, ahead, ahead)


@dataclass(frozen=True)
class JumpByTheNewLabelAlone(LabelJump):
    """Accepts by f at the new label alone: as if x had moved within a class."""

    def log_acceptance(self, target, x, heat, there, here):
        return (there.new.log_density - here.new.log_density) / self.temperature + heat


@dataclass(frozen=True)
class JumpForgetsTemperature(LabelJump):
    def log_acceptance(self, target, x, heat, there, here):
        return there.new.log_density - here.old.log_density + heat


@pytest.mark.parametrize(
    "mutant",
    [
        JumpWithoutHeat(0.3),
        JumpBackAtTheNewLabel(0.3, 2),
        JumpByTheNewLabelAlone(0.3),
        JumpForgetsTemperature(0.3, temperature=2.0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_jump_mutants_are_out_of_balance(mutant):
    assert imbalance(mutant) > 1e-3


def test_labels_are_proposed_as_often_there_as_back():
    # 40,000 draws from each of 12 states: a proposal probability wrong by 0.02 is seen.
    model, n = make("pair"), 40_000
    target, kernel, states = Target(model), LabelJump(0.1), model.labels.enumerate()
    counts = torch.zeros(12, 12)
    for s, y in enumerate(states):
        keys = torch.arange(n) * 7919 + s
        to, movable = kernel.proposed_labels(target, y.expand(n, -1), keys)
        assert bool(movable.all())
        assert bool(((to != y).sum(1) == 1).all())
        index = (to * torch.tensor([4, 2, 1])).sum(1)
        counts[s] = torch.bincount(index, minlength=12) / n
    assert float((counts - counts.T).abs().max()) < 0.02


def test_outside_a_box_a_jump_is_rejected():
    model = make("pair")
    model.domain = Box(-1.0, 1.0)
    target, kernel = Target(model), LabelJump(5.0, 2)
    state = kernel.init(target, torch.zeros(500, D, dtype=torch.float64), generator=torch.Generator().manual_seed(0))
    assert bool(model.domain.contains(last(kernel, target, state, 5).x).all())


# Mixed HMC.

MIXED = {
    "plain": MixedHMC(0.4, 4, 2),
    "scales, warm": MixedHMC(0.3, 5, 1, temperature=2.0, metric=WIDE),
}


def begun(kernel, target, n=50, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, D, generator=g, dtype=torch.float64) * 2 - 1
    state = kernel.init(target, x, generator=g)
    return state, kernel.drawn(target, state, state.keys), evaluate_x(target, replace(state, known="complete"))


def steep(box):
    model = sharpened("pair", 2.5)
    if box is not None:
        model.domain = box
    return model


@pytest.mark.parametrize("given", [{}, {"color": 1}], ids=["none", "color"])
@pytest.mark.parametrize("box", [None, Box(-1.0, 1.0)], ids=["free", "box"])
@pytest.mark.parametrize("kernel", MIXED.values(), ids=MIXED)
def test_a_journey_is_an_involution(kernel, box, given):
    target = Target(steep(box), given_y=given)
    state, begin, here = begun(kernel, target)
    end, error = kernel.traveled(target, state, begin, here)
    at_end = evaluate_x(target, State(end.x, end.y, state.keys, known="complete"))
    back, back_error = kernel.traveled(target, state, end._replace(velocity=-end.velocity), at_end)
    for name in ("x", "energy"):
        torch.testing.assert_close(getattr(back, name), getattr(begin, name), rtol=0, atol=1e-9)
    torch.testing.assert_close(-back.velocity, begin.velocity, rtol=0, atol=1e-9)
    for name in ("y", "sites", "shifts"):
        assert torch.equal(getattr(back, name), getattr(begin, name))
    torch.testing.assert_close(back_error, -error, rtol=0, atol=1e-9)
    assert bool((end.y != begin.y).any()), "no label changed"
    assert bool((end.energy > 0).all())


@pytest.mark.parametrize("kernel", MIXED.values(), ids=MIXED)
def test_a_journey_keeps_volumes(kernel):
    """The Jacobian by central differences in (x, velocity, energies), at fixed visits: a determinant of one."""
    target = Target(steep(None))
    state, begin, _ = begun(kernel, target, n=20, seed=3)
    step, columns = 1e-6, []

    def flow(move):
        moved = begin._replace(
            x=begin.x + move[:D], velocity=begin.velocity + move[D : 2 * D], energy=begin.energy + move[2 * D :]
        )
        here = evaluate_x(target, State(moved.x, moved.y, state.keys, known="complete"))
        end, _ = kernel.traveled(target, state, moved, here)
        return torch.cat((end.x, end.velocity, end.energy), 1)

    for k in range(2 * D + 3):
        move = torch.zeros(2 * D + 3, dtype=torch.float64)
        move[k] = step
        columns.append((flow(move) - flow(-move)) / (2 * step))
    determinant = torch.linalg.det(torch.stack(columns, 2)).abs()
    assert int(((determinant - 1).abs() > 1e-5).sum()) <= 1  # a visit that is just affordable has no derivative


@pytest.mark.parametrize("kernel", MIXED.values(), ids=MIXED)
def test_the_acceptance_term_is_the_change_of_the_whole_energy(kernel):
    """The law of (x, y, velocity, label energies) at both ends, by torch's own normal and exponential laws."""
    model = steep(None)
    target = Target(model)
    state, begin, here = begun(kernel, target)
    end, error = kernel.traveled(target, state, begin, here)
    one = torch.ones((), dtype=torch.float64)
    velocities = torch.distributions.Normal(0 * one, one * math.sqrt(kernel.temperature))
    energies = torch.distributions.Exponential(one / kernel.temperature)

    def law(j):
        f = model.log_density(j.x, j.y).detach() / kernel.temperature
        return f + velocities.log_prob(j.velocity).sum(1) + energies.log_prob(j.energy).sum(1)

    found = kernel.log_acceptance(target, end, begin, error)
    torch.testing.assert_close(found, law(end) - law(begin), rtol=0, atol=1e-10)
    assert bool((end.y != begin.y).any())


KERNELS = {
    "label jump in a cycle": Cycle((BlockGibbs(SingleSiteGibbs(), MALA(0.3)), LabelJump(0.3))),
    "label jump alone": LabelJump(0.3, 2),
    "mixed hmc": MixedHMC(0.5, 3, 2),
    "mixed hmc, one visit": MixedHMC(0.8, 1, 1),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_they_pass_gewekes_joint_test_and_arrive(kernel):
    # From draws of the joint law chains stay in it; from afar they reach it. Sees a probability that is off by 0.02.
    grid = Grid.of(joint_toy(), n=600)
    assert block_p_values(kernel, grid.law, grid.x, steps=15) > ALPHA
    if kernel is not KERNELS["label jump alone"]:
        assert block_p_values(kernel, grid.law, grid.x, steps=80, exact=False) > ALPHA
        assert block_p_values(kernel, grid.law, grid.x, steps=1, exact=False) < ALPHA


@dataclass(frozen=True)
class CountsLabelsTwice(MixedHMC):
    """HMC's acceptance term: the change of f and of the velocity from end to end, label energies forgotten."""

    def log_acceptance(self, target, end, begin, error):
        f = [target.model.log_density_of_complete(j.x, j.y).detach() for j in (end, begin)]
        kinetic = [j.velocity.square().sum(1) / 2 for j in (end, begin)]
        return (f[0] - f[1] - kinetic[0] + kinetic[1]) / self.temperature


@dataclass(frozen=True)
class AcceptsAll(MixedHMC):
    def log_acceptance(self, target, end, begin, error):
        return torch.zeros_like(error)


@dataclass(frozen=True)
class FreeVisits(MixedHMC):
    """Label energies that are never spent: every visit is affordable."""

    def drawn(self, target, state, keys):
        journey = super().drawn(target, state, keys)
        return journey._replace(energy=journey.energy + 100.0)


@pytest.mark.parametrize(
    "mutant",
    [
        CountsLabelsTwice(0.5, 3, 2),
        AcceptsAll(1.1, 3, 2),
        FreeVisits(0.5, 3, 2),
        MixedHMC(0.5, 3, 2, temperature=0.6),
        JumpWithoutHeat(0.3),
        JumpByTheNewLabelAlone(0.3),
    ],
    ids=lambda m: type(m).__name__,
)
def test_mutants_fail_gewekes_joint_test(mutant):
    grid = Grid.of(joint_toy(), n=600)
    assert block_p_values(mutant, grid.law, grid.x, steps=15) < ALPHA


# What they are worth: classes far apart in x.


class Classes(nn.Module):
    """Gaussians around `distance` times the corners of a simplex, with known weights."""

    def __init__(self, distance, dimension):
        super().__init__()
        self.register_buffer("mean", distance / math.sqrt(2) * torch.eye(3, dimension, dtype=torch.float64))
        self.register_buffer("log_weight", torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log())

    def forward(self, features, code):
        away = ((features[:, None, :] - self.mean) ** 2).sum(2) / 2
        return (code * (self.log_weight - away)).sum(1)


def changes(kernel, distance=6.0, dimension=4, n=400, steps=100):
    """The share of steps in which a chain's class changes, and the shares of the classes."""
    model = PairModel(Classes(distance, dimension), LabelSpace({"class": 3}), event_shape=(dimension,))
    target, g = Target(model), torch.Generator().manual_seed(0)
    y = torch.multinomial(torch.tensor([0.2, 0.3, 0.5]), n, replacement=True, generator=g)[:, None]
    mean = distance / math.sqrt(2) * torch.eye(3, dimension, dtype=torch.float64)
    x = mean[y[:, 0]] + torch.randn(n, dimension, generator=g, dtype=torch.float64)
    state = kernel.init(target, x, y, generator=g)
    moved, counts = 0, torch.zeros(3)
    for later, _ in run(kernel, target, state, steps):
        moved += int((later.y != state.y).sum())
        state = later
        counts += torch.bincount(state.y[:, 0], minlength=3)
    return moved / (n * steps), counts / counts.sum()


def test_jumps_change_class_where_block_gibbs_does_not():
    block = BlockGibbs(ExactGibbs(), MALA(0.5))
    alone, _ = changes(block)
    jumping, shares = changes(Cycle((block, LabelJump(0.3, 8))))
    assert alone < 1e-2
    assert jumping > 10 * alone
    assert float((shares - torch.tensor([0.2, 0.3, 0.5])).abs().max()) < 0.05


def test_many_steps_are_accepted_where_one_is_not():
    rates = [changes(LabelJump(0.3, steps))[0] for steps in (1, 4, 16)]
    assert rates[0] < rates[1] < rates[2]
    assert rates[2] > 0.05


def test_mixed_hmc_is_adapted():
    model = joint_toy()
    target, g, kernel = Target(model), torch.Generator().manual_seed(0), MixedHMC(5.0, 3, 2)
    state = kernel.init(target, torch.zeros(100, 1, dtype=torch.float64), generator=g)
    adapted, state = adapt(kernel, target, state, 150)
    shares = [info.x_acceptance for _, info in run(adapted, target, state, 60)]
    # In one dimension acceptance falls off a cliff at the largest stable step: the rate itself is not reached.
    assert 0.5 < float(torch.stack([s for s in shares if s is not None]).mean()) < 0.9
    assert adapted.visits == 3


def test_a_cycle_adapts_the_kernels_that_can_be_adapted():
    """Block Gibbs as if it were alone; the jump as it was. A cycle of jumps alone has nothing to adapt."""
    target, g = Target(joint_toy()), torch.Generator().manual_seed(0)
    block, jump = BlockGibbs(ExactGibbs(), MALA(50.0)), LabelJump(0.3, 2)
    start = torch.zeros(100, 1, dtype=torch.float64)
    state = Cycle((block, jump)).init(target, start, generator=g)
    adapted, after = adapt(Cycle((block, jump)), target, state, 150)
    alone, _ = adapt(block, target, state, 150)
    assert after.step == 0
    assert isinstance(adapted.kernels[0], BlockGibbs)
    x_kernel, known = adapted.kernels[0].x_kernel, alone.x_kernel
    assert isinstance(x_kernel, MALA)
    assert isinstance(known, MALA)
    assert x_kernel.step_size == known.step_size < 50.0
    assert adapted.kernels[1] == jump
    with pytest.raises(InputError, match="no kernel of the Cycle has a step size to adapt"):
        adapt(Cycle((jump,)), target, state, 150)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: LabelJump(0.0), "LabelJump needs a finite positive step_size"),
        (lambda: LabelJump(0.1, 0), "steps must be an integer of at least 1"),
        (lambda: MixedHMC(0.1, visits=0), "visits must be an integer of at least 1"),
        (lambda: Cycle(()), "a Cycle needs kernels"),
        (lambda: Cycle((MALA(0.1),)), "none of its kernels moves labels"),
        (lambda: Cycle((ExactGibbs(),)), "none of its kernels moves x"),
        (lambda: Cycle(MALA(0.1)), "a Cycle needs kernels such as"),
        (lambda: Cycle((BlockGibbs(ExactGibbs(), MALA(0.1, 0.1)), LabelJump(0.1))), "have the temperatures 0.1, 1"),
        (lambda: MixedHMC(0.1, metric=torch.ones(1)), "MixedHMC needs a DiagonalMetric, got Tensor"),
    ],
)
def test_what_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()

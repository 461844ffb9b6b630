"""Label kernels beyond one flip at a time: mutants, formulas, exclusive labels, adaptation, and what they are worth."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from jointenergy.errors import InputError
from jointenergy.kernels import (
    MALA,
    BlockGibbs,
    DiscreteMALA,
    GibbsWithGradients,
    GroupGibbs,
    Langevin,
    PathAuxiliary,
    SingleSiteGibbs,
    Target,
    adapt,
    effective_sample_size,
    last,
    run,
)
from jointenergy.kernels.base import State, evaluate_code
from jointenergy.labels import LabelSpace
from jointenergy.models import EnergyModel, PairModel
from jointenergy.networks import MLP
from tests.checks import ALPHA
from tests.exact import index_of, joint_toy, label_law
from tests.tables import make
from tests.test_kernels_exact import check_invariant, points, sharpened
from tests.test_kernels_statistics import BigIsing, p_value_of_a_mask


@pytest.mark.parametrize("given", [{}, {"color": 1}], ids=["none", "color"])
@pytest.mark.parametrize(
    "kernel",
    [
        PathAuxiliary(3, "barker"),
        GroupGibbs((("color", "size"),)),
        GroupGibbs((("round", "color", "size"),)),
        DiscreteMALA(0.3),
        DiscreteMALA(50.0),
    ],
    ids=["three flips", "a pair", "all", "small steps", "large steps"],
)
def test_they_leave_the_target_invariant(kernel, given):
    check_invariant(kernel, sharpened("pair"), given)


@dataclass(frozen=True)
class PathWithoutReverse(PathAuxiliary):
    def log_acceptance(self, target, forward, reverse, there, here):
        return there.log_density - here.log_density


@dataclass(frozen=True)
class PathBackAtTheStart(PathAuxiliary):
    """Scores the way back by the moves in the order of the way there."""

    def followed(self, target, y, moves):
        to, back = super().followed(target, y, moves)
        return to, back[::-1]


@dataclass(frozen=True)
class DmalaWithoutReverse(DiscreteMALA):
    def log_acceptance(self, target, forward, reverse, there, here):
        return there.log_density - here.log_density


@dataclass(frozen=True)
class DmalaUnadjusted(DiscreteMALA):
    """The unadjusted sampler (DULA) as if it were exact."""

    def log_acceptance(self, target, forward, reverse, there, here):
        return torch.zeros_like(forward)


@dataclass(frozen=True)
class DmalaIgnoresGiven(DiscreteMALA):
    def value_log_probs(self, target, y, gradient):
        return super().value_log_probs(Target(target.model), y, gradient)


@dataclass(frozen=True)
class GroupIgnoresGiven(GroupGibbs):
    def group_logits(self, target, state, columns):
        return super().group_logits(Target(target.model), state, columns)


@dataclass(frozen=True)
class GroupUniform(GroupGibbs):
    def group_logits(self, target, state, columns):
        states, logits = super().group_logits(target, state, columns)
        return states, torch.zeros_like(logits)


@pytest.mark.parametrize(
    ("mutant", "given"),
    [
        (PathWithoutReverse(2), {}),
        (PathBackAtTheStart(2), {}),
        (DmalaWithoutReverse(2.0), {}),
        (DmalaUnadjusted(2.0), {}),
        (DmalaIgnoresGiven(2.0), {"color": 1}),
        (GroupIgnoresGiven(), {"color": 1}),
        (GroupUniform(), {}),
    ],
    ids=lambda m: type(m).__name__,
)
def test_mutants_fail(mutant, given):
    with pytest.raises(AssertionError):
        check_invariant(mutant, sharpened("pair"), given)


@pytest.mark.parametrize("name", ["sqrt", "barker", "min", "max"])
def test_balancing_functions_are_what_they_say(name):
    by_hand = {
        "sqrt": math.sqrt, "barker": lambda t: t / (1 + t), "min": lambda t: min(t, 1), "max": lambda t: max(t, 1)
    }[name]  # fmt: skip
    assert all(by_hand(t) == pytest.approx(t * by_hand(1 / t)) for t in (0.2, 1.0, 3.0))
    model, kernel = sharpened("pair"), GibbsWithGradients(name)
    target, places = Target(model), model.labels.offsets
    y = torch.tensor([[1, 0, 1]])
    gradient = evaluate_code(target, State(points(1), y, torch.zeros(1, dtype=torch.int64))).gradient
    weights = [by_hand(1.0)]
    for k, size in enumerate(model.labels.cardinalities):
        for v in range(size):
            change = float(gradient[0, places[k] + v] - gradient[0, places[k] + int(y[0, k])])
            weights.append(by_hand(math.exp(change)) if v != y[0, k] else 0.0)
    found = kernel.move_log_probs(target, y, gradient)[0].exp()
    expected = torch.tensor(weights[1:] + weights[:1], dtype=torch.float64)
    torch.testing.assert_close(found, expected / expected.sum(), rtol=0, atol=1e-12)


def test_discrete_mala_proposes_by_its_formula():
    # The law of Zhang, Liu and Liu: softmax of half the gradient times the change of a code, minus its squared length
    # over twice the step size.
    model, kernel = sharpened("pair"), DiscreteMALA(0.7)
    target, labels = Target(model), model.labels
    y = torch.tensor([[2, 1, 0]])
    code = labels.one_hot(y, torch.float64)[0]
    gradient = evaluate_code(target, State(points(1), y, torch.zeros(1, dtype=torch.int64))).gradient
    found = kernel.value_log_probs(target, y, gradient)[0].exp()
    for k, size in enumerate(labels.cardinalities):
        part = slice(labels.offsets[k], labels.offsets[k] + size)
        change = torch.eye(size, dtype=torch.float64) - code[part]
        exact = (0.5 * change @ gradient[0, part] - (change**2).sum(1) / (2 * 0.7)).softmax(0)
        torch.testing.assert_close(found[part], exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", [PathAuxiliary(20), DiscreteMALA(1.0)], ids=lambda k: type(k).__name__)
def test_they_have_the_marginals_of_784_labels(kernel):
    # Sees a marginal wrong by 0.03, in a twentieth of the steps of one flip at a time.
    assert p_value_of_a_mask(kernel, steps=80) > ALPHA


def mixing(kernel, model, steps=150, n=20):
    target = Target(model)
    g = torch.Generator().manual_seed(0)
    state = kernel.init(target, torch.zeros(n, 1, dtype=torch.float64), generator=g)
    state = last(kernel, target, state, steps)
    path = torch.stack([s.y.sum(1).double() for s, _ in run(kernel, target, state, steps)], 1)
    return effective_sample_size(path) / path.numel()


def test_many_flips_a_step_mix_faster_than_one():
    model = PairModel(BigIsing(), LabelSpace.binary([f"s{i}" for i in range(60)])).double()
    one = mixing(GibbsWithGradients(), model)
    assert mixing(PathAuxiliary(8), model) > 3 * one
    assert mixing(DiscreteMALA(0.6), model) > 2 * one


def test_the_step_of_discrete_mala_is_adapted():
    model = PairModel(BigIsing(), LabelSpace.binary([f"s{i}" for i in range(60)])).double()
    for begin in (0.05, 50.0):
        kernel, target, g = DiscreteMALA(begin), Target(model), torch.Generator().manual_seed(0)
        state = kernel.init(target, torch.zeros(50, 1, dtype=torch.float64), generator=g)
        adapted, state = adapt(kernel, target, state, 200)
        shares = [info.y_acceptance for _, info in run(adapted, target, state, 60)]
        assert float(torch.stack([s for s in shares if s is not None]).mean()) == pytest.approx(0.574, abs=0.12)


def test_both_blocks_are_adapted():
    model = joint_toy()
    kernel, target, g = BlockGibbs(DiscreteMALA(1e-2), MALA(20.0)), Target(model), torch.Generator().manual_seed(0)
    state = kernel.init(target, torch.zeros(100, 1, dtype=torch.float64), generator=g)
    adapted, _ = adapt(kernel, target, state, 120)
    assert isinstance(adapted.y_kernel, DiscreteMALA)
    assert isinstance(adapted.x_kernel, MALA)
    assert adapted.y_kernel.step_size > 0.1
    assert adapted.x_kernel.metric is not None


class Exclusive(nn.Module):
    """Three colors, one binary label each, of which one is on: others cost 12 nats."""

    def forward(self, features, code):
        on = code[:, 1::2]
        favor = torch.tensor([0.0, 0.5, 1.0], dtype=code.dtype)
        return -12.0 * (on.sum(1) - 1.0) ** 2 + (favor * on).sum(1) + 0.0 * features.sum(1)


def test_a_group_moves_where_single_labels_are_stuck():
    model = PairModel(Exclusive(), LabelSpace.binary(["red", "green", "blue"]))
    target, n = Target(model), 2000
    law = label_law(model, torch.zeros(1, 1, dtype=torch.float64), torch.tensor([-1, -1, -1]))[0]
    y = torch.tensor([[1, 0, 0]]).expand(n, -1)
    shares = {}
    for kernel in (GroupGibbs((("red", "green", "blue"),)), SingleSiteGibbs(), GibbsWithGradients()):
        g = torch.Generator().manual_seed(0)
        end = last(kernel, target, kernel.init(target, torch.zeros(n, 1, dtype=torch.float64), y, generator=g), 20)
        shares[type(kernel).__name__] = torch.bincount(index_of(model.labels, end.y), minlength=8) / n
    assert float((shares["GroupGibbs"] - law).abs().sum()) < 0.1
    for stuck in ("SingleSiteGibbs", "GibbsWithGradients"):
        assert float(shares[stuck][4]) > 0.95  # red as it began


# Precision.


@pytest.mark.parametrize("kernel", [MALA(0.1), BlockGibbs(GibbsWithGradients(), Langevin(0.1, 0.1))])
def test_kernels_that_reject_refuse_half_precision(kernel):
    model = make("pair", torch.bfloat16)
    x, g = torch.zeros(2, 3, dtype=torch.bfloat16), torch.Generator()
    with pytest.raises(InputError, match=r"accepts by differences of log-densities, which torch.bfloat16 rounds away"):
        kernel.init(Target(model), x, generator=g)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="without autocast"):
        kernel.init(Target(make("pair", torch.float32)), x.float(), generator=g)
    target = Target(make("pair", torch.float32))
    begun = kernel.init(target, x.float(), generator=g)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="without autocast"):
        run(kernel, target, begun, 1)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="without autocast"):
        adapt(MALA(0.1), target, begun, 30)
    Langevin(0.1, 0.1).init(Target(model), x, generator=g)


def test_what_bfloat16_would_do_to_an_acceptance_at_a_cold_temperature():
    """At T = 5e-5 a log-density between 1 and 2 that is rounded to bfloat16 is off by up to 2^-8 / T = 78 nats."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = MLP((64, 64, 1))
        torch.nn.init.constant_(list(network.parameters())[-1], 1.5)
    model, rounded = EnergyModel(network, event_shape=(64,)), EnergyModel(_Rounded(network), event_shape=(64,))
    g = torch.Generator().manual_seed(0)
    x = torch.rand(500, 64, generator=g)
    to = x + 0.01 * torch.randn(500, 64, generator=g)
    with torch.no_grad():
        exact, off = ((m.log_density(to) - m.log_density(x)) / 5e-5 for m in (model, rounded))
    assert float((exact - off).abs().max()) > 60


class _Rounded(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x).bfloat16().float()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: GibbsWithGradients("cube"), "balancing must be one of sqrt, barker, min, max, got 'cube'"),
        (lambda: PathAuxiliary(0), "flips must be an integer of at least 1"),
        (lambda: DiscreteMALA(-1.0), "DiscreteMALA needs a finite positive step_size"),
        (lambda: GroupGibbs((("a",), ("a", "b"))), "each label belongs to one group"),
        (lambda: begun(GroupGibbs((("shape",),))), "no label called 'shape'"),
        (lambda: GroupGibbs(("red", "green")), "groups must be groups of label names such as"),
        (lambda: GroupGibbs(3), "groups must be groups of label names such as"),
    ],
)
def test_what_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def begun(kernel):
    return kernel.init(Target(make("pair")), torch.zeros(2, 3, dtype=torch.float64), generator=torch.Generator())


def test_a_group_that_is_too_large_is_refused():
    model = PairModel(BigIsing(), LabelSpace.binary([f"s{i}" for i in range(30)])).double()
    kernel = replace(GroupGibbs(), groups=(tuple(f"s{i}" for i in range(30)),))
    with pytest.raises(InputError, match="has 1,073,741,824 states, more than the 4,096"):
        kernel.init(Target(model), torch.zeros(2, 1, dtype=torch.float64), generator=torch.Generator())

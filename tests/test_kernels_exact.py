"""Exact proofs in float64: invariance, detailed balance, formulas, and mutants that fail them."""

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch

from jointenergy.kernels import (
    MALA,
    BlockGibbs,
    ExactGibbs,
    GibbsWithGradients,
    Langevin,
    PolynomialDecay,
    SingleSiteGibbs,
    State,
    Target,
)
from jointenergy.kernels.base import evaluate_code, evaluate_x, metropolis
from jointenergy.labels import MISSING
from jointenergy.models import Box, ConditionalModel, EnergyModel
from jointenergy.networks import MLP
from tests.checks import ALPHA, chi_square, histogram
from tests.exact import index_of, joint_toy, label_law, transition_matrices
from tests.tables import Y_KERNELS, D, make, needs_codes

MODELS = ["logits", "pair", "pair, bilinear", "product, shared labels", "conditional, equal constants"]
GIVEN = [{}, {"color": 1}, {"color": 2, "size": 0}, {"color": 0, "round": 1, "size": 1, "weight": 2}]


def sharpened(name, factor=2.0):
    """Weights large enough that the conditionals are far from uniform."""
    return sharpen(make(name), factor)


def sharpen(model, factor):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(factor)
    return model


def points(n=3):
    return torch.randn(n, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def serves(kernel, model):
    without_codes = any(isinstance(m, ConditionalModel) for m in model.modules())
    return not (needs_codes(kernel) and without_codes)


def given_for(model, given):
    return {name: value for name, value in given.items() if name in model.labels.names}


def check_invariant(kernel, model, given):
    """Rows sum to one, the law is left as it is, and every compatible state is reached, without a period."""
    x = points()
    target = Target(model, given_y=given_for(model, given))
    row = model.labels.encode(given_for(model, given))[0]
    law = label_law(model, x, row)
    matrices = transition_matrices(kernel, target, x)
    compatible = (law[0] > 0).nonzero()[:, 0]
    torch.testing.assert_close(matrices.sum(2), torch.ones_like(law), rtol=0, atol=1e-12)
    moved = torch.einsum("is,ist->it", law, matrices)
    torch.testing.assert_close(moved, law, rtol=0, atol=1e-12)
    inside = matrices[:, compatible][:, :, compatible]
    torch.testing.assert_close(inside.sum(2), torch.ones(len(x), len(compatible), dtype=x.dtype), rtol=0, atol=1e-12)
    # Irreducible and aperiodic: some power has no zero.
    power = torch.linalg.matrix_power(inside, 32)
    assert (power > 0).all(), "some states are never reached"


@pytest.mark.parametrize("given", GIVEN, ids=lambda g: ",".join(g) or "none")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kernel", Y_KERNELS.values(), ids=Y_KERNELS)
def test_discrete_kernels_leave_the_target_invariant(kernel, name, given):
    model = sharpened(name)
    if serves(kernel, model):
        check_invariant(kernel, model, given)


@pytest.mark.parametrize("held", [False, True], ids=["none", "one label"])
@pytest.mark.parametrize("name", ["pair, deep set", "pair, graph"])
@pytest.mark.parametrize("kernel", Y_KERNELS.values(), ids=Y_KERNELS)
def test_discrete_kernels_leave_structured_targets_invariant(kernel, name, held):
    # Labels as a set and on a graph: 81 states, or 27 with one label given.
    model = sharpened(name, 3.0)
    given = {model.labels.names[1]: 2} if held else {}
    check_invariant(kernel, model, given)
    law = label_law(model, points(), model.labels.encode(given)[0])
    assert ((law > 0).sum(1) == (27 if held else 81)).all()
    assert float(law.max()) > 3 / 81, "a law near the uniform one proves little"


@pytest.mark.parametrize("name", ["logits", "pair", "conditional, equal constants"])
@pytest.mark.parametrize("given", [{}, {"round": 1}], ids=["none", "round"])
@pytest.mark.parametrize("kernel", Y_KERNELS.values(), ids=Y_KERNELS)
def test_steps_follow_the_transition_matrix(kernel, given, name):
    # 20,000 steps from each of 12 states: a transition probability wrong by .02 is seen; 12 checks at ALPHA each.
    model = sharpened(name)
    if not serves(kernel, model):
        return
    x, n = points(1), 20_000
    target = Target(model, given_y=given)
    matrix = transition_matrices(kernel, target, x)[0]
    states = model.labels.enumerate()
    generator = torch.Generator().manual_seed(0)
    for s, y in enumerate(states):
        if any(int(y[model.labels.index(k)]) != v for k, v in given.items()):
            continue
        begin = kernel.init(target, x.expand(n, -1), y.expand(n, -1), generator=generator)
        after, _ = kernel.step(target, begin)
        assert chi_square(histogram(index_of(model.labels, after.y), len(states)), matrix[s]) > ALPHA


@dataclass(frozen=True)
class NoReverse(GibbsWithGradients):
    """Accepts by the densities alone, as if the proposal were symmetric."""

    def log_acceptance(self, target, forward, reverse, there, here):
        return there.log_density - here.log_density


@dataclass(frozen=True)
class FlippedSign(GibbsWithGradients):
    """Samples the energy as if it were the log-density."""

    def log_acceptance(self, target, forward, reverse, there, here):
        there, here = (replace(e, log_density=-e.log_density) for e in (there, here))
        return super().log_acceptance(target, forward, reverse, there, here)


@dataclass(frozen=True)
class AlwaysAccepts(GibbsWithGradients):
    def log_acceptance(self, target, forward, reverse, there, here):
        return torch.zeros_like(here.log_density)


@dataclass(frozen=True)
class NeverMoves(GibbsWithGradients):
    def log_acceptance(self, target, forward, reverse, there, here):
        return torch.full_like(here.log_density, -torch.inf)


@dataclass(frozen=True)
class IgnoresGiven(GibbsWithGradients):
    def move_log_probs(self, target, y, gradient):
        return super().move_log_probs(Target(target.model), y, gradient)


@dataclass(frozen=True)
class HalfTemperature(SingleSiteGibbs):
    def value_logits(self, target, state, site):
        return 2.0 * super().value_logits(target, state, site)


@dataclass(frozen=True)
class FirstLabelOnly(SingleSiteGibbs):
    def site_logits(self, target, state):
        logits = super().site_logits(target, state)
        return torch.cat((logits[:, :1], torch.full_like(logits[:, 1:], -torch.inf)), dim=1)


@dataclass(frozen=True)
class ForgetsGiven(ExactGibbs):
    def open_logits(self, target, state):
        return target.model.label_logits(state.x).logits


@pytest.mark.parametrize(
    ("mutant", "given"),
    [
        (NoReverse(), {}),
        (FlippedSign(), {}),
        (AlwaysAccepts(), {}),
        (NeverMoves(), {}),
        (IgnoresGiven(), {"color": 1}),
        (HalfTemperature(), {}),
        (FirstLabelOnly(), {}),
        (ForgetsGiven(), {"color": 1}),
    ],
    ids=lambda m: type(m).__name__,
)
def test_discrete_mutants_fail(mutant, given):
    with pytest.raises(AssertionError):
        check_invariant(mutant, sharpened("logits" if isinstance(mutant, ExactGibbs) else "pair"), given)


def log_proposal(kernel, to, x, gradient):
    """log q(to | x) up to a constant: a Gaussian around Langevin's step, written out."""
    clamp = math.inf if kernel.gradient_clamp is None else kernel.gradient_clamp
    away = to - x - kernel.step_size * gradient.clamp(-clamp, clamp)
    return -(away**2).flatten(1).sum(1) / (2 * kernel.noise_scale**2)


def balance(kernel, model, *, masked=False):
    """log of p(x) q(x'|x) a(x, x') minus that of the way back, at random pairs; zero if reversible."""
    g = torch.Generator().manual_seed(2)
    n = 200
    x = torch.randn(n, D, generator=g, dtype=torch.float64) * 0.5
    mask = torch.rand(n, D, generator=g) < 0.4 if masked else torch.zeros(n, D, dtype=torch.bool)
    to = torch.where(mask, x, x + 0.7 * torch.randn(n, D, generator=g, dtype=torch.float64))
    target = Target(model, given_x=x, mask=mask)
    y = torch.full((n, len(model.labels)), MISSING)
    here, there = (evaluate_x(target, State(v, y, torch.zeros(n))) for v in (x, to))
    inside = model.domain.contains(x) & model.domain.contains(to)

    def flow(a, at_a, b, at_b):
        accept = kernel.log_acceptance(target, b, at_b, a, at_a).clamp(max=0)
        return at_a.log_density / kernel.temperature + log_proposal(kernel, b, a, at_a.gradient) + accept

    assert inside.sum() > 20
    outside = kernel.log_acceptance(target, to, there, x, here)[~model.domain.contains(to)]
    assert (outside == -torch.inf).all(), "a proposal outside the domain could be accepted"
    return (flow(x, here, to, there) - flow(to, there, x, here))[inside]


def mala_model(box=None):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return EnergyModel(MLP((D, 16, 1), activation="tanh").double(), event_shape=(D,), domain=box)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("box", [None, Box(-1.0, 1.0)])
@pytest.mark.parametrize(
    "kernel", [MALA(0.3), MALA(0.1, temperature=3.0), MALA(1.0, gradient_clamp=0.05), MALA(0.5, 0.2, 0.1)]
)
def test_mala_is_in_detailed_balance(kernel, box, masked):
    difference = balance(kernel, mala_model(box), masked=masked)
    assert float(difference.abs().max()) < 1e-10


def test_mala_is_in_detailed_balance_with_labels_summed_out():
    assert float(balance(MALA(0.3), make("pair")).abs().max()) < 1e-10


def test_a_chain_on_the_marginal_at_t_samples_the_tempered_log_sum():
    """Labels summed out, then tempered: exp(LSE(f) / T). The marginal of `tempered`, the sum over y of exp(f_y / T), is
    another law at T < 1, and the same at 1."""
    model, x = sharpened("pair"), points(400)
    for temperature, same in ((0.2, False), (1.0, True)):
        kernel = MALA(0.3, temperature)
        marginal = model.log_density(x).detach() / temperature
        tempered = model.tempered(1 / temperature).log_density(x).detach()
        assert float(balance(kernel, model).abs().max()) < 1e-10  # reversible in f / T, with f the log-sum over labels
        # Laws differ where differences of log-densities do.
        apart = (marginal - marginal[0]) - (tempered - tempered[0])
        assert (float(apart.abs().max()) < 1e-12) == same
        assert same or float(apart.abs().max()) > 0.1


@dataclass(frozen=True)
class NoReverseProposal(MALA):
    def log_acceptance(self, target, to, there, x, here):
        return (there.log_density - here.log_density) / self.temperature


@dataclass(frozen=True)
class ClampForgottenInDensity(MALA):
    """The drift is clamped when proposing; the proposal densities use the full gradient."""

    def log_acceptance(self, target, to, there, x, here):
        return MALA(self.step_size, self.temperature).log_acceptance(target, to, there, x, here)


@dataclass(frozen=True)
class WrongTemperature(MALA):
    def log_acceptance(self, target, to, there, x, here):
        extra = (there.log_density - here.log_density) * (1 - 1 / self.temperature)
        return super().log_acceptance(target, to, there, x, here) + extra


@dataclass(frozen=True)
class StepsOutside(MALA):
    def log_acceptance(self, target, to, there, x, here):
        return super().log_acceptance(Target(mala_model()), to, there, x, here)


@pytest.mark.parametrize(
    "mutant",
    [
        NoReverseProposal(0.3),
        ClampForgottenInDensity(1.0, gradient_clamp=0.05),
        WrongTemperature(0.3, temperature=2.0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_mala_mutants_are_out_of_balance(mutant):
    assert float(balance(mutant, mala_model()).abs().max()) > 1e-3


def test_a_mala_that_steps_outside_is_seen():
    with pytest.raises(AssertionError, match="a proposal outside the domain could be accepted"):
        balance(StepsOutside(0.3), mala_model(Box(-1.0, 1.0)))


def test_langevin_step_is_its_formula():
    model = mala_model()
    target = Target(model)
    kernel = Langevin(0.1, 0.0)
    x = points(50)
    state = kernel.init(target, x, generator=torch.Generator().manual_seed(0))
    after, info = kernel.step(target, state)
    at = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_density(at).sum(), at)
    torch.testing.assert_close(after.x, x + 0.1 * gradient, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(info.gradient_norm, gradient.norm(dim=1))
    clamped, info = replace(kernel, gradient_clamp=0.05, bounds=(-0.5, 0.5)).step(target, state)
    torch.testing.assert_close(clamped.x, (x + 0.1 * gradient.clamp(-0.05, 0.05)).clamp(-0.5, 0.5))
    # A clamp hides how large the gradient is from the chain, and must not hide it from who watches.
    torch.testing.assert_close(info.gradient_norm, gradient.norm(dim=1))
    info = MALA(0.1, gradient_clamp=0.05).step(target, state)[1]
    torch.testing.assert_close(info.gradient_norm, gradient.norm(dim=1))
    assert float(gradient.norm(dim=1).min()) > 0.05 * D**0.5
    # The same noise, twice the scale: exactly twice the distance.
    near, far = (Langevin(0.1, s).step(target, state)[0].x - (x + 0.1 * gradient) for s in (0.2, 0.4))
    torch.testing.assert_close(far, 2 * near)


def test_temperatures():
    assert Langevin(0.01, 0.1).temperature == pytest.approx(0.5)  # the mixed joint EBM's toy
    assert Langevin(1.0, 0.01).temperature == pytest.approx(5e-5)  # JEM
    assert Langevin.at_temperature(0.02, 1.0).noise_scale == pytest.approx(0.2)
    assert MALA(0.02, 1.0).noise_scale == pytest.approx(0.2)
    warm = Langevin.at_temperature(0.02, 3.0)
    assert warm.noise_scale == pytest.approx(math.sqrt(2 * 0.02 * 3))
    assert warm.temperature == pytest.approx(3.0)
    assert MALA(0.02, 3.0).noise_scale == pytest.approx(math.sqrt(2 * 0.02 * 3))


def gradient_by_code(model, x, code):
    """f and its gradient at one row's code, in numbers."""
    at = torch.tensor([code], dtype=torch.float64).requires_grad_()
    value = model.log_density_of_codes(x[None], at)
    (gradient,) = torch.autograd.grad(value.sum(), at)
    return value.item(), gradient[0].tolist()


def moves_by_hand(model, x, y, given):
    """f at y, and q of every move from it: weights exp(d / 2) for each change of a free label, 1 for staying."""
    places, sizes = model.labels.offsets, model.labels.cardinalities
    code = [float(v == y[k]) for k, size in enumerate(sizes) for v in range(size)]
    value, gradient = gradient_by_code(model, x, code)
    weights: dict[tuple[int, int] | None, float] = {None: 1.0}
    for k, size in enumerate(sizes):
        for v in range(size):
            if v != y[k] and model.labels.names[k] not in given:
                d = gradient[places[k] + v] - gradient[places[k] + y[k]]
                weights[k, v] = math.exp(d / 2)
    total = sum(weights.values())
    return value, {move: w / total for move, w in weights.items()}


@pytest.mark.parametrize("given", [{}, {"round": 1}], ids=["none", "round"])
def test_gibbs_with_gradients_proposes_by_its_formula(given):
    # A Metropolis step is exact for any proposal, so no proof of invariance sees another one.
    model, kernel = sharpened("pair"), GibbsWithGradients()
    target = Target(model, given_y=given)
    places, sizes = model.labels.offsets, model.labels.cardinalities
    for x, y in itertools.product(points(2), model.labels.enumerate()):
        state = State(x[None], target.hold_y(y[None]), torch.zeros(1, dtype=torch.int64))
        found = kernel.move_log_probs(target, state.y, evaluate_code(target, state).gradient)[0].exp()
        _, exact = moves_by_hand(model, x, state.y[0].tolist(), given)
        for k, size in enumerate(sizes):
            for v in range(size):
                assert float(found[places[k] + v]) == pytest.approx(exact.get((k, v), 0.0), abs=1e-12)
        assert float(found[-1]) == pytest.approx(exact[None], abs=1e-12)


def test_metropolis():
    # What is not a number is refused; 10,000 draws at a ratio of .3 see an error of .02.
    n = 10_000
    keys = torch.arange(n)
    for dtype in (torch.float32, torch.float64):
        for ratio, probability in ((math.nan, 0), (-math.inf, 0), (math.inf, 1), (0.0, 1), (2.5, 1)):
            accept, acceptance = metropolis(keys, torch.full((n,), ratio, dtype=dtype))
            assert (accept == bool(probability)).all(), ratio
            assert (acceptance == probability).all(), ratio
        accept, acceptance = metropolis(keys, torch.full((n,), math.log(0.3), dtype=dtype))
        torch.testing.assert_close(acceptance, torch.full_like(acceptance, 0.3))
        assert chi_square(histogram(accept.long(), 2), torch.tensor([0.7, 0.3])) > ALPHA
    ratios = torch.linspace(-3.0, 3.0, 50, dtype=torch.float64)
    exact = [math.exp(min(0.0, r)) for r in ratios.tolist()]
    assert metropolis(torch.arange(50), ratios)[1].tolist() == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("kernel", [MALA(0.5), MALA(0.4, temperature=2.0, gradient_clamp=0.3)])
def test_mala_reports_its_acceptance(kernel):
    model = sharpen(mala_model(), 3.0)
    seen = []
    model.network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    target = Target(model)
    state = kernel.init(target, points(50), generator=torch.Generator().manual_seed(0))
    seen.clear()
    after, info = kernel.step(target, state)
    x, to = seen  # the point it stood on, and the one it looked at

    def toward(a, b):
        """log p(a) q(b | a), by torch's own normal law."""
        at = a.clone().requires_grad_()
        value = model.log_density(at)
        (gradient,) = torch.autograd.grad(value.sum(), at)
        if kernel.gradient_clamp is not None:
            gradient = gradient.clamp(-kernel.gradient_clamp, kernel.gradient_clamp)
        law = torch.distributions.Normal(
            a + kernel.step_size * gradient, math.sqrt(2 * kernel.step_size * kernel.temperature)
        )
        return value.detach() / kernel.temperature + law.log_prob(b).sum(1)

    exact = (toward(to, x) - toward(x, to)).clamp(max=0).exp()
    assert float(exact.min()) < 0.9
    torch.testing.assert_close(info.x_acceptance, exact, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(info.log_density, model.log_density(x).detach())
    moved = (after.x != x).any(1)
    assert torch.equal(after.x[moved], to[moved])
    assert torch.equal(after.x[~moved], x[~moved])


@pytest.mark.parametrize("given", [{}, {"round": 1}], ids=["none", "round"])
def test_gibbs_with_gradients_reports_its_acceptance(given):
    model, kernel = sharpened("pair"), GibbsWithGradients()
    seen = []
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1].detach().clone()))
    target = Target(model, given_y=given)
    state = kernel.init(target, points(50), generator=torch.Generator().manual_seed(0))
    seen.clear()
    after, info = kernel.step(target, state)
    looked_at = model.labels.from_one_hot(seen[1]).tolist()
    exact = []
    for x, y, to in zip(state.x, state.y.tolist(), looked_at, strict=True):
        (value, forward), (other, backward) = (moves_by_hand(model, x, labels, given) for labels in (y, to))
        changed = [k for k in range(len(y)) if y[k] != to[k]]
        assert len(changed) <= 1
        there, back = ((changed[0], to[changed[0]]), (changed[0], y[changed[0]])) if changed else (None, None)
        exact.append(min(1.0, math.exp(other - value) * backward[back] / forward[there]))
    assert min(exact) < 0.9
    assert info.y_acceptance is not None
    assert info.y_acceptance.tolist() == pytest.approx(exact, abs=1e-9)
    for before, y, to in zip(state.y.tolist(), after.y.tolist(), looked_at, strict=True):
        assert y in (before, to)


def test_block_gibbs_reports_the_mean_acceptance_of_its_steps():
    model, x_kernel, y_kernel = sharpened("pair"), MALA(1.5), GibbsWithGradients()
    target = Target(model)
    block = BlockGibbs(y_kernel, x_kernel, x_steps=3)
    state = block.init(target, points(50), generator=torch.Generator().manual_seed(0))
    _, info = block.step(target, state)
    inner, y_info = y_kernel.step(target, state)
    infos = []
    for _ in range(3):
        inner, x_info = x_kernel.step(target, replace(inner, evaluation=None))
        infos.append(x_info)
    each = torch.stack([i.x_acceptance for i in infos if i.x_acceptance is not None])
    assert float(each.std(0).mean()) > 0.01, "steps that all accept alike show no mean"
    torch.testing.assert_close(info.x_acceptance, (each[0] + each[1] + each[2]) / 3)
    torch.testing.assert_close(info.y_acceptance, y_info.y_acceptance)
    # The rest is of the point after the label move, where x was moved from.
    torch.testing.assert_close(info.log_density, infos[0].log_density)
    torch.testing.assert_close(info.gradient_norm, infos[0].gradient_norm)


def test_decay_keeps_the_temperature():
    decay = PolynomialDecay(power=0.5, offset=2.0)
    assert [decay.factor(t) for t in (0, 6)] == pytest.approx([1.0, 0.5])
    kernel = Langevin(0.1, 0.2, schedule=decay)
    target = Target(EnergyModel(MLP((D, 2, 1)).double()))
    state = kernel.init(target, points(4000), generator=torch.Generator().manual_seed(0))
    later = replace(state, step=6)
    noise = [
        kernel.step(target, s)[0].x - replace(kernel, noise_scale=0.0).step(target, s)[0].x for s in (state, later)
    ]
    torch.testing.assert_close(noise[1], noise[0] * 0.5**0.5)


def test_the_toy_has_a_gradient_between_the_corners():
    model = joint_toy()
    states = model.labels.enumerate()
    x = torch.zeros(len(states), 1, dtype=torch.float64)
    torch.testing.assert_close(
        model.log_density_of_codes(x, model.labels.one_hot(states, torch.float64)),
        model.log_density_of_complete(x, states),
    )


@pytest.mark.parametrize("kernel", [Langevin(0.1, 0.2), Langevin(0.1, 0.2, gradient_clamp=0.05, bounds=(-0.5, 0.5))])
def test_a_recomputed_step_is_the_step_with_its_graph(kernel):
    model = mala_model()
    target = Target(model)
    state = kernel.init(target, points(20), generator=torch.Generator().manual_seed(0))
    after, _ = kernel.step(target, state)
    with_graph = kernel.recompute(target, state)
    assert torch.equal(with_graph.detach(), after.x)
    (with_graph**2).sum().backward()
    weight = next(model.parameters())
    assert weight.grad is not None
    # Against a finite difference in one weight: the step moves as the weights do.
    step = 1e-6
    with torch.no_grad():
        weight[0, 0] += step
        high = (kernel.step(target, state)[0].x ** 2).sum()
        weight[0, 0] -= 2 * step
        low = (kernel.step(target, state)[0].x ** 2).sum()
    assert float(weight.grad[0, 0]) == pytest.approx(float((high - low) / (2 * step)), rel=1e-5, abs=1e-7)

"""What every kernel keeps: shapes, purity, what is given, rows, batches, random state; and mutants that break it."""

from dataclasses import dataclass, replace

import pytest
import torch

from jointenergy import streams
from jointenergy.errors import InputError, NormalizerError
from jointenergy.kernels import (
    MALA,
    BlockGibbs,
    ExactGibbs,
    GibbsWithGradients,
    Info,
    Langevin,
    PolynomialDecay,
    SingleSiteGibbs,
    Target,
    last,
    run,
)
from jointenergy.kernels.base import chosen, metropolis
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Box, ConditionalModel, EnergyModel, LogitModel
from jointenergy.networks import MLP
from tests.tables import KERNELS, MIXED, MODELS, Y_KERNELS, D, conditional, logit, make, mask_model, needs_codes, pair

N = 7
# The kernels' own targets: closed form, enumeration, and no codes at all.
SAMPLED = ["logits", "pair", "conditional, equal constants"]


def start(kernel, target, seed=0, n=N, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, *(target.model.event_shape or (D,)), generator=g, dtype=dtype) * 2 - 1
    return kernel.init(target, x, generator=g)


def serves(kernel, model) -> bool:
    """Whether the model has what the kernel needs: codes, for the gradient by labels."""
    return not (needs_codes(kernel) and any(isinstance(m, ConditionalModel) for m in model.modules()))


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


@pytest.fixture(params=SAMPLED)
def model(request, kernel):
    model = make(request.param)
    if not serves(kernel, model):
        with pytest.raises(InputError, match="ExactGibbs or SingleSiteGibbs"):
            start(kernel, Target(model))
        return make("pair, bilinear")  # the case is covered by the refusal; the contract is checked on another model
    return model


def check_shapes_and_purity(kernel, model):
    target = Target(model)
    state = start(kernel, target)
    before = replace(state, x=state.x.clone(), y=state.y.clone(), keys=state.keys.clone())
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    random_state = torch.get_rng_state()
    after, info = kernel.step(target, state)
    assert torch.equal(torch.get_rng_state(), random_state), "the global random state was touched"
    assert (after.x.shape, after.x.dtype, after.x.device) == (state.x.shape, state.x.dtype, state.x.device)
    assert (after.y.shape, after.y.dtype) == (state.y.shape, torch.int64)
    assert after.step == state.step + 1
    assert not after.x.requires_grad
    for name in ("x", "y", "keys"):
        assert torch.equal(getattr(state, name), getattr(before, name)), f"the input's {name} was changed"
    assert all(p.grad is None for p in model.parameters()), "gradients were left on the weights"
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    for value in (info.log_density, info.gradient_norm, info.x_acceptance, info.y_acceptance):
        assert value is None or (value.shape == (N,) and not value.requires_grad)
    if not kernel.moves_x:
        assert torch.equal(after.x, state.x)
    if not kernel.moves_y:
        assert torch.equal(after.y, state.y)
    again, _ = kernel.step(target, before)
    assert torch.equal(again.x, after.x), "the same state gave two results"
    assert torch.equal(again.y, after.y), "the same state gave two results"
    assert not torch.equal(after.keys, state.keys), "the next step would use the same random numbers"
    moved = last(kernel, target, state, 20)
    if kernel.moves_x:
        assert not torch.equal(moved.x, state.x), "x never moved"
    if kernel.moves_y:
        assert not torch.equal(moved.y, state.y), "y never moved"


def partly_given(model):
    """Values of x, where they are held, and labels: each row holds others, some all and some none."""
    g = torch.Generator().manual_seed(1)
    given_x = torch.randn(N, D, generator=g, dtype=torch.float64) * 2  # beyond any bounds of a kernel
    mask = torch.rand(N, D, generator=g) < 0.5
    mask[0], mask[1] = True, False
    given_y = torch.stack([torch.randint(-1, c, (N,), generator=g) for c in model.labels.cardinalities], 1)
    given_y[0], given_y[1] = MISSING, 0
    return given_x, mask, given_y


def check_given_is_unmoved(kernel, model):
    given_x, mask, given_y = partly_given(model)
    target = Target(model, given_x=given_x, mask=mask, given_y=given_y)
    begin = start(kernel, target)
    free_x, free_y = 0, 0
    for state, _ in run(kernel, target, begin, 10):
        assert torch.equal(state.x[mask], given_x[mask]), "given entries of x moved"
        assert torch.equal(state.y[given_y != MISSING], given_y[given_y != MISSING]), "given labels moved"
        free_x += int((state.x[~mask] != begin.x[~mask]).sum())
        free_y += int((state.y != begin.y)[given_y == MISSING].sum())
    assert (free_x > 0) == kernel.moves_x
    assert (free_y > 0) == kernel.moves_y


def check_rows_are_independent(kernel, model):
    """A chain's path is the same whatever runs beside it, and wherever in the batch it stands."""
    given_y = torch.full((N, len(model.labels)), MISSING)
    given_y[::2, 0] = 0
    state = start(kernel, Target(model, given_y=given_y))
    whole = last(kernel, Target(model, given_y=given_y), state, 10)
    for index in (torch.tensor([4]), torch.tensor([6, 1, 3])):
        part = last(kernel, Target(model, given_y=given_y[index]), state.rows(index), 10)
        torch.testing.assert_close(part.x, whole.x[index], rtol=1e-9, atol=1e-9)
        assert torch.equal(part.y, whole.y[index])


CHECKS = [check_shapes_and_purity, check_given_is_unmoved, check_rows_are_independent]


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract(check, kernel, model):
    check(kernel, model)


def test_same_generator_same_result(kernel):
    model = make("pair")
    paths = [last(kernel, Target(model), start(kernel, Target(model), seed), 5) for seed in (0, 0, 1)]
    assert torch.equal(paths[0].x, paths[1].x)
    assert torch.equal(paths[0].y, paths[1].y)
    assert not torch.equal(paths[0].x, paths[2].x)


def test_float32(kernel):
    model = make("pair", torch.float32)
    state = last(kernel, Target(model), start(kernel, Target(model), dtype=torch.float32), 5)
    assert state.x.dtype == torch.float32
    assert state.x.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("held", [False, True], ids=["free", "given labels and a mask"])
@pytest.mark.parametrize("name", KERNELS)
def test_cuda_agrees_with_cpu(name, held):
    kernel, model = KERNELS[name], make("pair")
    given_x, mask, given_y = partly_given(model)
    given = {"given_x": given_x, "mask": mask, "given_y": given_y} if held else {}
    target = Target(model, **given)
    state = start(kernel, target)
    on_cpu = last(kernel, target, state, 10)
    moved = replace(state, x=state.x.cuda(), y=state.y.cuda(), keys=state.keys.cuda())
    on_cuda = Target(model.cuda(), **{k: v.cuda() for k, v in given.items()})
    on_gpu = last(kernel, on_cuda, moved, 10)
    assert (on_gpu.x.device.type, on_gpu.y.device.type) == ("cuda", "cuda")
    torch.testing.assert_close(on_gpu.x.cpu(), on_cpu.x, rtol=1e-8, atol=1e-8)
    assert torch.equal(on_gpu.y.cpu(), on_cpu.y)
    if held:
        assert torch.equal(on_gpu.x.cpu()[mask], given_x[mask])
        assert torch.equal(on_gpu.y.cpu()[given_y != MISSING], given_y[given_y != MISSING])


@dataclass(frozen=True)
class MovesGiven(Langevin):
    def step(self, target, state):
        after, info = super().step(target, state)
        return replace(after, x=after.x + 1e-9, y=after.y.roll(1, 0)), info


@dataclass(frozen=True)
class GlobalNoise(Langevin):
    def step(self, target, state):
        after, info = super().step(target, state)
        return replace(after, x=after.x + 0.1 * torch.randn_like(after.x)), info


@dataclass(frozen=True)
class BatchNoise(Langevin):
    """Noise drawn for the batch, as every public sampler does: a chain's path depends on its neighbors."""

    def step(self, target, state):
        after, info = super().step(target, state)
        g = torch.Generator().manual_seed(state.step)
        return replace(after, x=target.hold_x(after.x + 0.1 * torch.randn(after.x.shape, generator=g))), info


@dataclass(frozen=True)
class LeavesGradients(Langevin):
    def step(self, target, state):
        x = state.x.clone().requires_grad_()
        target.model.log_density_unchecked(x, state.y).sum().backward()
        return super().step(target, state)


@dataclass(frozen=True)
class NeverMoves(Langevin):
    def step(self, target, state):
        after, info = super().step(target, state)
        return replace(after, x=state.x), info


@dataclass(frozen=True)
class WritesItsInput(Langevin):
    def step(self, target, state):
        state.x.add_(0.1)
        return super().step(target, state)


@dataclass(frozen=True)
class KeepsItsKeys(Langevin):
    def step(self, target, state):
        after, info = super().step(target, state)
        return replace(after, keys=state.keys), info


@pytest.mark.parametrize(
    "mutant", [MovesGiven, GlobalNoise, BatchNoise, LeavesGradients, NeverMoves, WritesItsInput, KeepsItsKeys]
)
def test_mutants_break_the_contract(mutant):
    failures = []
    for check in CHECKS:
        try:
            check(mutant(0.05, 0.1), make("pair"))
        except AssertionError:
            failures.append(check)
    assert failures


class Counted(MLP):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x)


def test_an_adjusted_chain_looks_once_at_each_point():
    # The state carries what is known of the point it stands on: one evaluation a step, and one at the start.
    model = EnergyModel(Counted((D, 4, 1)))
    Counted.calls = 0
    last(MALA(0.1), Target(model), start(MALA(0.1), Target(model), dtype=torch.float32), 10)
    assert Counted.calls == 11


def test_a_chain_forgets_what_it_knew_when_weights_change():
    model = make("pair")
    kernel, target = MALA(0.1), Target(model)
    state = last(kernel, target, start(kernel, target), 3)
    assert state.evaluation is not None
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)
    fresh = replace(state, evaluation=None)
    assert torch.equal(last(kernel, target, state, 3).x, last(kernel, target, fresh, 3).x)


@pytest.mark.parametrize("n_labels", [4, 784])
def test_gibbs_with_gradients_costs_the_same_for_any_number_of_labels(n_labels):
    labels = LabelSpace.binary([f"a{i}" for i in range(n_labels)])
    model = pair(labels)
    calls = []
    model.head.register_forward_hook(lambda *_: calls.append(1))
    kernel, target = GibbsWithGradients(), Target(model)
    state = start(kernel, target, dtype=torch.float32)
    calls.clear()
    kernel.step(target, state)
    assert len(calls) == 2


def test_gibbs_with_gradients_moves_a_mask_of_784_labels():
    model = mask_model()
    kernel, target = GibbsWithGradients(), Target(model, given_y={"pixel0": 1, "pixel700": 0})
    g = torch.Generator().manual_seed(0)
    state = kernel.init(target, torch.rand(3, 1, 28, 28, generator=g, dtype=torch.float64), generator=g)
    begin = model.log_density(state.x, state.y)
    after = last(kernel, target, state, 300)
    assert after.y[:, 0].tolist() == [1, 1, 1]
    assert after.y[:, 700].tolist() == [0, 0, 0]
    assert int((after.y != state.y).sum(1).min()) > 50
    assert (model.log_density(after.x, after.y) > begin).all()


def test_marginalizing_is_langevin_with_missing_labels():
    model = logit().double()
    kernel, target = Langevin(0.1, 0.0), Target(model, given_y={"size": 1})
    state = start(kernel, target)
    assert state.y.tolist() == [[MISSING, MISSING, 1]] * N
    after, info = kernel.step(target, state)
    x = state.x.clone().requires_grad_()
    value = model.log_density(x, state.y)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(after.x, state.x + 0.1 * gradient)
    torch.testing.assert_close(info.log_density, value.detach())


def test_run_yields_after_each_step():
    kernel, target = Langevin(0.1, 0.1), Target(make("pair"))
    state = start(kernel, target)
    steps = [(s.step, i) for s, i in run(kernel, target, state, 4)]
    assert [s for s, _ in steps] == [1, 2, 3, 4]
    assert all(isinstance(i, Info) for _, i in steps)
    assert list(run(kernel, target, state, 0)) == []
    assert last(kernel, target, state, 0) is state


def test_decay_counts_x_steps_within_blocks():
    seen: list[int] = []

    class Watched(PolynomialDecay):
        def factor(self, t):
            seen.append(t)
            return super().factor(t)

    kernel = BlockGibbs(ExactGibbs(), Langevin(0.1, 0.1, schedule=Watched(1.0)), x_steps=3)
    target = Target(make("pair"))
    last(kernel, target, start(kernel, target), 2)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_labels_come_first():
    order: list[str] = []

    class Tracing(Langevin):
        def step(self, target, state):
            order.append("x")
            return super().step(target, state)

    class TracingGibbs(ExactGibbs):
        def step(self, target, state):
            order.append("y")
            return super().step(target, state)

    kernel = BlockGibbs(TracingGibbs(), Tracing(0.1, 0.1), x_steps=2)
    target = Target(make("pair"))
    last(kernel, target, start(kernel, target), 2)
    assert order == ["y", "x", "x"] * 2


@pytest.mark.parametrize("name", [n for n, k in KERNELS.items() if k.moves_y])
def test_conditional_models_cannot_have_their_labels_sampled(name):
    model = conditional().double()
    with pytest.raises(NormalizerError, match="assume_equal_constants=True"):
        start(KERNELS[name], Target(model))
    with pytest.raises(NormalizerError):
        start(Langevin(0.1, 0.1), Target(model))
    start(Langevin(0.1, 0.1), Target(model, given_y={"color": 0, "round": 1, "size": 0}))
    # Complete labels to start from are not given labels: the kernel would compare them with others.
    x, y, g = torch.zeros(N, D, dtype=torch.float64), torch.zeros(N, 3, dtype=torch.int64), torch.Generator()
    for begin in (y, {"color": 0, "round": 1, "size": 0}):
        with pytest.raises(NormalizerError, match="assume_equal_constants=True"):
            KERNELS[name].init(Target(model), x, begin, generator=g)
        Langevin(0.1, 0.1).init(Target(model), x, begin, generator=g)


def test_a_start_is_copied():
    x, y = torch.zeros(N, D, dtype=torch.float64), torch.zeros(N, 3, dtype=torch.int64)
    for kernel in (MALA(0.1), ExactGibbs()):
        state = kernel.init(Target(make("pair")), x, y, generator=torch.Generator())
        x += 1.0
        y += 1
        assert (state.x == x - 1.0).all()
        assert (state.y == y - 1).all()
        y -= 1


def test_some_rows_are_as_old_as_all():
    # The schedule of the steps goes on where it was.
    kernel = Langevin(0.1, 0.1, schedule=PolynomialDecay(1.0))
    target = Target(make("pair"))
    state = last(kernel, target, start(kernel, target), 5)
    assert state.step == 5
    index = torch.tensor([4, 1])
    assert state.rows(index).step == state.rows(slice(2)).step == 5
    whole, part = (last(kernel, target, s, 3).x for s in (state, state.rows(index)))
    torch.testing.assert_close(part, whole[index], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", [MALA(0.1), BlockGibbs(SingleSiteGibbs(), MALA(0.1))], ids=["alone", "in a block"])
def test_mala_starts_inside_the_box(kernel):
    target = Target(pair(domain=Box(1.0, 2.0)).double())
    inside = torch.full((4, D), 1.5, dtype=torch.float64)
    kernel.init(target, inside, generator=torch.Generator())
    # One entry of one chain is enough, and so are all.
    one, all_four = inside.clone(), torch.zeros_like(inside)
    one[2, 1] = 2.1
    for x, count in ((one, 1), (all_four, 4)):
        with pytest.raises(InputError, match=rf"inside the model's domain Box\(low=1.0, high=2.0\); {count} of 4"):
            kernel.init(target, x, generator=torch.Generator())


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_sampled(name):
    model = make(name)
    target = Target(model)
    if len(model.labels) == 0:
        for kernel in Y_KERNELS.values():
            with pytest.raises(InputError, match="the model has none"):
                start(kernel, target)
        kernel = MALA(0.1)
    else:
        kernel = BlockGibbs(ExactGibbs(), MALA(0.1))
    assert last(kernel, target, start(kernel, target), 3).x.isfinite().all()


GOOD = torch.zeros(2, D, dtype=torch.float64)
THREE = torch.zeros(3, D, dtype=torch.float64)
BOXED = EnergyModel(MLP((D, 2, 1)).double(), domain=Box(1.0, 2.0))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda t, g: Langevin(0.0, 0.1), "Langevin needs a finite positive step_size, got 0"),
        (lambda t, g: Langevin(-1.0, 0.1), "positive step_size, got -1"),
        (lambda t, g: Langevin(float("nan"), 0.1), "positive step_size, got nan"),
        (lambda t, g: Langevin(1.0, -0.1), "zero or positive noise_scale, got -0.1"),
        (lambda t, g: Langevin(1.0, 0.1, gradient_clamp=0.0), "positive gradient_clamp"),
        (lambda t, g: Langevin(1.0, 0.1, bounds=(1.0, 0.0)), "low < high"),
        (lambda t, g: Langevin.at_temperature(-1.0), "positive step_size"),
        (lambda t, g: Langevin.at_temperature(1.0, 0.0), "positive temperature"),
        (lambda t, g: PolynomialDecay(0.0), "positive power"),
        (lambda t, g: MALA(0.0), "MALA needs a finite positive step_size"),
        (lambda t, g: MALA(1.0, temperature=0.0), "positive temperature"),
        (lambda t, g: BlockGibbs(MALA(1.0), MALA(1.0)), "y_kernel must move labels alone, got MALA"),
        (lambda t, g: BlockGibbs(ExactGibbs(), ExactGibbs()), "x_kernel must move x alone, got ExactGibbs"),
        (lambda t, g: BlockGibbs(ExactGibbs(), MALA(1.0), x_steps=0), "x_steps must be an integer of at least 1"),
        (lambda t, g: Target(t.model, given_y={"colour": 1}), "no label called 'colour'"),
        (lambda t, g: Target(t.model, given_y={"color": 7}), "takes the values 0 to 2, got 7"),
        (lambda t, g: Target(t.model, given_x=GOOD), "given_x and mask go together"),
        (lambda t, g: Target(t.model, given_x=GOOD, mask=GOOD), "mask must be .*boolean"),
        (lambda t, g: Target(t.model, given_x=GOOD, mask=GOOD[:, :2] == 0), "mask must have the shape of x"),
        (lambda t, g: MALA(1.0).init(t, GOOD[:0], generator=g), "empty batch"),
        (lambda t, g: MALA(1.0).init(t, GOOD * float("nan"), generator=g), "NaN or infinite"),
        (lambda t, g: MALA(1.0).init(t, GOOD[:, :2], generator=g), r"shape \[n, 3\], got \[2, 2\]"),
        (lambda t, g: MALA(1.0).init(t, GOOD, {"form": 1}, generator=g), "no label called 'form'"),
        (
            lambda t, g: MALA(1.0).init(Target(t.model, given_y=torch.zeros(3, 3).long()), GOOD, generator=g),
            "given_y has 3 rows for 2 chains",
        ),
        (
            lambda t, g: MALA(1.0).init(Target(t.model, given_x=THREE, mask=THREE == 0), GOOD, generator=g),
            "given_x has 3 rows for 2 chains",
        ),
        (
            lambda t, g: MALA(1.0).init(Target(BOXED), GOOD, generator=g),
            r"MALA must start inside the model's domain Box\(low=1.0, high=2.0\); 2 of 2",
        ),
        (lambda t, g: MALA(1.0).init(t.model, GOOD, generator=g), "a kernel samples a Target, got PairModel"),
        (lambda t, g: run("mala", t, MALA(1.0).init(t, GOOD, generator=g), 1), "a chain needs a kernel"),
        (lambda t, g: run(MALA(1.0), t, MALA(1.0).init(t, GOOD, generator=g), -1), "number of steps"),
        (lambda t, g: run(SingleSiteGibbs(), t, MALA(1.0).init(t, GOOD, generator=g), 1.5), "number of steps"),
    ],
)  # fmt: skip
def test_bad_input(call, sentence):
    with pytest.raises(InputError, match=sentence) as raised:
        call(Target(pair(MIXED).double()), torch.Generator().manual_seed(0))
    assert "\n" not in str(raised.value)


# Noise that is drawn ahead.


def step_by_step(kernel, target, state, n):
    for _ in range(n):
        state, _ = kernel.step(target, state)
    return state


@pytest.mark.parametrize("block", [1, 2 * N * D, 5 * N * D, 1 << 17], ids=["none", "two", "five", "all"])
def test_what_is_drawn_ahead_changes_no_path(kernel, model, block, monkeypatch):
    monkeypatch.setattr("jointenergy.streams.AHEAD", block)
    g = torch.Generator().manual_seed(1)
    given = torch.rand(N, *(model.event_shape or (D,)), generator=g, dtype=torch.float64)
    for target in (Target(model), Target(model, given_x=given, mask=given < 0.3)):
        state = start(kernel, target)
        alone, together = step_by_step(kernel, target, state, 12), last(kernel, target, state, 12)
        for name in ("x", "y", "keys"):
            assert torch.equal(getattr(alone, name), getattr(together, name))
        assert together.ahead == ()


@pytest.mark.parametrize("kernel", [Langevin(0.1, 0.3), MALA(0.01)], ids=["langevin", "mala"])
def test_little_is_drawn_ahead_however_long_a_chain_is(kernel):
    state = start(kernel, Target(make("logits")))
    assert len(kernel.look_ahead(state, 100_000).ahead) == streams.STEPS_AHEAD < 1000


@pytest.mark.parametrize("kernel", [Langevin(0.1, 0.3), MALA(0.01)], ids=["langevin", "mala"])
def test_what_was_drawn_in_another_precision_is_ignored(kernel):
    state = start(kernel, Target(make("logits")))
    ahead = kernel.look_ahead(state, 3)
    other = replace(ahead, x=ahead.x.float() if ahead.x.dtype == torch.float64 else ahead.x.double())
    assert len(kernel.look_ahead(other, 2).ahead) == 2  # drawn anew


def test_uniform_numbers_of_another_precision_are_drawn_anew():
    keys = streams.chain_keys(1000, generator=torch.Generator().manual_seed(0))
    ratio = streams.log_uniform(keys, torch.float64) + 1e-12  # between the two precisions
    accept, _ = metropolis(keys, ratio, streams.log_uniform(keys, torch.float32))
    assert torch.equal(accept, metropolis(keys, ratio)[0])
    assert bool(accept.all())


def test_what_another_kernel_has_drawn_is_ignored():
    target, kernels = Target(make("logits")), (Langevin(0.1, 0.3), MALA(0.01))
    for kernel, other in (kernels, kernels[::-1]):
        state = start(kernel, target)
        ahead = other.look_ahead(state, 3)
        assert len(ahead.ahead) == 3
        assert torch.equal(kernel.step(target, ahead)[0].x, kernel.step(target, state)[0].x)
        assert torch.equal(last(kernel, target, ahead, 3).x, last(kernel, target, state, 3).x)


@pytest.mark.parametrize("kernel", [Langevin(0.1, 0.3), MALA(0.01)], ids=["langevin", "mala"])
def test_what_was_drawn_for_other_keys_is_ignored(kernel):
    target = Target(make("logits"))
    state = start(kernel, target)
    ahead = kernel.look_ahead(state, 3)
    assert len(ahead.ahead) == 3
    other = replace(ahead, keys=state.keys + 1)
    expected = kernel.step(target, replace(state, keys=state.keys + 1))[0]
    assert torch.equal(kernel.step(target, other)[0].x, expected.x)
    assert not torch.equal(kernel.step(target, ahead)[0].x, expected.x)
    # A state can be stepped again, and under another target: its noise was not touched.
    held = Target(target.model, given_x=state.x, mask=torch.arange(D) < 1)
    kernel.step(held, ahead)
    assert torch.equal(kernel.step(target, ahead)[0].x, kernel.step(target, state)[0].x)


class TestLabelsAndXFromOnePass:
    """A network without gradients of its own, such as a CNN: block Gibbs looks at each point once."""

    class Convolutional(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = 0
            self.layers = torch.nn.Sequential(torch.nn.Conv1d(1, 4, 2), torch.nn.Tanh(), torch.nn.Flatten())
            self.head = torch.nn.Linear(8, 5)

        def forward(self, x):
            self.seen += 1
            return self.head(self.layers(x[:, None]))

    def model(self):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = self.Convolutional().double()
        return LogitModel(network, LabelSpace({"a": 2, "b": 3}), domain=Box(-3, 3), event_shape=(3,)), network

    @pytest.mark.parametrize("given", [None, {"b": 1}])
    @pytest.mark.parametrize("x_kernel", [Langevin(0.1, 0.2), MALA(0.1)])
    def test_the_path_is_that_of_one_kernel_after_the_other(self, given, x_kernel):
        model, _ = self.model()
        mask = torch.tensor([False, True, False])
        target = Target(model, given_y=given, given_x=torch.zeros(6, 3).double(), mask=mask)
        kernel = BlockGibbs(ExactGibbs(), x_kernel, x_steps=2)
        x = torch.linspace(-1, 1, 18).double().view(6, 3)
        state = apart = kernel.init(target, x, generator=torch.Generator().manual_seed(0))
        for i in range(4):
            state, info = kernel.step(target, state)
            apart, _ = ExactGibbs().step(target, apart)
            apart = replace(apart, step=2 * i)
            expected = model.log_density(apart.x, apart.y)
            for _ in range(2):
                apart, _ = x_kernel.step(target, apart)
            apart = replace(apart, evaluation=None)
            torch.testing.assert_close(info.log_density, expected, rtol=0, atol=1e-12)
            assert torch.equal(state.y, apart.y)
            torch.testing.assert_close(state.x, apart.x, rtol=0, atol=1e-12)
            assert torch.equal(state.keys, apart.keys)

    def test_logits_of_half_precision_are_added_up_in_that_of_x(self):
        class Half(torch.nn.Module):
            def forward(self, x):
                return torch.cat([(k + 1) * x[:, :1] / 7 for k in range(40)], dim=1).bfloat16()

        model = LogitModel(Half(), LabelSpace({f"l{k}": 2 for k in range(20)}), domain=Box(-3, 3), event_shape=(3,))
        kernel, target = BlockGibbs(ExactGibbs(), Langevin(1e-3, 0.0)), Target(model)
        x = torch.linspace(-1, 1, 18).view(6, 3)
        state = kernel.init(target, x, generator=torch.Generator().manual_seed(0))
        for _ in range(2):  # the first step learns that there is no other way
            before, (state, info) = state, kernel.step(target, state)
        assert torch.equal(info.log_density, model.log_density_of_complete(before.x, state.y))

    def test_each_point_costs_one_pass(self):
        model, network = self.model()
        kernel = BlockGibbs(ExactGibbs(), Langevin(0.1, 0.2), x_steps=2)
        target = Target(model)
        state = kernel.init(target, torch.zeros(6, 3).double(), generator=torch.Generator().manual_seed(0))
        network.seen = 0
        last(kernel, target, state, 10)
        assert network.seen == 21  # two a step, and one of the first, which has yet to learn that there is no other way


@pytest.mark.parametrize("shape", [(3, 4), (40, 300), (200, 8, 8), (5, 300_000)], ids=str)
def test_rows_are_chosen_alike_at_any_size(shape):
    """By a condition or by their index: the same rows, bit by bit, NaN of a rejected proposal left behind."""
    g = torch.Generator().manual_seed(0)
    current, proposed = torch.randn(2, *shape, generator=g).unbind()
    accept = torch.rand(shape[0], generator=g) < 0.5
    proposed[~accept] = torch.nan
    found = chosen(accept, proposed, current)
    assert all(
        torch.equal(row, (a if yes else b)) for row, yes, a, b in zip(found, accept, proposed, current, strict=True)
    )

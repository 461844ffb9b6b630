"""Sampling against exact laws: synthesis, inpainting, refinement, conversion, products, distal x, neighbors.

Statistical checks have the false-failure rate ALPHA (5 standard errors: 6e-7) and fixed seeds; comments say what they
see. MALA at temperature 1 stands in for Langevin, whose bias would blur them.
"""

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import nn

from jointenergy.buffers import Drawn, ReplayBuffer
from jointenergy.data.augmentations import GaussianBlur, RandomFlip
from jointenergy.errors import EnumerationError, InputError, NormalizerError
from jointenergy.inference import chains
from jointenergy.inference.chains import Aids
from jointenergy.inference.compose import UnderConditions, compose, sample_composed, score_composed
from jointenergy.inference.convert import convert
from jointenergy.inference.distal import distal
from jointenergy.inference.inpaint import inpaint
from jointenergy.inference.neighbors import neighbors
from jointenergy.inference.refine import refine
from jointenergy.inference.sample import sample
from jointenergy.kernels import MALA, ExactGibbs, GibbsWithGradients, Langevin, State, Target
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Box, EnergyModel, LogitModel, PairModel, Product
from jointenergy.networks import MLP
from jointenergy.starts import ClassGaussianStart, GivenStart, Start, UniformLabels, UniformStart
from tests.checks import ALPHA, chi_square, histogram, kolmogorov_smirnov
from tests.exact import Grid, index_of, joint_toy, label_law
from tests.tables import MIXED, conditional, make, mask_model

N = 6000
F64 = torch.float64
NOISE = UniformStart(-3.0, 3.0, (1,), dtype=F64)
NOISE3 = UniformStart(-1.0, 1.0, (3,), dtype=F64)
EDGES = torch.linspace(-6.0, 6.0, 601, dtype=F64)[[250, 275, 300, 325, 350, 375]] + 0.01  # between the cells


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def cells(x, y, labels):
    """Counts of (state of y, bin of x)."""
    bins = torch.bucketize(x[:, 0].contiguous(), EDGES)
    return histogram(index_of(labels, y) * (len(EDGES) + 1) + bins, labels.n_states * (len(EDGES) + 1))


def exact_cells(model, given):
    """The law of (y, bin of x) given some labels, by quadrature."""
    grid = Grid.of(model)
    states, wanted = model.labels.enumerate(), model.labels.encode(given)[0]
    law = grid.law.masked_fill(((wanted != MISSING) & (states != wanted)).any(1)[:, None], 0.0)
    bins = torch.bucketize(grid.x, EDGES)
    found = torch.zeros(len(states), len(EDGES) + 1, dtype=F64).index_add(1, bins, law)
    return (found / found.sum()).flatten()


def toy_sample(method, given, *, n=N, steps=80, seed=0, **kwargs):
    return sample(
        joint_toy(),
        n,
        given=given,
        method=method,
        x_kernel=MALA(0.4),
        steps=steps,
        start=NOISE,
        generator=seeded(seed),
        **kwargs,
    )


@pytest.mark.parametrize("given", [{"b": 1}, {"a": 2}, {"a": 0, "b": 0}, {}], ids=str)
@pytest.mark.parametrize("method", ["resample", "marginalize"])
def test_conditional_samples_have_the_exact_law_of_x_and_the_free_labels(method, given):
    # Sees a cell of (y, bin of x) wrong by .02; a chain of 1 step from noise is seen at once.
    found = toy_sample(method, given)
    labels = joint_toy().labels
    assert chi_square(cells(found.x, found.y, labels), exact_cells(joint_toy(), given)) > ALPHA
    assert found.notes == ()
    assert found.temperature == 1.0
    asked = labels.encode(given, N)
    assert torch.equal(torch.where(asked == MISSING, asked, found.y), asked)
    torch.testing.assert_close(found.log_prob, joint_toy().label_log_prob(found.x, asked).detach())
    early = toy_sample(method, given, steps=1)
    assert chi_square(cells(early.x, early.y, labels), exact_cells(joint_toy(), given)) < ALPHA


@pytest.mark.parametrize("y_kernel", [GibbsWithGradients(), ExactGibbs()], ids=lambda k: type(k).__name__)
def test_resampling_by_other_label_kernels_and_more_moves_of_x(y_kernel):
    found = toy_sample("resample", {"b": 1}, y_kernel=y_kernel, x_steps=2, steps=30)
    assert chi_square(cells(found.x, found.y, joint_toy().labels), exact_cells(joint_toy(), {"b": 1})) > ALPHA


def test_resampling_and_marginalizing_agree():
    # Sees a probability that differs by .03 between the two.
    labels = joint_toy().labels
    counts = [cells(s.x, s.y, labels) for s in (toy_sample(m, {"b": 1}, seed=7) for m in ("resample", "marginalize"))]
    table = torch.stack(counts)[:, torch.stack(counts).sum(0) > 20]
    assert stats.chi2_contingency(table.numpy()).pvalue > ALPHA


@pytest.mark.parametrize("mutant", ["never drawn", "drawn without the given"])
def test_mutants_of_the_last_draw_are_seen(monkeypatch, mutant):
    def never(target, state):
        return State(state.x, state.y.clamp(min=0), state.keys)

    def unconditional(target, state):
        drawn, _ = ExactGibbs().step(Target(target.model), state)
        return State(state.x, target.hold_y(drawn.y), state.keys)

    monkeypatch.setattr(chains, "draw_free", never if mutant == "never drawn" else unconditional)
    found = toy_sample("marginalize", {"b": 1})
    assert chi_square(cells(found.x, found.y, joint_toy().labels), exact_cells(joint_toy(), {"b": 1})) < ALPHA


@pytest.mark.parametrize("name", ["logits", "pair", "product, blocks"])
def test_free_labels_at_the_end_have_their_law_given_x(name):
    # At one x, which no step moves. Sees a state's probability wrong by .02.
    model = make(name)
    x = torch.randn(1, 3, generator=seeded(5), dtype=F64).expand(N, -1)
    given = {"round": 0}
    found = sample(
        model,
        N,
        given=given,
        method="marginalize",
        x_kernel=MALA(0.1),
        steps=0,
        start=GivenStart(x),
        generator=seeded(),
    )
    law = label_law(model, x[:1], model.labels.encode(given)[0])[0]
    assert chi_square(histogram(index_of(model.labels, found.y), model.labels.n_states), law) > ALPHA


def test_selecting_keeps_the_most_probable_and_states_its_acceptance():
    # The share of chains whose most probable b is 1, known to 5 standard errors (.03), and p(b = 1), known to .01.
    model, n = joint_toy(), N
    grid = Grid.of(model)
    by_b = torch.stack([grid.law[model.labels.enumerate()[:, 1] == b].sum(0) for b in (0, 1)])
    share = float(by_b.sum(0)[by_b[1] > by_b[0]].sum())
    exact = float(by_b[1].sum())
    kept = toy_sample("select", {"b": 1}, n=n // 10)
    everything = toy_sample("select", {"b": 1}, n=n, keep_best=1.0)
    for found in (kept, everything):
        assert abs(found.acceptance_rate - share) < 5 * math.sqrt(share * (1 - share) / n)
        assert abs(found.given_probability - exact) < 5 * float(everything.log_prob.exp().std()) / math.sqrt(n)
        assert bool((found.y[:, 1] == 1).all())
    assert abs(share - exact) > 0.02  # the two are not the same thing
    assert torch.equal(kept.log_prob, everything.log_prob.sort(descending=True).values[: n // 10])
    # The free labels belong to the kept x.
    law = label_law(model, kept.x, model.labels.encode({"b": 1})[0]).sum(0)
    z = (histogram(index_of(model.labels, kept.y), 6) - law) / law.clamp(min=1).sqrt()
    assert float(z.abs().max()) < 5


def test_the_best_of_conditional_chains_are_kept_for_each_request_by_itself():
    wanted = torch.tensor([[0, MISSING], [MISSING, 1], [0, MISSING]])
    found = toy_sample("marginalize", wanted, n=3, keep_best=0.25, steps=20)
    assert torch.equal(torch.where(wanted == MISSING, wanted, found.y), wanted)
    every = toy_sample("marginalize", wanted[[0] * 8 + [1] * 4], n=12, steps=20)
    # The chains of all patterns start from the same draws whatever is kept of them.
    patterns = wanted.unique(dim=0)
    order = [p for row in patterns for p in ([0] * 8 if int(row[0]) == 0 else [1] * 4)]
    pool = toy_sample("marginalize", wanted[order], n=12, steps=20)
    best = pool.log_prob[torch.tensor(order) == 0].sort(descending=True).values[:2]
    assert torch.equal(found.log_prob[[0, 2]], best)
    assert float(found.log_prob[[0, 2]].mean()) > float(every.log_prob[:8].mean())


@pytest.mark.parametrize("method", ["resample", "marginalize", "select"])
@pytest.mark.parametrize("name", ["logits", "pair", "product, blocks", "unconditional"])
def test_results_do_not_depend_on_the_batch_and_nothing_else_is_touched(name, method, untouched_random_state):
    model = make(name)
    given = {"color": "red"} if "color" in model.labels.names else None
    settings = {"method": method, "given": given, "steps": 5, "start": NOISE3, "x_kernel": Langevin(0.05, 0.1)}
    settings |= {"aids": Aids([Jitter()], 2, flip_labels_for=2, raise_noise_for=3, noise_factor=2.0)}
    with untouched_random_state():
        one, other = (
            sample(model, 7, batch_size=size, keep_best=0.5, generator=seeded(), **settings) for size in (None, 3)
        )
    torch.testing.assert_close(one.x, other.x, rtol=0, atol=1e-12)
    assert torch.equal(one.y, other.y)
    assert not bool((one.y == MISSING).any())
    assert all(p.grad is None for p in model.parameters())
    assert not one.x.requires_grad
    with torch.inference_mode():
        again = sample(model, 7, keep_best=0.5, generator=seeded(), **settings)
    assert torch.equal(one.x, again.x)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["logits", "pair"])
def test_every_task_keeps_the_dtype_and_the_device(name, dtype, device):
    model = make(name, dtype).to(device)
    kernel, start = Langevin(0.05, 0.1), UniformStart(-1.0, 1.0, (3,), dtype=dtype, device=device)
    x = start.draw(torch.zeros(4, 3), generator=seeded())
    buffer = ReplayBuffer(9, (3,), MIXED, dtype=dtype)  # it may live beside the accelerator
    buffer.store(Drawn.fresh(x.cpu(), torch.zeros(4, 3, dtype=torch.int64)))
    chain = {"x_kernel": kernel, "steps": 3}
    given = {"color": "red"}
    for g in (seeded(), torch.Generator(device).manual_seed(0)):
        found = []
        for method in ("resample", "marginalize", "select"):
            for begin in (start, buffer):
                drawn = sample(
                    model, 5, given=given, method=method, start=begin, fresh=start, keep_best=0.5, generator=g, **chain
                )
                found += [drawn.x, drawn.log_prob]
                assert (drawn.y.device.type, drawn.y.dtype) == (device, torch.int64)
        known = torch.tensor([True, False, False])
        filled = inpaint(model, x, known, given=given, n_draws=3, start=start, generator=g, **chain)
        refined = refine(model, x, kernel=kernel, steps=2, n_draws=2, generator=g, differentiable=True)
        turned = convert(model, x, given, generator=g, **chain)
        both = sample_composed([(model, given), (model, {"size": 1})], 3, start=start, generator=g, **chain)
        sure = distal(model, 3, given=given, start=start, step_size=0.1, max_steps=3, generator=g)
        found += [filled.draws, filled.mean, filled.std, filled.low, filled.high, refined.x, *refined.probs.values()]
        found += [
            turned.x,
            turned.path,
            turned.log_prob,
            both.x,
            both.log_density,
            both.parts,
            sure.x,
            sure.probability,
        ]
        assert {(f.device.type, f.dtype) for f in found if f is not None} == {(device, dtype)}
        near = neighbors(sure.x, x.cpu(), k=2)
        assert near.index.device.type == device


class Jitter:
    """An augmentation that shows how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, *, generator):
        self.calls += len(x)
        return x + torch.rand(x.shape, generator=generator).to(x)


def test_augmentations_come_every_so_often_and_never_last():
    jitter = Jitter()
    still = Langevin(1e-12, 0.0)
    shown = []
    sample(
        make("logits"),
        4,
        x_kernel=still,
        steps=6,
        start=NOISE3,
        aids=Aids([jitter], 2),
        frames=lambda step, state: shown.append((step, state.x)),
        generator=seeded(),
    )
    assert jitter.calls == 2 * 4  # after 2 and 4 steps, not after 6
    assert [s for s, _ in shown] == list(range(7))
    moved = [not torch.allclose(a, b, atol=1e-6) for (_, a), (_, b) in itertools.pairwise(shown)]
    assert moved == [False, False, True, False, True, False]


def test_augmentations_of_images():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LogitModel(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), LabelSpace({"a": 2}), domain=Box(-1.0, 1.0))
    start = UniformStart(-1.0, 1.0, (1, 4, 4))
    aids = Aids([RandomFlip(), GaussianBlur(radius=1)], 2)
    found = [
        sample(model, 5, x_kernel=Langevin(0.1, 0.01), steps=5, start=start, aids=a, batch_size=b, generator=seeded()).x
        for a, b in ((aids, None), (aids, 2), (chains.NONE, None))
    ]
    torch.testing.assert_close(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


@pytest.mark.parametrize("method", ["resample", "marginalize"])
def test_labels_flip_early_and_noise_is_raised_early(method):
    model = make("logits")
    shown = []
    found = sample(
        model,
        4000,
        given={"color": "blue"},
        method=method,
        x_kernel=Langevin(1e-9, 0.1),
        steps=6,
        start=NOISE3,
        aids=Aids(flip_labels_for=3, raise_noise_for=2, noise_factor=3.0),
        frames=lambda step, state: shown.append(state),
        generator=seeded(),
    )
    # Three values uniformly for 3 steps, sees .06; then the given one.
    for state in shown[1:4]:
        assert chi_square(histogram(state.y[:, 0], 3), torch.ones(3)) > ALPHA
    assert all(bool((s.y[:, 0] == 2).all()) for s in shown[4:])
    assert bool((found.y[:, 0] == 2).all())
    spread = [float((b.x - a.x).std()) for a, b in itertools.pairwise(shown)]
    assert spread == pytest.approx([0.3, 0.3, 0.1, 0.1, 0.1, 0.1], rel=0.05)
    noisier = chains.Mover(MALA(0.1), None, 1).with_more_noise(2.0).x_kernel
    assert noisier == MALA(0.1, temperature=4.0)  # noise goes with the root of the temperature
    free = sample(
        model,
        2,
        x_kernel=MALA(0.1),
        steps=1,
        start=NOISE3,
        aids=Aids(flip_labels_for=1, raise_noise_for=1, noise_factor=2.0),
        generator=seeded(),
    )
    assert free.notes == ("no labels were held, so none were flipped",)


def test_the_last_steps_of_samples_go_without_noise():
    shown = []
    settings = {"x_kernel": Langevin(1e-9, 0.1), "start": NOISE3, "generator": seeded(), "method": "marginalize"}
    aids = Aids(denoise_for=2)
    sample(make("logits"), 500, steps=5, aids=aids, frames=lambda _, state: shown.append(state.x), **settings)
    spread = [float((b - a).std()) for a, b in itertools.pairwise(shown)]
    assert spread == pytest.approx([0.1, 0.1, 0.1, 0.0, 0.0], rel=0.05, abs=1e-6)
    with pytest.raises(InputError, match="the last steps of MALA cannot go without noise: use Langevin"):
        sample(make("logits"), 2, steps=5, aids=aids, **{**settings, "x_kernel": MALA(0.1)})


def buffer_of(y, model=None):
    labels = joint_toy().labels if model is None else model.labels
    y = torch.tensor(y, dtype=torch.int64)
    buffer = ReplayBuffer(100, (1,), labels, dtype=F64)
    buffer.store(Drawn.fresh(100.0 + torch.arange(len(y), dtype=F64)[:, None], y))
    return buffer


STILL = {"x_kernel": Langevin(1e-12, 0.0), "steps": 1, "method": "marginalize"}


def test_chains_start_from_a_buffer_that_has_the_labels():
    buffer = buffer_of([[0, 0], [1, 1], [2, 1], [1, 0]])
    found = sample(joint_toy(), 2, given={"b": 1}, start=buffer, generator=seeded(), **STILL)
    assert sorted(found.x[:, 0].round().tolist()) == [101.0, 102.0]
    assert found.notes == ()
    more = sample(joint_toy(), 5, given={"b": 1}, start=buffer, fresh=NOISE, generator=seeded(), **STILL)
    assert more.notes == ("the buffer had 2 of the 5 states asked for with the given labels: 3 chains started fresh",)
    assert sorted((more.x[:, 0] > 50).tolist()) == [False] * 3 + [True] * 2
    never = sample(joint_toy(), 2, given={"a": 2, "b": 0}, start=buffer, fresh=NOISE, generator=seeded(), **STILL)
    assert never.notes == ("the buffer had 0 of the 2 states asked for with the given labels: 2 chains started fresh",)
    assert torch.equal(never.y, torch.tensor([[2, 0], [2, 0]]))
    with pytest.raises(InputError, match=r"had 2 of the 5 states asked for with the given labels: pass fresh="):
        sample(joint_toy(), 5, given={"b": 1}, start=buffer, generator=seeded(), **STILL)


def test_chains_start_from_a_buffer_whatever_its_labels():
    buffer = buffer_of([[0, 0], [1, 1], [2, 1], [1, 0]])
    found = sample(joint_toy(), 4, given={"b": 1}, start=buffer, matched=False, generator=seeded(), **STILL)
    assert sorted(found.x[:, 0].round().tolist()) == [100.0, 101.0, 102.0, 103.0]
    assert bool((found.y[:, 1] == 1).all())
    more = sample(joint_toy(), 6, given={"b": 1}, start=buffer, fresh=NOISE, matched=False, generator=seeded(), **STILL)
    assert more.notes == ("the buffer had 4 of the 6 states asked for: 2 chains started fresh",)
    mixed = torch.tensor([[2, MISSING]] * 3 + [[MISSING, 0]] * 2)
    both = sample(joint_toy(), 5, given=mixed, start=buffer, fresh=NOISE, generator=seeded(), **STILL)
    assert sorted(both.x[:, 0].round().clamp(min=50).tolist()) == [50.0, 50.0, 100.0, 102.0, 103.0]


def test_an_empty_or_foreign_buffer_and_a_buffer_without_labels():
    empty = ReplayBuffer(10, (1,), joint_toy().labels, dtype=F64)
    found = sample(joint_toy(), 2, start=empty, fresh=NOISE, generator=seeded(), **STILL)
    assert found.notes == ("the buffer had 0 of the 2 states asked for: 2 chains started fresh",)
    with pytest.raises(InputError, match="the buffer has the labels"):
        sample(make("pair"), 2, start=empty, generator=seeded(), **STILL)
    plain = EnergyModel(nn.Flatten(0), event_shape=(1,))
    found = sample(plain, 3, start=buffer_of([[]] * 3, plain), generator=seeded(), **STILL)
    assert found.y.shape == (3, 0)
    assert torch.equal(found.log_prob, torch.zeros(3, dtype=F64))


def test_class_gaussians_and_joint_starts_begin_at_the_given_labels():
    labels = LabelSpace({"class": 2})
    x = torch.cat((torch.full((5, 1), -9.0), torch.full((5, 1), 9.0))).double()
    start = ClassGaussianStart.fit(x, torch.tensor([0] * 5 + [1] * 5), labels, jitter=1e-4)
    model = PairModel(ZeroHead(), labels, event_shape=(1,))
    for begin in (start, Start(start, UniformLabels(labels))):
        found = sample(
            model,
            4,
            given=torch.tensor([0, 1, 0, 1]),
            x_kernel=Langevin(1e-9, 0.0),
            steps=1,
            start=begin,
            generator=seeded(),
        )
        assert torch.equal(found.x[:, 0].sign(), torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=F64))


class ZeroHead(nn.Module):
    def forward(self, features, code):
        return 0.0 * features.sum(1)


def test_labels_beyond_enumeration_are_resampled_and_it_is_said():
    model = mask_model()
    start = UniformStart(0.0, 1.0, (1, 28, 28), dtype=F64)
    for method in ("marginalize", "resample"):
        found = sample(
            model,
            2,
            given={"pixel3": 1},
            method=method,
            x_kernel=MALA(0.01),
            steps=2,
            start=start,
            generator=seeded(),
        )
        assert not bool((found.y == MISSING).any())
        assert bool((found.y[:, 3] == 1).all())
        assert found.log_prob is None
        assert any("GibbsWithGradients moved them" in note for note in found.notes)
        assert any("so they were resampled" in note for note in found.notes) == (method == "marginalize")
        assert any("too many states" in note for note in found.notes)
    with pytest.raises((InputError, EnumerationError), match="cannot be kept"):
        sample(
            model,
            2,
            given={"pixel3": 1},
            method="select",
            x_kernel=MALA(0.01),
            steps=1,
            start=start,
            generator=seeded(),
        )


def test_a_conditional_model_samples_complete_labels_alone():
    model = conditional().double()
    settings = {"x_kernel": Langevin(0.1, 0.01), "steps": 3, "start": NOISE3, "generator": seeded()}
    found = sample(model, 3, given={"color": 1, "round": 0, "size": 1}, **settings)
    assert found.log_prob is None
    assert "unknown normalizing" in found.notes[0]
    with pytest.raises(NormalizerError, match="with_offsets"):
        sample(model, 3, given={"color": 1}, **settings)


def test_a_temperature_on_x_alone_and_lost_chains_are_said():
    found = sample(make("pair"), 2, x_kernel=Langevin(1.0, 0.01), steps=1, start=NOISE3, generator=seeded())
    assert found.notes == ("x moved at temperature 5e-05 but labels at 1: they have no joint density",)

    class Steep(nn.Module):
        def forward(self, x):
            return (x**4).sum(1)

    lost = sample(
        EnergyModel(Steep()), 3, x_kernel=Langevin(1.0, 0.1), steps=30, start=NOISE3, generator=seeded(), keep_best=0.5
    )
    assert lost.notes == ("6 of 6 chains left the finite numbers: take smaller steps",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 0}, "number of samples"),
        ({"method": "guess"}, "method must be one of"),
        ({"keep_best": 0.0}, "keep_best must be a share"),
        ({"keep_best": 1.5}, "keep_best must be a share"),
        ({"x_kernel": ExactGibbs()}, "x_kernel must be a kernel that moves x alone"),
        ({"y_kernel": MALA(0.1)}, "y_kernel must move labels alone"),
        ({"steps": -1}, "number of steps"),
        ({"x_steps": 0}, "x_steps"),
        ({"start": "noise"}, "a start must be a buffer or have draw"),
        ({"given": {"colour": 1}}, "no label called"),
        ({"batch_size": 1, "frames": print}, "leave out batch_size"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"start": UniformStart(-1.0, 1.0, (3,))}, "torch.float32"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_what_is_wrong_with_a_request_is_said_in_a_sentence(settings, message):
    asked = {"n": 2, "x_kernel": MALA(0.1), "steps": 1, "start": NOISE3, "generator": seeded(), **settings}
    with pytest.raises(InputError, match=message):
        sample(make("pair"), **asked)


@pytest.mark.parametrize(
    "settings",
    [
        {"augment_every": 2},
        {"augmentations": [Jitter()]},
        {"noise_factor": 0.0},
        {"flip_labels_for": -1},
        {"denoise_for": -1},
    ],
)
def test_aids_that_make_no_sense_are_refused(settings):
    with pytest.raises(InputError):
        Aids(**settings)


class Banana(nn.Module):
    """x1 given x0 and c is Gaussian around x0^2 / 2 + 2 c, and c has the log-odds x0."""

    variance = 0.3

    def forward(self, features, code):
        x0, x1 = features.unbind(1)
        c = code[:, 1]
        return -(x0**2) / 2 - (x1 - x0**2 / 2 - 2 * c) ** 2 / (2 * self.variance) + c * x0


def banana():
    return PairModel(Banana(), LabelSpace({"c": 2}), event_shape=(2,))


def banana_cdf(x0, x1, given):
    """P(X1 <= x1 | x0, given)."""
    normal = torch.distributions.Normal(0.0, Banana.variance**0.5)
    by_c = torch.stack([normal.cdf(x1 - x0**2 / 2 - 2 * c) for c in (0, 1)])
    weight = torch.sigmoid(x0) if given is None else torch.full_like(x0, float(given))
    return by_c[0] * (1 - weight) + by_c[1] * weight


@pytest.mark.parametrize(("method", "given"), [("marginalize", None), ("resample", None), ("marginalize", 1)])
def test_inpainting_matches_the_exact_conditional(method, given):
    # 200 rows of 39 draws: sees .03 in the distribution function, .02 in coverage, 8 % in variance.
    rows, n_draws = 200, 39
    x0 = torch.linspace(-1.5, 1.5, rows, dtype=F64)
    x = torch.stack((x0, torch.full_like(x0, torch.nan)), 1)
    found = inpaint(
        banana(),
        x,
        torch.tensor([True, False]),
        given=None if given is None else {"c": given},
        n_draws=n_draws,
        method=method,
        x_kernel=MALA(0.5),
        steps=80,
        start=UniformStart(-1.0, 3.0, (2,), dtype=F64),
        generator=seeded(),
    )
    assert found.std is not None
    assert found.low is not None
    assert found.high is not None
    place = banana_cdf(x0.expand(n_draws, -1), found.draws[..., 1], given)
    unit = torch.linspace(0, 1, 101, dtype=F64)
    assert kolmogorov_smirnov(place, unit, unit) > ALPHA
    weight = torch.sigmoid(x0) if given is None else torch.ones_like(x0)
    mean, variance = x0**2 / 2 + 2 * weight, Banana.variance + 4 * weight * (1 - weight)
    error = ((found.mean[:, 1] - mean) / (variance / n_draws).sqrt()).mean() * rows**0.5
    assert abs(float(error)) < 5
    ratio = float((found.std[:, 1] ** 2 / variance).mean())
    assert ratio == pytest.approx(1.0, abs=5 * math.sqrt(2 / 38 / rows))  # lighter tails than a Gaussian's
    # A further draw lies in the interval of 39 with probability .9 exactly; a row's coverage has the law Beta(36, 4).
    covered = banana_cdf(x0, found.high[:, 1], given) - banana_cdf(x0, found.low[:, 1], given)
    assert float(covered.mean()) == pytest.approx(0.9, abs=5 * math.sqrt(0.9 * 0.1 / 41 / rows))
    assert found.notes == ()
    # What is known is as it was given, in every draw and every summary.
    for value in (*found.draws, found.mean, found.low, found.high):
        assert torch.equal(value[:, 0], x0)
    assert bool((found.std[:, 0] == 0).all())
    # Labels belong to the completed rows: c has its law given both entries.
    residual = found.draws[..., 1] - x0**2 / 2
    log_odds = x0 + (residual**2 - (residual - 2) ** 2) / (2 * Banana.variance)
    p = torch.sigmoid(log_odds) if given is None else torch.ones_like(log_odds)
    difference = (found.y[..., 0] - p).sum() / (p * (1 - p)).sum().clamp(min=1e-9).sqrt()
    assert abs(float(difference)) < 5


def held_bits(monkeypatch=None):
    """Whether the known entries of an image leave a chain bit for bit as they entered."""
    x = torch.randn(4, 3, generator=seeded(3), dtype=F64)
    x[0, 0], x[1, 0] = -0.0, 7.0  # a negative zero, and a value outside the kernel's bounds
    known = torch.tensor([True, False, True]).expand(4, 3).clone()
    known[2] = True
    found = inpaint(
        make("pair"),
        x,
        known,
        given={"size": 1},
        n_draws=3,
        x_kernel=Langevin(0.1, 0.3, bounds=(-2.0, 2.0)),
        steps=5,
        start="input",
        aids=Aids([Jitter()], 2, flip_labels_for=2),
        generator=seeded(),
    )
    same = found.draws.view(torch.int64) == x.view(torch.int64)
    assert bool((found.y[..., 2] == 1).all())
    assert not bool(same[:, :, 1][:, [0, 1, 3]].any())
    return bool(same[:, known].all()) and bool((found.mean.view(torch.int64) == x.view(torch.int64))[known].all())


def test_what_is_given_never_moves():
    assert held_bits()


def test_a_sampler_that_adds_the_observed_entries_again_is_seen(monkeypatch):
    def added(self, x):
        return x if self.mask is None else x + torch.where(self.mask, self.given_x, 0.0)

    monkeypatch.setattr(Target, "hold_x", added)
    assert not held_bits()


def test_inpainting_begins_where_it_is_told():
    x = torch.tensor([[1.0, 5.0], [2.0, 6.0]], dtype=F64)
    known = torch.tensor([True, False])
    settings = {"x_kernel": Langevin(1e-12, 0.0), "steps": 1, "generator": seeded()}
    begins = [
        inpaint(banana(), x, known, start=start, **settings).draws[0, :, 1]
        for start in ("input", torch.tensor([9.0, 4.0], dtype=F64), UniformStart(-1.0, 0.0, (2,), dtype=F64))
    ]
    torch.testing.assert_close(begins[0], x[:, 1])
    torch.testing.assert_close(begins[1], torch.tensor([4.0, 4.0], dtype=F64))
    assert bool((begins[2] <= 0).all())
    one = inpaint(banana(), x, known, start="input", **settings)
    assert (one.std, one.low, one.high) == (None, None, None)
    few = inpaint(banana(), x, known, start="input", n_draws=5, **settings)
    assert "too few" in few.notes[0]
    missing = x.masked_fill(~known, torch.nan)
    for wrong, message in (
        ({"x": missing, "start": "input"}, "NaN"),
        ({"mask": known.float()}, "boolean"),
        ({"mask": known[:1]}, "shape"),
        ({"start": "mean"}, "'input'"),
        ({"start": torch.zeros(3)}, "mean"),
        ({"level": 1.0}, "level"),
        ({"n_draws": 0}, "n_draws"),
        ({"method": "select"}, "method"),
    ):
        asked = {"x": x, "mask": known, "start": "input", **settings, **wrong}
        with pytest.raises(InputError, match=message):
            inpaint(banana(), **asked)


def test_inpainting_does_not_depend_on_the_batch(untouched_random_state):
    model, x = make("product, blocks"), torch.randn(5, 3, generator=seeded(1), dtype=F64)
    settings = {"n_draws": 3, "x_kernel": MALA(0.1), "steps": 5, "start": NOISE3}
    with untouched_random_state():
        one, other = (
            inpaint(model, x, torch.tensor([True, False, False]), batch_size=b, generator=seeded(), **settings)
            for b in (None, 4)
        )
    few = inpaint(model, x[:2], torch.tensor([True, False, False]), generator=seeded(), **settings)
    torch.testing.assert_close(one.draws, other.draws, rtol=0, atol=1e-12)
    torch.testing.assert_close(one.draws[:, :2], few.draws, rtol=0, atol=1e-12)
    assert torch.equal(one.y, other.y)


REFINERS = {
    "plain": Langevin(0.3, 0.1),
    "clamped": Langevin(0.3, 0.1, gradient_clamp=0.4, bounds=(-1.5, 1.5)),
}


@pytest.mark.parametrize("kernel", REFINERS.values(), ids=REFINERS)
@pytest.mark.parametrize("name", ["logits", "pair", "product, blocks"])
def test_refinement_has_its_true_gradient(name, kernel):
    model = make(name)
    x = torch.randn(3, 3, generator=seeded(2), dtype=F64)
    keys = torch.tensor([3, 5, 7])
    label = model.labels.names[0]

    def value(at, **kwargs):
        found = refine(model, at, kernel=kernel, steps=3, n_draws=2, keys=keys, **kwargs)
        return found.log_probs[label][:, 0].sum() + (found.x**2).sum()

    leaf = x.clone().requires_grad_()
    with_graph = value(leaf, differentiable=True)
    torch.testing.assert_close(with_graph.detach(), value(x), rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(with_graph, leaf)
    numeric = torch.zeros_like(x)
    for i in range(3):
        for j in range(3):
            step = torch.zeros_like(x)
            step[i, j] = 1e-6
            numeric[i, j] = (value(x + step) - value(x - step)) / 2e-6
    torch.testing.assert_close(gradient, numeric, rtol=1e-6, atol=1e-7)
    assert all(p.grad is None for p in model.parameters())

    # An attack that stops at the refinement, as the published one did, has another gradient.
    end = refine(model, x, kernel=kernel, steps=3, keys=keys, n_draws=2).x.requires_grad_()
    cut = sum(model.label_probs(e)[label][:, 0].log().sum() + (e**2).sum() for e in end)
    (naive,) = torch.autograd.grad(cut, end)
    assert not torch.allclose(naive.sum(0), numeric, rtol=1e-2)


def test_refined_probabilities_are_expectations_over_the_noise(untouched_random_state):
    for name in ("logits", "pair"):
        model, x = make(name), torch.randn(4, 3, generator=seeded(2), dtype=F64)
        settings = {"kernel": Langevin(0.3, 0.5), "steps": 10, "given": {"size": 1}}
        with untouched_random_state():
            found = refine(model, x, n_draws=5, generator=seeded(), **settings)
        assert found.x.shape == (5, 4, 3)
        for label in model.labels:
            mean = torch.stack([model.label_probs(e, {"size": 1})[label] for e in found.x]).mean(0)
            torch.testing.assert_close(found.probs[label], mean.detach())
        keys = torch.arange(4)
        every = refine(model, x, keys=keys, **settings)
        alone = refine(model, x[1:3], keys=keys[1:3], **settings)
        torch.testing.assert_close(every.x[:, 1:3], alone.x, rtol=0, atol=1e-12)
        nothing = refine(model, x, keys=keys, kernel=settings["kernel"], steps=0)
        torch.testing.assert_close(nothing.probs["size"], model.label_probs(x)["size"].detach())
    for wrong, message in (
        ({"kernel": MALA(0.1), "keys": keys}, "Langevin"),
        ({}, "either keys or a generator"),
        ({"keys": keys[:2]}, "int64 tensor of shape"),
        ({"keys": keys, "n_draws": 0}, "n_draws"),
    ):
        with pytest.raises(InputError, match=message):
            refine(model, x, **{"kernel": Langevin(0.1, 0.1), "steps": 1, **wrong})


def test_conversion_leads_from_one_class_to_another():
    # The two classes of the banana lie 2 apart: at first p(c = 1 | x) is small, at the end x has the law of class 1.
    n = 4000
    noise = torch.randn(n, 2, generator=seeded(1), dtype=F64)
    x = torch.stack((noise[:, 0], noise[:, 0] ** 2 / 2 + Banana.variance**0.5 * noise[:, 1]), 1)
    found = convert(banana(), x, {"c": 1}, x_kernel=MALA(0.3), steps=105, every=10, generator=seeded())
    assert found.steps == (*range(0, 101, 10), 105)
    assert found.path.shape == (12, n, 2)
    assert torch.equal(found.path[0], x)
    assert torch.equal(found.path[-1], found.x)
    assert bool((found.y == 1).all())
    assert found.log_prob is not None
    assert float(found.log_prob[0].exp().mean()) < 0.2
    assert float(found.log_prob[-1].exp().mean()) > 0.8
    place = torch.distributions.Normal(0.0, 1.0).cdf(
        (found.x[:, 1] - found.x[:, 0] ** 2 / 2 - 2) / Banana.variance**0.5
    )
    unit = torch.linspace(0, 1, 101, dtype=F64)
    assert kolmogorov_smirnov(place, unit, unit) > ALPHA  # sees .03
    held = convert(
        banana(),
        x[:3],
        {"c": 1},
        mask=torch.tensor([True, False]),
        x_kernel=MALA(0.3),
        steps=5,
        method="marginalize",
        generator=seeded(),
    )
    assert torch.equal(held.path[..., 0], x[:3, 0].expand(6, -1))
    for wrong, message in (
        ({"to": None}, "at least one new label"),
        ({"every": 0}, "every"),
        ({"method": "select"}, "method"),
        ({"mask": torch.ones(2)}, "boolean"),
        ({"mask": torch.ones(3, dtype=torch.bool)}, "shape"),
    ):
        asked = {"to": {"c": 1}, "x_kernel": MALA(0.3), "steps": 1, "generator": seeded(), **wrong}
        with pytest.raises(InputError, match=message):
            convert(banana(), x[:3], **asked)


def test_conversion_of_a_conditional_model_says_what_is_not_known():
    full = {"color": 1, "round": 0, "size": 1}
    model = conditional().double()
    found = convert(model, torch.zeros(2, 3, dtype=F64), full, x_kernel=MALA(0.1), steps=2, generator=seeded())
    assert found.log_prob is None
    assert "unknown normalizing" in found.notes[0]


def gaussian(mean, scale):
    class Energy(nn.Module):
        def forward(self, x):
            return -((x - mean) ** 2).sum(1) / (2 * scale**2)

    return EnergyModel(Energy(), event_shape=(1,))


def test_a_composition_is_the_product_density_on_a_grid_and_its_samples_have_it():
    model, grid = joint_toy(), torch.linspace(-6, 6, 601, dtype=F64)
    conditions = [{"a": 0}, {"b": 1}, {"a": 2, "b": 0}]
    law = Grid.of(model).law
    states = model.labels.enumerate()
    chosen = [(states[:, 0] == 0), (states[:, 1] == 1), (states[:, 0] == 2) & (states[:, 1] == 0)]
    by_hand = sum(law[c].sum(0).log() for c in chosen) + gaussian(0.5, 0.8).log_density(grid[:, None])
    factors = [*((model, c) for c in conditions), gaussian(0.5, 0.8)]
    ours = compose(factors).log_density(grid[:, None]).detach()
    inside = by_hand > -200  # elsewhere the law itself has rounded to zero
    torch.testing.assert_close(ours.log_softmax(0)[inside], by_hand.log_softmax(0)[inside], rtol=0, atol=1e-9)
    together = UnderConditions(model, conditions)
    parts = torch.stack([model.log_density(grid[:, None], model.labels.encode(c, 601)) for c in conditions])
    torch.testing.assert_close(together.log_density(grid[:, None]), parts.sum(0))
    # Sees .03 in the distribution function.
    found = sample_composed(factors, 4000, x_kernel=MALA(0.2), steps=60, start=NOISE, generator=seeded())
    p = by_hand.softmax(0)
    assert kolmogorov_smirnov(found.x, grid + 0.01, p.cumsum(0)) > ALPHA
    torch.testing.assert_close(found.parts.sum(0), found.log_density)
    torch.testing.assert_close(
        found.log_prob[0], model.label_log_prob(found.x, model.labels.encode({"a": 0}, 4000)).detach()
    )
    assert found.log_prob[3] is None


@pytest.mark.parametrize("name", ["logits", "logits, symmetric", "product, closed", "pair", "product, shared labels"])
def test_conditions_add_up_for_every_family(name):
    model, x = make(name), torch.randn(5, 3, generator=seeded(), dtype=F64)
    first, last = model.labels.names[0], model.labels.names[-1]
    conditions = [{first: 0}, {first: 1}, {last: 1}, None]
    by_hand = sum(model.log_density(x, model.labels.given(c, 5)) for c in conditions)
    torch.testing.assert_close(UnderConditions(model, conditions).log_density(x), by_hand)
    # Trained apart, composed with labels left free: one label space, joined by name.
    product = compose([model, (make("logits"), {"color": 2}), make("unconditional")])
    assert isinstance(product, Product)
    assert product.labels == model.labels
    total, parts, log_prob = score_composed([model, (make("logits"), {"color": 2})], x)
    torch.testing.assert_close(parts.sum(0), total)
    assert log_prob[0] is None
    assert log_prob[1] is not None


def test_compositions_that_make_no_sense_are_refused():
    for factors, message in (([], "at least one factor"), ([3], "a factor is"), ([(3, None)], "need a JointModel")):
        with pytest.raises(InputError, match=message):
            compose(factors)
    with pytest.raises(InputError, match="at least one condition"):
        UnderConditions(make("pair"), [])
    with pytest.raises(NormalizerError):
        UnderConditions(conditional(), [{"color": 1}])
    full = {"color": 1, "round": 0, "size": 1}
    assert score_composed([(conditional(), full)], torch.zeros(2, 3))[2] == (None,)


@pytest.mark.parametrize("normalize", [False, True])
def test_distal_rows_stop_where_the_model_is_sure(normalize, untouched_random_state):
    model = make("logits")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)  # sure of itself within reach
    settings = {"step_size": 0.3, "max_steps": 200, "normalize": normalize}
    begin = NOISE3.draw(torch.zeros(6, 3), generator=seeded())
    with untouched_random_state():
        found = distal(model, 6, given={"color": 1}, start=GivenStart(begin), generator=seeded(), **settings)
    asked = model.labels.encode({"color": 1}, 6)
    torch.testing.assert_close(found.probability, model.label_log_prob(found.x, asked).exp().detach())
    assert bool(found.reached.all())
    assert bool((found.probability > 0.9).all())
    assert all(p.grad is None for p in model.parameters())
    # A row alone takes the same way, and one step less is not enough.
    short = int(found.steps.max())
    alone = distal(model, 1, given={"color": 1}, start=GivenStart(begin[2:3]), generator=seeded(), **settings)
    torch.testing.assert_close(alone.x, found.x[2:3])
    assert alone.steps.tolist() == found.steps[2:3].tolist()
    less = distal(
        model,
        6,
        given={"color": 1},
        start=GivenStart(begin),
        generator=seeded(),
        **{**settings, "max_steps": short - 1},
    )
    assert torch.equal(less.reached, found.steps < short)
    # One step by hand.
    x = begin.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.label_log_prob(x, asked).sum(), x)
    by_hand = begin + 0.3 * (gradient / gradient.norm(dim=1, keepdim=True) if normalize else gradient)
    one = distal(
        model, 6, given={"color": 1}, start=GivenStart(begin), generator=seeded(), **{**settings, "max_steps": 1}
    )
    torch.testing.assert_close(one.x, by_hand)


def test_distal_keeps_to_the_box_and_refuses_nonsense():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        boxed = LogitModel(MLP((3, 8, 7)), MIXED, domain=Box(-0.5, 0.5)).double()
    start = UniformStart(-0.5, 0.5, (3,), dtype=F64)
    asked = {"given": {"round": 1}, "start": start, "step_size": 10.0, "max_steps": 20, "above": 0.99999}
    found = distal(boxed, 4, generator=seeded(), **asked)
    assert float(found.x.abs().max()) <= 0.5
    assert not bool(found.reached.any())
    assert found.steps.tolist() == [20] * 4
    for wrong, message in (
        ({"given": None}, "at least one target label"),
        ({"above": 1.0}, "above must be"),
        ({"step_size": 0.0}, "step_size"),
        ({"max_steps": -1}, "max_steps"),
        ({"bounds": (1.0, 0.0)}, "low < high"),
    ):
        with pytest.raises(InputError, match=message):
            distal(boxed, 2, generator=seeded(), **{**asked, **wrong})
    with pytest.raises(NormalizerError):
        distal(conditional().double(), 2, generator=seeded(), **asked)


def brute_force(samples, data, k):
    far = ((samples[:, None] - data[None]) ** 2).flatten(2).sum(2).sqrt()
    order = far.sort(dim=1, stable=True)
    return order.indices[:, :k], order.values[:, :k]


@pytest.mark.parametrize("piece", [1, 7, 64, 5000])
def test_neighbors_are_those_of_brute_force(piece):
    g = seeded()
    data, samples = torch.randn(203, 2, 3, generator=g, dtype=F64), torch.randn(11, 2, 3, generator=g, dtype=F64)
    data[150] = data[20]
    samples[0], samples[1] = data[20], data[30] + 1e-9
    index, distance = brute_force(samples, data, 4)
    for given in (data, (b for b in data.split(50))):
        found = neighbors(samples, given, k=4, piece=piece)
        assert torch.equal(found.index, index)
        torch.testing.assert_close(found.distance, distance, rtol=1e-9, atol=1e-15)
    assert found.index[0, :2].tolist() == [20, 150]  # of equal ones the earlier
    assert float(found.distance[1, 0]) == pytest.approx(math.sqrt(6) * 1e-9, rel=1e-5)  # a near copy is told apart
    assert found.space == "pixels"

    def means(x):
        return x.mean(2)

    by_means = neighbors(samples, data, k=2, features=means, space="row means", piece=piece)
    assert torch.equal(by_means.index, brute_force(means(samples), means(data), 2)[0])
    assert by_means.space == "row means"


def test_neighbors_read_the_data_once_in_pieces_and_refuse_nonsense():
    seen = []

    def features(x):
        seen.append(len(x))
        return x

    data, samples = torch.randn(50, 3, generator=seeded()), torch.zeros(4, 3)
    neighbors(samples, data, features=features, space="itself", piece=8)
    assert max(seen) == 8
    assert sum(seen) == 54
    for wrong, message in (
        ({"k": 51}, "the data have 50 row"),
        ({"k": 0}, "k must be"),
        ({"features": features}, "given together"),
        ({"features": lambda x: 3, "space": "three"}, "one row for each row"),
        ({"data": torch.zeros(3, 2)}, "rows of shape"),
        ({"data": torch.zeros(3, 3, dtype=torch.uint8)}, "floating point"),
        ({"data": [3]}, "must be tensors"),
    ):
        with pytest.raises(InputError, match=message):
            neighbors(samples, **{"data": data, **wrong})

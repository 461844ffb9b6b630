"""Edges where densities and kernels once did something silently wrong, or said nothing a user could read."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from jointenergy import streams
from jointenergy.buffers import Drawn, ReplayBuffer
from jointenergy.errors import EnumerationError, InputError, NormalizerError
from jointenergy.kernels import (
    MALA,
    BlockGibbs,
    ExactGibbs,
    GibbsWithGradients,
    Langevin,
    SingleSiteGibbs,
    State,
    Target,
    last,
    run,
)
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Concat, EnergyModel, LogitModel, PairModel, Product
from jointenergy.starts import ClassGaussianStart, GivenStart, UniformStart
from tests.checks import ALPHA, chi_square, histogram
from tests.exact import index_of, label_law
from tests.tables import MIXED, D, conditional, logit, make, pair

X = torch.randn(4, D, generator=torch.Generator().manual_seed(0))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["product, closed", "product, shared labels", "pair", "logits"])
def test_inference_mode_leaves_no_trace(name):
    # The first call of a process may be in inference mode: what it caches must serve training later.
    LabelSpace({f"fresh {name}": 3}).one_hot(torch.zeros(2, 1, dtype=torch.int64))
    model = make(name, torch.float32, seed=7)
    with torch.inference_mode():
        model.log_density(X)
    model.log_density(X).sum().backward()


@pytest.mark.parametrize("kernel", [Langevin(0.1, 0.1), MALA(0.1), BlockGibbs(GibbsWithGradients(), MALA(0.1))])
def test_chains_run_in_inference_mode(kernel):
    model, target = pair(), None
    with torch.inference_mode():
        target = Target(model)
        inside = last(kernel, target, kernel.init(target, X.clone(), generator=generator()), 3)
    outside = last(kernel, Target(model), kernel.init(Target(model), X, generator=generator()), 3)
    assert torch.equal(inside.x, outside.x)
    assert torch.equal(inside.y, outside.y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_noise_is_noise(dtype):
    keys = streams.chain_keys(200, generator=generator())
    normal, uniform = streams.normal(keys, 200, dtype).float(), streams.uniform(keys, 200, dtype).float()
    assert normal.isfinite().all()
    assert float(normal.std()) == pytest.approx(1.0, abs=0.03)
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.01)
    assert 0.0 < float(uniform.min()) < float(uniform.max()) < 1.0
    model = EnergyModel(nn.Linear(D, 1)).to(dtype)
    kernel = Langevin(0.01, 0.1)
    state = kernel.init(Target(model), X.to(dtype), generator=generator())
    after = last(kernel, Target(model), state, 5)
    assert after.x.dtype == dtype
    assert after.x.isfinite().all()
    assert not torch.equal(after.x, state.x)
    with pytest.raises(InputError, match="MALA accepts by differences of log-densities"):
        MALA(0.01).init(Target(model), X.to(dtype), generator=generator())


class Flat(nn.Module):
    def forward(self, x, code=None):
        return x.new_zeros(len(x))


def test_flat_densities_can_be_sampled():
    for kernel in (Langevin(0.1, 0.1), MALA(0.1)):
        target = Target(EnergyModel(Flat()))
        assert last(kernel, target, kernel.init(target, X, generator=generator()), 3).x.isfinite().all()
    target = Target(PairModel(Flat(), MIXED))
    state = GibbsWithGradients().init(target, X.repeat(2000, 1), generator=generator())
    y = last(GibbsWithGradients(), target, state, 10).y
    assert chi_square(histogram(index_of(MIXED, y), 12), torch.ones(12)) > ALPHA


@pytest.mark.parametrize("kernel", [Langevin(0.1, 0.1), Langevin(0.1, 0.1, bounds=(-1.0, 1.0)), MALA(0.1)])
def test_even_minus_zero_is_not_moved(kernel):
    given, mask = torch.full((4, D), -0.0), torch.tensor([True, False, True])
    target = Target(pair(), given_x=given, mask=mask)
    x = last(kernel, target, kernel.init(target, X, generator=generator()), 3).x
    assert torch.equal(torch.signbit(x[:, mask]), torch.ones(4, 2, dtype=torch.bool))


class TestProductBlocks:
    """Labels that no factor shares are summed apart, so that more is exact than enumeration of all could reach."""

    def model(self):
        big = LabelSpace({"a": 80, "b": 20})
        attributes = LabelSpace.binary([f"c{i}" for i in range(23)])
        both = LabelSpace({"d": 3, "e": 2})
        factors = [pair(big), logit(attributes), pair(both), logit(both.subspace(["d"])), EnergyModel(nn.Linear(D, 1))]
        return Product(factors).double(), factors

    def test_sums_and_probabilities(self):
        model, factors = self.model()
        x = X.double()
        assert model.labels.n_states > 10**9
        apart = Product(factors[2:4])
        exact = sum(f.log_density(x) for f in (factors[0], factors[1], apart, factors[4]))
        torch.testing.assert_close(model.log_density(x), exact)
        probs = model.label_probs(x, {"b": 3})
        torch.testing.assert_close(probs["a"], factors[0].label_probs(x, {"b": 3})["a"])
        torch.testing.assert_close(probs["c7"], factors[1].label_probs(x)["c7"])
        torch.testing.assert_close(probs["d"], apart.label_probs(x)["d"])
        assert list(probs) == list(model.labels)

    def test_exact_gibbs_draws_each_block_from_its_law(self):
        model = Product(
            [pair(LabelSpace({"a": 3})), pair(LabelSpace({"b": 4})), pair(LabelSpace({"b": 4, "c": 2}))]
        ).double()
        x = X[:1].double().expand(20_000, -1)
        kernel, target = ExactGibbs(), Target(model)
        y = last(kernel, target, kernel.init(target, x, generator=generator()), 1).y
        law = label_law(model, x[:1], torch.full((3,), MISSING))[0]
        assert chi_square(histogram(index_of(model.labels, y), 24), law) > ALPHA

    def test_a_factor_is_evaluated_once_for_each_row(self):
        rows = []
        energy = nn.Linear(D, 1)
        energy.register_forward_hook(lambda module, inputs, output: rows.append(len(inputs[0])))
        model = Product([EnergyModel(energy), pair(), logit()])
        model.log_density(X)
        assert rows == [4]

    def test_shared_labels_beyond_the_limit_are_still_refused(self):
        big = LabelSpace({"a": 80, "b": 80})
        with pytest.raises(EnumerationError, match="6,400 states"):
            Product([pair(big), pair(big)]).log_density(X)


def test_enumeration_comes_in_pieces(monkeypatch):
    seen = []
    model = pair()
    model.head.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    whole = model.log_density(X)
    monkeypatch.setattr("jointenergy.models.base.CHUNK", 20)
    torch.testing.assert_close(model.log_density(X), whole)
    assert max(seen[1:]) <= 20 < seen[0]


def eleven(prefix):
    return LabelSpace.binary([f"{prefix}{i}" for i in range(11)])


class TestBlocksThroughWrappers:
    """Tempering, offsets, nesting: what could be summed apart before still can."""

    def test_tempered_nested_and_assumed(self):
        apart = [pair(eleven("a")).double(), pair(eleven("b")).double()]
        big, x = Product(apart), X.double()
        exact = sum(f.log_density(x) for f in apart)
        energy = EnergyModel(nn.Linear(D, 1)).double()
        torch.testing.assert_close(Product([big]).log_density(x), exact)
        torch.testing.assert_close(Product([big, energy]).log_density(x), exact + energy.log_density(x))
        torch.testing.assert_close(big.with_offsets(assume_equal_constants=True).log_density(x), exact)
        tempered = sum(f.tempered(0.5).log_density(x) for f in apart)
        torch.testing.assert_close(big.tempered(0.5).log_density(x), tempered)
        kernel, target = ExactGibbs(), Target(Product([big, energy]))
        assert last(kernel, target, kernel.init(target, x, generator=generator()), 1).y.shape == (4, 22)

    def test_a_closed_form_stays_closed(self):
        attributes = LabelSpace.binary([f"a{i}" for i in range(23)])
        model = LogitModel(nn.Linear(D, 23), attributes, normalizer="conditional")
        assumed = model.with_offsets(assume_equal_constants=True)
        logits = model.network(X)
        torch.testing.assert_close(assumed.log_density(X), nn.functional.softplus(logits).sum(1))
        single = logit(LabelSpace({"k": 4}), normalizer="conditional")
        one = single.with_offsets(torch.arange(4.0))
        assert one.factorized
        expected = (single.network(X) - torch.arange(4.0)).logsumexp(1)
        torch.testing.assert_close(one.log_density(X), expected)

    def test_labels_of_joint_factors_may_be_summed_beside_a_conditional_one(self):
        inner = Product([conditional(), logit(LabelSpace({"style": 3}))])
        y = torch.tensor([[0, 1, 0, MISSING]] * 4)
        for model in (inner, inner.tempered(0.5), Product([inner, EnergyModel(nn.Linear(D, 1))])):
            assert model.log_density(X, y).shape == (4,)
            for missing in (None, torch.tensor([[MISSING, 1, 0, 2]] * 4)):
                with pytest.raises(NormalizerError):
                    model.log_density(X, missing)

    def test_no_labels_at_all(self):
        free, labeled = PairModel(Concat(nn.Linear(D, 1)), LabelSpace.none()), pair()
        energy = EnergyModel(nn.Linear(D, 1))
        assert free.label_probs(X) == {}
        assumed = energy.with_offsets(assume_equal_constants=True)
        torch.testing.assert_close(assumed.log_density(X), energy.log_density(X))
        both = Product([free, labeled])
        torch.testing.assert_close(both.log_density(X), free.log_density(X) + labeled.log_density(X))
        kernel = ExactGibbs()
        assert last(kernel, Target(both), kernel.init(Target(both), X, generator=generator()), 1).y.shape == (4, 3)


def test_a_state_changed_by_hand_is_looked_at_again():
    model = pair()
    kernel, target = Langevin(0.1, 0.1), Target(model)
    state = kernel.init(target, X, torch.zeros(4, 3, dtype=torch.int64), generator=generator())
    freed = replace(state, y=torch.tensor([[0, MISSING, 0]] * 4))
    _, info = next(run(kernel, target, freed, 1))
    torch.testing.assert_close(info.log_density, model.log_density(X, freed.y).detach())
    by_hand = State(state.x, state.y, state.keys)
    assert last(BlockGibbs(ExactGibbs(), kernel), target, by_hand, 1).x.shape == (4, D)


def test_a_step_is_recomputed_wherever_a_step_is_made():
    kernel = Langevin(0.1, 0.1)
    for model in (EnergyModel(Flat()), pair()):
        with torch.inference_mode():
            target = Target(model, given_x=X.clone(), mask=torch.tensor([True, False, False]))
            state = kernel.init(target, X.clone(), generator=generator())
            after = kernel.step(target, state)[0].x
        with torch.no_grad():
            assert torch.equal(kernel.recompute(target, state).detach(), after)


def test_what_is_given_is_a_copy():
    given, mask, labels = X.clone(), torch.ones(4, D, dtype=torch.bool), torch.zeros(4, 3, dtype=torch.int64)
    target = Target(pair(), given_x=given, mask=mask, given_y=labels)
    given.fill_(9.0)
    mask.fill_(False)
    labels.fill_(1)
    assert target.hold_y(torch.full((4, 3), MISSING)).tolist() == [[0, 0, 0]] * 4
    state = Langevin(0.1, 0.1).init(target, torch.zeros(4, D), generator=generator())
    assert torch.equal(last(Langevin(0.1, 0.1), target, state, 2).x, X)


class TestOffsets:
    """The remedy that the error names exists for every family."""

    @pytest.mark.parametrize(
        "make_model",
        [conditional, lambda: pair(normalizer="conditional"), lambda: logit(normalizer="conditional")],
        ids=["conditional", "pair", "logits"],
    )
    def test_with_offsets(self, make_model):
        model = make_model()
        y = torch.tensor([[0, 1, 0], [2, 0, 1], [1, 1, 1], [0, 0, 0]])
        offsets = torch.randn(3, 2, 2, generator=generator())
        related = model.with_offsets(offsets)
        expected = model.log_density(X, y) - offsets[y[:, 0], y[:, 1], y[:, 2]]
        torch.testing.assert_close(related.log_density(X, y), expected)
        assert related.label_probs(X)["color"].shape == (4, 3)
        assert related.assumptions == ()
        if not isinstance(model, type(conditional())):
            corner = related.log_density_of_codes(X, MIXED.one_hot(y))
            torch.testing.assert_close(corner, expected)

    def test_the_assumption_stays_visible(self):
        assumed = conditional().with_offsets(assume_equal_constants=True)
        for model in (assumed, assumed.tempered(2.0), Product([assumed, logit()])):
            assert model.assumptions == ("all labels have equal constants",)

    @pytest.mark.parametrize(
        "wrong",
        [
            {},
            {"offsets": [1.0]},
            {"offsets": torch.zeros(3)},
            {"offsets": torch.zeros(3, 2, 2), "assume_equal_constants": True},
        ],
    )
    def test_wrong_offsets(self, wrong):
        with pytest.raises(InputError, match="offsets"):
            conditional().with_offsets(**wrong)


NAN = torch.full((4, D), math.nan)
SPACE = LabelSpace({"a": 3, "b": 2})
SIDES = LabelSpace({"side": 2})
TARGET = Target(pair())
BOXED = make("unconditional", torch.float32)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: SPACE.one_hot(torch.tensor([[0, -1]])), "'b' takes the values 0 to 1; row 0 has -1"),
        (lambda: SPACE.one_hot(torch.tensor([[3, 0]])), "'a' takes the values 0 to 2; row 0 has 3"),
        (lambda: SPACE.one_hot(torch.zeros(2, 2)), "must be integers"),
        (lambda: SPACE.from_one_hot(torch.zeros(2, 4)), "5 entries a row"),
        (lambda: LabelSpace(["a", "b"]), "mapping from names to values, got list"),
        (lambda: LabelSpace.binary("abc"), "list of names, got the string 'abc'"),
        (lambda: Product([nn.Linear(2, 2)]), "each must be a JointModel"),
        (lambda: BlockGibbs(3, 4), "y_kernel must be a kernel, got 3"),
        (lambda: Langevin(True, 0.1), "positive step_size, got True"),
        (lambda: Langevin(0.1, 0.1, bounds=(0.0,)), "bounds"),
        (lambda: Langevin(0.1, 0.1, schedule=3), "PolynomialDecay"),
        (lambda: Langevin(0.1, 0.1, bounds=3.0), "bounds"),
        (lambda: Langevin.at_temperature("a"), "positive step_size, got a"),
        (lambda: pair().tempered("a"), "inverse temperature must be positive"),
        (lambda: SPACE.from_one_hot([1]), "5 entries a row, got list"),
        (lambda: Target(3), "a target needs a JointModel, got int"),
        (lambda: BOXED.log_likelihood([[1.0]], log_normalizer=0.0), "tensor of floats, got list"),
        (lambda: Langevin.at_temperature(1.0, 0.0), "Langevin needs a finite positive temperature"),
        (lambda: Target(pair(), given_x=X, mask=[True]), "mask must be a boolean tensor"),
        (lambda: Target(pair(), given_y=torch.zeros(0, 3, dtype=torch.int64)), "given_y has no rows"),
        (
            lambda: run(SingleSiteGibbs(), TARGET, MALA(0.1).init(TARGET, X, generator=generator()), 1),
            "some of the state are missing",
        ),
        (lambda: ReplayBuffer(5, (D,), MIXED).store(Drawn.fresh(NAN, torch.zeros(4, 3).long())), "NaN or infinite"),
        (lambda: ReplayBuffer(5, (D,), MIXED).store(Drawn.fresh(X[:0], torch.zeros(0, 3).long())), "empty batch"),
        (lambda: ReplayBuffer(5.0, (D,), MIXED), "capacity must be an integer"),
        (lambda: GivenStart(NAN), "NaN or infinite"),
        (lambda: GivenStart([1.0]), "tensor of floats, got list"),
        (lambda: ClassGaussianStart.fit(NAN, torch.zeros(4, 1).long(), SIDES), "NaN or infinite"),
        (lambda: ClassGaussianStart.fit(X[:, 0], torch.zeros(4, 1).long(), SIDES), "one row per example"),
        (lambda: UniformStart.of_batch(NAN), "NaN or infinite"),
        (lambda: BOXED.log_likelihood(X, log_normalizer=torch.zeros(4, 1)), "log_normalizer"),
        (lambda: BOXED.log_likelihood(X, log_normalizer=torch.zeros(3)), "log_normalizer"),
    ],
)  # fmt: skip
def test_bad_input(call, sentence):
    with pytest.raises(InputError, match=sentence) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_rows_of_another_shape_are_not_broadcast():
    model = LogitModel(nn.Linear(2, 3), LabelSpace({"a": 3}))
    target = Target(model, given_x=torch.zeros(4, 1), mask=torch.ones(4, 1, dtype=torch.bool))
    with pytest.raises(InputError, match=r"given_x has rows of shape \(1,\), x of \(2,\)"):
        Langevin(0.1, 0.1).init(target, torch.zeros(4, 2), generator=generator())


def test_numbers_of_numpy_are_numbers():
    assert LabelSpace({"a": np.int64(3)}).encode({"a": np.int64(2)}).tolist() == [[2]]
    assert Langevin(np.float32(0.5), np.float64(0.1)).temperature == pytest.approx(0.01)


def test_complete_labels_are_not_searched_for_missing_ones(monkeypatch):
    model = pair()
    monkeypatch.setattr(type(model), "completions", lambda *_: pytest.fail("the labels were searched"))
    kernel, target = BlockGibbs(GibbsWithGradients(), Langevin(0.1, 0.1)), Target(model)
    last(kernel, target, kernel.init(target, X, generator=generator()), 2)

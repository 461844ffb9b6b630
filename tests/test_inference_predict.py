"""Prediction, ranking, detection and conditional densities against enumeration, quadrature and brute force.

Statistical checks are seeded; each fails a right program with the rate ALPHA, were its seed drawn afresh. More than 300
lines: the four tasks are held to the same exact laws, and their mutants stand beside them.
"""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from jointenergy.errors import EnumerationError, InputError, NormalizerError
from jointenergy.inference import rows
from jointenergy.inference.density import label_log_prob, label_table
from jointenergy.inference.detect import (
    Threshold,
    abstain,
    compatibility,
    confidence,
    confidence_threshold,
    detect,
    score,
)
from jointenergy.inference.predict import Cooling, predict, predict_by_sampling, predict_joint, predict_proba, search
from jointenergy.inference.rank import rank
from jointenergy.kernels import MALA, BlockGibbs, ExactGibbs, GibbsWithGradients, SingleSiteGibbs, Target, last
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Box, Concat, EnergyModel, JointModel, LogitModel, PairModel, Product, Reals
from jointenergy.networks import MLP
from jointenergy.starts import UniformStart
from tests.checks import ALPHA, chi_square
from tests.exact import index_of, label_law
from tests.tables import MODELS, Y_KERNELS, D, conditional, logit, make, mask_model, pair

N = 4
EXACT = {"rtol": 1e-6, "atol": 1e-9}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def built(maker, seed=0, gain=1.0):
    """A model with seeded weights, its layers scaled so that labels matter more."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = maker().double()
    for p in model.parameters():
        p.data *= gain
    return model


def data(model, n=N, seed=0):
    g = seeded(seed)
    x = torch.randn(n, *(model.event_shape or (D,)), generator=g, dtype=torch.float64)
    columns = [torch.randint(c, (n,), generator=g) for c in model.labels.cardinalities]
    return x, torch.stack(columns, 1) if columns else torch.zeros(n, 0, dtype=torch.int64)


def some_given(model, y):
    """Labels of which each row gives other ones: nothing, the first, the last, all but one, ..."""
    given = y.clone()
    for i in range(len(y)):
        for k in range(y.shape[1]):
            if (i >> (k % 3)) % 2 == 0:
                given[i, k] = MISSING
    return given


def laws(model, x, given):
    """p(y | x, given) over all states, each row with its own given labels, from complete labels alone."""
    return torch.cat([label_law(model, x[i : i + 1], given[i : i + 1]) for i in range(len(x))])


@pytest.fixture(params=MODELS)
def model(request):
    return make(request.param)


class TestExact:
    def test_probabilities_and_predictions_given_any_others(self, model):
        x, y = data(model)
        for given in (torch.full_like(y, MISSING), some_given(model, y), y):
            law, states = laws(model, x, given), model.labels.enumerate()
            probs = predict_proba(model, x, given)
            assert list(probs) == list(model.labels)
            for k, p in enumerate(probs.values()):
                by_hand = torch.stack([law[:, states[:, k] == v].sum(1) for v in range(p.shape[1])], 1)
                torch.testing.assert_close(p, by_hand, **EXACT)
            labels = predict(model, x, given)
            assert labels.shape == y.shape
            assert torch.equal(labels[given != MISSING], given[given != MISSING])
            for k, p in enumerate(probs.values()):
                assert torch.equal(labels[:, k], p.argmax(1))

    def test_the_best_labels_together_are_those_of_brute_force(self, model):
        x, y = data(model)
        for given in (torch.full_like(y, MISSING), some_given(model, y), y):
            law = laws(model, x, given)
            best = predict_joint(model, x, given)
            assert torch.equal(index_of(model.labels, best.labels), law.argmax(1))
            torch.testing.assert_close(best.log_prob, law.max(1).values.log(), **EXACT)

    def test_tables_of_any_labels_in_any_order(self, model):
        x, y = data(model)
        given = some_given(model, y)
        law = laws(model, x, given).view(N, *model.labels.cardinalities)
        every = [n for size in range(4) for n in itertools.permutations(model.labels, size)]
        for names in every:
            columns = [model.labels.index(name) for name in names]
            rest = [1 + k for k in range(len(model.labels)) if k not in columns]
            by_hand = law.sum(rest) if rest else law
            kept = sorted(columns)
            by_hand = by_hand.permute(0, *(1 + kept.index(k) for k in columns))
            torch.testing.assert_close(label_table(model, x, names, given), by_hand, **EXACT)
        torch.testing.assert_close(label_table(model, x, given=given), law, **EXACT)

    def test_compatibility_is_probability_and_place_among_all_labelings(self, model):
        x, y = data(model)
        given = some_given(model, y)
        asked = y.clone()
        asked[1, :1] = asked[2, 1:] = MISSING
        found = compatibility(model, x, asked, given)
        law, states = laws(model, x, given), model.labels.enumerate()
        for i in range(N):
            named = (asked[i] != MISSING).nonzero()[:, 0].tolist()
            masses: dict[tuple[int, ...], float] = {}
            for s, p in zip(states[:, named].tolist(), law[i].tolist(), strict=True):
                masses[tuple(s)] = masses.get(tuple(s), 0.0) + p
            own = masses[tuple(asked[i, named].tolist())]
            torch.testing.assert_close(found.log_prob[i].exp().item(), own, **EXACT)
            assert int(found.rank[i]) == 1 + sum(m > own * (1 + 1e-12) for m in masses.values())
        probs = predict_proba(model, x, given)
        for k, p in enumerate(probs.values()):
            seen = asked[:, k] != MISSING
            assert torch.equal(found.variable_probs[seen, k], p[seen].gather(1, asked[seen, k, None])[:, 0])
            assert found.variable_probs[~seen, k].isnan().all()
        torch.testing.assert_close(label_log_prob(model, x, asked, given), found.log_prob)

    def test_the_better_of_two_labelings(self, model):
        x, y = data(model)
        other = (y + 1) % torch.tensor(model.labels.cardinalities, dtype=torch.int64)
        other[0, 1:] = MISSING
        found = rank(model, x, y, other)
        difference = model.log_density(x, y) - model.log_density(x, other)
        torch.testing.assert_close(found.log_odds, difference, **EXACT)
        assert torch.equal(found.winner == 0, difference > 0)
        back = rank(model, x, other, y)
        torch.testing.assert_close(back.log_odds, -found.log_odds)
        equal = rank(model, x, y, y)
        assert bool((equal.winner == MISSING).all())
        assert bool((equal.log_odds == 0).all())

    def test_scores_of_x(self, model):
        x, y = data(model)
        torch.testing.assert_close(score(model, x, "log_density"), model.log_density(x))
        if len(model.labels):
            law = laws(model, x, torch.full_like(y, MISSING))
            torch.testing.assert_close(score(model, x, "max_probability"), law.max(1).values, **EXACT)
        else:
            with pytest.raises(InputError, match="the model has none: use log_density"):
                score(model, x, "max_probability")
        at = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model.log_density(at).sum(), at)
        torch.testing.assert_close(score(model, x, "gradient_norm"), -gradient.norm(dim=1))
        assert all(p.grad is None for p in model.parameters())

    def test_names_stand_for_numbers(self):
        model = make("pair")
        x, _ = data(model)
        by_name = predict_proba(model, x, {"color": "blue"})
        number = model.labels.encode({"color": 2}, N)
        for name, p in predict_proba(model, x, number).items():
            assert torch.equal(p, by_name[name])
        named = rank(model, x, {"color": "red"}, {"color": "blue"}, {"size": 1})
        red, blue = (model.labels.encode({"color": c, "size": 1}, N) for c in (0, 2))
        torch.testing.assert_close(named.log_odds, model.log_density(x, red) - model.log_density(x, blue))


OF_ALL = ("log_density", "max_probability", "gradient_norm")  # of any model; the others are of classifiers


def scored_by(name):
    return lambda m, x, g: [score(m, x, name, g)]


def all_summed(name):
    return lambda m, x, y: score(m, x, name)


# Functions of (model, x, given), of which every row must answer for itself.
ROWWISE = {
    "predict_proba": lambda m, x, g: list(predict_proba(m, x, g).values()),
    "predict": lambda m, x, g: [predict(m, x, g)],
    "predict_joint": lambda m, x, g: list(vars(predict_joint(m, x, g)).values()),
    "predict_by_sampling": lambda m, x, g: sampled(predict_by_sampling(m, x, SingleSiteGibbs(), **SHORT(), given=g)),
    "search": lambda m, x, g: list(vars(search(m, x, steps=30, restarts=3, generator=seeded(), given=g)).values()),
    "compatibility": lambda m, x, g: list(vars(compatibility(m, x, g, None)).values()),
    "label_table": lambda m, x, g: [label_table(m, x, ["size", "color"], g)],
    "label_log_prob": lambda m, x, g: [label_log_prob(m, x, g)],
    "rank": lambda m, x, g: list(vars(rank(m, x, g, torch.zeros_like(g))).values()),
    "masked": lambda m, x, g: sampled(
        predict_by_sampling(m, x, BlockGibbs(ExactGibbs(), MALA(0.1)), **SHORT(), given=g, mask=x > 0)
    ),
    "confidence": lambda m, x, g: [confidence(m, x, g)],
    **{name: scored_by(name) for name in OF_ALL},
}


def SHORT():  # noqa: N802 (a table of arguments, with a fresh generator at each use)
    return {"n_chains": 6, "steps": 9, "generator": seeded(5)}


def tensors(result):
    return [v for v in vars(result).values() if isinstance(v, torch.Tensor)]


def sampled(result):
    return [*tensors(result), *result.shares.values()]


class TestRows:
    @pytest.mark.parametrize("task", ROWWISE)
    @pytest.mark.parametrize("name", ["pair, reference", "product, closed"])
    def test_a_row_answers_for_itself(self, task, name, monkeypatch, untouched_random_state):
        model = make(name)
        x, y = data(model, n=7)
        given = some_given(model, y)
        before = x.clone(), given.clone()
        with untouched_random_state():
            whole = ROWWISE[task](model, x, given)
        assert torch.equal(x, before[0])
        assert torch.equal(given, before[1])
        assert all(p.grad is None for p in model.parameters())
        assert not any(v.requires_grad for v in whole)
        # The first rows alone, and with other rows behind them.
        fewer = ROWWISE[task](model, x[:3], given[:3])
        other = ROWWISE[task](model, torch.cat((x[:3], -2 * x[3:])), torch.cat((given[:3], y[3:])))
        # In pieces that split rows, and the chains of a row, from each other.
        monkeypatch.setattr(rows, "ROWS", 4)
        split = ROWWISE[task](model, x, given)
        for a, b, c, d in zip(whole, fewer, other, split, strict=True):
            torch.testing.assert_close(b, a[:3], equal_nan=True)
            torch.testing.assert_close(c[:3], a[:3], equal_nan=True)
            torch.testing.assert_close(d, a, equal_nan=True)

    @pytest.mark.parametrize("task", ROWWISE)
    def test_single_precision_and_inference_mode(self, task):
        model = make("pair, reference", torch.float32)
        x, y = data(model)
        with torch.inference_mode():
            values = ROWWISE[task](model, x.float(), some_given(model, y))
        assert all(v.dtype in (torch.float32, torch.int64) for v in values)

    def test_no_more_rows_at_once_than_stated(self):
        model = logit().double()
        seen = []
        model.network.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
        x, _ = data(model, n=2 * rows.ROWS + 10)
        predict(model, x), predict_joint(model, x), score(model, x, "gradient_norm"), label_table(model, x)
        predict_by_sampling(model, x[:300], ExactGibbs(), n_chains=7, steps=1, generator=seeded())
        assert max(seen) == rows.ROWS

    def test_no_more_states_at_once_than_stated(self, monkeypatch):
        model = built(lambda: pair(LabelSpace.binary([f"b{i}" for i in range(10)])))
        seen = []
        model.head.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
        monkeypatch.setattr(rows, "CHUNK", 3000)
        predict(model, data(model, n=20)[0])
        assert max(seen) == 2 * 1024


# Sampling. 3,000 chains know a share to .009: the mutants below are off by ten times that.
CHAINS = 3000
STEPS = {"exact gibbs": 1}  # 40 for the others


def p_values(result, model, x, given):
    probs = predict_proba(model, x, given)
    counts = {name: (s * result.n_chains).round() for name, s in result.shares.items()}
    found = [chi_square(counts[name][i], p[i]) for name, p in probs.items() for i in range(len(x))]
    # Where all is given and all chains agree there is nothing to test.
    return [1.0 if math.isnan(p) else p for p in found]


class TestSampling:
    @pytest.mark.parametrize("kernel", Y_KERNELS)
    def test_shares_are_the_exact_marginals(self, kernel):
        # 10 checks, each with the false-failure rate ALPHA. Exact Gibbs arrives in one step.
        model = built(pair, gain=2.0)
        x, y = data(model, n=2)
        for given in (torch.full_like(y, MISSING), torch.tensor([[2, MISSING, MISSING], [MISSING, 1, MISSING]])):
            found = predict_by_sampling(
                model,
                x,
                Y_KERNELS[kernel],
                n_chains=CHAINS,
                steps=STEPS.get(kernel, 40),
                generator=seeded(1),
                given=given,
            )
            assert min(p_values(found, model, x, given)) > ALPHA
            assert torch.equal(found.labels, torch.stack([s.argmax(1) for s in found.shares.values()], 1))
            held = given != MISSING
            assert torch.equal(found.labels[held], given[held])
            assert torch.equal(found.one_sample[held], given[held])

    def test_a_mutant_that_forgets_what_is_given_is_found(self):
        model = built(pair, gain=2.0)
        x, _ = data(model, n=2)
        given = model.labels.encode({"color": 2}, 2)
        forgets = predict_by_sampling(model, x, ExactGibbs(), n_chains=CHAINS, steps=2, generator=seeded(1))
        assert min(p_values(forgets, model, x, given)) < ALPHA

    def test_a_mutant_that_never_leaves_its_start_is_found(self):
        model = built(pair, gain=2.0)
        x, y = data(model, n=2)
        stays = predict_by_sampling(model, x, ExactGibbs(), n_chains=CHAINS, steps=0, generator=seeded(1))
        assert min(p_values(stays, model, x, torch.full_like(y, MISSING))) < ALPHA
        # And the start is the uniform one.
        for s in stays.shares.values():
            assert min(chi_square((s[i] * CHAINS).round(), torch.ones(s.shape[1])) for i in range(2)) > ALPHA

    def test_one_sample_is_a_joint_draw(self):
        # Correlated labels: marginals alone would not tell. 3,000 rows of equal x, one chain each.
        model = built(pair, gain=3.0)
        x = data(model)[0][:1].expand(3000, -1)
        found = predict_by_sampling(model, x, SingleSiteGibbs(), n_chains=1, steps=60, generator=seeded(2))
        assert torch.equal(found.labels, found.one_sample)
        law = label_law(model, x[:1], torch.full((1, 3), MISSING))[0]
        counts = torch.bincount(index_of(model.labels, found.one_sample), minlength=12)
        assert chi_square(counts, law) > ALPHA
        shuffled = torch.stack([found.one_sample[torch.randperm(3000, generator=seeded(k)), k] for k in range(3)], 1)
        assert chi_square(torch.bincount(index_of(model.labels, shuffled), minlength=12), law) < ALPHA

    def test_more_chains_go_on_where_fewer_began(self):
        model = make("pair")
        x, _ = data(model)
        few, many = (
            predict_by_sampling(model, x, ExactGibbs(), n_chains=n, steps=3, generator=seeded()) for n in (2, 9)
        )
        assert torch.equal(few.one_sample, many.one_sample)

    def test_labels_beyond_enumeration(self):
        model = mask_model()
        x = torch.rand(2, 1, 28, 28, generator=seeded(), dtype=torch.float64)
        with pytest.raises(EnumerationError, match=r"inference\.search"):
            predict_joint(model, x)
        found = predict_by_sampling(model, x, GibbsWithGradients(), n_chains=2, steps=3, generator=seeded())
        assert found.labels.shape == (2, 784)
        best = search(model, x, steps=40, restarts=2, generator=seeded())
        torch.testing.assert_close(best.log_density, model.log_density(x, best.labels))


class Plane(nn.Module):
    """Three classes in the plane, unequal and tilted Gaussians: the second coordinate tells what the first does not."""

    def forward(self, x):
        a, b = x[:, :1], x[:, 1:]
        centers = torch.tensor([[-0.8, -0.5], [0.6, 0.9], [0.5, -0.9]], dtype=x.dtype)
        tilt = torch.tensor([0.9, -0.6, 0.4], dtype=x.dtype)
        da, db = a - centers[:, 0], b - centers[:, 1]
        return torch.tensor([0.3, 0.0, -0.5], dtype=x.dtype) - 2 * da**2 - 2.5 * db**2 + 2 * tilt * da * db


class TestPartlyObserved:
    # 3,000 chains, one check a row, each with the false-failure rate ALPHA.
    KERNEL = BlockGibbs(ExactGibbs(), MALA(0.08), x_steps=2)

    def model(self):
        return LogitModel(Plane(), LabelSpace({"class": 3}), domain=Box(-2.0, 2.0), event_shape=(2,))

    def by_quadrature(self, x, mask):
        grid = torch.linspace(-2, 2, 2001, dtype=torch.float64)
        points = x.repeat(len(grid), 1)
        points[:, ~mask] = grid[:, None]
        f = Plane()(points)
        weights = torch.ones(len(grid), 1, dtype=torch.float64)
        weights[[0, -1]] = 0.5
        return (f + weights.log()).logsumexp(0).softmax(0)

    def p_values(self, *, believed):
        found = predict_by_sampling(
            self.model(), self.X, self.KERNEL, n_chains=CHAINS, steps=30, generator=seeded(3), mask=believed
        )
        counts = (found.shares["class"] * CHAINS).round()
        return [chi_square(counts[i], self.by_quadrature(self.X[i : i + 1], self.MASK[i])) for i in range(3)]

    X = torch.tensor([[0.4, 0.2], [-0.3, 1.1], [1.2, -0.4]], dtype=torch.float64)
    MASK = torch.tensor([[True, False], [True, False], [False, True]])

    def test_agrees_with_numerical_integration(self):
        assert min(self.p_values(believed=self.MASK)) > ALPHA

    def test_a_mutant_that_looks_at_what_is_not_observed_is_found(self):
        assert max(self.p_values(believed=torch.ones_like(self.MASK))) < ALPHA

    def test_what_is_not_observed_is_not_looked_at(self):
        junk = torch.where(self.MASK, self.X, torch.nan)
        a, b = (
            predict_by_sampling(self.model(), x, self.KERNEL, n_chains=3, steps=5, generator=seeded(), mask=self.MASK)
            for x in (self.X, junk)
        )
        assert torch.equal(a.shares["class"], b.shares["class"])

    def test_chains_start_all_over_the_domain_and_hold_what_is_observed(self):
        given = torch.full((3, 1), MISSING)
        for domain, width in ((Box(-2.0, 2.0), 4 / math.sqrt(12)), (Reals(1.5), 1.5)):
            model = LogitModel(Plane(), LabelSpace({"class": 3}), domain=domain)
            keys = rows.row_keys(self.X, generator=seeded())
            (chains,) = rows.label_chains(
                model, self.X, self.KERNEL, n_chains=300, keys=keys, given=given, mask=self.MASK
            )
            x = chains.state.x.view(3, 300, 2)
            assert torch.equal(x[:, 0][self.MASK], self.X[self.MASK])
            assert float(x.std(1)[self.MASK].max()) < 1e-12
            # The deviation of 300 draws is known to 4 in 100 at the most: 25 are 6 of those.
            torch.testing.assert_close(x.std(1)[~self.MASK], torch.full((3,), width).double(), rtol=0.25, atol=0.0)

    def test_starts(self):
        reference = LogitModel(Plane(), LabelSpace({"class": 3}), domain=Reals(1.0))
        improper = LogitModel(Plane(), LabelSpace({"class": 3}))
        run = {"n_chains": 2, "steps": 1, "mask": self.MASK, "generator": seeded()}
        predict_by_sampling(reference, self.X, self.KERNEL, **run)
        predict_by_sampling(improper, self.X, self.KERNEL, **run, x_start=UniformStart.of_batch(self.X))
        with pytest.raises(InputError, match="give x_start="):
            predict_by_sampling(improper, self.X, self.KERNEL, **run)


class Spins(nn.Module):
    """Binary labels that pull at each other, with a field that x gives."""

    def __init__(self, n):
        super().__init__()
        self.pull, self.field = nn.Parameter(torch.randn(n, n)), nn.Linear(D, n)

    def forward(self, features, code):
        spin = 2 * code[:, 1::2] - 1
        return ((spin @ self.pull) * spin).sum(1) / 2 + (self.field(features) * spin).sum(1)


TWELVE = LabelSpace.binary([f"b{i}" for i in range(12)])
# The scale of the log-density differs by a thousand between them: the same schedule serves.
SEARCHED = {
    "flat network": (lambda: PairModel(Concat(MLP((D + 24, 32, 1))), TWELVE), 1.0),
    "network": (lambda: PairModel(Concat(MLP((D + 24, 32, 32, 1))), TWELVE), 3.0),
    "spins": (lambda: PairModel(Spins(12), TWELVE), 1.0),
}


class TestSearch:
    @pytest.mark.parametrize("name", SEARCHED)
    def test_finds_the_best_of_4096_labelings(self, name):
        maker, gain = SEARCHED[name]
        model = built(maker, gain=gain)
        x, y = data(model, n=30, seed=1)
        given = torch.full_like(y, MISSING)
        given[:, 3] = y[:, 3]
        best = predict_joint(model, x, given)
        found = search(model, x, steps=600, restarts=3, generator=seeded(), given=given)
        assert float((found.labels == best.labels).all(1).double().mean()) >= 0.95
        assert torch.equal(found.labels[:, 3], y[:, 3])
        torch.testing.assert_close(found.log_density, model.log_density(x, found.labels))
        assert bool((found.log_density <= model.log_density(x, best.labels) + 1e-12).all())

    def test_a_search_that_only_starts_is_worse(self):
        model = built(*SEARCHED["spins"])
        x, _ = data(model, n=40, seed=1)
        begun = search(model, x, steps=1, restarts=3, generator=seeded())
        assert float((begun.labels == predict_joint(model, x).labels).all(1).double().mean()) < 0.2

    def test_without_codes_by_single_sites(self):
        model = make("conditional, offsets")
        x, _ = data(model)
        found = search(model, x, steps=200, restarts=3, generator=seeded())
        assert torch.equal(found.labels, predict_joint(model, x).labels)

    def test_the_best_state_is_kept_and_not_the_last(self):
        # Hot to the end, the last states are far from the best seen.
        model = built(*SEARCHED["spins"])
        x, _ = data(model, n=20, seed=1)
        kernel, hot = GibbsWithGradients(), Cooling(30.0, 30.0, 2)
        kept = search(model, x, steps=150, restarts=1, generator=seeded(), schedule=hot)
        target = Target(model.tempered(1 / 30))
        final = last(kernel, target, kernel.init(target, x, generator=seeded()), 150).y
        with torch.no_grad():
            assert float((kept.log_density - model.log_density(x, final)).min()) > 0

    def test_schedule(self):
        assert Cooling(8.0, 1.0, 4).temperatures() == pytest.approx([8.0, 4.0, 2.0, 1.0])


def test_ranks_and_tables_of_labels_beyond_enumeration():
    # Independent labels have closed sums, but ranks and tables go through all labelings.
    labels = LabelSpace.binary([f"b{i}" for i in range(30)])
    model = built(lambda: logit(labels), gain=2.0)
    x, y = data(model)
    asked = y.clone()
    asked[:, 6:] = MISSING
    assert bool((compatibility(model, x, y).rank == 0).all())
    assert bool((compatibility(model, x, asked).rank > 0).all())
    with pytest.raises(EnumerationError, match="choose fewer labels"):
        label_table(model, x)


class TestThreshold:
    def test_keeps_the_share_that_it_states(self):
        scores = torch.randperm(1000, generator=seeded()).double()
        for quantile in (0.0, 0.05, 0.5, 1 - 0.9, 1 - 0.3, 0.999):
            threshold = Threshold.fit("log_density", scores, quantile)
            assert int(threshold.accepts(scores).sum()) == round(1000 * (1 - quantile))
            assert threshold.n_rows == 1000
        saturated = Threshold.fit("max_probability", torch.ones(10), 0.5)
        assert bool(saturated.accepts(torch.ones(3)).all())
        assert not bool(saturated.accepts(torch.tensor([torch.nan, 0.999])).any())

    def test_comes_back_from_json(self):
        threshold = Threshold.fit("gradient_norm", torch.rand(100, generator=seeded()), 0.1)
        plain = json.loads(json.dumps(threshold.to_dict()))
        assert Threshold.from_dict(plain) == threshold
        for broken in ({**plain, "extra": 1}, {"score": "log_density"}, {**plain, "value": math.inf}, 3):
            with pytest.raises(InputError):
                Threshold.from_dict(broken)

    @pytest.mark.parametrize("name", OF_ALL)
    def test_tells_far_from_near(self, name):
        class Bell(nn.Module):
            def forward(self, x):
                f = -(x**2).sum(1, keepdim=True) * 2
                return torch.cat((f, f - 4 + (x**2).sum(1, keepdim=True) / 2), dim=1)

        model = LogitModel(Bell(), LabelSpace({"class": 2}), domain=Box(-9.0, 9.0))
        near = torch.randn(500, D, generator=seeded(), dtype=torch.float64) / 2
        threshold = Threshold.fit(name, score(model, near, name), 0.05)
        assert float(detect(model, near, threshold).inside.double().mean()) == 0.95
        far = 2.8 / math.sqrt(D) * torch.ones(1, D, dtype=torch.float64)
        assert not bool(detect(model, far, threshold).inside.any())
        # Outside the box there is no density, whatever the network says.
        assert not bool(detect(model, torch.full((1, D), 9.1).double(), replace(threshold, value=-1e9)).inside.any())

    def test_given_labels_count(self):
        model = make("pair")
        x, y = data(model)
        torch.testing.assert_close(score(model, x, "log_density", y), model.log_density(x, y))
        assert torch.equal(score(model, x, "max_probability", y), torch.ones(N, dtype=torch.float64))


class TestAbstain:
    def test_reaches_the_stated_coverage_on_the_rows_that_it_was_fitted_to(self):
        model = built(pair, gain=2.0)
        x, _ = data(model, n=200)
        for coverage in (0.1, 0.5, 0.9, 1.0):
            threshold = confidence_threshold(model, x, coverage)
            assert threshold.n_rows == 200
            found = abstain(model, x, threshold)
            assert found.coverage == pytest.approx(coverage, abs=1 / 600)
            answered = found.labels != MISSING
            assert float(answered.double().mean()) == found.coverage
            assert torch.equal(found.labels[answered], predict(model, x)[answered])
            if coverage < 1:
                assert float(found.confidence[answered].min()) > float(found.confidence[~answered].max())

    def test_given_labels_are_no_answers(self):
        model = built(pair, gain=2.0)
        x, _ = data(model, n=100)
        given = {"color": "green"}
        threshold = confidence_threshold(model, x, 0.4, given)
        found = abstain(model, x, threshold, given)
        assert bool((found.labels[:, 0] == 1).all())
        assert float((found.labels[:, 1:] != MISSING).double().mean()) == found.coverage == pytest.approx(0.4)


RUN = {"n_chains": 2, "steps": 1}
COMPARES = {
    "predict_proba": lambda m, x, y: predict_proba(m, x),
    "predict": lambda m, x, y: predict(m, x),
    "predict_joint": lambda m, x, y: predict_joint(m, x),
    "predict_by_sampling": lambda m, x, y: predict_by_sampling(m, x, SingleSiteGibbs(), **RUN, generator=seeded()),
    "search": lambda m, x, y: search(m, x, steps=2, restarts=1, generator=seeded()),
    "rank": lambda m, x, y: rank(m, x, y, (y + 1) % 2),
    "compatibility": lambda m, x, y: compatibility(m, x, y),
    "label_table": lambda m, x, y: label_table(m, x),
    "label_log_prob": lambda m, x, y: label_log_prob(m, x, y),
    "confidence": lambda m, x, y: confidence(m, x),
    **{name: all_summed(name) for name in OF_ALL},
}


REFUSED = {
    "x": (lambda m, x, y: predict(m, x[:, :2]), r"x must have shape \[n, 3\]"),
    "given": (lambda m, x, y: predict(m, x, {"colour": 1}), "there is no label called 'colour'"),
    "a second value": (lambda m, x, y: label_log_prob(m, x, y, (y + 1) % 2), "other than the one given"),
    "a second value to rank": (lambda m, x, y: rank(m, x, y, y, (y + 1) % 2), "other than the one given"),
    "a label twice": (lambda m, x, y: label_table(m, x, ["size", "size"]), "chosen twice"),
    "a string for names": (lambda m, x, y: label_table(m, x, "size"), "a list of names"),
    "score": (lambda m, x, y: score(m, x, "density"), "did you mean 'log_density'"),
    "a kernel on x": (
        lambda m, x, y: predict_by_sampling(m, x, MALA(0.1), **RUN, generator=seeded()),
        "must move labels alone",
    ),
    "both without a mask": (
        lambda m, x, y: predict_by_sampling(m, x, BlockGibbs(ExactGibbs(), MALA(0.1)), **RUN, generator=seeded()),
        "a BlockGibbs needs a mask",
    ),
    "a mask without a kernel on x": (
        lambda m, x, y: predict_by_sampling(m, x, ExactGibbs(), **RUN, generator=seeded(), mask=x > 0),
        "must be a BlockGibbs, got ExactGibbs",
    ),
    "a mask of numbers": (
        lambda m, x, y: predict_by_sampling(m, x, ExactGibbs(), **RUN, generator=seeded(), mask=x),
        "mask must be a boolean tensor",
    ),
    "a mask of another shape": (
        lambda m, x, y: predict_by_sampling(m, x, ExactGibbs(), **RUN, generator=seeded(), mask=x[:2] > 0),
        "the shape of x or of one row",
    ),
    "no chains": (
        lambda m, x, y: predict_by_sampling(m, x, ExactGibbs(), n_chains=0, generator=seeded()),
        "the number of chains must be an integer of at least 1",
    ),
    "no restarts": (lambda m, x, y: search(m, x, restarts=0, generator=seeded()), "the number of restarts"),
    "no steps": (lambda m, x, y: search(m, x, steps=0, generator=seeded()), "the number of steps"),
    "heating": (lambda m, x, y: Cooling(1.0, 2.0), "needs cold <= hot"),
    "coverage": (lambda m, x, y: confidence_threshold(m, x, 0.0), "coverage must be more than 0"),
    "quantile": (lambda m, x, y: Threshold.fit("log_density", torch.ones(3), 1.0), "less than 1"),
    "no scores": (lambda m, x, y: Threshold.fit("log_density", torch.ones(0), 0.5), "finite scores"),
    "threshold": (
        lambda m, x, y: detect(m, x, confidence_threshold(m, x, 0.5)),
        "says nothing of x: fit it to one of log_density",
    ),
    "threshold to abstain": (
        lambda m, x, y: abstain(m, x, Threshold("log_density", 0.1, 0.0, 5)),
        "needs a threshold on 'confidence'",
    ),
}


class TestRefusals:
    @pytest.mark.parametrize("task", COMPARES)
    def test_a_conditional_model_until_its_labels_are_related(self, task):
        model = built(conditional)
        x, y = data(model)
        with pytest.raises(NormalizerError, match=r"relate them by with_offsets"):
            COMPARES[task](model, x, y)
        COMPARES[task](model.with_offsets(assume_equal_constants=True), x, y)

    def test_a_conditional_model_answers_what_compares_no_labels(self):
        model = built(conditional)
        x, y = data(model)
        torch.testing.assert_close(score(model, x, "log_density", y), model.log_density(x, y))
        assert torch.equal(predict(model, x, y), y)
        both = built(lambda: Product([conditional(), logit(LabelSpace({"weight": 3}))]))
        first, second = (torch.cat((y, torch.full((N, 1), w)), 1) for w in (0, 2))
        torch.testing.assert_close(
            rank(both, x, first, second).log_odds, both.log_density(x, first) - both.log_density(x, second)
        )

    MODEL = make("pair")
    X, Y = data(MODEL)

    @pytest.mark.parametrize("case", REFUSED)
    def test_one_sentence(self, case):
        call, sentence = REFUSED[case]
        with pytest.raises(InputError, match=sentence) as caught:
            call(self.MODEL, self.X, self.Y)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("weight", [torch.nan, torch.finfo(torch.float64).max])
    def test_values_that_are_no_numbers(self, weight):
        """Fails if weights that are finite but overflow give probabilities of NaN."""
        for name in ("pair", "logits"):
            model: JointModel = make(name)
            for values in model.parameters():
                values.data.fill_(weight)
            for task in (predict, predict_proba, predict_joint):
                with pytest.raises(InputError, match="no numbers for 4 row"):
                    task(model, self.X)

    def test_a_model_without_labels(self):
        model = EnergyModel(MLP((D, 8, 1)).double(), domain=Box(-5.0, 5.0))
        assert predict(model, self.X).shape == (N, 0)
        assert float(predict_joint(model, self.X).log_prob.abs().max()) == 0
        for task in (
            lambda: predict_by_sampling(model, self.X, ExactGibbs(), generator=seeded()),
            lambda: confidence_threshold(model, self.X, 0.5),
            lambda: abstain(model, self.X, Threshold("confidence", 0.5, 0.5, 9)),
        ):
            with pytest.raises(InputError, match=r"has no(ne| labels)|has none"):
                task()

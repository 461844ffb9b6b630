"""Score matching, noise contrastive estimation and energy discrepancy: each is least at the law of the data.

Expectations are sums over all states or quadratures, in float64, so that a gradient of zero is zero to 1e-9. Mutants:
another sign, another noise scale, a noise density that is left out.
"""

import math

import pytest
import torch
from torch import nn

import jointenergy as je
from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.kernels import Langevin
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Box, EnergyModel, PairModel, Reals
from jointenergy.objectives import (
    NCE,
    Batch,
    DenoisingScoreMatching,
    Discrepancy,
    Draws,
    EnergyDiscrepancy,
    FittedNoise,
    LogPYGivenX,
    NoiseContrastiveEstimation,
    NoiseDraws,
    NoiseSource,
    Objective,
    Samples,
    ScoreMatching,
)
from jointenergy.objectives.noise import log_step, step, step_score
from jointenergy.runs.description import describe, rebuild
from tests.checks import ALPHA, chi_square, histogram
from tests.tables import make, mask_model

BOX = Box(-1.0, 1.0)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def slopes(term, model, batch, draws):
    """The gradient of the expected loss by all weights."""
    total = Objective((term,))(model, batch, draws).total
    found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


def legendre(n, low, high):
    """Nodes and weights of Gauss and Legendre on an interval."""
    k = torch.arange(1, n, dtype=torch.float64)
    off = k / (4 * k**2 - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return low + (high - low) * (nodes + 1) / 2, (high - low) * vectors[0] ** 2


def fine_grid(domain):
    """Midpoints so close that sums over them are integrals."""
    low, high = (-1.0, 1.0) if domain is BOX else (-6.0, 6.0)
    return low + (high - low) * (torch.arange(12_000, dtype=torch.float64) + 0.5) / 12_000


class Blurred(nn.Module):
    """The log-density of points with shares to be learned, blurred by noise with a scale to be learned."""

    def __init__(self, points, shares, scale, domain):
        super().__init__()
        self.points, self.domain = points, domain
        self.log_shares, self.log_scale = (nn.Parameter(t.log()) for t in (shares, double(scale)[0]))

    def forward(self, x):
        return (self.log_shares + log_step(x, self.points, self.log_scale.exp(), self.domain)).logsumexp(1)


class TestScoreMatching:
    """Three points in a box, one of them at a wall, or in R: the noised density is known in closed form."""

    points, shares, scale = double(-1.0, -0.3, 0.6), double(0.2, 0.5, 0.3), 0.25

    def slopes(self, domain, *, scale=None, noise_scale=None, drawn=None, temperature=1.0):
        """Of the expected loss at the law blurred by `scale`; drawn noise has `drawn`, the term assumes noise_scale."""
        drawn = drawn or self.scale
        nodes, weights = legendre(300, *((-1.0, 1.0) if domain is BOX else (-5.0, 5.0)))
        x, noised = self.points.repeat_interleave(300)[:, None], nodes.repeat(3)[:, None]
        chance = self.shares.repeat_interleave(300) * weights.repeat(3) * log_step(noised, x, drawn, domain)[:, 0].exp()
        blurred = EnergyModel(Blurred(self.points, self.shares, scale or self.scale, domain), domain=domain)
        model = blurred if temperature == 1.0 else blurred.tempered(temperature)
        term = DenoisingScoreMatching(noise_scale=noise_scale or self.scale, temperature=temperature)
        batch = Batch(x, weight=len(x) * chance)
        return slopes(term, model, batch, Draws(noised=Samples(noised)))

    @pytest.mark.parametrize("domain", [BOX, Reals()], ids=["box", "reals"])
    def test_the_gradient_is_zero_at_the_noised_law(self, domain):
        assert float(self.slopes(domain).abs().max()) < 1e-9
        assert float(self.slopes(domain, temperature=0.1).abs().max()) < 1e-9

    @pytest.mark.parametrize("domain", [BOX, Reals()], ids=["box", "reals"])
    def test_mutants(self, domain, monkeypatch):
        assert float(self.slopes(domain, scale=0.2).abs().max()) > 1e-2  # a law that is blurred less
        assert float(self.slopes(domain, noise_scale=0.2).abs().max()) > 1e-2  # the term assumes another noise
        right = step_score
        monkeypatch.setattr("jointenergy.objectives.score_matching.step_score", lambda *a: -right(*a))
        assert float(self.slopes(domain).abs().max()) > 1e-2

    def test_a_box_without_images_is_wrong(self, monkeypatch):
        plain = lambda to, center, scale, _: (center - to) / scale**2  # noqa: E731 (a mutant)
        monkeypatch.setattr("jointenergy.objectives.score_matching.step_score", plain)
        assert float(self.slopes(BOX).abs().max()) > 1e-3

    @pytest.mark.parametrize("missing", [False, True])
    def test_rows_are_given_their_labels_or_have_them_summed_out(self, missing):
        """Two classes at one point each: for either pattern zero at the law; complete labels leave levels open."""
        nodes, weights = legendre(300, -5.0, 5.0)
        mean, share = double(-1.0, 0.5), double(0.3, 0.7)

        class Classes(nn.Module):
            def __init__(self):
                super().__init__()
                self.level, self.mean = nn.Parameter(share.log()), nn.Parameter(mean.clone())

            def forward(self, x, code):
                return (code * (self.level + log_step(x, self.mean, 0.5, Reals()))).sum(1)

        classes = Classes()
        model = PairModel(classes, LabelSpace({"class": 2}))
        y = torch.arange(2).repeat_interleave(300)[:, None]
        x, noised = mean[y], nodes.repeat(2)[:, None]
        chance = share[y[:, 0]] * weights.repeat(2) * log_step(noised, x, 0.5, Reals())[:, 0].exp()
        batch = Batch(x, torch.full_like(y, MISSING) if missing else y, weight=600 * chance)
        term = DenoisingScoreMatching(noise_scale=0.5)
        assert float(slopes(term, model, batch, Draws(noised=Samples(noised))).abs().max()) < 1e-9
        with torch.no_grad():
            classes.level.add_(double(0.5, -0.5))
        changed = float(slopes(term, model, batch, Draws(noised=Samples(noised))).abs().max())
        assert changed > 1e-3 if missing else changed < 1e-9


class Table(nn.Module):
    """A log-density with a free value for each of some points x and each label."""

    def __init__(self, values):
        super().__init__()
        self.values = nn.Parameter(values)

    def forward(self, x, code):
        return (self.values[x[:, 0].long()] * code).sum(1)


def tables(n=3):
    """A law of n points and two labels, a noise law, and a model at the first up to a constant."""
    g = torch.Generator().manual_seed(0)
    law, noise = (torch.randn(n, 2, generator=g, dtype=torch.float64).flatten().softmax(0).view(n, 2) for _ in "ab")
    return law, noise, PairModel(Table(law.log() + 3.0), LabelSpace({"class": 2}))


class TestNoiseContrastiveEstimation:
    def slopes(self, *, missing=False, sign=1.0, known=1.0):
        """All of (a row, two draws of noise), each by its probability."""
        law, noise, model = tables()
        states = torch.cartesian_prod(torch.arange(3), torch.arange(2))
        p, q = law.flatten(), noise.flatten()
        triples = torch.cartesian_prod(*[torch.arange(6)] * 3)
        chance = p[triples[:, 0]] * q[triples[:, 1]] * q[triples[:, 2]]
        rows, drawn = states[triples[:, 0]], states[triples[:, 1:].flatten()]
        of = (lambda s: noise[s[:, 0]].sum(1).log()) if missing else (lambda s: noise[s[:, 0], s[:, 1]].log())
        y, drawn_y = (torch.full_like(s[:, 1:], MISSING) if missing else s[:, 1:] for s in (rows, drawn))
        model = model if sign == 1.0 else PairModel(Table(sign * law.log()), model.labels)
        found = NoiseDraws(Samples(drawn[:, :1].double(), drawn_y), known * of(drawn), known * of(rows))
        batch = Batch(rows[:, :1].double(), y, weight=len(rows) * chance)
        return slopes(NoiseContrastiveEstimation(n_noise=2), model, batch, Draws(noise=found))

    @pytest.mark.parametrize("missing", [False, True])
    def test_the_gradient_is_zero_at_the_law_whatever_its_constant(self, missing):
        assert float(self.slopes(missing=missing).abs().max()) < 1e-12

    @pytest.mark.parametrize(
        "mutant", [{"sign": -1.0}, {"known": 0.0}, {"known": -1.0}], ids=["energy", "no noise density", "its inverse"]
    )
    def test_mutants(self, mutant):
        assert float(self.slopes(**mutant).abs().max()) > 1e-2

    @pytest.mark.parametrize("domain", [BOX, Reals()], ids=["box", "reals"])
    @pytest.mark.parametrize("labels", [{"class": 2}, {"a": 2, "b": 3}, {}], ids=["class", "two labels", "none"])
    def test_the_fitted_noise_is_a_density_and_has_its_draws(self, domain, labels):
        """It adds up to 1 over x and labels, and a histogram of draws agrees; a label that is missing is summed out."""
        space, g = LabelSpace(labels), torch.Generator().manual_seed(0)
        y = torch.stack([torch.randint(c, (500,), generator=g) for c in space.cardinalities], 1) if labels else None
        y = torch.zeros(500, 0, dtype=torch.int64) if y is None else y
        x = (torch.randn(500, 1, generator=g, dtype=torch.float64) * 0.4 + 0.5 * y[:, :1].sum(1, True)).clamp(-1, 1)
        noise = FittedNoise.fit(x, y, space, domain)
        nodes, weights = legendre(400, *((-1.0, 1.0) if domain is BOX else (-9.0, 9.0)))
        states = space.enumerate() if labels else torch.zeros(1, 0, dtype=torch.int64)
        at = [noise.log_density(nodes[:, None], s.expand(400, -1)).exp() for s in states]
        assert float((sum(at) * weights).sum()) == pytest.approx(1.0, abs=1e-9)
        unlabeled = noise.log_density(nodes[:, None], torch.full((400, len(labels)), MISSING)).exp()
        torch.testing.assert_close(sum(at), unlabeled, rtol=1e-10, atol=1e-14)
        drawn, labels_drawn = noise.draw(torch.zeros(20_000, len(labels), dtype=torch.int64), (1,), generator=g)
        assert bool(domain.contains(drawn).all())
        edges = torch.linspace(-0.9, 0.9, 10, dtype=torch.float64)
        fine = fine_grid(domain)
        cells = torch.bucketize(fine, edges)
        exact = torch.stack(
            [
                torch.zeros(11, dtype=torch.float64).index_add(
                    0, cells, noise.log_density(fine[:, None], s.expand(len(fine), -1)).exp()
                )
                for s in states
            ]
        ).flatten()
        which = (labels_drawn[:, None] == states).all(2).long().argmax(1)
        place = which * 11 + torch.bucketize(drawn[:, 0].contiguous(), edges)
        assert chi_square(histogram(place, len(exact)), exact / exact.sum()) > ALPHA
        open_labels = noise.draw(torch.full((5, len(labels)), MISSING), (1,), generator=g)[1]
        assert bool((open_labels == MISSING).all())


class TestEnergyDiscrepancy:
    def slopes(self, *, again=None, sign=1.0):
        """All of (a row, the point it is noised to, two states from there), by a symmetric kernel on 4 points."""
        law, _, _ = tables(4)
        labels = LabelSpace({"class": 2})
        model = PairModel(Table(sign * law.log() + double(2.0, -1.0)), labels)  # levels of labels are left open
        kernel = double(*([0.4, 0.3, 0.2, 0.1], [0.3, 0.3, 0.15, 0.25], [0.2, 0.15, 0.6, 0.05], [0.1, 0.25, 0.05, 0.6]))
        again = kernel if again is None else again
        at = torch.cartesian_prod(*[torch.arange(4)] * 4, torch.arange(2))
        x, middle, one, two, y = at.unbind(1)
        chance = law[x, y] * kernel[x, middle] * again[middle, one] * again[middle, two]
        states = Samples(torch.stack((one, two), 1).flatten()[:, None].double(), y.repeat_interleave(2)[:, None])
        batch = Batch(x[:, None].double(), y[:, None], weight=len(at) * chance)
        return slopes(EnergyDiscrepancy(n_noise=2), model, batch, Draws(renoised=states))

    def test_the_gradient_is_zero_at_the_law_given_labels(self):
        assert float(self.slopes().abs().max()) < 1e-12

    def test_mutants(self):
        assert float(self.slopes(sign=-1.0).abs().max()) > 1e-2
        other = 0.7 * torch.eye(4, dtype=torch.float64) + 0.3 / 4
        assert float(self.slopes(again=other).abs().max()) > 1e-3  # the way back has another noise scale


@pytest.mark.parametrize("domain", [BOX, Reals()], ids=["box", "reals"])
def test_a_step_has_its_density_and_score(domain):
    nodes, weights = legendre(400, *((-1.0, 1.0) if domain is BOX else (-9.0, 9.0)))
    for center, scale in ((-1.0, 0.1), (0.3, 0.5), (0.95, 0.4)):
        to = nodes.clone().requires_grad_()
        log = log_step(to, double(center), scale, domain)
        assert float((log.exp() * weights).sum().detach()) == pytest.approx(1.0, abs=1e-10)
        (slope,) = torch.autograd.grad(log.sum(), to)
        torch.testing.assert_close(slope, step_score(nodes, double(center), scale, domain), rtol=1e-9, atol=1e-9)
        x = step(torch.full((20_000,), center, dtype=torch.float64), scale, domain, torch.Generator().manual_seed(0))
        edges = torch.linspace(-0.8, 0.8, 9, dtype=torch.float64)
        fine = fine_grid(domain)
        mass = log_step(fine, double(center), scale, domain).exp()
        exact = torch.zeros(10, dtype=torch.float64).index_add(0, torch.bucketize(fine, edges), mass)
        assert chi_square(histogram(torch.bucketize(x, edges), 10), exact / exact.sum()) > ALPHA


def test_energy_discrepancy_noises_twice():
    batch = Batch(torch.zeros(20_000, 1, dtype=torch.float64))
    source = NoiseSource(Reals(), torch.Generator().manual_seed(0))
    found = EnergyDiscrepancy(n_noise=2, noise_scale=0.3).draw(Draws(), batch, source).renoised
    assert found is not None
    x = found.x.view(-1, 2)
    spread = torch.cov(x.T)
    assert float(spread[0, 0]) == pytest.approx(2 * 0.3**2, rel=0.05)
    assert float(spread[0, 1]) == pytest.approx(0.3**2, rel=0.05)  # both from one noised point


PARTS = {"score-matching": ScoreMatching, "nce": NCE, "energy-discrepancy": Discrepancy}


@pytest.mark.parametrize("name", PARTS)
def test_fit_and_recipes_take_it(name):
    objective = PARTS[name]()
    term = objective.terms[0]
    assert rebuild(describe(term), "objective") == term
    recipe = recipes.load("digits-jem", [f"objective={name}"])
    assert getattr(recipe.objective, term.name) == 1.0
    assert recipe.objective.log_p_x == 0.0
    g = torch.Generator().manual_seed(0)
    y = torch.randint(2, (60,), generator=g)
    x = torch.randn(60, 2, generator=g) + 2.0 * y[:, None]
    y[:20] = MISSING  # summed out
    network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    quick = {"iterations": 3, "steps": 2, "sampling_steps": 3, "verbose": False, "labels": 2}
    run = je.fit(network, (x, y), objective=objective, **quick)
    assert run.origin.density
    assert len(run.sample(4).x) == 4
    assert math.isfinite(run.health().auroc_fresh)
    again = je.fit(run.model.requires_grad_(True), (x, y), **{k: v for k, v in quick.items() if k != "labels"})
    assert again.origin.density  # from its weights with chains


def test_the_temperature_is_that_of_the_chains():
    model, term = make("logits"), DenoisingScoreMatching()
    assert term.at(0.01).temperature == 0.01
    assert DenoisingScoreMatching(temperature=2.0).at(0.01).temperature == 2.0
    batch = Batch(torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.int64))
    draws = Draws(noised=Samples(torch.ones(3, 3, dtype=torch.float64)))
    cold = Objective((term.at(0.5),))(model, batch, draws).total
    same = 0.5 * Objective((term,))(model.tempered(2.0), batch, draws).total
    torch.testing.assert_close(cold, same)  # the value is multiplied by T, as the likelihood of f is


def test_alone_it_leaves_levels_between_labels_open():
    x, y = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 2
    run = je.fit(nn.Linear(2, 2), (x, y), objective=EnergyDiscrepancy(), iterations=2, sampling_steps=2, verbose=False)
    assert run.model.normalizer == "conditional"


def fitted(objective, kernel=None):
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    x[0, 0] = torch.nan
    y = torch.arange(30) % 2
    je.fit(
        nn.Linear(2, 2),
        (x if kernel is None else x[1:], y if kernel is None else y[1:]),
        objective=objective,
        kernel=kernel,
        iterations=2,
        verbose=False,
    )


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: DenoisingScoreMatching(noise_scale=0.0), "finite positive noise_scale"),
        (lambda: EnergyDiscrepancy(temperature=-1.0), "finite positive temperature"),
        (lambda: NoiseContrastiveEstimation(n_noise=0), "n_noise"),
        (lambda: fitted(ScoreMatching()), "needs complete x"),
        (lambda: fitted(NCE(), Langevin(0.1, 0.0)), "temperature 0"),
        (
            lambda: DenoisingScoreMatching(noise_scale=0.6).needs(EnergyModel(nn.Linear(3, 1), domain=BOX)),
            "a quarter of its width",
        ),
        (lambda: EnergyDiscrepancy().needs(mask_model()), "too many"),
        (lambda: FittedNoise.fit(torch.ones(9, 2), torch.zeros(9, 0, dtype=torch.int64), LabelSpace({}), BOX), "equal"),
        (lambda: recipes.load("digits-jem", ["objective=score-matching", "data.missing_x=0.1"]), "complete x"),
        (
            lambda: recipes.load(
                "digits-jem", ["objective={log_p_x=0.0, log_p_y_given_x=0.0, energy_discrepancy=1.0}"]
            ),
            "one unknown normalizer per label",
        ),
        (lambda: misaligned(DenoisingScoreMatching(), noised=Samples(torch.zeros(2, 3).double())), "give 1 for each"),
        (lambda: misaligned(EnergyDiscrepancy(), renoised=Samples(torch.zeros(2, 3).double())), "give 8 for each"),
        (lambda: misaligned(NoiseContrastiveEstimation()), "needs draws.noise"),
    ],
)
def test_what_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def misaligned(term, **draws):
    Objective((term, LogPYGivenX()))(make("logits"), Batch(torch.zeros(4, 3).double()), Draws(**draws))

"""Objectives on finite grids: gradients of the loss against the enumerated log-likelihood, in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from jointenergy import labels as label_room
from jointenergy.errors import NormalizerError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import JointModel, LogitModel, Product
from jointenergy.objectives import (
    Batch,
    Draws,
    LikelihoodTerm,
    LogPX,
    LogPXGivenY,
    LogPXY,
    LogPYGivenX,
    Objective,
    Samples,
    Term,
    frequency_weights,
)
from tests.tables import D, conditional, make, pair

TOLERANCE = 1e-10
TERMS: dict[str, Term] = {t.name: t for t in (LogPX(), LogPYGivenX(), LogPXY(), LogPXGivenY())}
FAMILIES = [
    "logits",
    "logits, one class",
    "logits, tuple of heads",
    "logits, symmetric",
    "pair",
    "pair, bilinear",
    "pair, reference",
    "conditional, offsets",
    "conditional, equal constants",
    "unconditional",
    "product, closed",
    "product, shared labels",
    "product, without codes",
    "tempered pair",
]
SAMPLED = ["pair", "pair, bilinear", "product, shared labels", "conditional, offsets"]
"""Families without a closed form: with the enumeration forbidden, their sums come from draws."""


@pytest.fixture(autouse=True)
def one_thread():
    """The tensors are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class World:
    """The whole space: a grid of 27 points x and all labels; every sum over it is made from complete labels alone."""

    def __init__(self, model: JointModel) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(2.0)  # as initialized some are nearly flat, and would bite too softly
        self.model = model
        self.x = torch.cartesian_prod(*[torch.tensor([-1.0, 0.2, 1.1], dtype=torch.float64)] * D)
        self.y = model.labels.enumerate()
        self.n_x, self.n_y = len(self.x), len(self.y)

    def log_density(self) -> Tensor:
        """f at all states, `[n_x, n_y]`, with its graph."""
        x, y = self.x.repeat_interleave(self.n_y, 0), self.y.repeat(self.n_x, 1)
        return self.model.log_density_of_complete(x, y).view(self.n_x, self.n_y)

    def agrees(self, batch: Any, name: str) -> Tensor:
        """Which states agree with what `name` gives of each row, bool `[n, n_x, n_y]`."""
        mask = torch.ones_like(batch.x, dtype=torch.bool) if batch.mask is None else batch.mask
        in_x = ((self.x == batch.x[:, None]) | ~mask[:, None]).all(2)
        in_y = ((self.y == batch.y[:, None]) | (batch.y == MISSING)[:, None]).all(2)
        every_x, every_y = torch.ones_like(in_x), torch.ones_like(in_y)
        x = in_x if name in ("given_x", "given_xy") else every_x
        y = in_y if name in ("given_y", "given_xy") else every_y
        return x[:, :, None] & y[:, None, :]

    def log_sums(self, batch: Any, name: str) -> Tensor:
        """The log of the sum over what agrees, for each row."""
        f = self.log_density().expand(len(batch.x), -1, -1)
        return f.masked_fill(~self.agrees(batch, name), -torch.inf).flatten(1).logsumexp(1)

    def log_likelihood(self, term: Term, batch: Any) -> Tensor:
        """The definition: the sum over the rows that the term applies to, divided by the batch size."""
        assert isinstance(term, LikelihoodTerm)
        labeled = (batch.y != MISSING).any(1)
        ratio = self.log_sums(batch, term.over) - self.log_sums(batch, term.under)
        if isinstance(term, LogPYGivenX) or (isinstance(term, LogPXGivenY) and len(self.model.labels)):
            ratio = ratio * labeled
        return ratio.sum() / len(batch.x)

    def draws(self, batch: Any, *, labels: bool = True) -> Any:
        """All states with their exact probabilities; with labels=False the labels that are free stay MISSING."""
        f = self.log_density().detach()

        def law(name: str) -> Any:
            agrees = self.agrees(batch, name)
            p = f.masked_fill(~agrees, -torch.inf).flatten(1).softmax(1).view_as(agrees)
            y = self.y.expand(len(p), -1, -1)
            if not labels:
                p = p.sum(2, keepdim=True)
                given = batch.y if name in ("given_y", "given_xy") else torch.full_like(batch.y, MISSING)
                y = given[:, None]
            row, i, j = p.nonzero(as_tuple=True)
            return Samples(self.x[i], y[row, j], p[row, i, j], row)

        anywhere = law("negatives")
        first = anywhere.row == 0
        negatives = Samples(anywhere.x[first], anywhere.y[first], anywhere.weight[first])
        return Draws(negatives, law("given_x"), law("given_y"), law("given_xy"))


def batch_of(world: World, patterns: list[tuple[int, ...]], masked: bool = False, seed: int = 0) -> Any:
    """One row for each pattern of missing labels; masked: x observed in anything from nowhere to everywhere."""
    g = torch.Generator().manual_seed(seed)
    n = len(patterns)
    x = world.x[torch.randint(world.n_x, (n,), generator=g)]
    y = world.y[torch.randint(world.n_y, (n,), generator=g)].clone()
    for i, missing in enumerate(patterns):
        y[i, list(missing)] = MISSING
    if not masked:
        return Batch(x, y)
    every = torch.cartesian_prod(*[torch.tensor([False, True])] * D)
    return Batch(x, y, every[(torch.arange(n) * 3 + 6) % len(every)])


def all_patterns(model: JointModel) -> list[tuple[int, ...]]:
    n = len(model.labels)
    return [p for k in range(n + 1) for p in itertools.combinations(range(n), k)]


def gradients(value: Tensor, model: JointModel) -> Tensor:
    weights = list(model.parameters())
    grads = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in grads])


def error(objective: Objective, world: World, batch: Any, draws: Draws) -> float:
    """The largest difference between the loss's gradient and that of minus the enumerated log-likelihood."""
    wanted = sum(t.weight * world.log_likelihood(t, batch) for t in objective.terms if isinstance(t, LikelihoodTerm))
    loss = objective(world.model, batch, draws)
    return float((gradients(loss.total, world.model) + gradients(wanted, world.model)).abs().max())


class TestExact:
    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("family", FAMILIES)
    def test_every_missing_pattern_in_one_batch(self, family, masked):
        world = World(make(family))
        batch = batch_of(world, all_patterns(world.model), masked)
        for labels in (True, False):
            draws = world.draws(batch, labels=labels)
            errors = {name: error(Objective((term,)), world, batch, draws) for name, term in TERMS.items()}
            assert max(errors.values()) < TOLERANCE, errors

    @pytest.mark.parametrize("family", ["logits", "pair"])
    def test_each_missing_pattern_alone(self, family):
        world = World(make(family))
        for i, pattern in enumerate(all_patterns(world.model)):
            batch = batch_of(world, [pattern] * 2, seed=i)
            draws = world.draws(batch)
            for term in TERMS.values():
                assert error(Objective((term,)), world, batch, draws) < TOLERANCE

    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("family", SAMPLED)
    def test_beyond_enumeration(self, family, masked, monkeypatch):
        world = World(make(family))
        batch = batch_of(world, all_patterns(world.model), masked)
        draws = world.draws(batch)
        monkeypatch.setattr(label_room, "ENUMERATION_LIMIT", 1)
        errors = {name: error(Objective((term,)), world, batch, draws) for name, term in TERMS.items()}
        assert max(errors.values()) < TOLERANCE, errors

    def test_a_model_that_knows_no_sum_over_labels(self):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            world = World(conditional().double())
        term = Objective((LogPXGivenY(),))
        # A row without labels does not apply, and is no reason to refuse the others.
        batch = batch_of(world, [(), (), (0, 1, 2), ()])
        assert error(term, world, batch, world.draws(batch)) < TOLERANCE
        for other in (LogPX(), LogPXY(), LogPYGivenX()):
            with pytest.raises(NormalizerError):
                Objective((other,))(world.model, batch, world.draws(batch))
        partly = batch_of(world, [(), (1,)])
        with pytest.raises(NormalizerError):
            term(world.model, partly, world.draws(partly))

    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_chain_rule(self, family, masked):
        world = World(make(family))
        batch = batch_of(world, all_patterns(world.model), masked=masked)
        draws = world.draws(batch)
        factored = (LogPX() + LogPYGivenX())(world.model, batch, draws)
        joint = Objective((LogPXY(),))(world.model, batch, draws)
        difference = gradients(factored.total, world.model) - gradients(joint.total, world.model)
        assert difference.abs().max() < TOLERANCE

    def test_weights_of_terms_add_up(self):
        world = World(make("pair"))
        batch = batch_of(world, all_patterns(world.model))
        objective = 0.5 * LogPX() + 2.0 * LogPYGivenX() + LogPXGivenY(0.3) + LogPXY()
        assert error(objective, world, batch, world.draws(batch)) < TOLERANCE

    @pytest.mark.parametrize("family", FAMILIES)
    def test_exact_values(self, family):
        world = World(make(family))
        batch = batch_of(world, all_patterns(world.model))
        loss = Objective((LogPYGivenX(),))(world.model, batch)
        wanted = world.log_likelihood(LogPYGivenX(), batch)
        torch.testing.assert_close(loss.parts["log_p_y_given_x"], wanted.detach())
        torch.testing.assert_close(loss.total, -wanted)

    def test_draws_one_by_one_are_right_on_average(self, monkeypatch):
        """Row-aligned draws without `row`: each completion of a row as the one draw, averaged by its probability."""
        world = World(make("pair"))
        batch = batch_of(world, [(0, 1, 2)])
        draws = world.draws(batch)
        monkeypatch.setattr(label_room, "ENUMERATION_LIMIT", 1)
        total = torch.zeros(sum(p.numel() for p in world.model.parameters()), dtype=torch.float64)
        for i, p in enumerate(draws.given_x.weight):
            one = Samples(batch.x, draws.given_x.y[i : i + 1])
            loss = Objective((LogPX(),))(world.model, batch, replace(draws, given_x=one))
            total += p * gradients(loss.total, world.model)
        assert (total + gradients(world.log_likelihood(LogPX(), batch), world.model)).abs().max() < TOLERANCE


class TestConstants:
    """States and weights of draws enter as constants, even when they carry a graph."""

    def graph_draws(self, world: World, batch: Any) -> Draws:
        draws = world.draws(batch)
        nudge = torch.stack([p.sum() for p in world.model.parameters()]).sum()
        nothing = nudge - nudge.detach()
        moved = {
            name: Samples(s.x + nothing, s.y, s.weight * (1 + nothing * torch.arange(len(s.x))), s.row)
            for name, s in vars(draws).items()
            if s is not None
        }
        return Draws(**moved)

    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("name", TERMS)
    def test_no_gradient_through_draws(self, name, masked):
        world = World(make("pair"))
        batch = batch_of(world, all_patterns(world.model), masked=masked)
        assert error(Objective((TERMS[name],)), world, batch, self.graph_draws(world, batch)) < TOLERANCE

    def test_a_mutant_with_a_gradient_through_states_or_weights_fails(self, monkeypatch):
        world = World(make("pair"))
        batch = batch_of(world, all_patterns(world.model))
        draws = self.graph_draws(world, batch)
        with monkeypatch.context() as m:
            m.setattr(Tensor, "detach", lambda self: self)
            loss = Objective((LogPXY(),))(world.model, batch, draws)
        wanted = gradients(world.log_likelihood(LogPXY(), batch), world.model)
        assert (gradients(loss.total, world.model) + wanted).abs().max() > 1e-3


@dataclass(frozen=True)
class Flipped(LikelihoodTerm):
    name: ClassVar[str] = "flipped"
    over: ClassVar = "negatives"
    under: ClassVar = "given_xy"

    def applies(self, values):
        return values.with_x


@dataclass(frozen=True)
class Undivided(LikelihoodTerm):
    name: ClassVar[str] = "undivided"
    over: ClassVar = "given_xy"
    under: ClassVar = "negatives"

    def applies(self, values):
        return values.with_x

    def value(self, values, terms):
        return super().value(values, terms) * values.n


@dataclass(frozen=True)
class Everywhere(LikelihoodTerm):
    name: ClassVar[str] = "everywhere"
    over: ClassVar = "given_xy"
    under: ClassVar = "given_y"

    def applies(self, values):
        return values.with_x


class TestTeeth:
    """Broken twins must fail the exact test, by far."""

    def distance(self, mutant: Term, right: Term, family: str = "pair", draws: Draws | None = None) -> float:
        world = World(make(family))
        batch = batch_of(world, all_patterns(world.model))
        loss = Objective((mutant,))(world.model, batch, draws or world.draws(batch))
        wanted = gradients(world.log_likelihood(right, batch), world.model)
        return float((gradients(loss.total, world.model) + wanted).abs().max())

    def test_flipped_sign(self):
        assert self.distance(Flipped(), LogPXY()) > 1e-3

    def test_no_division_by_the_batch_size(self):
        assert self.distance(Undivided(), LogPXY()) > 1e-3

    def test_rows_without_labels_counted_in_p_of_x_given_y(self):
        assert self.distance(Everywhere(), LogPXGivenY()) > 1e-3

    def test_the_wrong_negatives(self):
        assert self.distance(LogPXGivenY(), LogPXY()) > 1e-3

    def test_labels_of_negatives_ignored(self):
        world = World(make("pair"))
        draws = world.draws(batch_of(world, all_patterns(world.model)))
        blind = replace(draws.negatives, y=torch.zeros_like(draws.negatives.y))
        assert self.distance(LogPXY(), LogPXY(), draws=replace(draws, negatives=blind)) > 1e-3

    def test_weights_of_negatives_ignored(self):
        world = World(make("pair"))
        draws = world.draws(batch_of(world, all_patterns(world.model)))
        blind = replace(draws.negatives, weight=None)
        assert self.distance(LogPXY(), LogPXY(), draws=replace(draws, negatives=blind)) > 1e-3

    def test_weights_of_completions_ignored(self, monkeypatch):
        world = World(make("pair"))
        batch = batch_of(world, all_patterns(world.model))
        draws = world.draws(batch)
        blind = replace(draws.given_xy, weight=None)
        monkeypatch.setattr(label_room, "ENUMERATION_LIMIT", 1)
        assert error(Objective((LogPXY(),)), world, batch, replace(draws, given_xy=blind)) > 1e-3


class TestLabelWeights:
    @pytest.mark.parametrize("family", ["logits", "logits, one class", "logits, symmetric", "product, closed"])
    def test_against_torch(self, family):
        model = make(family)
        world = World(model)
        batch = batch_of(world, all_patterns(model) * 3)
        weights = frequency_weights(batch.y, model.labels)
        loss = Objective((LogPYGivenX(label_weights=weights),))(model, batch)
        blocks = model.label_logits(batch.x).logits.split(model.labels.cardinalities, 1)
        by_label = [
            torch.nn.functional.cross_entropy(
                b, batch.y[:, k], torch.tensor(w, dtype=b.dtype), ignore_index=MISSING, reduction="sum"
            )
            for k, (b, w) in enumerate(zip(blocks, weights, strict=True))
        ]
        wanted = torch.stack(by_label).sum() / len(batch.x)
        torch.testing.assert_close(loss.total, wanted)
        torch.testing.assert_close(gradients(loss.total, model), gradients(wanted, model))

    @pytest.mark.parametrize("family", ["logits", "logits, one class", "logits, symmetric", "product, closed"])
    def test_smoothed_labels_against_torch(self, family):
        """A mean over all labels' values at once, or smoothing of missing labels, fails."""
        model = make(family)
        batch = batch_of(World(model), all_patterns(model) * 3)
        loss = Objective((LogPYGivenX(label_smoothing=0.2),))(model, batch)
        blocks = model.label_logits(batch.x).logits.split(model.labels.cardinalities, 1)
        smoothed = {"ignore_index": MISSING, "reduction": "sum", "label_smoothing": 0.2}
        by_label = [torch.nn.functional.cross_entropy(b, batch.y[:, k], **smoothed) for k, b in enumerate(blocks)]
        wanted = torch.stack(by_label).sum() / len(batch.x)
        torch.testing.assert_close(loss.total, wanted)
        torch.testing.assert_close(gradients(loss.total, model), gradients(wanted, model))

    def test_the_baseline_is_cross_entropy(self):
        model = make("logits, one class")
        batch = batch_of(World(model), [()] * 6)
        wanted = torch.nn.functional.cross_entropy(model.label_logits(batch.x).logits, batch.y[:, 0])
        torch.testing.assert_close(Objective((LogPYGivenX(),))(model, batch).total, wanted)
        # One label may come as [n].
        torch.testing.assert_close(Objective((LogPYGivenX(),))(model, Batch(batch.x, batch.y[:, 0])).total, wanted)

    def test_frequencies(self):
        labels = label_room.LabelSpace({"a": 3, "b": 2})
        y = torch.tensor([[0, 0], [0, 1], [0, -1], [1, 1]])
        a, b = frequency_weights(y, labels)
        assert a == pytest.approx((2 / 3, 2.0, 1.0))
        assert b == pytest.approx((1.5, 0.75))


def test_one_pass_through_the_network_serves_all_terms():
    model = make("logits")
    assert isinstance(model, LogitModel)
    calls: list[int] = []
    model.network.register_forward_hook(lambda *a: calls.append(len(a[1][0])))
    world = World(model)
    batch = batch_of(world, all_patterns(model))
    draws = world.draws(batch)
    calls.clear()
    (LogPX() + LogPYGivenX())(model, batch, draws)
    assert len(calls) == 2  # the batch, the negatives


def test_a_product_is_summed_by_blocks_and_asks_for_no_draws():
    """Two labels of 100 values: 10,000 states together, which a count over the whole product would refuse to sum."""
    model = Product([pair(LabelSpace({name: 100})).double() for name in "ab"])
    objective = LogPX() + LogPYGivenX()
    assert objective.needs(model) == {"negatives"}
    g = torch.Generator().manual_seed(0)
    x, negatives = (torch.randn(4, D, generator=g, dtype=torch.float64) for _ in range(2))
    y = torch.randint(100, (4, 2), generator=g)
    y[0, 1] = y[1, 0] = MISSING
    loss = objective(model, Batch(x, y), Draws(negatives=Samples(negatives)))
    wanted = -model.label_log_prob(x, y).mean() - model.log_density(x).mean() + model.log_density(negatives).mean()
    found = torch.autograd.grad(loss.total, list(model.parameters()), allow_unused=True)
    expected = torch.autograd.grad(wanted, list(model.parameters()), allow_unused=True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)

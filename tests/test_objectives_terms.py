"""Objectives: the KL term, the energy L2, presets, what is needed, what is refused, and the contract of purity."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from jointenergy import labels as label_room
from jointenergy.errors import InputError
from jointenergy.kernels import Langevin, Target
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import EnergyModel, LogitModel, Reals
from jointenergy.objectives import (
    JEM,
    PRESETS,
    Batch,
    Draws,
    EnergyL2,
    KLTerm,
    LogPX,
    LogPXGivenY,
    LogPXY,
    LogPYGivenX,
    Objective,
    Samples,
    preset,
)
from tests.tables import D, logit, make, mask_model
from tests.test_objectives import World, all_patterns, batch_of, gradients, one_thread

KL = "negatives last_step neighbors"

__all__ = ["one_thread"]  # a fixture for all tests here


class NoWaiting(TorchDispatchMode):
    """Refuses what makes the host wait for a GPU, and so cannot be part of a CUDA graph."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(name in str(func) for name in ("_local_scalar_dense", "nonzero", "unique", "masked_select")):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


class Quadratic(nn.Module):
    """f(x) = -a |x - m|^2 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.7, dtype=torch.float64))
        self.m = nn.Parameter(torch.tensor([0.3, -0.5], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return -0.5 * self.a * ((x - self.m) ** 2).sum(1)


def chains(n=6, d=2, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestKL:
    step_size = 0.2

    def setup_method(self):
        self.network = Quadratic()
        self.model = EnergyModel(self.network)
        self.start, self.noise = chains(seed=1), 0.1 * chains(seed=2)

    def last_step(self):
        x = self.start.requires_grad_()
        (slope,) = torch.autograd.grad(self.model.log_density(x).sum(), x, create_graph=True)
        return x.detach() + self.step_size * slope + self.noise

    def kl(self, term=None, **draws):
        loss = Objective((term or KLTerm(),))(self.model, Batch(chains(seed=3)), Draws(**draws))
        return loss.total, loss.parts["kl"]

    def test_the_gradient_is_the_hand_derived_one(self):
        """d/dtheta of a/2 |x' - m|^2 with a, m held, x' = x - s a (x - m) + noise."""
        total, part = self.kl(last_step=Samples(self.last_step()))
        a, m = self.network.a.detach(), self.network.m.detach()
        off = self.start.detach() - m
        moved = self.start.detach() - self.step_size * a * off + self.noise - m
        torch.testing.assert_close(part, (0.5 * a * (moved**2).sum(1)).mean())
        grad_a, grad_m = torch.autograd.grad(total, [self.network.a, self.network.m])
        torch.testing.assert_close(grad_a, (a * moved * -self.step_size * off).sum(1).mean())
        torch.testing.assert_close(grad_m, (a * moved * self.step_size * a).mean(0))

    def test_the_gradient_is_the_finite_difference_with_the_weights_of_f_held(self):
        total, _ = self.kl(last_step=Samples(self.last_step()))
        (grad,) = torch.autograd.grad(total, self.network.a)
        held = copy.deepcopy(self.model)
        ends = []
        for nudge in (1e-5, -1e-5):
            with torch.no_grad():
                self.network.a.add_(nudge)
            ends.append(-held.log_density(self.last_step().detach()).mean())
            with torch.no_grad():
                self.network.a.sub_(nudge)
        torch.testing.assert_close(grad, (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-8)

    def test_no_gradient_through_the_weights_of_f(self):
        x = self.start.requires_grad_()  # a graph that does not lead to the weights
        total, _ = self.kl(last_step=Samples(x * 1.0))
        grads = torch.autograd.grad(total, [self.network.a, self.network.m], allow_unused=True)
        assert all(g is None for g in grads)

    def test_a_mutant_that_does_not_hold_the_weights_fails(self):
        total, _ = self.kl(last_step=Samples(self.last_step()))
        mutant = -self.model.log_density(self.last_step()).mean()
        torch.testing.assert_close(total, mutant)
        right, wrong = (torch.autograd.grad(v, self.network.a)[0] for v in (total, mutant))
        assert (right - wrong).abs() > 1e-3

    def test_it_draws_the_chains_to_where_f_is_high(self):
        x = self.start.clone().requires_grad_()
        total, _ = self.kl(last_step=Samples(x * 1.0))
        (down,) = torch.autograd.grad(total, x)
        assert self.model.log_density(x - 0.1 * down).mean() > self.model.log_density(x).mean()

    def test_it_takes_the_step_that_a_kernel_made(self):
        model = make("pair")
        kernel = Langevin(0.05, 0.1)
        y = torch.tensor([[0, 1, 0], [2, 0, 1]])
        state = kernel.init(Target(model), chains(2, D), y, generator=torch.Generator().manual_seed(0))
        after, _ = kernel.step(Target(model), state)
        x = kernel.recompute(Target(model), state)
        torch.testing.assert_close(x, after.x)
        loss = Objective((KLTerm(),))(model, Batch(chains(2, D)), Draws(last_step=Samples(x, y)))
        torch.testing.assert_close(loss.total, -model.log_density(after.x, y).mean())
        assert gradients(loss.total, model).abs().max() > 0

    def test_weights_of_chains(self):
        weight = torch.arange(6.0, dtype=torch.float64)
        x = self.last_step()
        total, _ = self.kl(last_step=Samples(x, weight=weight))
        torch.testing.assert_close(total, -(weight * self.model.log_density(x)).sum() / 15)

    def test_entropy_pushes_samples_apart(self):
        x = chains().requires_grad_()
        others = chains(9, seed=5)
        draws = {"last_step": Samples(x * 1.0), "neighbors": others}
        both, alone = self.kl(KLTerm(entropy_weight=0.3), **draws)[0], self.kl(**draws)[0]
        distances = (x[:, None] - others).norm(dim=2).min(1).values
        torch.testing.assert_close(both - alone, -0.3 * distances.log().mean())
        (up,) = torch.autograd.grad(both - alone, x)
        further = (x - 1e-3 * up)[:, None] - others
        assert further.norm(dim=2).min(1).values.log().mean() > distances.log().mean()

    def test_the_weight_scales_energy_and_entropy_alike(self):
        draws = {"last_step": Samples(self.last_step()), "neighbors": chains(9, seed=5)}
        one, third = self.kl(KLTerm(entropy_weight=0.3), **draws), self.kl(0.3 * KLTerm(entropy_weight=0.3), **draws)
        torch.testing.assert_close(third[0], 0.3 * one[0])
        assert third[1] == one[1]  # reported before its weight

    def test_twins_give_a_finite_loss_and_gradient(self):
        x = chains().requires_grad_()
        total, _ = self.kl(KLTerm(entropy_weight=1.0), last_step=Samples(x * 1.0), neighbors=chains())
        assert total.isfinite()
        assert torch.autograd.grad(total, x)[0].isfinite().all()


class TestEnergyL2:
    def world(self, family="logits", masked=False):
        world = World(make(family))
        batch = batch_of(world, all_patterns(world.model), masked)
        return world.model, batch, world.draws(batch)

    def test_log_p_of_x(self):
        model, batch, draws = self.world()
        loss = (LogPX() + EnergyL2(0.1))(model, batch, draws)
        data, negatives = model.log_density(batch.x), model.log_density(draws.negatives.x, draws.negatives.y)
        wanted = (data**2).mean() + (draws.negatives.weight * negatives**2).sum()
        torch.testing.assert_close(loss.parts["energy_l2"], wanted.detach())
        torch.testing.assert_close(loss.total, 0.1 * wanted - loss.parts["log_p_x"])
        without = gradients(Objective((LogPX(),))(model, batch, draws).total, model)
        torch.testing.assert_close(gradients(loss.total, model) - without, 0.1 * gradients(wanted, model))

    def test_igebm_counts_the_rows_that_have_labels(self):
        model, batch, draws = self.world("pair")
        loss = preset("igebm")(model, batch, draws)
        given = draws.given_y
        squares = given.weight * model.log_density(given.x, given.y) ** 2
        by_row = torch.zeros(len(batch.x), dtype=torch.float64).index_add(0, given.row, squares)
        labeled = (batch.y != MISSING).any(1)
        wanted = ((model.log_density(batch.x, batch.y) ** 2 + by_row) * labeled).sum() / len(batch.x)
        torch.testing.assert_close(loss.parts["energy_l2"], wanted.detach())

    def test_the_square_is_inside_the_mean(self):
        model, batch, draws = self.world("pair", masked=True)
        part = (LogPXY() + EnergyL2())(model, batch, draws).parts["energy_l2"]
        f = model.log_density(draws.given_xy.x, draws.given_xy.y) ** 2 * draws.given_xy.weight
        g = model.log_density(draws.negatives.x, draws.negatives.y) ** 2 * draws.negatives.weight
        torch.testing.assert_close(part, (f.sum() / len(batch.x) + g.sum()).detach())

    @pytest.mark.parametrize("family", ["logits", "pair"])
    def test_data_beside_negatives_without_labels_have_theirs_summed(self, family):
        """Else it pushes data and negatives apart: equal rows of both would get unequal gradients."""
        model, batch, _ = self.world(family)
        draws = Draws(negatives=Samples(batch.x))
        part = (LogPXY() + LogPYGivenX() + EnergyL2())(model, batch, draws).parts["energy_l2"]
        torch.testing.assert_close(part, 2 * (model.log_density(batch.x) ** 2).mean().detach())
        said = Draws(negatives=Samples(batch.x, torch.full_like(batch.y, MISSING)))
        assert (LogPXY() + LogPYGivenX() + EnergyL2())(model, batch, said).parts["energy_l2"] == part

    def test_it_needs_something_to_tie_down(self):
        model, batch, draws = self.world()
        with pytest.raises(InputError, match="EnergyL2 needs a likelihood term"):
            (LogPYGivenX() + EnergyL2())(model, batch, draws)


class TestComposition:
    def test_presets(self):
        assert preset("jem") == Objective((LogPX(), LogPYGivenX()))
        assert preset("gibbs-jem") == LogPXY() + KLTerm(weight=1.0, entropy_weight=0.3)
        assert preset("mixed") == Objective((LogPXY(),))
        assert preset("igebm") == LogPXGivenY() + EnergyL2(1.0)
        assert preset("baseline") == Objective((LogPYGivenX(),))
        assert preset("jem") == JEM()
        with pytest.raises(InputError, match="no objective called 'gibs-jem': did you mean 'gibbs-jem'"):
            preset("gibs-jem")

    def test_sums_and_multiples(self):
        own = 2 * LogPX() + LogPYGivenX(0.5) + EnergyL2(0.1)
        assert own == Objective((LogPX(2.0), LogPYGivenX(0.5), EnergyL2(0.1)))
        assert 3.0 * (LogPX() + LogPXY(2.0)) == LogPX(3.0) + LogPXY(6.0)
        assert Objective((LogPX(),)) + Objective((LogPXY(),)) == LogPX() + LogPXY()

    def test_parts_and_total(self):
        world = World(make("logits"))
        batch = batch_of(world, all_patterns(world.model))
        loss = (2.0 * LogPX() + LogPYGivenX() + 0.1 * EnergyL2())(world.model, batch, world.draws(batch))
        assert list(loss.parts) == ["log_p_x", "log_p_y_given_x", "energy_l2"]
        assert not any(p.requires_grad or p.ndim for p in loss.parts.values())
        x, y, l2 = loss.parts.values()
        torch.testing.assert_close(loss.total.detach(), -2 * x - y + 0.1 * l2)

    def test_igebm_without_labels_is_log_p_of_x(self):
        model = make("unconditional")
        x, negatives = chains(4, D), Samples(chains(4, D, seed=1))
        given = preset("igebm")(model, Batch(x), Draws(given_y=negatives))
        free = (LogPX() + EnergyL2())(model, Batch(x), Draws(negatives=negatives))
        torch.testing.assert_close(given.total, free.total)

    @pytest.mark.parametrize(
        ("name", "few", "many", "masked"),
        [
            ("jem", "negatives", "negatives given_x given_xy", "negatives given_x given_xy"),
            ("gibbs-jem", KL, f"{KL} given_xy", f"{KL} given_xy"),
            ("mixed", "negatives", "negatives given_xy", "negatives given_xy"),
            ("igebm", "given_y", "given_y given_xy", "given_y given_xy"),
            ("baseline", "", "given_x given_xy", "given_x given_xy"),
        ],
    )
    def test_what_is_needed(self, name, few, many, masked):
        objective, small, large = preset(name), make("pair"), mask_model()
        assert small.can_sum()
        assert not large.can_sum()
        assert objective.needs(small) == set(few.split())
        assert objective.needs(large) == set(many.split())
        assert objective.needs(large, missing_labels=False) == set(many.split()) - {"given_xy"}
        assert objective.needs(small, masked_x=True) == set(masked.split())
        assert KLTerm(entropy_weight=0.3).needs(small) == {"last_step", "neighbors"}


class TestManyLabels:
    """784 binary labels: no sum is made, and nothing tries to."""

    def test_every_term(self):
        model = mask_model()
        g = torch.Generator().manual_seed(0)
        x = torch.rand(3, 1, 28, 28, generator=g, dtype=torch.float64)
        complete = torch.randint(2, (3, 784), generator=g)
        y = complete.clone()
        y[1, 100:], y[2] = MISSING, MISSING
        other = torch.randint(2, (3, 784), generator=g)
        held = torch.where(y == MISSING, other, y)
        draws = Draws(
            negatives=Samples(x.flip(3), other),
            given_x=Samples(x, other),
            given_y=Samples(x.flip(2), held),
            given_xy=Samples(x, complete),
        )
        f = model.log_density_of_complete
        gaps = {
            LogPX(): (f(x, other) - f(x.flip(3), other).mean()).sum() / 3,
            LogPXY(): (f(x, complete) - f(x.flip(3), other).mean()).sum() / 3,
            LogPXGivenY(): (f(x, complete) - f(x.flip(2), held))[:2].sum() / 3,
            LogPYGivenX(): (f(x, complete) - f(x, other))[:2].sum() / 3,
        }
        for term, gap in gaps.items():
            torch.testing.assert_close(Objective((term,))(model, Batch(x, y), draws).total, -gap)
        # Complete labels need no completion, and rows without any are no reason to ask for one.
        y[1] = complete[1]
        few = replace(draws, given_xy=None)
        loss = Objective((LogPYGivenX(),))(model, Batch(x, y), few)
        torch.testing.assert_close(loss.total, -(f(x, complete) - f(x, other))[:2].sum() / 3)
        with pytest.raises(InputError, match=r"'log_p_xy' needs draws\.given_xy: the rows completed"):
            Objective((LogPXY(),))(model, Batch(x, y), few)
        # A few missing labels are summed without draws.
        y[2], y[1, :3] = complete[2], MISSING
        loss = Objective((LogPXY(),))(model, Batch(x, y), few)
        wanted = model.log_density(x, y).mean() - f(x.flip(3), other).mean()
        torch.testing.assert_close(loss.total, -wanted)


class TestContract:
    @pytest.mark.parametrize("name", PRESETS)
    @pytest.mark.parametrize("masked", [False, True])
    def test_pure(self, name, masked, untouched_random_state):
        world = World(make("pair"))
        model = world.model
        batch = batch_of(world, all_patterns(model), masked)
        draws = world.draws(batch)
        x = chains(4, D) + 0.0 * next(model.parameters()).sum()
        last = Samples(x, torch.zeros(4, 3, dtype=torch.int64))
        draws = replace(draws, last_step=last, neighbors=chains(4, D, seed=9))
        inputs = [batch.x, batch.y, draws.given_x.x, draws.given_xy.y, draws.negatives.weight, *model.parameters()]
        before = [t.detach().clone() for t in inputs]
        with untouched_random_state():
            first = preset(name)(model, batch, draws)
            again = preset(name)(model, batch, draws)
            unchecked = preset(name).unchecked(model, batch, draws)
        assert first.total == again.total == unchecked.total
        assert first.total.requires_grad
        assert first.total.shape == ()
        assert all(p.grad is None for p in model.parameters())
        assert all(torch.equal(a, b) for a, b in zip(before, inputs, strict=True))

    @pytest.mark.parametrize("name", PRESETS)
    def test_nothing_waits_for_the_device(self, name):
        """Closed-form models: the unchecked loss and its gradient may be captured as a CUDA graph."""
        model = make("logits")
        x, y = chains(4, D), torch.tensor([[0, 1, 0], [1, -1, 1], [-1, -1, -1], [2, 0, 0]])
        weight = torch.ones(4, dtype=torch.float64)
        last = Samples(x + 0.0 * next(model.parameters()).sum(), y)
        given_y = Samples(x, y, weight, torch.arange(4))
        draws = Draws(Samples(x, y, weight), given_y=given_y, last_step=last, neighbors=chains(4, D, seed=9))
        preset(name).unchecked(model, Batch(x, y), draws)  # small constants are made once
        with NoWaiting():
            preset(name).unchecked(model, Batch(x, y), draws).total.backward()
        with pytest.raises(AssertionError, match="waits"), NoWaiting():
            preset(name)(model, Batch(x, y), draws)

    def test_dtype(self):
        model = make("logits", torch.float32)
        loss = preset("jem")(model, Batch(chains(4, D).float()), Draws(Samples(chains(5, D).float())))
        assert loss.total.dtype == torch.float32

    def test_masked_values_are_never_read(self):
        world = World(make("pair"))
        batch = batch_of(world, all_patterns(world.model), masked=True)
        draws = world.draws(batch)
        hidden = replace(batch, x=batch.x.masked_fill(~batch.mask, torch.nan))
        objective = LogPX() + LogPXY() + LogPXGivenY() + LogPYGivenX()
        seen, unseen = (objective(world.model, b, draws).total for b in (batch, hidden))
        assert seen == unseen

    def test_one_mask_for_all_rows(self):
        world = World(make("pair"))
        batch = batch_of(world, [()] * 3)
        row = torch.tensor([True, False, True])
        draws = world.draws(replace(batch, mask=row.expand(3, -1)))
        totals = [
            Objective((LogPXY(),))(world.model, replace(batch, mask=m), draws).total for m in (row, row.expand(3, -1))
        ]
        assert totals[0] == totals[1]

    def test_constants_of_x_do_not_blur_the_cross_entropy(self):
        """A reference term of x far larger than the logits cancels before it is rounded."""
        network = nn.Linear(D, 3)
        model = LogitModel(network, LabelSpace({"c": 3}), domain=Reals(scale=0.1))
        x, y = 1e4 * chains(5, D).float(), torch.tensor([0, 1, 2, 0, 1])
        network.weight.data.mul_(1e-4)
        loss = preset("baseline")(model, Batch(x, y))
        torch.testing.assert_close(loss.total, nn.functional.cross_entropy(network(x), y))


class TestRefusals:
    def setup_method(self):
        self.model = make("pair")
        self.x, self.y = chains(3, D), torch.tensor([[0, 1, 0], [1, -1, 1], [-1, -1, -1]])
        self.batch = Batch(self.x, self.y)
        self.complete = self.y.clamp(min=0)

    def refused(self, match, objective=None, batch=None, model=None, **draws):
        with pytest.raises(InputError, match=match) as caught:
            (objective or preset("mixed"))(model or self.model, batch or self.batch, Draws(**draws))
        assert "\n" not in str(caught.value)

    def test_missing_draws(self):
        self.refused(r"'log_p_xy' needs draws\.negatives: joint states")
        self.refused(r"'log_p_x_given_y' needs draws\.given_y", preset("igebm"))
        self.refused(r"'kl' needs draws\.last_step", Objective((KLTerm(),)))
        last = Samples(self.x.clone().requires_grad_() * 1.0, self.complete)
        self.refused(r"'kl' needs draws\.neighbors", Objective((KLTerm(entropy_weight=1),)), last_step=last)
        masked = Batch(self.x, self.y, torch.ones_like(self.x, dtype=torch.bool))
        self.refused(r"'log_p_xy' needs draws\.given_xy", batch=masked, negatives=Samples(self.x))
        self.refused(r"'log_p_y_given_x' needs draws\.given_x:", preset("baseline"), batch=masked, given_xy=last)

    def test_missing_draws_beyond_enumeration(self, monkeypatch):
        monkeypatch.setattr(label_room, "ENUMERATION_LIMIT", 1)
        self.refused(r"'log_p_xy' needs draws\.given_xy", negatives=Samples(self.x, self.complete))
        self.refused(r"'log_p_x' needs draws\.given_x", Objective((LogPX(),)), negatives=Samples(self.x, self.complete))

    def test_rows_that_do_not_fit(self):
        igebm = preset("igebm")
        self.refused("2 states where the batch has 3 rows", igebm, given_y=Samples(self.x[:2], self.complete[:2]))
        self.refused("row 0 of the batch", igebm, given_y=Samples(self.x, self.complete.flip(0)))
        rows = torch.tensor([0, 1, 1])
        self.refused("must name each of the batch's 3 rows", igebm, given_y=Samples(self.x, self.complete, row=rows))
        self.refused("one for each of its 3", igebm, given_y=Samples(self.x, self.complete, row=rows[:2]))
        weight = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
        self.refused("all zero in row 1", igebm, given_y=Samples(self.x, self.complete, weight))
        self.refused("do not belong to rows", negatives=Samples(self.x, self.complete, row=torch.arange(3)))
        mask = torch.tensor([True, False, False])
        moved = Samples(self.x + 1, self.complete)
        self.refused("row 0", batch=replace(self.batch, mask=mask), negatives=Samples(self.x), given_xy=moved)

    @pytest.mark.parametrize("weight", [[1.0, 2.0], [1.0, -1.0, 1.0], [0.0, 0.0, 0.0], [1.0, float("nan"), 1.0]])
    def test_weights_of_draws(self, weight):
        samples = Samples(self.x, self.complete, torch.tensor(weight))
        self.refused(r"weights of draws\.negatives must be 3 finite numbers", negatives=samples)

    def test_shapes_and_types(self):
        self.refused("x must have shape", batch=Batch(self.x[:, :2]))
        self.refused("labels have 2 rows", batch=Batch(self.x, self.y[:2]))
        self.refused("boolean tensor", batch=Batch(self.x, self.y, torch.ones(3, D)))
        self.refused("shape of x", batch=Batch(self.x, self.y, torch.ones(2, dtype=torch.bool)))
        self.refused("NaN", batch=Batch(self.x * float("nan")))
        self.refused(r"draws\.negatives must be Samples", negatives=self.x)
        self.refused("takes the values 0 to 2", negatives=Samples(self.x, self.complete + 5))

    def test_kl(self):
        kl = Objective((KLTerm(entropy_weight=1.0),))
        self.refused("no graph from x", kl, last_step=Samples(self.x), neighbors=self.x)
        last = Samples(self.x.clone().requires_grad_() * 1.0)
        self.refused("x must have shape", kl, last_step=last, neighbors=self.x[:, :2])

    def test_label_weights(self):
        weights = ((1.0, 1.0, 1.0), (1.0, 1.0), (1.0, 2.0))
        own = Objective((LogPYGivenX(label_weights=weights),))
        self.refused("independent given x, which those of PairModel are not", own)
        self.refused("independent given x", Objective((LogPYGivenX(label_smoothing=0.1),)))
        model = logit().double()
        masked = Batch(self.x, self.y, torch.ones_like(self.x, dtype=torch.bool))
        drawn = {"given_x": Samples(self.x, self.complete), "given_xy": Samples(self.x, self.complete)}
        self.refused("complete x", own, masked, model, **drawn)
        self.refused(r"\(3, 2, 2\) values", Objective((LogPYGivenX(label_weights=weights[:2]),)), model=model)
        with pytest.raises(InputError, match="finite"):
            LogPYGivenX(label_weights=((1.0, float("inf")),))
        for smoothing in (1.0, -0.1, float("nan"), "0.1"):
            with pytest.raises(InputError, match="label_smoothing must be"):
                LogPYGivenX(label_smoothing=smoothing)

    @pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), "1", True])
    def test_weights_of_terms(self, weight):
        with pytest.raises(InputError, match="needs a finite weight, zero or positive"):
            LogPX(weight)
        with pytest.raises(InputError, match="needs a finite entropy_weight"):
            KLTerm(entropy_weight=weight)

    def test_objectives(self):
        with pytest.raises(InputError, match="needs terms"):
            Objective(())
        with pytest.raises(InputError, match="needs terms"):
            Objective((LogPX,))
        with pytest.raises(InputError, match="'log_p_x' twice"):
            LogPX() + LogPX(2.0)


@pytest.mark.parametrize("name", ["logits", "logits, binary", "pair"])
def test_a_promise_of_complete_or_missing_labels_changes_no_loss(name):
    # Who knows what is missing takes a shorter way to the same sums.
    model = make(name) if name != "logits, binary" else logit(LabelSpace.binary(["a", "b"])).double()
    x, sizes = chains(7, D), model.labels.cardinalities
    y = torch.stack([torch.arange(7) % c for c in sizes], 1)
    missing = torch.full((6, len(sizes)), MISSING)
    objective = LogPX(0.7) + LogPXY(0.4) + LogPYGivenX(1.3)
    looked = objective(model, Batch(x, y), Draws(negatives=Samples(chains(6, D, seed=1), missing)))
    told = objective.unchecked(model, Batch(x, y, complete=True), Draws(negatives=Samples(chains(6, D, seed=1))))
    weights = list(model.parameters())
    for a, b in zip(*(torch.autograd.grad(loss.total, weights) for loss in (looked, told)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for part, value in looked.parts.items():
        torch.testing.assert_close(told.parts[part], value, rtol=1e-12, atol=1e-12)
    # Rows that miss a label still have it summed out.
    y[0, 0] = MISSING
    partly = objective(model, Batch(x, y), Draws(negatives=Samples(chains(6, D, seed=1))))
    assert not torch.isclose(partly.total, told.total)

"""Attacks find the smallest changes that make a classifier wrong, with its refinement known to them."""

import io
import math
import sys
from dataclasses import replace
from itertools import pairwise

import foolbox
import numpy as np
import pytest
import torch
from foolbox.models.pytorch import PyTorchModel
from PIL import Image
from torch import nn

import jointenergy
from jointenergy import LabelSpace, inference, streams
from jointenergy.data import Dataset
from jointenergy.kernels import Langevin
from jointenergy.labels import MISSING
from jointenergy.metrics import registry
from jointenergy.models import Box
from jointenergy.networks import MLP
from jointenergy.report import attacks
from jointenergy.report import robustness as part
from jointenergy.report.attack_target import NORMS, Budget, ClassifiedRows, distance, margins, units
from jointenergy.report.attacks import Closest, best_of_restarts, search
from jointenergy.report.robustness import QUICK, RobustnessSizes, median_radius, robust_accuracy, robustness
from jointenergy.report.sections import Subject
from jointenergy.runs import Run
from jointenergy.runs.thresholds import Thresholds
from tests.tables import conditional

DUAL = {"linf": 1, "l2": 2}
BOTH = ([(-1.0, 1.0), (0.0, 1.0)], ["between -1 and 1", "between 0 and 1"])
TINY = RobustnessSizes(
    rows=8,
    refinements=(0, 1),
    radii={"linf": (8, 32, 128), "l2": (32, 128, 512)},
    budget=Budget(steps=6, restarts=2, halvings=2, draws=2),
    votes=3,
    boundary_steps=30,
    pointwise_cells=16,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def two_planes(bounds=(-1.0, 1.0), n=20, d=6):
    """A linear classifier of two classes and rows near the middle, with the exact radius of each in both norms."""
    low, high = bounds
    net = nn.Linear(d, 2)
    with torch.no_grad():
        net.weight.copy_(torch.randn(2, d, generator=seeded(1)))
        net.bias.copy_(-net.weight.sum(1) * (low + high) / 2)
    x = low + (high - low) * (0.5 + 0.1 * torch.rand(n, d, generator=seeded(2)))
    run = jointenergy.wrap(net, 2, bounds=bounds, event_shape=(d,))
    y = run.predict(x)
    w, lead = (net.weight[0] - net.weight[1]).detach(), (net(x)[:, 0] - net(x)[:, 1]).abs().detach()
    exact = {norm: lead / w.norm(p=p) / (high - low) for norm, p in DUAL.items()}
    return run, x, y, exact


def curved(d=5, classes=4, hidden=24, dtype=torch.float32, kernel=None, seed=0):
    """A network with random weights, large enough to be curved, as a run between -1 and 1."""
    net = MLP((d, hidden, classes)).to(dtype)
    with torch.no_grad():
        for i, weight in enumerate(net.parameters()):
            weight.copy_(torch.randn(weight.shape, generator=seeded(seed + i)) * (1.5 if weight.ndim == 2 else 0.1))
    return jointenergy.wrap(net, classes, bounds=(-1.0, 1.0), event_shape=(d,), kernel=kernel)


def inside(n=30, d=5, dtype=torch.float32, seed=3):
    return torch.rand(n, d, generator=seeded(seed), dtype=dtype) * 1.6 - 0.8


# Radii.


@pytest.mark.parametrize("bounds", BOTH[0], ids=BOTH[1])
@pytest.mark.parametrize("norm", NORMS)
def test_the_search_finds_the_exact_radius_of_a_linear_classifier(norm, bounds):
    run, x, y, exact = two_planes(bounds)
    closest = Closest(ClassifiedRows.of(run, x, y), units(run.bounds))
    search(closest, norm, [r / 255 for r in (2, 8, 32, 128, 400)], Budget(10, 1, 9), "through", generator=seeded())
    # Below the exact radius by rounding alone; above it by no more than a hundredth.
    assert bool((closest.radius[norm] > exact[norm] * 0.9999).all())
    torch.testing.assert_close(closest.radius[norm], exact[norm].double(), rtol=0.01, atol=1e-5)
    assert bool(closest.classified.wrong(closest.x[norm]).all())
    assert float((closest.x[norm] - x).abs().max()) > 0


def test_a_radius_is_stated_in_units_of_the_range_of_x():
    assert units((-1.0, 1.0)) == 2.0
    assert units((0.0, 1.0)) == 1.0
    run, x, y, _ = two_planes((-1.0, 1.0))
    classified = ClassifiedRows.of(run, x, y)
    for norm, most in (("linf", 16 / 255), ("l2", 16 / 255)):
        radius = torch.full((len(x),), 8 / 255 * units(run.bounds), dtype=torch.float64)
        changed = best_of_restarts(classified, norm, radius, Budget(10, 1), "through", numbers=[0], generator=seeded())
        # The gradient of a linear classifier leads to the edge of the ball, 16/255 away where x lies in [-1, 1].
        assert torch.allclose(distance(changed - x, norm), torch.tensor(most), rtol=1e-3)
    closest = Closest(classified, 2.0)
    closest.radius["linf"][:] = torch.inf
    moved = x + 0.4
    closest.classified = replace(classified, y=1 - run.predict(moved))
    closest.offer(torch.arange(len(x)), moved)
    assert torch.allclose(closest.radius["linf"], torch.tensor(0.2, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(closest.radius["l2"], torch.tensor(0.2 * math.sqrt(6), dtype=torch.float64), atol=1e-6)


def test_rows_that_are_wrong_unchanged_have_radius_zero_and_are_left_alone():
    run, x, y, _ = two_planes()
    y[:5] = 1 - y[:5]
    closest = Closest(ClassifiedRows.of(run, x, y), 2.0)
    search(closest, "linf", [0.5], Budget(5, 1, 0), "through", generator=seeded())
    assert closest.radius["linf"][:5].tolist() == [0.0] * 5
    assert bool((closest.radius["linf"][5:] > 0).all())
    assert torch.equal(closest.x["linf"][:5], x[:5])
    assert robust_accuracy(closest.radius["linf"], 0.0) == 0.75


def test_what_one_search_finds_counts_in_both_norms_and_an_attack_keeps_its_radius():
    run = curved()
    x = inside()
    closest = Closest(ClassifiedRows.of(run, x, run.predict(x)), 2.0)
    search(closest, "l2", [0.1, 0.3, 1.0], Budget(10, 2, 2), "through", generator=seeded())
    fell = closest.radius["l2"].isfinite()
    assert bool(fell.any())
    assert torch.equal(closest.radius["linf"].isfinite(), fell)
    assert bool((closest.radius["linf"][fell] <= closest.radius["l2"][fell] + 1e-6).all())
    for norm in NORMS:
        length = distance(closest.x[norm] - x, norm).double() / 2.0
        assert torch.allclose(length[fell], closest.radius[norm][fell], rtol=1e-4)
        assert bool((closest.x[norm].abs() <= 1.0).all())


def test_curves_never_rise_and_medians_are_those_of_numpy():
    radius = torch.tensor([0.0, 0.1, 0.1, 0.2, 0.3, math.inf, math.inf], dtype=torch.float64)
    at = [0.0, 0.05, 0.1, 0.15, 0.3, 9.0]
    assert [robust_accuracy(radius, r) for r in at] == pytest.approx([6 / 7, 6 / 7, 4 / 7, 4 / 7, 2 / 7, 2 / 7])
    assert median_radius(radius) == 0.2
    assert median_radius(torch.tensor([0.1, math.inf, math.inf], dtype=torch.float64)) is None


# Restarts.


class Trap(nn.Module):
    """Wrong far to the right alone; from left of the middle the gradient leads to a lower hill on the left."""

    def forward(self, x):
        lead = 2.0 * torch.exp(-20 * (x[:, 0] - 0.8) ** 2) + 0.5 * torch.exp(-20 * (x[:, 0] + 0.8) ** 2) - 1.0
        return torch.stack((torch.zeros_like(lead), lead), 1)


def test_the_best_restart_counts_not_the_last():
    run = jointenergy.wrap(Trap(), 2, bounds=(-1.0, 1.0), event_shape=(1,))
    x = torch.full((60, 1), -0.15)
    classified = ClassifiedRows.of(run, x, torch.zeros(60, 1, dtype=torch.int64))
    radius, budget = torch.ones(60, dtype=torch.float64), Budget(20, 8)
    best = best_of_restarts(
        classified, "linf", radius, budget, "through", numbers=range(budget.restarts), generator=seeded()
    )
    shares = []
    for number in (0, 7):
        numbers = torch.full((60,), number)
        end = attacks.descend(classified, "linf", radius, budget, "through", numbers, seeded())
        shares.append(float(classified.wrong(end).double().mean()))
    # From the row the gradient leads astray, and so it does from about half of the ball; eight tries seldom all fail.
    assert shares[0] == 0.0
    assert 0.25 < shares[1] < 0.75
    assert float(classified.wrong(best).double().mean()) > 0.9


def test_of_restarts_that_succeed_the_closest_is_kept(monkeypatch):
    run, x, y, _ = two_planes(n=3)
    direction = (run.model.network.weight[1] - run.model.network.weight[0]).detach()
    toward = torch.where(y == 0, direction, -direction)
    # Each restart goes so far for each row; all rows are wrong at .5 and right at 0.
    far = torch.tensor([[0.0, 0.9, 0.7], [0.5, 0.8, 0.0], [0.0, 0.6, 0.8], [0.0, 0.7, 0.0]])
    monkeypatch.setattr(attacks, "descend", lambda many, *_: many.x + far.flatten()[:, None] * toward.repeat(4, 1))
    radius = torch.full((3,), 9.0, dtype=torch.float64)
    found = best_of_restarts(
        ClassifiedRows.of(run, x, y), "l2", radius, Budget(1, 4), "through", numbers=range(4), generator=seeded()
    )
    kept = (found - x).norm(dim=1) / direction.norm()
    assert kept.tolist() == pytest.approx([0.5, 0.6, 0.7], rel=1e-4)


# foolbox as the oracle.


@pytest.mark.parametrize("norm", NORMS)
def test_one_run_is_foolbox_own_and_the_whole_search_never_leaves_more_rows(norm):
    run = curved(dtype=torch.float64)
    x = inside(dtype=torch.float64)
    y = run.predict(x)
    model = PyTorchModel(run.model.network, bounds=(-1, 1), device="cpu")
    kind = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD}[norm]
    radii = [0.02, 0.05, 0.1, 0.2]
    classified = ClassifiedRows.of(run, x, y)
    radius, budget = torch.full((len(x),), 0.1 * 2.0, dtype=torch.float64), Budget(20, 4, 3)
    for number in (0, 2):  # the first begins at the row, an even one at random; both raise cross-entropy
        numbers = torch.full((len(x),), number)
        ours = attacks.descend(classified, norm, radius, budget, "through", numbers, seeded(5))
        generator = seeded(5)
        with attacks.own_randomness(x.device, generator):
            attack = kind(rel_stepsize=2.5 / 20, steps=20, random_start=number > 0)
            theirs, _, _ = attack(model, x, y[:, 0], epsilons=0.2)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert not torch.equal(ours, x)

    closest = Closest(classified, 2.0)
    search(closest, norm, radii, budget, "through", generator=seeded(5))
    with attacks.own_randomness(x.device, generator):
        _, _, fell = kind(rel_stepsize=2.5 / 20, steps=20)(model, x, y[:, 0], epsilons=[2.0 * r for r in radii])
    standing = [robust_accuracy(closest.radius[norm], r) for r in radii]
    theirs = [float((~f).double().mean()) for f in fell]
    assert all(a <= b for a, b in zip(standing, theirs, strict=True))
    assert standing[-1] < standing[0] < 1.0
    # Not by magic either: it is the same attack with a little more budget.
    assert max(b - a for a, b in zip(standing, theirs, strict=True)) <= 0.2


def test_margin_loss_sees_what_cross_entropy_rounds_away():
    net = nn.Linear(3, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[40.0, 20.0, 0.0], [0.0, 20.0, 0.0]]))
        net.bias.zero_()
    run = jointenergy.wrap(net, 2, bounds=(-1.0, 1.0), event_shape=(3,))
    x = torch.tensor([[0.9, 0.5, 0.0]])
    classified = ClassifiedRows.of(run, x, torch.zeros(1, 1, dtype=torch.int64))
    for by_margin, clear in ((True, True), (False, False)):
        point = x.clone().requires_grad_()
        which = torch.full((1,), by_margin)
        loss = classified.losses(point, by_margin=which, gradient="through", draws=1, generator=seeded())
        (gradient,) = torch.autograd.grad(loss.sum(), point)
        assert bool((gradient[0, 0] < -1.0) & (gradient[0, 1].abs() < 1e-6)) is clear


# The adversary knows the refinement.


def refined(steps=2, dtype=torch.float64, noise=0.05, step=0.02, n=4):
    run = curved(hidden=8, dtype=dtype, kernel=Langevin(step, noise))
    x = inside(n, dtype=dtype) * 0.5
    return ClassifiedRows.of(run, x, run.predict(x), steps=steps, votes=4)


def loss_at(classified, x, gradient="through", draws=2, by_margin=False, seed=0):
    which = torch.full((len(x),), by_margin)
    return classified.losses(x, by_margin=which, gradient=gradient, draws=draws, generator=seeded(seed)).sum()


@pytest.mark.parametrize("by_margin", [False, True], ids=["cross-entropy", "margin"])
def test_gradients_go_through_the_refinement_to_the_input(by_margin):
    classified = refined()
    x = classified.x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_at(classified, x, by_margin=by_margin), x)
    numeric = torch.zeros_like(gradient)
    with torch.no_grad():
        for i in np.ndindex(*x.shape):
            change = torch.zeros_like(x)
            change[i] = 1e-6
            up, down = (loss_at(classified, x + s * change, by_margin=by_margin) for s in (1, -1))
            numeric[i] = (up - down) / 2e-6
    torch.testing.assert_close(gradient, numeric, rtol=1e-5, atol=1e-7)
    # The identity gradient is another one, and so is that of the classifier without refinement.
    (identity,) = torch.autograd.grad(loss_at(classified, x, "identity", by_margin=by_margin), x)
    (plain,) = torch.autograd.grad(loss_at(replace(classified, steps=0), x, by_margin=by_margin), x)
    assert float((identity - numeric).abs().max()) > 0.05 * float(numeric.abs().max())
    assert float((plain - numeric).abs().max()) > 0.05 * float(numeric.abs().max())


def test_the_identity_gradient_is_that_at_the_refined_point():
    classified = refined()
    x = classified.x.clone().requires_grad_()
    loss = loss_at(classified, x, "identity", draws=1)
    (gradient,) = torch.autograd.grad(loss, x)
    keys = streams.chain_keys(len(x), generator=seeded())
    end = inference.refine(classified.model, classified.x, kernel=classified.kernel, steps=2, keys=keys).x[0]
    point = end.clone().requires_grad_()
    there = -classified.model.label_log_prob(point, classified.y).sum()
    (expected,) = torch.autograd.grad(there, point)
    assert float(loss.detach()) == pytest.approx(float(there.detach()), rel=1e-9)
    torch.testing.assert_close(gradient, expected)
    # Its loss is that of the gradient through the chain: only the way back differs.
    assert float(loss.detach()) == pytest.approx(float(loss_at(classified, x, "through", draws=1).detach()), rel=1e-9)


def test_the_loss_is_the_mean_over_fresh_draws_of_the_chain():
    classified = refined(noise=0.3)
    x = classified.x
    keys = streams.chain_keys(3 * len(x), generator=seeded()).view(3, -1)
    each = [
        inference.refine(classified.model, x, kernel=classified.kernel, steps=2, keys=k)
        .log_probs["class"]
        .gather(1, classified.y)
        for k in keys
    ]
    assert float(loss_at(classified, x, draws=3).detach()) == pytest.approx(
        -float(torch.stack(each).mean(0).sum()), rel=1e-9
    )
    generator, which = seeded(), torch.zeros(len(x), dtype=torch.bool)
    first, second = (
        classified.losses(x, by_margin=which, gradient="through", draws=1, generator=generator) for _ in range(2)
    )
    assert not torch.equal(first, second)
    # More draws, less noise in what the adversary follows: a 16th of the variance, so below a quarter of it.
    spread = [torch.stack([loss_at(classified, x, draws=d, seed=s) for s in range(40)]).var() for d in (1, 16)]
    assert spread[1] < spread[0] / 4


def test_the_decision_after_refinement_is_by_the_mean_of_its_votes_whatever_rows_stand_beside():
    classified = refined(noise=1.0, n=40)
    keys = classified.keys
    probs = inference.refine(
        classified.model, classified.x, kernel=classified.kernel, steps=2, keys=keys, n_draws=4
    ).probs["class"]
    expected = probs.argmax(1) != classified.y[:, 0]
    assert torch.equal(classified.wrong(classified.x), expected)
    assert 0 < int(expected.sum()) < 40
    index = torch.tensor([7, 3, 21])
    assert torch.equal(classified.rows(index).wrong(classified.x[index]), expected[index])
    single = replace(classified, votes=1)
    assert not torch.equal(single.margin(classified.x), classified.margin(classified.x))


def test_pieces_do_not_change_decisions(monkeypatch):
    classified = refined(n=9)
    whole = classified.margin(classified.x)
    monkeypatch.setattr("jointenergy.report.attack_target.VALUES", 100)
    assert len(list(classified.pieces(4))) > 1
    torch.testing.assert_close(classified.margin(classified.x), whole)
    found = best_of_restarts(
        classified,
        "l2",
        torch.full((9,), 0.4, dtype=torch.float64),
        Budget(3, 2),
        "identity",
        numbers=range(2),
        generator=seeded(),
    )
    assert found.shape == classified.x.shape


def test_what_is_no_number_is_wrong():
    class Broken(nn.Module):
        def forward(self, x):
            return torch.where(x[:, :1] > 0.5, torch.nan, torch.stack((x[:, 0] + 2, x[:, 1]), 1))

    run = jointenergy.wrap(Broken(), 2, bounds=(-1.0, 1.0), event_shape=(2,))
    x = torch.zeros(4, 2)
    closest = Closest(ClassifiedRows.of(run, x, torch.zeros(4, 1, dtype=torch.int64)), 2.0)
    assert bool(closest.offer(torch.arange(4), x + 0.9).all())
    search(closest, "linf", [0.1, 0.4], Budget(4, 2), "through", generator=seeded())
    assert bool((closest.radius["linf"] <= 0.45).all())


# Attacks without gradients.


def test_starts_are_the_nearest_rows_of_the_second_class():
    run = curved()
    x, data = inside(20), inside(300, seed=9)
    y = run.predict(x)
    classified = ClassifiedRows.of(run, x, y)
    starts, rows = attacks.top_two_starts(classified, data)
    assert rows.tolist() == list(range(20))
    probs, told = run.predict_proba(x)["class"], run.predict(data)[:, 0]
    for i, start in enumerate(starts):
        second = int(probs[i].topk(2).indices[1])
        near = min((float((x[i] - d).norm()), j) for j, d in enumerate(data) if int(told[j]) == second)
        assert torch.equal(start, data[near[1]])
    # Without any row of the second class the nearest of another; without any of those the row is left out.
    own = data[told == int(y[0, 0])]
    assert attacks.top_two_starts(classified.rows(slice(0, 1)), own)[1].tolist() == []


@pytest.mark.parametrize("attack", ["boundary", "pointwise"])
def test_attacks_without_gradients_come_near_the_exact_radius(attack):
    run, x, y, exact = two_planes()
    closest = Closest(ClassifiedRows.of(run, x, y), 2.0)
    data = torch.rand(400, 6, generator=seeded(4)) * 2 - 1
    starts, rows = attacks.top_two_starts(closest.classified, data)
    assert len(rows) == len(x)
    begin = distance(starts - x, "l2").double() / 2.0
    if attack == "boundary":
        attacks.boundary(closest, starts, rows, steps=500, generator=seeded())
    else:
        cells = attacks.cells_of(tuple(starts.shape[1:]), 1024)
        attacks.pointwise(closest, starts, rows, cells=cells, generator=seeded())
    found = closest.radius["l2"]
    assert bool((found > 0.999 * exact["l2"]).all())
    assert bool((found < begin).all())
    assert float((found / exact["l2"]).median()) < (1.6 if attack == "boundary" else 3.0)
    assert bool(closest.classified.wrong(closest.x["l2"]).all())


# Many labels.


def test_a_row_is_right_where_all_its_labels_are_and_missing_ones_do_not_count():
    log_probs = {
        "a": torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]).log(),
        "b": torch.tensor([[0.3, 0.7]] * 3).log(),
    }
    y = torch.tensor([[0, 1], [0, 0], [MISSING, 1]])
    expected = [math.log(7 / 3), math.log(3 / 7), math.log(7 / 3)]
    assert margins(log_probs, y).tolist() == pytest.approx(expected, rel=1e-5)


def seeded_network(*sizes, seed=0):
    net = MLP(sizes)
    with torch.no_grad():
        for i, weight in enumerate(net.parameters()):
            weight.copy_(torch.randn(weight.shape, generator=seeded(seed + i)) * 0.5)
    return net


def test_many_labels_are_attacked_together():
    labels = LabelSpace({"color": ["red", "green", "blue"], "round": 2})
    run = jointenergy.wrap(seeded_network(5, 16, 5), labels, bounds=(-1.0, 1.0), event_shape=(5,))
    x = inside(16)
    y = run.predict(x)
    y[::2, 1] = MISSING
    found = part.attack(run, x, y, steps=1, sizes=TINY, starts=inside(100, seed=5), seed=0)
    assert set(found) == {"gradient", "identity", "boundary", "pointwise"}
    for closest in found.values():
        fell = closest.radius["l2"].isfinite() & (closest.radius["l2"] > 0)
        assert bool(fell.any())
        told = closest.classified.rows(fell).wrong(closest.x["l2"][fell])
        assert bool(told.all())


# The part of the evaluation.


def images_run(seed=0):
    net = seeded_network(16, 24, 3, seed=seed)
    return jointenergy.wrap(net, ["cat", "dog", "owl"], bounds=(-1.0, 1.0), event_shape=(16,))


def subject_of(run: Run, **others) -> Subject:
    x = inside(60, 16)
    y = run.predict(x)
    y[0] = MISSING
    return Subject(run, Dataset(x, y, run.labels, "rows"), **others)


def test_the_section_has_valid_metrics_of_all_classifiers_and_leaves_the_world_as_it_was():
    run = images_run()
    subject = subject_of(run, baseline=images_run(7), others={"adversarial": images_run(8)})
    state, numbers = torch.get_rng_state(), np.random.get_state(legacy=False)  # noqa: NPY002
    weights = [p.clone() for p in run.model.parameters()]
    section = robustness(subject, "quick", TINY)
    assert torch.equal(torch.get_rng_state(), state)
    assert str(np.random.get_state(legacy=False)) == str(numbers)  # noqa: NPY002
    assert all(p.grad is None and torch.equal(p, w) for p, w in zip(run.model.parameters(), weights, strict=True))
    for prefix, steps in (("", 0), ("", 1), ("baseline.", 0), ("others.adversarial.", 0)):
        for norm in NORMS:
            radii = ["0", *(f"{r}-255" for r in TINY.radii[norm])]
            shares = [section.metrics[f"{prefix}robust_accuracy.{norm}.{steps}.{r}"] for r in radii]
            assert all(a is not None and b is not None and a >= b for a, b in pairwise(shares))
            assert f"{prefix}robust_radius.{norm}.{steps}" in section.metrics
    for name, value in section.metrics.items():
        if value is not None:
            registry.check_value(name.removeprefix("baseline.").removeprefix("others.adversarial."), value)
    # The run tells its own rows right, another only by chance.
    assert section.metrics["robust_accuracy.linf.0.0"] == 1.0
    assert section.metrics["baseline.robust_accuracy.linf.0.0"] != 1.0
    assert [p.name for p in section.pictures] == ["robustness_linf", "robustness_l2", "adversarial_images"]
    for each in section.pictures:
        assert Image.open(io.BytesIO(each.png)).size[0] > 100
    assert [t.columns[0] for t in section.tables] == ["classifier"] * 3
    again = robustness(subject_of(run), "quick", TINY).metrics
    assert again == {name: section.metrics[name] for name in again}


def test_a_point_is_the_minimum_over_all_attacks():
    run = images_run()
    subject = subject_of(run)
    section = robustness(subject, "quick", replace(TINY, refinements=(1,)))
    order = torch.arange(1, 60)[torch.randperm(59, generator=seeded())]
    x, y = subject.test.x[order[:8]], subject.test.y[order[:8]]
    found = part.attack(run, x, y, steps=1, sizes=TINY, starts=subject.test.x[order], seed=0)
    assert len(found) == 4
    for norm in NORMS:
        least = torch.stack([c.radius[norm] for c in found.values()]).amin(0)
        for r in TINY.radii[norm]:
            share = sum(float(v) > r / 255 for v in least) / 8
            assert section.metrics[f"robust_accuracy.{norm}.1.{r}-255"] == pytest.approx(share)
        single = [robust_accuracy(c.radius[norm], 32 / 255) for c in found.values()]
        assert robust_accuracy(least, 32 / 255) <= min(single)


def test_without_foolbox_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "foolbox", None)
    section = robustness(subject_of(images_run()), "quick")
    assert "pip install 'jointenergy[robust]'" in section.says[0]
    assert not section.metrics


def test_what_cannot_be_attacked_is_said():
    run = images_run()
    model = conditional(domain=Box(-1.0, 1.0))
    x, y = torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.int64)
    by_class = Run(model, replace(run.origin, event_shape=(3,)), run.sampling, run.bounds, Thresholds())
    section = robustness(Subject(by_class, Dataset(x, y, model.labels, "rows")), "quick", TINY)
    assert "unknown normalizing" in section.says[0]
    assert not section.metrics
    nothing = subject_of(run)
    unlabeled = Dataset(nothing.test.x, torch.full_like(nothing.test.y, MISSING), run.labels, "rows")
    assert "has no labels" in robustness(replace(nothing, test=unlabeled), "quick", TINY).says[0]
    assert QUICK.boundary_steps == 0
    says = " ".join(robustness(nothing, "quick", replace(TINY, boundary_steps=0)).says)
    assert "full suite" in says
    says = " ".join(robustness(nothing, "quick", replace(TINY, pointwise_cells=15)).says)
    assert "x has 16 entries, so each cell is a block of them, 15 at the most" in says


def test_cells_are_blocks_of_neighbors_and_no_more_than_asked():
    """A block that mixes far pixels would make the pointwise attack of large images as coarse as nothing."""
    assert torch.equal(attacks.cells_of((16,), 16), torch.arange(16))
    assert torch.equal(attacks.cells_of((7,), 3), torch.tensor([0, 0, 0, 1, 1, 1, 2]))
    colors = attacks.cells_of((3, 32, 32), 1024).view(3, 32, 32)
    assert torch.equal(colors, torch.arange(1024).view(1, 32, 32).expand(3, -1, -1))
    large = attacks.cells_of((1, 5, 6), 8).view(5, 6)  # blocks of 2 x 2 would be 9
    assert torch.equal(large, torch.tensor([[0, 0, 0, 1, 1, 1]] * 3 + [[2, 2, 2, 3, 3, 3]] * 2))

"""The verdict on exact densities and on copies broken one way each: each way is named, the exact one passes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from jointenergy import LabelSpace
from jointenergy.data import View
from jointenergy.data.training import TrainingData
from jointenergy.data.transforms import GaussianNoise
from jointenergy.kernels import Langevin
from jointenergy.labels import MISSING
from jointenergy.metrics.looks import TAILS, Looks, Space
from jointenergy.models import JointModel
from jointenergy.objectives import JEM
from jointenergy.starts import Start, Uniform
from jointenergy.training.check import check
from jointenergy.training.health import TAILED, Health
from jointenergy.training.plan import make_plan

LABELS = LabelSpace({"class": ["a", "b", "c", "d"]})
MEANS = 3.0 * torch.eye(4, 6)
BOUNDS = View(-6.0, 9.0)


class Gaussians(JointModel):
    """Four classes, a unit Gaussian each, equally frequent; `leaning` spoils p(y | x) and leaves p(x) as it is."""

    def __init__(self, scale=1.0, turned=0, leaning=0.0):
        super().__init__(LABELS, event_shape=(6,))
        self.scale, self.turned, self.leaning = scale, turned, leaning

    def log_density_of_complete(self, x, y):
        f = -(x[:, None] - MEANS).square().sum(2) / 2
        leaning = f + self.leaning * x[:, 5:] * torch.tensor([1.0, -1.0, 1.0, -1.0])
        own = leaning[torch.arange(len(x)), (y[:, 0] + self.turned) % 4]
        return self.scale * (f.logsumexp(1) + own - leaning.logsumexp(1))


def rows(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n, 1), generator=g)
    return MEANS[y[:, 0]] + torch.randn(n, 6, generator=g), y


def data_of(draw, n, n_held, labels):
    x, y = draw(n, 0)
    x_held, y_held = draw(n_held, 1)
    return TrainingData(x, y, x_held, y_held, labels)


def plan_of(model, kernel=None, data=None, bounds=BOUNDS, **changes):
    made = make_plan(
        model,
        data or data_of(rows, 1000, 256, LABELS),
        objective=JEM(),
        kernel=kernel or Langevin.at_temperature(0.1),
        bounds=bounds,
        iterations=1,
        batch_size=64,
        sampling_steps=100,
        start=Uniform(),
    )
    return replace(made, **changes)


def judged(model=None, kernel=None, **changes):
    model = model or Gaussians()
    return check(plan_of(model, kernel, **changes), model, None)


@pytest.fixture(scope="module")
def exact():
    # Chains of training are as long as those of users: they stand in for persistent ones.
    return judged(steps=100)


class Copies:
    """Chains that begin in training rows."""

    def draw(self, y, *, generator):
        x = rows(1000)[0]
        return x[torch.randint(len(x), (len(y),), generator=generator)]


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "frozen": ({"kernel": Langevin(1e-9, 1e-6)}, "do not denoise data"),
    "noise alone": ({"kernel": Langevin(1e-9, 0.3)}, "do not denoise data"),
    "constant": ({"model": Gaussians(scale=0.0)}, "do not denoise data"),
    "too warm": ({"kernel": Langevin.at_temperature(0.1, 9.0)}, "not distributed like data"),
    "too cold": ({"kernel": Langevin.at_temperature(0.1, 0.05)}, "not distributed like data"),
    "two-cycle": ({"kernel": Langevin(1.98, 0.01)}, "not distributed like data"),
    "other labels": ({"model": Gaussians(turned=1)}, "look like other labels"),
    "labels of another sense": ({"model": Gaussians(leaning=30.0)}, "samples given a label look like other labels"),
    "copies": ({"start": Start(Copies(), None), "kernel": Langevin(1e-9, 0.0)}, "copies of training rows"),
}


def test_an_exact_density_with_chains_that_arrive_is_healthy(exact):
    assert exact.complaints == []
    assert exact.values()["healthy"] is True
    assert exact.agreement > 0.9
    assert exact.recovery > 0.9


@pytest.mark.parametrize("name", BROKEN)
def test_each_way_to_be_broken_is_named(name):
    settings, says = BROKEN[name]
    if "start" in settings:
        label_start = plan_of(Gaussians()).start.label_start
        settings = {**settings, "start": Start(settings["start"].x_start, label_start)}
    health = judged(**{"steps": 100, **settings})
    assert any(says in c for c in health.complaints), health.complaints


def test_without_one_of_its_parts_the_verdict_passes_what_is_broken():
    """Mutants: energies alone pass labels that are mixed up, looks without movement pass copies that do not move."""
    turned = judged(Gaussians(turned=1), steps=100)
    assert not turned.healthy
    assert replace(turned, agreement=math.nan, agreement_of={}, given=None).healthy
    start = Start(Copies(), plan_of(Gaussians()).start.label_start)
    still = judged(kernel=Langevin(1e-9, 0.01), start=start, steps=100)
    assert not still.healthy
    fresh = [replace(looks, copies=0.0) for looks in (still.fresh, still.persistent)]
    assert replace(
        still, recovery=math.nan, agreement=math.nan, agreement_of={}, given=None, fresh=fresh[0], persistent=fresh[1]
    ).healthy


def test_chains_that_do_not_leave_a_start_unlike_data_fail_by_looks_alone():
    """Movement from the recipe's start needs no limit of its own: nothing passes without it."""
    still = judged(kernel=Langevin(1e-9, 1e-6), steps=100)
    unmeasured = replace(still, recovery=math.nan, auroc_fresh=math.nan, auroc_fresh_long=math.nan)
    said = "; ".join(unmeasured.complaints)
    assert "% of samples are unlike all data rows" in said
    assert "samples are not distributed like data" in said


class Swapped(Gaussians):
    """Two of the four classes in each other's place."""

    def log_density_of_complete(self, x, y):
        return super().log_density_of_complete(x, torch.tensor([1, 0, 2, 3])[y])


class Shifted(Gaussians):
    """One column of six off by 0.6 of its standard deviations."""

    def log_density_of_complete(self, x, y):
        return super().log_density_of_complete(x - 0.6 * torch.eye(6)[5], y)


def test_a_column_that_is_off_is_told_which_a_distance_in_all_columns_passes(exact):
    """Mutant: without the comparison of means the verdict passes it."""
    off = judged(Shifted(), steps=100)
    assert any("the mean of a column of samples is off by" in c for c in off.complaints), off.complaints
    sets = {name: replace(getattr(off, name), shift=0.0) for name in ("fresh", "given", "persistent")}
    assert replace(off, **sets).healthy
    assert (exact.fresh.shift, exact.given.shift) == (0.0, 0.0)


def test_means_of_few_rows_that_training_did_not_see_are_uncertain():
    """Fails if samples of a table with masked entries, compared with a few complete rows, are blamed for these rows."""
    x, few = rows(256, 2)[0], rows(20, 3)[0] + 0.5
    assert Space(few, few).shift([(x, few)], all_rows=True) > 0.1
    assert Space(few, few, unseen=True).looks(x).shift == 0.0


def test_dark_pixels_count_as_wide_as_usual_columns():
    """Fails if columns that hardly vary, which chains at a low temperature miss by a little, decide on the verdict."""
    data = rows(1000)[0] * torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.01])
    moved = rows(256, 2)[0] * torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.01]) + 0.01 * torch.eye(6)[5]
    assert Space(data, data).looks(moved).shift == 0.0


def test_a_label_that_shows_another_is_told_by_its_name(exact):
    one = replace(exact, agreement=0.9, agreement_of={"class = a": 1.0, "class = b": -0.1})
    assert one.complaints == ["samples given class = b look like other labels"]
    assert not judged(Swapped(), steps=100).healthy


def test_uniform_noise_is_a_warning_and_no_complaint(exact):
    blurred = replace(exact, auroc_noise=0.95)
    assert blurred.healthy
    assert any("uniform noise" in w for w in blurred.warnings)


def test_it_goes_through_json_as_it_is(exact):
    text = json.dumps(replace(exact, gap=math.nan).state(), allow_nan=False)
    again = Health.from_state(json.loads(text))
    assert math.isnan(again.gap)
    assert replace(again, gap=0.0) == replace(exact, gap=0.0)
    assert Health.from_state(json.loads(json.dumps(Health(False).state()))).complaints == Health(False).complaints


def test_two_checks_by_different_streams_agree_on_what_is_exact(exact):
    model = Gaussians()
    again = check(plan_of(model, steps=100), model, None, stream="confirm")
    assert again.healthy
    assert again.fresh != exact.fresh


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.zeros(40, 6), "all data rows are equal"),
        (torch.randn(6, 6), "but 10 are needed"),
    ],
)
def test_data_that_cannot_be_compared_are_said_and_not_called_diverged(x, says):
    model = Gaussians()
    y = torch.zeros(len(x), 1, dtype=torch.int64)
    plan = replace(plan_of(model), data=TrainingData(x, y, x[:1], y[:1], LABELS), sampling_steps=5)
    health = check(plan, model, None)
    assert health.finite
    assert any(says in c for c in health.complaints)
    assert not any("nan" in c or "gap" in c for c in health.complaints)


def test_ten_rows_have_a_verdict():
    """Fails if the held-out one of ten rows is missing where samples are compared with data."""
    x, y = rows(10)
    model = Gaussians()
    plan = plan_of(model, data=TrainingData(x[:9], y[:9], x[9:], y[9:], LABELS), steps=100)
    health = check(plan, model, None)
    assert health.uncompared == ""
    assert health.fresh is not None
    assert health.fresh.rows == 10
    assert not any("movement" in c or "unlike" in c for c in health.complaints), health.complaints
    assert "1 held-out row, too few for energies and movement: training rows replace them" in health.notes
    fewer = replace(plan, data=TrainingData(x[:8], y[:8], x[9:], y[9:], LABELS))
    assert "samples cannot be compared with data: 9 rows, but 10 are needed" in check(fewer, model, None).complaints


def test_equal_rows_with_noise_are_said_to_be_equal():
    """Noise that training adds once hid that a table has the same row everywhere."""
    model, x = Gaussians(), torch.zeros(40, 6)
    y = torch.zeros(len(x), 1, dtype=torch.int64)
    data = TrainingData(x, y, x[:1], y[:1], LABELS)
    plan = replace(plan_of(model), data=data, sampling_steps=5, changes=((GaussianNoise(0.1),),))
    assert any("all data rows are equal" in c for c in check(plan, model, None).complaints)


def test_samples_that_are_not_finite_are_said():
    assert judged(kernel=Langevin(1e6, 1.0)).complaints == ["some log-densities or chains are not finite"]


# Looks of images.


def images(n, seed, channels=3, size=16):
    """Smooth blobs of color."""
    g = torch.Generator().manual_seed(seed)
    small = torch.rand(n, channels, 5, 5, generator=g)
    return F.interpolate(small, size=(size, size), mode="bilinear") * 1.6 - 0.8


def mosaic(x):
    board = 1.0 - 2.0 * ((torch.arange(x.shape[2])[:, None] + torch.arange(x.shape[3])[None]) % 2).float()
    return x + 0.2 * board


@pytest.fixture(scope="module")
def space():
    x = images(1500, 0)
    return Space(x, x + 0.03 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))


SPOILED = {
    "artifacts": mosaic,
    "blurred": lambda x: F.avg_pool2d(F.pad(x, (3, 3, 3, 3), mode="replicate"), 7, 1),
    "bright": lambda x: x + 0.4,
    "dark": lambda x: x - 0.4,
    "harsh": lambda x: x * 1.8,
    "flat": lambda x: x * 0.4,
    "saturated": lambda x: x + torch.tensor([0.6, 0.0, -0.6]).view(3, 1, 1),
    "gray": lambda x: x.mean(1, keepdim=True).expand_as(x) * 1.5,
}


@pytest.mark.parametrize("name", TAILS)
def test_each_fault_of_single_images_is_seen(space, name):
    shares = space.looks(SPOILED[name](images(256, 2))).tails
    assert shares[name] > 0.3, shares


def test_data_have_none_of_them(space):
    looks = space.looks(images(512, 3))
    assert all(abs(share) < TAILED for share in looks.tails.values()), looks.tails
    assert abs(looks.distance) < 0.01
    assert looks.coverage > 0.9
    assert looks.unlike < 0.05
    assert looks.copies < 0.05


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_a_share_of_mosaics_is_told_as_that_share(space, share):
    """Power: one in ten is seen in 512 samples, and the sentence says how many."""
    x = images(512, 4)
    n = int(share * len(x))
    x[:n] = mosaic(x[:n])
    assert space.looks(x).tails["artifacts"] == pytest.approx(share, abs=0.03)
    assert space.looks(x).tails["artifacts"] > TAILED


def test_few_shapes_do_not_cover(space):
    looks = space.looks(images(6, 5).repeat(40, 1, 1, 1))
    assert looks.coverage < 0.3


def test_copies_are_told_from_new_rows(space):
    assert space.looks(images(1500, 0)[:200]).copies > 0.9


def test_a_fault_of_one_label_is_told_by_its_name(space):
    x = images(320, 6)
    groups = {f"class = {c}": (x[32 * c : 32 * c + 32].clone(), images(32, 10 + c)) for c in range(10)}
    groups["class = 7"] = (mosaic(groups["class = 7"][0]), groups["class = 7"][1])
    looks = space.looks_given(groups)
    assert max(looks.groups, key=looks.groups.get) == "class = 7"
    assert looks.groups["class = 7"] > 0.9
    assert looks.tails["artifacts"] == pytest.approx(0.1, abs=0.04)


def test_sentences_name_the_share():
    artifacts = Looks(0.0, 0.97, 0.0, 0.0, 500, tails={"artifacts": 0.41, "dark": 0.0})
    said = Health(True, given=artifacts).complaints
    assert said == ["41% of samples given a label have high-frequency artifacts"]


def test_features_do_not_depend_on_the_rows_beside_them(space):
    x = images(20, 7)
    assert torch.allclose(space(x)[3:4], space(x[3:4]), atol=1e-4)


def test_a_row_without_a_label_is_no_class():
    model = Gaussians()
    plan = plan_of(model, steps=100)
    hidden = replace(plan.data, y=plan.data.y.masked_fill(torch.rand(plan.data.y.shape) < 0.5, MISSING))
    assert check(replace(plan, data=hidden), model, None).given is not None


# Samples that are too few, and parts that are skipped.


def test_a_long_run_with_small_batches_is_judged_in_full():
    short, long = judged(batch_size=8, iterations=100, steps=10), judged(batch_size=8, iterations=1000, steps=10)
    said = "a short run with small batches is judged with 12% of the usual samples: it may miss faults"
    assert said in short.warnings
    assert (long.fresh.rows, short.fresh.rows) == (1000, 128)
    assert long.notes == ()


def test_a_full_check_has_no_notes(exact):
    assert exact.notes == ()


N_CLASSES = 30
MANY = LabelSpace({"class": [str(c) for c in range(N_CLASSES)]})
GRID = torch.tensor([[6.0 * (c % 5), 5.0 * (c // 5) - 0.5] for c in range(N_CLASSES)])


class Grid(JointModel):
    """Thirty classes on a grid; samples given one of them, `astray`, are those of the next one."""

    def __init__(self, astray=None):
        super().__init__(MANY, event_shape=(2,))
        self.means = GRID.clone()
        if astray is not None:
            self.means[astray] = GRID[astray + 1]

    def log_density_of_complete(self, x, y):
        return -(x - self.means[y[:, 0]]).square().sum(1) / 2


def grid_plan(model, per_class=40):
    def of(n, seed):
        y = torch.arange(N_CLASSES).repeat(n)[:, None]
        return GRID[y[:, 0]] + torch.randn(len(y), 2, generator=torch.Generator().manual_seed(seed)), y

    data = data_of(of, per_class, 8, MANY)
    return plan_of(model, data=data, bounds=View(-3.0, 27.0), steps=100)


def judged_on_a_grid(model, per_class=40):
    return check(grid_plan(model, per_class), model, None)


def test_one_broken_class_among_many_is_told_by_its_name():
    """Mutant: with 512 samples in all, 18 given each label, no label is judged alone and the verdict passes it."""
    good, broken = judged_on_a_grid(Grid()), judged_on_a_grid(Grid(astray=7))
    assert good.complaints == []
    assert good.notes == ()
    assert len(broken.agreement_of) == N_CLASSES
    assert broken.complaints == ["samples given class = 7 look like other labels"]
    assert replace(broken, agreement_of={}).healthy


def test_label_values_with_few_rows_are_noted():
    notes = judged_on_a_grid(Grid(), per_class=12).notes
    assert "30 of 30 label values with too few samples or rows to judge alone" in notes


def test_of_very_many_values_others_are_judged_at_each_check(monkeypatch):
    monkeypatch.setattr("jointenergy.training.check.VALUES", 5)
    model = Grid()
    plan = replace(grid_plan(model), sampling_steps=2)
    first, second = (check(plan, model, None, iteration=i) for i in (1, 2))
    assert "samples given a label are judged for 5 of 30 label values" in first.notes
    assert len(first.agreement_of) == 5
    assert first.agreement_of.keys() != second.agreement_of.keys()


def few_labels(model, kept):
    plan = plan_of(model, steps=100)
    hidden = torch.arange(1000)[:, None] >= kept
    return check(replace(plan, data=replace(plan.data, y=plan.data.y.masked_fill(hidden, MISSING))), model, None)


def test_samples_that_show_another_label_are_detected_with_few_labels():
    """Fails if rows without a label vote: nearly all neighbors have none."""
    assert few_labels(Gaussians(), 20).complaints == []
    turned = few_labels(Gaussians(turned=1), 20)
    assert turned.agreement < 0.1
    assert any("samples given a label look like other labels" in c for c in turned.complaints)


def test_rows_with_labels_vote_although_the_reference_has_none_of_them(monkeypatch):
    """Fails if voters are the labeled ones of a few random rows."""
    monkeypatch.setattr("jointenergy.training.check.REFERENCE", 15)
    assert few_labels(Gaussians(), 20).agreement > 0.5


def test_labels_that_cannot_be_compared_are_noted():
    """One row of each label has no neighbor with the same one."""
    health = few_labels(Gaussians(), 4)
    assert math.isnan(health.agreement)
    assert any("labels of samples are not compared" in note for note in health.notes)


def test_movement_that_cannot_be_tested_is_noted(monkeypatch):
    monkeypatch.setattr("jointenergy.training.check.SCALES", (0.0,))
    health = judged(steps=10)
    assert math.isnan(health.recovery)
    assert any("movement is not tested" in note for note in health.notes)

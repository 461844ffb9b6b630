"""report: samples: what fresh chains of a run are worth, by features, labels, age, neighbors and cost."""

from __future__ import annotations

import csv
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.report import drift, extractors
from jointenergy.report import samples_pictures as pictures
from jointenergy.report.conditional_samples import Judge, judges_of
from jointenergy.report.samples_labels import labels
from jointenergy.report.samples_quality import features, neighbors, variety
from jointenergy.report.samples_sets import MANY, Sets, energy_of, sets_of, some
from jointenergy.report.sections import Cell, Picture, Section, Subject, Suite, Table
from jointenergy.runs import Run
from jointenergy.training.health import at_bounds

COLUMNS = 8
MOST_CLASSES = 20  # that a picture of classes by age has room for


@dataclass(frozen=True)
class Sizes:
    """How much is drawn: fresh samples, rows of precision and recall, values or pairs of labels asked for, samples of
    each (and of each where the best tenth is kept), chains that grow old, how many times as long as in training, and
    samples whose neighbors are sought."""

    samples: int
    manifold: int
    patterns: int
    per: int
    per_selected: int
    chains: int
    times: int
    neighbors: int


QUICK = Sizes(samples=500, manifold=500, patterns=10, per=20, per_selected=3, chains=64, times=10, neighbors=100)
FULL = Sizes(
    samples=10_000, manifold=3_000, patterns=25, per=100, per_selected=20, chains=256, times=100, neighbors=1_000
)


def samples(subject: Subject, suite: Suite) -> Section:
    """All that is said of a run's samples: fresh chains with the function that a user loads, none left out."""
    sizes = QUICK if suite == "quick" else FULL
    run = subject.run
    generator = torch.Generator().manual_seed(subject.seed)
    sets = sets_of(subject, sizes.samples, generator)
    extractor, said = extractors.choose(subject)
    parts = [
        Section("samples", "", (*sets.says, *said), variety(sets), (), _shown(run, sets)),
        features(subject, sets, extractor, sizes.manifold),
        labels(subject, sets, patterns=sizes.patterns, per=sizes.per, per_selected=sizes.per_selected),
        _old(subject, sets, sizes),
        neighbors(run, sets, extractor, sizes.neighbors),
        _cost(run, sets),
    ]
    metrics = {name: value for part in parts for name, value in part.metrics.items()}
    return Section(
        "samples",
        "Samples",
        tuple(dict.fromkeys(s for part in parts for s in part.says)),
        metrics,
        tuple(t for part in parts for t in part.tables),
        tuple(p for part in parts for p in part.pictures),
        {name: how for part in parts for name, how in part.protocols.items()},
    )


def _shown(run: Run, sets: Sets) -> tuple[Picture, ...]:
    panels = {"test rows": sets.test, "fresh samples": sets.samples}
    if sets.buffer is not None:
        panels["chains of training"] = sets.buffer.x
    n = COLUMNS * COLUMNS if sets.test[0].numel() > 2 else 500
    drawn = pictures.grids(
        "samples",
        f"Fresh samples of {sets.steps} steps, the first ones and none chosen, between real rows and, where there are "
        "any, the chains that training has kept.",
        {title: x[:n] for title, x in panels.items() if len(x)},
        COLUMNS,
        run.bounds,
    )
    return () if drawn is None else (drawn,)


def _old(subject: Subject, sets: Sets, sizes: Sizes) -> Section:
    """Energies of all sets, and chains that go on for many times the length that they were trained with."""
    run, energy = subject.run, energy_of(subject.run)
    trained = run.recipe.chain.steps if run.recipe is not None else sets.steps
    # Never so short that nothing is seen of what comes after a sample is taken.
    steps = max(sizes.times * trained, 2 * sets.steps)
    predict = judges_of({"model": run}, sets.test[:1])[0].get("model") if len(run.labels) else None
    watch = drift.Watch(drift.ages_of(steps, also=(sets.steps,)), run.bounds, energy, predict)
    n = min(sizes.chains, len(sets.test))
    given = sets.samples_y[:n] if run.model.normalizer == "conditional" else None
    run.sample(n if given is None else len(given), given, steps=steps, frames=watch, seed=subject.seed + 1)
    course = watch.course()
    known = {"fresh samples": energy(sets.samples, sets.samples_y), "test rows": energy(sets.test, sets.test_y)}
    if sets.buffer is not None:
        rows = some(torch.arange(len(sets.buffer.x)), len(sets.test), torch.Generator().manual_seed(subject.seed))
        known["chains of training"] = energy(sets.buffer.x[rows], sets.buffer.y[rows])
    known["where chains began"] = energy(sets.starts, _labels_of(sets, sets.starts))
    known["uniform noise"] = energy(sets.noise, sets.test_y)
    bounds = {"data": sets.test, "samples": sets.samples}
    metrics: dict[str, float | None] = {
        f"at_bounds.{name}": float(at_bounds(x, run.bounds)) for name, x in bounds.items() if len(x)
    }
    metrics["at_bounds.old_chains"] = course.at_bounds[-1]
    medians = {"data": known["test rows"], "samples": known["fresh samples"], "old_chains": course.energy[-1]}
    metrics |= {f"energy_nats.{name}": _median(e) for name, e in medians.items()}
    drawn = [
        pictures.energies(
            known,
            "Energies of real rows, samples and noise. In a healthy run samples lie where real rows do, and noise far "
            "to the right; what lies beyond an edge is counted there.",
        ),
        pictures.drift(
            course,
            known["test rows"],
            float(at_bounds(sets.test, run.bounds)),
            sets.steps,
            f"{len(course.energy[0])} fresh chains on their way to {steps:,} steps ({steps / trained:g} times the "
            f"{trained} of {'training' if run.recipe is not None else 'a sample'}): energy and the share of values at "
            f"the bounds, beside those of real rows. Dotted: the {sets.steps} steps at which samples are taken.",
        ),
    ]
    says = [
        f"{len(course.energy[0])} chains went on to {steps:,} steps: their median energy is "
        f"{_told(metrics['energy_nats.old_chains'])}, that of test rows {_told(metrics['energy_nats.data'])}, and "
        f"{course.at_bounds[-1]:.1%} of their values lie at the bounds, {metrics['at_bounds.data'] or 0.0:.1%} in test "
        "rows."
    ]
    if course.labels is not None:
        found = _classes(run, sets, course, predict)
        return Section("old", "", (*says, *found.says), {**metrics, **found.metrics}, (), (*drawn, *found.pictures))
    says.append("Which class a chain shows as it grows old is not told: this model's labels cannot be compared.")
    return Section("old", "", tuple(says), metrics, (), tuple(drawn))


def _classes(run: Run, sets: Sets, course: drift.Course, predict: Judge | None) -> Section:
    """Which class chains show as they grow old, of fresh ones and of those of training (JEM, appendix G.2)."""
    assert course.labels is not None
    assert predict is not None
    metrics: dict[str, float | None] = {
        "class_kept.start": float(drift.kept(course.labels)[-1]),
        "class_kept.sample": float(drift.kept(course.labels, course.ages.index(sets.steps))[-1]),
    }
    names, says, groups = run.labels.values[0], [], []
    says.append(
        f"Of the fresh chains {metrics['class_kept.start']:.0%} still show at step {course.ages[-1]:,} the class that "
        f"their start was taken for, {metrics['class_kept.sample']:.0%} the class that they had at step {sets.steps}."
    )
    if sets.buffer is not None and len(sets.buffer.x) >= drift.GROUPS:
        groups = drift.by_age(sets.buffer.age.cpu(), predict(sets.buffer.x)[:, 0].cpu(), len(names))
        young, old = groups[0], groups[-1]
        distance = drift.apart(young.shares, old.shares)
        chance = drift.apart_by_chance((young.shares + old.shares) / 2, min(young.n, old.n))
        metrics["class_by_age"] = distance
        says.append(
            f"Among chains of training, classes of the youngest and the oldest quarter differ by {distance:.0%} (by "
            f"chance alone about {chance:.0%}). Where this is large, the age of a chain has become its class."
        )
    of = "" if len(run.labels) == 1 else f" of {run.labels.names[0]!r}, the first of the labels,"
    drawn: tuple[Picture, ...] = ()
    if len(names) <= MOST_CLASSES:
        caption = (
            "Left: how many chains still show the class they began with. Then the classes" + of + " of fresh chains at "
            "some ages and, where there are any, of those that training has kept."
        )
        drawn = (pictures.classes_by_age(course, names, groups, sets.steps, caption),)
    return Section("classes", "", tuple(says), metrics, (), drawn)


def _cost(run: Run, sets: Sets) -> Section:
    """Parameters, training time and the time of many samples (IGEBM, appendix A.5)."""
    n = sum(p.numel() for p in run.model.parameters())
    trained = _training_seconds(run)
    rows: list[tuple[Cell, ...]] = [
        ("parameters", n),
        ("training, minutes", None if trained is None else trained / 60),
        (f"{MANY:,} samples of {sets.steps} steps, minutes (from {len(sets.samples):,})", sets.seconds / 60),
    ]
    metrics: dict[str, float | None] = {"parameters": float(n), "samples_50000_seconds": sets.seconds}
    if trained is not None:
        metrics["training_seconds"] = trained
    says = (
        f"The time of {MANY:,} samples was measured on {len(sets.samples):,} with this machine's "
        f"{sets.samples.device.type.upper()}, and scaled.",
    )
    return Section("cost", "", says, metrics, (Table("Cost", ("what", "value"), tuple(rows)),))


def _training_seconds(run: Run) -> float | None:
    """As the run folder tells it, whose last line has the time of all before."""
    checkpoint = run.origin.checkpoint
    path = None if checkpoint is None else checkpoint.parent.parent / "metrics.csv"
    if path is None or not path.is_file():
        return None
    try:
        with path.open(newline="") as file:
            return float(deque(csv.DictReader(file), maxlen=1)[0]["seconds"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _labels_of(sets: Sets, x: Tensor) -> Tensor:
    """Labels for rows that have none of their own, wherever the energy needs some."""
    y = sets.samples_y if len(sets.samples_y) == len(x) else sets.test_y
    return y[: len(x)]


def _median(energy: Tensor) -> float | None:
    finite = energy[energy.isfinite()].double()
    return float(finite.median()) if len(finite) else None


def _told(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1f} nats"

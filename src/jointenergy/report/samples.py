"""report: samples: what fresh chains of a run are worth, by features, labels, age, neighbors and cost."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.data.cache import cached_features
from jointenergy.errors import InputError
from jointenergy.metrics import sample_quality
from jointenergy.metrics.registry import finite_or_none
from jointenergy.report import cache, extractors
from jointenergy.report.conditional_samples import conditional_samples
from jointenergy.report.drawings import grids
from jointenergy.report.long_chains import long_chains
from jointenergy.report.sample_sets import MANY, Sets, passed, sets_of, variety
from jointenergy.report.sections import Cell, Extractor, Picture, Section, Subject, Suite, Table
from jointenergy.runs import Run

COLUMNS = 8


@dataclass(frozen=True)
class SampleSizes:
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


QUICK = SampleSizes(samples=500, manifold=500, patterns=10, per=20, per_selected=3, chains=64, times=10, neighbors=100)
FULL = SampleSizes(
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
        conditional_samples(subject, sets, patterns=sizes.patterns, per=sizes.per, per_selected=sizes.per_selected),
        long_chains(subject, sets, chains=sizes.chains, times=sizes.times),
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
    drawn = grids(
        "samples",
        f"Fresh samples of {sets.steps} steps, the first ones and none chosen, between real rows and, where there are "
        "any, the chains that training has kept.",
        {title: x[:n] for title, x in panels.items() if len(x)},
        COLUMNS,
        run.bounds,
    )
    return () if drawn is None else (drawn,)


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


TENTH = 10  # published scores keep one of so many chains
COMPARED = ("fresh", "train", "buffer", "buffer_filtered", "start", "noise")  # the last part of a metric's name
REPORTED = ("fresh", "train", "buffer")  # whose KID, precision and recall are told too
SHOWN, NEAREST = 8, 5  # samples that are shown with their neighbors, and how many of these


def features(
    subject: Subject, sets: Sets, extractor: Extractor, manifold: int, *, chosen: Collection[str] = COMPARED
) -> Section:
    """FID, KID and class score of the `chosen` sets against test rows, with precision and recall.

    Precision and recall look at `manifold` rows at the most: their cost grows with the square.
    """
    run, data = subject.run, subject.test.name
    name = extractor.name
    says = [
        f"{len(sets.samples):,} fresh chains of {sets.steps} steps, none left out, against {len(sets.test):,} test "
        f"rows. Features are those of {name} ({extractor.protocol}); distances of other extractors are not comparable. "
        "Fewer rows give a larger FID, so read it beside that of real training rows, of which there are as many."
    ]
    reference = features_of_real(run, extractor, sets.test)
    metrics: dict[str, float | None] = {}
    protocols: dict[str, str] = {}
    table: list[tuple[Cell, ...]] = []
    for which, (title, x) in _compared(run, sets).items():
        if which not in chosen:
            continue
        how = f"{len(x):,} rows, {title}, against {len(sets.test):,} test rows of {data}; {extractor.protocol}"
        protocols[f"fid.{name}.{which}"] = how
        if len(x) < 2:
            metrics[f"fid.{name}.{which}"] = None
            continue
        seen = features_of_real(run, extractor, x) if which == "train" else _passed(extractor, x)
        distance = metrics[f"fid.{name}.{which}"] = finite_or_none(sample_quality.frechet_distance(reference, seen))
        kernel, score = None, None
        near: tuple[float | None, float | None] = (None, None)
        if which in REPORTED:
            kernel = metrics[f"kid.{name}.{which}"] = finite_or_none(
                sample_quality.kernel_distance(reference, seen, seed=subject.seed)
            )
            protocols[f"kid.{name}.{which}"] = f"{how}; {_subsets(len(reference), len(seen))}"
            near = _manifolds(reference[:manifold], seen[:manifold])
        if extractor.logits is not None:
            score = finite_or_none(sample_quality.inception_score(passed(extractor.logits, x)))
        table.append((title, len(x), distance, kernel, *near, score))
        if which in ("fresh", "train"):
            key = "" if which == "fresh" else "_train"
            metrics[f"precision{key}.{name}"], metrics[f"recall{key}.{name}"] = near
        if which == "fresh" and extractor.logits is not None:
            metrics[f"inception_score.{name}"] = score
            protocols[f"inception_score.{name}"] = f"{how}; one group"
    if extractor.logits is not None:
        score = sample_quality.inception_score(passed(extractor.logits, sets.test))
        metrics[f"inception_score_test.{name}"] = score
        table.append(("test rows themselves", len(sets.test), None, None, None, None, score))
        says.append(
            "The class score is high, up to the number of classes, where each row is of one class for sure and all "
            "classes are met (the inception score, by the classes of this extractor)."
        )
    columns = ("compared with test rows", "rows", f"FID ({name})", f"KID ({name})", "precision", "recall")
    says.append(
        f"Precision: the share of rows that lie among test rows, no further than their "
        f"{sample_quality.NEAREST}rd neighbor does. Recall: the share of test rows that lie so among them."
    )
    tables = (Table("Samples against data", (*columns, "class score"), tuple(table)),)
    return Section("features", "", tuple(says), metrics, tables, protocols=protocols)


def _compared(run: Run, sets: Sets) -> dict[str, tuple[str, Tensor]]:
    """What is compared with test rows, under the last part of its metrics' names, with what a reader is told of it."""
    rows = {"fresh": (f"fresh chains of {sets.steps} steps, unfiltered", sets.samples)}
    if sets.train is not None:
        rows["train"] = ("training rows (real data)", sets.train)
    if sets.buffer is not None:
        own = sets.buffer.x[torch.linspace(0, len(sets.buffer.x) - 1, len(sets.test)).long().unique()]
        rows["buffer"] = ("chains of training (not fresh), unfiltered", own)
        kept = _surest(run, sets.buffer.x)
        # Very few rows are far from anything: a distance of theirs would say so and nothing else.
        if kept is not None and len(kept) >= len(sets.test) // 2:
            rows["buffer_filtered"] = (
                "the tenth of the chains of training that the model is surest of (filtered)",
                kept,
            )
    rows["start"] = ("where the chains began", sets.starts)
    rows["noise"] = ("uniform noise", sets.noise)
    return rows


def features_of_real(run: Run, extractor: Extractor, x: Tensor) -> Tensor:
    """Features of real rows, from the cache where a costly extractor has seen them before."""
    if not extractor.costly:
        return _passed(extractor, x)
    weights, rows = cache.weights_digest(extractor.features), cache.rows_digest([x])
    key = f"{extractor.protocol} {run.bounds!r} {weights} {tuple(x.shape)} {x.dtype} {rows}"
    return cached_features(extractor.name, key, len(x), lambda: _passed(extractor, x)).to(x.device)


def _passed(extractor: Extractor, x: Tensor) -> Tensor:
    return torch.cat(list(passed(extractor.features, x)))


def _subsets(n: int, m: int) -> str:
    if n == m <= sample_quality.SUBSET:
        return "over all rows at once"
    return f"mean over {sample_quality.SUBSETS} subsets of {min(sample_quality.SUBSET, n, m):,}"


def neighbors(run: Run, sets: Sets, extractor: Extractor, n: int) -> Section:
    """How far samples are from the nearest training row, in values and in features, beside how far test rows are.

    All training rows pass the extractor for that, so that a costly one is left out.
    """
    if sets.train is None or len(sets.samples) == 0:
        return Section("neighbors", "")
    metrics: dict[str, float | None] = {}
    panels: dict[str, Tensor] = {}
    samples, test = sets.samples[:n], sets.test[:n]
    k = min(NEAREST, len(run.data.x))
    for space, found in {"pixels": None, **({} if extractor.costly else {extractor.name: extractor})}.items():
        maps, name = (None, None) if found is None else (found.features, space)
        near = run.neighbors(samples, k=k, features=maps, space=name)
        own = run.neighbors(test, k=1, features=maps, space=name).distance[:, 0].median()
        metrics[f"nearest_train.{space}"] = (
            finite_or_none(float(near.distance[:, 0].median() / own)) if own > 0 else None
        )
        shown = run.data.x[near.index[:SHOWN].to(run.data.x.device)]
        panels[f"nearest by {space}"] = torch.cat((samples[:SHOWN, None], shown.to(samples)), dim=1).flatten(0, 1)
    drawn = None
    if samples[0].numel() > 2:
        caption = (
            f"On the left of each line a fresh sample, then the {k} training rows that are nearest to it. A sample "
            "that equals its neighbor was learned by heart."
        )
        drawn = grids("neighbors", caption, panels, k + 1, run.bounds, apart=True)
    says = (
        "nearest_train is the median distance from a sample to its nearest training row, as a share of that from a "
        "test row to its own: far below 1 means copies of training rows.",
    )
    return Section("neighbors", "", says, metrics, (), () if drawn is None else (drawn,))


def _manifolds(data: Tensor, seen: Tensor) -> tuple[float | None, float | None]:
    try:
        found = sample_quality.precision_and_recall(data, seen)
    except InputError:  # too few rows to have neighbors
        return None, None
    return found.precision, found.recall


def _surest(run: Run, x: Tensor) -> Tensor | None:
    """The tenth of the rows that the model is surest of, as JEM's appendix B keeps them."""
    try:
        sure = torch.cat(list(passed(lambda rows: run.score(rows, "max_probability"), x)))
    except InputError:
        return None
    return x[sure.argsort(descending=True, stable=True)[: len(x) // TENTH]]

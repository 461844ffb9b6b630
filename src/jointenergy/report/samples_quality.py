"""report: how good and how varied fresh samples are: features against data, diversity, nearest training rows."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from jointenergy.data.cache import cached_features
from jointenergy.errors import InputError
from jointenergy.metrics import sample_quality
from jointenergy.report import stored
from jointenergy.report.samples_pictures import grids
from jointenergy.report.samples_sets import Sets, passed
from jointenergy.report.sections import Cell, Extractor, Section, Subject, Table
from jointenergy.runs import Run
from jointenergy.training.health import diversity

MOST = 1000  # rows whose distances to each other are averaged
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
        distance = metrics[f"fid.{name}.{which}"] = _number(sample_quality.frechet_distance(reference, seen))
        kernel, score = None, None
        near: tuple[float | None, float | None] = (None, None)
        if which in REPORTED:
            kernel = metrics[f"kid.{name}.{which}"] = _number(
                sample_quality.kernel_distance(reference, seen, seed=subject.seed)
            )
            protocols[f"kid.{name}.{which}"] = f"{how}; {_subsets(len(reference), len(seen))}"
            near = _manifolds(reference[:manifold], seen[:manifold])
        if extractor.logits is not None:
            score = _number(sample_quality.inception_score(passed(extractor.logits, x)))
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
    weights, rows = stored.weights_digest(extractor.features), stored.rows_digest([x])
    key = f"{extractor.protocol} {run.bounds!r} {weights} {tuple(x.shape)} {x.dtype} {rows}"
    return cached_features(extractor.name, key, len(x), lambda: _passed(extractor, x)).to(x.device)


def _passed(extractor: Extractor, x: Tensor) -> Tensor:
    return torch.cat(list(passed(extractor.features, x)))


def _subsets(n: int, m: int) -> str:
    if n == m <= sample_quality.SUBSET:
        return "over all rows at once"
    return f"mean over {sample_quality.SUBSETS} subsets of {min(sample_quality.SUBSET, n, m):,}"


def variety(sets: Sets) -> dict[str, float | None]:
    """The mean distance between samples, as a share of that between test rows."""
    if len(sets.samples) < 2:
        return {"diversity": None}
    return {"diversity": _number(_ratio(sets.samples, sets.test))}


def variety_by_class(x: Tensor, classes: Tensor, data: Tensor, data_classes: Tensor) -> dict[str, float | None]:
    """The same within each class that has samples and data to compare: the mean, and the class that is lowest."""
    ratios = []
    for c in classes.unique().tolist():
        own, real = x[classes == c], data[data_classes == c]
        if len(own) > 1 and len(real) > 1:
            ratios.append(_ratio(own, real))
    found = [r for r in ratios if math.isfinite(r)]
    if not found:
        return {}
    return {"diversity_class.mean": sum(found) / len(found), "diversity_class.lowest": min(found)}


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
        metrics[f"nearest_train.{space}"] = _number(float(near.distance[:, 0].median() / own)) if own > 0 else None
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


def _ratio(x: Tensor, data: Tensor) -> float:
    return diversity(x[:MOST]) / max(diversity(data[:MOST]), 1e-12)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None

"""report: samples: what fresh chains of a run are worth, by features, labels, age, neighbors and cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from jointenergy.report.likelihood import evenly
from jointenergy.report.long_chains import long_chains
from jointenergy.report.sample_sets import MANY, Sets, at_once, passed, sets_of, variety
from jointenergy.report.sections import Cell, Extractor, Picture, Section, Subject, Suite, Table
from jointenergy.runs import Run
from jointenergy.starts import FrequencyLabels
from jointenergy.training.journal import read_rows

COLUMNS = 8


@dataclass(frozen=True)
class SampleSizes:
    """How much is drawn: fresh samples, rows of a training set that they are compared with (None: all), rows of
    precision and recall, whether samples of classes are compared too, values or pairs of labels asked for, samples of
    each (and of each where the best tenth is kept), chains that grow old, how many times as long as in training, and
    samples whose neighbors are sought."""

    samples: int
    reference: int | None
    manifold: int
    conditional: bool
    patterns: int
    per: int
    per_selected: int
    chains: int
    times: int
    neighbors: int


QUICK = SampleSizes(
    samples=500,
    reference=500,
    manifold=500,
    conditional=False,
    patterns=10,
    per=20,
    per_selected=3,
    chains=64,
    times=10,
    neighbors=100,
)
FULL = SampleSizes(
    samples=10_000,
    reference=None,
    manifold=3_000,
    conditional=True,
    patterns=25,
    per=100,
    per_selected=20,
    chains=256,
    times=100,
    neighbors=1_000,
)


def samples(subject: Subject, suite: Suite) -> Section:
    """All that is said of a run's samples: fresh chains with the function that a user loads, none left out."""
    sizes = QUICK if suite == "quick" else FULL
    run = subject.run
    generator = torch.Generator().manual_seed(subject.seed)
    try:
        sets = sets_of(subject, sizes.samples, generator)
    except InputError as error:  # such as a start that needs training rows, which the run does not have
        return Section("samples", "Samples", (f"No samples: {error}.",))
    extractor, said = extractors.choose(subject)
    conditional = conditional_rows(subject, len(sets.samples), sets.steps) if sizes.conditional else None
    parts = [
        Section("samples", "", (*sets.says, *said), variety(sets), (), _shown(run, sets)),
        features(subject, sets, extractor, sizes, conditional=conditional),
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
        panels["persistent chains"] = sets.buffer.x
    n = COLUMNS * COLUMNS if sets.test[0].numel() > 2 else 500
    kept = " and persistent chains of training" if "persistent chains" in panels else ""
    drawn = grids(
        "samples",
        f"Fresh samples of {sets.steps} steps, not selected, beside test rows{kept}.",
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
        ("parameters", f"{n:,}"),
        *([] if trained is None else [("training, minutes", f"{trained / 60:.2g}")]),
        (
            f"{MANY:,} samples of {sets.steps} steps, minutes (from {len(sets.samples):,})",
            f"{sets.seconds / 60:.2g}",
        ),
    ]
    metrics: dict[str, float | None] = {"parameters": float(n), "samples_50000_seconds": sets.seconds}
    if trained is not None:
        metrics["training_seconds"] = trained
    says = (
        f"The time for {MANY:,} samples is extrapolated from {len(sets.samples):,} on this machine's "
        f"{sets.samples.device.type.upper()}.",
    )
    return Section("cost", "", says, metrics, (Table("Cost", ("what", "value"), tuple(rows)),))


def _training_seconds(run: Run) -> float | None:
    """As the run folder tells it, whose last line has the time of all before."""
    checkpoint = run.origin.checkpoint
    path = None if checkpoint is None else checkpoint.parent.parent / "metrics.csv"
    if path is None:
        return None
    try:
        return float(read_rows(path)[-1]["seconds"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None


TENTH = 10  # published scores keep one of so many chains
COMPARED = ("fresh", "conditional", "train", "test", "buffer", "buffer_filtered", "start", "noise")
REPORTED = ("fresh", "conditional", "train", "test", "buffer")  # whose KID, precision and so on are told too
SHOWN, NEAREST = 8, 5  # samples that are shown with their neighbors, and how many of these


def features(
    subject: Subject,
    sets: Sets,
    extractor: Extractor,
    sizes: SampleSizes,
    *,
    chosen: Collection[str] = COMPARED,
    conditional: Tensor | None = None,
) -> Section:
    """FID, KID and class score of the `chosen` sets against the extractor's reference, with precision, recall, density
    and coverage.

    These four look at few rows, taken evenly: their cost grows with the square. `conditional` are samples of the
    classes, each class as often as training rows have it.
    """
    run, name = subject.run, extractor.name
    x_reference, against = _reference(subject, sets, extractor, sizes.reference)
    says = [
        f"{len(sets.samples):,} fresh chains of {sets.steps} steps, not selected, against {against}. Features are "
        f"those of {name} ({extractor.protocol}); distances of other extractors are not comparable. FID grows with "
        "fewer rows, so compare it with that of as many real rows."
    ]
    reference = features_of_real(run, extractor, x_reference)
    metrics: dict[str, float | None] = {}
    protocols: dict[str, str] = {}
    table: list[tuple[Cell, ...]] = []
    beside: list[tuple[Cell, ...]] = []  # sets that have a distance and no more
    for which, (title, x) in _compared(run, sets, extractor, conditional).items():
        if which not in chosen:
            continue
        how = f"{len(x):,} rows, {title}, against {against} of {subject.test.name}; {extractor.protocol}"
        protocols[f"fid.{name}.{which}"] = how
        if len(x) < 2:
            metrics[f"fid.{name}.{which}"] = None
            continue
        seen = features_of_real(run, extractor, x) if which in ("train", "test") else _passed(extractor, x)
        distance = metrics[f"fid.{name}.{which}"] = finite_or_none(sample_quality.frechet_distance(reference, seen))
        kernel, score = None, None
        near: Mapping[str, float | None] = dict.fromkeys(MANIFOLDS)
        if which in REPORTED:
            kernel = metrics[f"kid.{name}.{which}"] = finite_or_none(
                sample_quality.kernel_distance(reference, seen, seed=subject.seed)
            )
            protocols[f"kid.{name}.{which}"] = f"{how}; {_subsets(len(reference), len(seen))}"
            n = min(len(reference), len(seen), sizes.manifold)
            near = _manifolds(reference[evenly(len(reference), n)], seen[evenly(len(seen), n)])
            metrics |= {f"{what}.{name}.{which}": value for what, value in near.items()}
            rows = f"{how}; {n:,} rows of both, taken evenly"
            protocols |= {f"{what}.{name}.{which}": f"{rows}, {k} neighbors" for what, k in MANIFOLDS.items()}
        if extractor.logits is not None:
            score = finite_or_none(sample_quality.inception_score(passed(extractor.logits, x)))
        (table if which in REPORTED else beside).append((title, len(x), distance, kernel, *near.values(), score))
        if which == "fresh" and extractor.logits is not None:
            metrics[f"inception_score.{name}"] = score
            protocols[f"inception_score.{name}"] = f"{how}; one group"
    if extractor.logits is not None:
        score = sample_quality.inception_score(passed(extractor.logits, sets.test))
        metrics[f"inception_score_test.{name}"] = score
        beside.append(("test rows", len(sets.test), *(None,) * (2 + len(MANIFOLDS)), score))
        says.append(
            "The class score is at most the number of classes, reached if every row is classified with confidence and "
            "all classes are equally frequent (the inception score, with the classes of this extractor)."
        )
    says.append(
        "Precision: the share of samples within balls around data, each reaching to the 3rd neighbor; recall: the "
        "share of data within balls around samples. Density and coverage use balls around data only, to the 5th "
        "neighbor: the number of balls that contain a sample, over 5, and the share of balls with a sample; real rows "
        "have about 1 and 0.97."
    )
    columns = (f"against {against}", "rows", f"FID ({name})", f"KID ({name})", *MANIFOLDS, "class score")
    tables = [_filled_columns("Samples against data", columns, table)]
    if beside:
        tables.append(_filled_columns("To compare: where chains start, noise, real rows", columns, beside))
    return Section("features", "", tuple(says), metrics, tuple(tables), protocols=protocols)


def _filled_columns(title: str, columns: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Table:
    """Without the columns that have no value at all, as of an extractor that knows no classes."""
    kept = [i for i in range(len(columns)) if i == 0 or any(row[i] is not None for row in rows)]
    return Table(title, tuple(columns[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows))


def _reference(subject: Subject, sets: Sets, extractor: Extractor, most: int | None) -> tuple[Tensor, str]:
    """The rows that all others are compared with, and what sentences call them."""
    if extractor.reference == "test":
        return sets.test, f"{len(sets.test):,} test rows"
    try:
        data = subject.run.data
    except InputError as error:
        raise InputError(f"the reference is the training set: {error}; or use --reference test") from None
    x = torch.cat((data.x, data.x_held))
    if most is not None:
        x = x[evenly(len(x), most)]
    return x, f"{len(x):,} training rows"


def conditional_rows(subject: Subject, n: int, steps: int) -> Tensor | None:
    """Fresh chains of classes, each as often as training rows have it; None where there is no one class to give."""
    run = subject.run
    if len(run.labels) != 1:
        return None
    try:
        labels = FrequencyLabels.fit(run.data.y, run.labels)
    except InputError:
        return None
    given = labels.draw(n, generator=torch.Generator().manual_seed(subject.seed))
    size = at_once(run.event_shape, run.origin.device)
    x = run.sample(n, given, steps=steps, batch_size=size, seed=subject.seed).x
    return x[x.isfinite().flatten(1).all(1)]


def _compared(run: Run, sets: Sets, extractor: Extractor, conditional: Tensor | None) -> dict[str, tuple[str, Tensor]]:
    """What is compared, under the last part of its metrics' names, with what a reader is told of it."""
    rows = {"fresh": (f"fresh chains of {sets.steps} steps, unfiltered", sets.samples)}
    if conditional is not None:
        rows["conditional"] = (f"fresh chains given classes, {sets.steps} steps, unfiltered", conditional)
    if extractor.reference == "train":
        rows["test"] = ("test rows (real data)", sets.test)
    elif sets.train is not None:
        rows["train"] = ("training rows (real data)", sets.train)
    if sets.buffer is not None:
        own = sets.buffer.x[torch.linspace(0, len(sets.buffer.x) - 1, len(sets.test)).long().unique()]
        rows["buffer"] = ("persistent chains (not fresh), unfiltered", own)
        kept = _surest(run, sets.buffer.x)
        # Very few rows are far from anything: a distance of theirs would say so and nothing else.
        if kept is not None and len(kept) >= len(sets.test) // 2:
            rows["buffer_filtered"] = (
                "the most confident tenth of persistent chains (filtered)",
                kept,
            )
    rows["start"] = ("starts of the chains", sets.starts)
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
            f"Each line: a fresh sample, then its {k} nearest training rows. A sample that equals its neighbor was "
            "memorized."
        )
        drawn = grids("neighbors", caption, panels, k + 1, run.bounds, apart=True)
    says = (
        "nearest_train is the median distance from a sample to its nearest training row, as a share of that from a "
        "test row to its own: far below 1 means copies of training rows.",
    )
    return Section("neighbors", "", says, metrics, (), () if drawn is None else (drawn,))


MANIFOLDS = {  # and the neighbor that balls reach to
    "precision": sample_quality.NEAREST,
    "recall": sample_quality.NEAREST,
    "density": sample_quality.COVERED,
    "coverage": sample_quality.COVERED,
}


def _manifolds(data: Tensor, seen: Tensor) -> Mapping[str, float | None]:
    try:
        near = sample_quality.precision_and_recall(data, seen)
        covered = sample_quality.density_and_coverage(data, seen)
    except InputError:  # too few rows to have neighbors
        return dict.fromkeys(MANIFOLDS)
    found = (near.precision, near.recall, covered.density, covered.coverage)
    return dict(zip(MANIFOLDS, found, strict=True))


def _surest(run: Run, x: Tensor) -> Tensor | None:
    """The tenth of the rows that the model is surest of, as JEM's appendix B keeps them."""
    try:
        sure = torch.cat(list(passed(lambda rows: run.score(rows, "max_probability"), x)))
    except InputError:
        return None
    return x[sure.argsort(descending=True, stable=True)[: len(x) // TENTH]]

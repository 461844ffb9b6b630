"""report: out-of-distribution detection: how well scores of x separate test rows from sets that are unlike the data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.data.fitting import image_form
from jointenergy.errors import InputError
from jointenergy.inference import SCORES
from jointenergy.metrics.detection import Separation, Values, separation
from jointenergy.metrics.registry import finite_or_none
from jointenergy.report.drawings import COLORS, drawing, grids, picture
from jointenergy.report.ood_sets import Made, OodSet, built_in_sets
from jointenergy.report.predictors import prefix, shown
from jointenergy.report.sections import Cell, Picture, Rows, Section, Subject, Suite, Table
from jointenergy.runs import Run
from jointenergy.streams import seeded

SHOWN = 10  # rows of each set that a person sees
TITLE = "Out-of-distribution detection"


@dataclass(frozen=True)
class OodSizes:
    """Rows of each built-in set, the most that are scored of the others, and whether noised rows are scored too."""

    rows: int
    most: int | None
    noised: bool


QUICK, FULL = OodSizes(1000, 2000, False), OodSizes(10_000, None, True)


@dataclass(frozen=True, eq=False)
class DataRows:
    """The test rows as a set among the others."""

    x: Tensor
    name: str = "test rows"

    def batches(self, size: int) -> Iterator[Tensor]:
        yield from self.x.split(size)


def ood(subject: Subject, suite: Suite) -> Section:
    """Out-of-distribution detection by each score of the table."""
    sizes = QUICK if suite == "quick" else FULL
    runs = subject.classifiers()
    recipe = subject.run.recipe
    noise = recipe.data.noise if sizes.noised and recipe is not None else 0.0
    sets: list[Rows] = [*subject.ood_sets, *built_in_sets(subject.run, subject.test.x, sizes.rows, subject.seed)]
    _check_names(sets)
    asked, refused = _askable(runs, subject.test.x, noised=noise > 0)
    if not asked:
        return Section("ood", TITLE, tuple(refused))

    def score(rows: Rows) -> dict[Asked, Values]:
        return scores_of(rows, runs, asked, most=sizes.most, noise=noise, seed=subject.seed)

    data = score(DataRows(subject.test.x))
    found = {rows.name: score(rows) for rows in sets}
    about = tuple(_about(sets))  # now: sets tell of the rows that they have just given
    told = {name: {a: separation(data[a], values[a]) for a in asked} for name, values in found.items()}
    control = {a: separation(values[::2], values[1::2]) for a, values in data.items()}
    counts = {name: len(next(iter(values.values()))) for name, values in found.items()}
    return Section(
        "ood",
        TITLE,
        tuple(_sentences(subject, asked, refused, data, found, noise, suite)) + about,
        _metrics(told, control),
        tuple(_tables(told, control, counts, len(next(iter(data.values()))))),
        tuple(_pictures(subject, sets, asked, data, found, told, noise)),
        lead=(
            "Out-of-distribution detection with log p(x): AUROC 1 is perfect, 0.5 is chance, and below 0.5 the OOD set "
            "scores higher than the data.",
        ),
    )


def aurocs(run: Run, test: Tensor, sets: Sequence[Rows], seed: int) -> dict[str, float | None]:
    """The figures that are published: how well each score of the run tells each set, all of it, from the test rows."""
    runs = {"run": run}
    asked, _ = _askable(runs, test, noised=False)
    data, *others = (scores_of(s, runs, asked, most=None, noise=0.0, seed=seed) for s in (DataRows(test), *sets))
    return {
        f"ood_auroc.{rows.name}.{a.kind}": finite_or_none(separation(data[a], values[a]).auroc)
        for rows, values in zip(sets, others, strict=True)
        for a in asked
    }


def _check_names(sets: Sequence[Rows]) -> None:
    twice = [name for name, n in Counter(rows.name for rows in sets).items() if n > 1]
    if twice:
        raise InputError(f"two OOD sets are called {twice[0]!r}: give each its own name")


def _askable(runs: Mapping[str, Run], x: Tensor, *, noised: bool) -> tuple[list[Asked], list[str]]:
    """The scores that the runs have, and a sentence for those that they have not."""
    asked: list[Asked] = []
    reasons: dict[tuple[str, str], list[str]] = {}
    for who, run in runs.items():
        for kind in SCORES:
            try:
                run.score(x[:2], kind)
            except InputError as error:
                reasons.setdefault((who, str(error)), []).append(SCORES[kind].symbol)
            else:
                asked += [Asked(who, kind, with_noise) for with_noise in (False, True)[: 1 + noised]]
    return asked, [f"The {who} has no {', no '.join(kinds)}: {why}." for (who, why), kinds in reasons.items()]


def _metrics(
    told: Mapping[str, Mapping[Asked, Separation]], control: Mapping[Asked, Separation]
) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {}
    for name, figures in told.items():
        for a, figure in figures.items():
            before = prefix(a.who)
            if a.noised:
                metrics[f"{before}ood_auroc_noised.{name}.{a.kind}"] = finite_or_none(figure.auroc)
                continue
            for what in ("auroc", "aupr", "fpr95"):
                metrics[f"{before}ood_{what}.{name}.{a.kind}"] = finite_or_none(getattr(figure, what))
    for a, figure in control.items():
        if not a.noised:
            metrics[f"{prefix(a.who)}ood_auroc_control.{a.kind}"] = finite_or_none(figure.auroc)
    return metrics


def _tables(
    told: Mapping[str, Mapping[Asked, Separation]],
    control: Mapping[Asked, Separation],
    counts: Mapping[str, int],
    n_test: int,
) -> Iterator[Table]:
    """Detection by log p(x) of the run and its baseline; then, folded, every score of each classifier."""
    main = [a for a in control if a.kind == "log_density" and not a.noised and a.who in ("run", "baseline")]
    if main:
        columns = [f"{w}{_of(a.who)}" for a in main for w in ("AUROC", "FPR at 95 % TPR")]
        rows: list[tuple[Cell, ...]] = [
            (name.replace("_", " "), *(finite_or_none(v) for a in main for v in (figures[a].auroc, figures[a].fpr95)))
            for name, figures in told.items()
        ]
        yield Table("Detection by log p(x)", ("set", *columns), tuple(rows))
    titles = {"auroc": "AUROC", "fpr95": "FPR at 95 % TPR (less is better)", "aupr": "AUPR, test rows as positives"}
    for who in dict.fromkeys(a.who for a in control):
        for what, title in titles.items():
            for noised in (False, True) if what == "auroc" else (False,):
                asked = [a for a in control if a.who == who and a.noised == noised]
                if not asked:
                    continue
                rows = [
                    (name.replace("_", " "), counts[name], *(finite_or_none(getattr(figures[a], what)) for a in asked))
                    for name, figures in told.items()
                ]
                rows.append((CONTROL, n_test // 2, *(finite_or_none(getattr(control[a], what)) for a in asked)))
                named = title + _of(who) + (", data noise added to all rows" if noised else "")
                yield Table(named, ("set", "rows", *(SCORES[a.kind].symbol for a in asked)), tuple(rows), folded=True)


def _of(who: str) -> str:
    return "" if who == "run" else f", {who}"


CONTROL = "control: test rows"


def _sentences(
    subject: Subject,
    asked: Sequence[Asked],
    refused: Sequence[str],
    data: Mapping[Asked, Values],
    found: Mapping[str, Mapping[Asked, Values]],
    noise: float,
    suite: Suite,
) -> Iterator[str]:
    scores = "; ".join(f"{score.symbol}, {score.description}" for score in SCORES.values())
    yield (
        f"Each score should be higher for rows like the data: {scores}. AUROC is the probability that a test row "
        "scores higher than a row of the set; FPR at 95 % TPR is the share of the set above a threshold that 95 % of "
        "test rows pass; AUPR is average precision with both sets weighted equally."
    )
    free = [shown(who) for who, run in subject.classifiers().items() if run.is_cross_entropy]
    if free:
        yield (
            f"log p(x) of {', '.join(free)} is the logsumexp of its logits, which cross-entropy does not constrain: a "
            "score, not a density."
        )
    recipe = subject.run.recipe
    if noise:
        yield (
            f"Figures are without noise. Those called noised add the recipe's data noise, of standard deviation "
            f"{noise:g}, to test rows and sets, as in the JEM paper."
        )
    elif suite != "quick" and recipe is not None:
        yield "Rows are scored without noise: the recipe adds none to its data."
    else:
        yield "Rows are scored without data noise."
    for a in asked:
        symbol = SCORES[a.kind].symbol
        equal = int((data[a] == data[a].max()).sum())
        if not a.noised and equal > max(1, 0.01 * len(data[a])):
            yield (
                f"The {a.who} gives {100 * equal / len(data[a]):.0f} % of the test rows the same largest {symbol}: "
                "among ties the AUROC is chance."
            )
        broken = [name for name, values in found.items() if not np.isfinite(values[a]).all()]
        if not np.isfinite(data[a]).all():
            yield f"{symbol} of the {a.who} is not finite on test rows, so it has no figures."
        elif broken and not a.noised:
            yield f"{symbol} of the {a.who} is not finite on rows of {', '.join(broken)}: no figures there."
    yield from refused


def _about(sets: Sequence[Rows]) -> Iterator[str]:
    for rows in sets:
        if isinstance(rows, OodSet | Made):
            yield rows.says
    yield "The control is one half of the test rows against the other half."


def _pictures(
    subject: Subject,
    sets: Sequence[Rows],
    asked: Sequence[Asked],
    data: Mapping[Asked, Values],
    found: Mapping[str, Mapping[Asked, Values]],
    told: Mapping[str, Mapping[Asked, Separation]],
    noise: float,
) -> Iterator[Picture]:
    for a in (a for a in asked if a.kind == "log_density" and a.who in ("run", "baseline")):
        panels = {name: (values[a], told[name][a].auroc) for name, values in found.items()}
        drawn = histograms(data[a], panels, who=a.who, noise=noise if a.noised else 0.0)
        yield replace(drawn, folded=a.who != "run" or a.noised)
    first = {rows.name: next(rows.batches(SHOWN), None) for rows in [DataRows(subject.test.x), *sets]}
    seen = examples({name: x for name, x in first.items() if x is not None}, subject.run)
    if seen is not None:
        yield replace(seen, folded=True)


AT_ONCE = 500  # rows of a batch


class Asked(NamedTuple):
    """One score of one run, on rows as they are or with the data noise of the recipe."""

    who: str
    kind: str
    noised: bool


def scores_of(
    rows: Rows, runs: Mapping[str, Run], asked: Sequence[Asked], *, most: int | None, noise: float, seed: int
) -> dict[Asked, Values]:
    """Scores of the rows, which pass by in batches: of each only its numbers stay.

    Of sets with more than `most` rows every second, fourth, ... row is taken, so that all parts of the set have their
    share although nobody knows its length beforehand. Noise belongs to a row, whatever batch it is in.
    """
    kept: dict[Asked, list[Tensor]] = {a: [] for a in asked}
    generator = seeded(seed, "outside", "data noise", rows.name)
    step, seen, n = 1, 0, 0
    for batch in rows.batches(AT_ONCE):
        keys = streams.chain_keys(len(batch), generator=generator)
        taken = slice(-seen % step, None, step)
        seen += len(batch)
        x = batch[taken]
        if not len(x):
            continue
        noisy = x + noise * streams.normal_like(keys[taken].to(x.device), x) if noise else x
        for a in asked:
            kept[a].append(_score(runs[a.who], noisy if a.noised else x, a.kind))
        n += len(x)
        while most is not None and n > most:
            kept = {a: [torch.cat(values)[::2]] for a, values in kept.items()}
            step, n = 2 * step, -(-n // 2)
    return {a: torch.cat(values).numpy() if values else np.empty(0) for a, values in kept.items()}


def _score(run: Run, x: Tensor, kind: str) -> Tensor:
    try:
        return run.score(x, kind).double().cpu()
    except InputError:
        # No labels are the most probable where log p(x) is no number: that is a finding, and all else is a mistake.
        if not bool(run.score(x, "log_density").isnan().any()):
            raise
        return torch.full((len(x),), math.nan, dtype=torch.float64)


COLUMNS = 2  # wider pictures cannot be read on a phone
BINS = 40


def histograms(data: Values, panels: Mapping[str, tuple[Values, float]], *, who: str, noise: float) -> Picture:
    """One panel for each set: log p(x) of the test rows and of the set, with the AUROC between them."""
    n_rows = -(-len(panels) // COLUMNS)
    with drawing(6.4, 0.5 + 1.9 * n_rows) as figure:
        axes = figure.subplots(n_rows, COLUMNS, squeeze=False).ravel()
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for axis, (name, (values, auroc)) in zip(axes, panels.items(), strict=False):
            finite = [v[np.isfinite(v)] for v in (data, values)]
            edges = np.histogram_bin_edges(np.concatenate(finite), BINS)
            for part, color, label in zip(finite, COLORS, ("test rows", "the set"), strict=False):
                # Shares, so that sets of different sizes have histograms of one height.
                shares = np.histogram(part, edges)[0] / max(1, len(part))
                axis.stairs(shares, edges, fill=True, color=color, alpha=0.6, label=label)
            shown = "no AUROC" if math.isnan(auroc) else f"AUROC {auroc:.3f}"
            axis.set_title(f"{name.replace('_', ' ')}: {shown}", fontsize=10)
            axis.set_yticks([])
        figure.supxlabel("log p(x), up to a constant", fontsize=10)
        first = figure.axes[0].get_legend_handles_labels()
        figure.legend(*first, loc="outside upper center", ncols=2)
        noised = f", data noise of {noise:g} added" if noise else ""
        owner = "" if who == "run" else f" of the {who}, whose logsumexp is not a density"
        caption = (
            f"log p(x) of the test rows and of each set{owner}{noised}: the share of rows at each value. The less they "
            "overlap, with the set on the left, the better log p(x) detects the set."
        )
        name = "_".join(["ood_histograms", *([] if who == "run" else [who]), *(["noised"] if noise else [])])
        return picture(name, caption, figure)


def examples(rows: Mapping[str, Tensor], run: Run) -> Picture | None:
    """The first rows of each set as the run sees them; None where rows are no images."""
    if image_form(run.event_shape) is None:
        return None
    most = max(len(x) for x in rows.values())
    # Short sets are filled up with the upper bound, which is white.
    lines = [torch.cat((x, x.new_full((most - len(x), *x.shape[1:]), run.bounds[1]))) for x in rows.values()]
    caption = "The first rows of each set, converted to the input format of the run; black is the lower bound of x."
    names = [name.replace("_", " ") for name in rows]
    return grids("ood_examples", caption, {"": torch.cat(lines)}, most, run.bounds, names)

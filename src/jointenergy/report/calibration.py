"""report: calibration: whether the model is right as often as it says, and what its doubts are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch

from jointenergy import inference
from jointenergy.data import Dataset
from jointenergy.errors import InputError
from jointenergy.labels import MISSING
from jointenergy.metrics.calibration import (
    LEVEL,
    Band,
    bins_of,
    bootstrap,
    calibration_error,
    classwise_error,
    equal_mass_bins,
    expected_calibration_error,
    if_calibrated,
    risk_coverage,
)
from jointenergy.metrics.classification import Answers, Told
from jointenergy.report import classification_plots
from jointenergy.report.predictors import predictors, prefix, shown, told_by
from jointenergy.report.sections import Cell, Section, Subject, Suite, Table
from jointenergy.runs import Run

__all__ = ["Calibrated", "calibration", "expected_calibration_error", "measure"]

SCALED = ", temperature-scaled"
LEAST_DRAWS, MOST_DRAWN = 200, 100_000_000


@dataclass(frozen=True)
class CalibrationSizes:
    """Resamples of a bootstrap, sets of truths drawn from the model itself, held-out rows for the temperature."""

    resamples: int
    draws: int
    held_rows: int


QUICK = CalibrationSizes(resamples=1000, draws=1000, held_rows=2000)
FULL = CalibrationSizes(resamples=2000, draws=2000, held_rows=20000)


@dataclass(frozen=True)
class Calibrated:
    """`ece` with its interval and with what chance alone would make of a perfect model; the same over bins of equal
    mass; over all values instead of the top; the area under risk against coverage; mean NLL of a row's labels."""

    ece: float
    interval: Band
    by_chance: Band
    ece_equal_mass: float
    ece_classwise: float
    aurc: float
    nll: float


def measure(answers: Answers, sizes: CalibrationSizes, seed: int) -> Calibrated:
    """All figures of one that predicts; two streams of chance are derived from the seed."""
    confidence, right = answers.confidence, answers.right
    bins = bins_of(confidence)
    resampling, drawing = (torch.Generator().manual_seed(2 * seed + i) for i in (0, 1))
    errors = bootstrap(confidence, right, answers.row, bins, resamples=sizes.resamples, generator=resampling)
    # Many entries have a narrow band, which fewer draws show as well.
    draws = max(LEAST_DRAWS, min(sizes.draws, MOST_DRAWN // len(answers)))
    counts = torch.bincount(answers.variable, minlength=len(answers.labels)).tolist()
    ece = calibration_error(confidence, right, bins)
    return Calibrated(
        ece,
        Band.of(errors).around(ece),
        Band.of(if_calibrated(confidence, bins, draws=draws, generator=drawing)),
        calibration_error(confidence, right, equal_mass_bins(answers.log_odds)),
        classwise_error(answers.class_gaps, counts),
        risk_coverage(answers.log_odds, right).area,
        _nll(answers),
    )


def _nll(answers: Answers) -> float:
    """Label by label, summed over the labels of a row."""
    return float(answers.nll.sum()) / len(answers.row.unique())


def calibration(subject: Subject, suite: Suite) -> Section:
    """Errors of confidence of all that predict, plain and temperature-scaled, side by side."""
    sizes = QUICK if suite == "quick" else FULL
    able, says = predictors(subject)
    answers: dict[str, Answers] = {}
    temperatures: dict[str, float] = {}
    metrics: dict[str, float | None] = {}
    for name, run in able.items():
        fitted = _temperature(run, sizes.held_rows)
        told = told_by(run, subject.test, (1.0, *((fitted,) if isinstance(fitted, float) else ())))
        if not isinstance(told, Told):
            says.append(f"The calibration of {shown(name)} cannot be measured: {told}.")
            continue
        answers[name] = told.answers[0]
        if isinstance(fitted, float):
            answers[name + SCALED], temperatures[name + SCALED] = told.answers[1], fitted
            metrics[f"{prefix(name)}logit_temperature"] = fitted
        else:
            says.append(f"There is no temperature-scaled row of {shown(name)}: {fitted}.")
    if not answers:
        return Section("calibration", "Calibration", tuple(says))
    found = {name: measure(a, sizes, subject.seed) for name, a in answers.items()}
    for name, values in found.items():
        metrics |= _metrics(name, values)
    plain = {name: a for name, a in answers.items() if not name.endswith(SCALED)}
    sets, covered = prediction_sets({name: able[name] for name in plain}, subject, sizes.held_rows)
    metrics |= covered
    return Section(
        "calibration",
        "Calibration",
        (*_how_measured(answers, bool(temperatures)), *([SETS] if sets.rows else []), *says),
        metrics,
        (*_tables(found, temperatures, several=len(subject.run.labels) > 1), *([sets] if sets.rows else [])),
        (
            classification_plots.reliability_diagrams(answers, {name: f.ece for name, f in found.items()}),
            classification_plots.risk_against_coverage(plain),
            classification_plots.confidence_histograms(plain),
        ),
    )


SETS = (
    "A prediction set adds values of a label in order of probability until the nominal share of rows like the "
    "held-out ones is covered (adaptive prediction sets, conformal). Sets always contain the most probable value, so "
    "the coverage is at least the nominal one; randomized sets have exactly that coverage and may be empty."
)
COVERAGES = (0.9, 0.95, 0.99)


def prediction_sets(runs: Mapping[str, Run], subject: Subject, most: int) -> tuple[Table, dict[str, float | None]]:
    """How often sets that were fitted to held-out rows hold the truth of test rows, and how large they are.

    Of a run without held-out rows, those of `run.conform`.
    """
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float | None] = {}
    for name, run in runs.items():
        for coverage, plain, chance in _fitted_sets(run, most, subject.seed):
            covered, size, single = _covered(run, subject, plain)
            randomized = _covered(run, subject, chance)[0] if chance else None
            at = f"{100 * coverage:g}"
            metrics |= {f"{prefix(name)}set_coverage.{at}": covered, f"{prefix(name)}set_size.{at}": size}
            if randomized is not None:
                metrics[f"{prefix(name)}set_coverage_randomized.{at}"] = randomized
            rows.append((name, f"{at} %", covered, size, single, randomized))
    columns = ("", "nominal", "coverage", "mean set size", "sets of one value", "coverage, randomized")
    return Table("Prediction sets", columns, tuple(rows)), metrics


Fit = Mapping[str, inference.Conformal]


def _fitted_sets(run: Run, most: int, seed: int) -> Iterator[tuple[float, Fit, Fit]]:
    """Each coverage with its sets and its randomized sets, fitted to held-out rows, or as they are stored."""
    try:
        data = run.data
    except InputError:
        stored = run.thresholds
        for coverage in sorted({c.coverage for c in stored.conformal if not c.randomized}):
            kept, kept_chance = (stored.find_conformal(coverage, randomized=r) for r in (False, True))
            yield coverage, kept, kept_chance
        return
    x, y = run.rows(data.x_held[:most]), data.y_held[:most]
    for coverage in COVERAGES:
        with suppress(InputError):  # too few held-out rows for so much
            plain, chance = (_fit(run, x, y, coverage, randomized=r, seed=seed) for r in (False, True))
            yield coverage, plain, chance


def _fit(run: Run, x: torch.Tensor, y: torch.Tensor, coverage: float, *, randomized: bool, seed: int) -> Fit:
    generator = torch.Generator().manual_seed(2 * seed)
    fitted = inference.conform(run.model, x, y, coverage, randomized=randomized, generator=generator)
    return {f.label: f for f in fitted}


def _covered(run: Run, subject: Subject, fitted: Fit) -> tuple[float, float, float]:
    """The share of observed labels in their sets, the mean size of a set, and the share of sets of one value."""
    drawing = torch.Generator().manual_seed(2 * subject.seed + 1)  # independent of the held-out rows
    found = inference.prediction_set(run.model, run.rows(subject.test.x), fitted, generator=drawing)
    held, sizes = [], []
    for k, members in enumerate(found.members.values()):
        truth = subject.test.y[:, k].to(members.device)
        known = truth != MISSING
        held.append(members[known].gather(1, truth[known, None])[:, 0])
        sizes.append(members.sum(1))
    size = torch.cat(sizes).double()
    return float(torch.cat(held).double().mean()), float(size.mean()), float((size == 1).double().mean())


def scaled_figures(run: Run, test: Dataset) -> dict[str, float] | str:
    """Of a run alone: the temperature that suits its held-out rows, its figures there; or why there are none."""
    fitted = _temperature(run, FULL.held_rows)
    if isinstance(fitted, str):
        return fitted
    told = told_by(run, test, (fitted,))
    if isinstance(told, str):
        return told
    answers = told.answers[0]
    return {
        "logit_temperature": fitted,
        "ece_scaled": calibration_error(answers.confidence, answers.right),
        "nll_scaled": _nll(answers),
    }


def _metrics(name: str, found: Calibrated) -> dict[str, float | None]:
    before = prefix(name.removesuffix(SCALED))
    if name.endswith(SCALED):
        return {f"{before}ece_scaled": found.ece, f"{before}nll_scaled": found.nll}
    return {
        f"{before}ece": found.ece,
        f"{before}ece_low": found.interval.low,
        f"{before}ece_high": found.interval.high,
        f"{before}ece_by_chance": found.by_chance.mean,
        f"{before}ece_by_chance_low": found.by_chance.low,
        f"{before}ece_by_chance_high": found.by_chance.high,
        f"{before}ece_equal_mass": found.ece_equal_mass,
        f"{before}ece_classwise": found.ece_classwise,
        f"{before}aurc": found.aurc,
    }


def _how_measured(answers: Mapping[str, Answers], scaled: bool) -> list[str]:
    first = next(iter(answers.values()))
    says = [
        "A model is calibrated if 90 % of all predictions with 90 % confidence are right. ECE is the mean distance "
        f"between confidence and accuracy, over 15 bins of equal width, on {len(first):,} predictions. The interval "
        f"contains {100 * LEVEL:.0f} % of resamples of the test rows. Even a perfectly calibrated model has a positive "
        "ECE on a finite number of rows: 'by chance' shows it, and an ECE within it means that no miscalibration was "
        "detected."
    ]
    if scaled:
        says.append(
            "Temperature-scaled: log-probabilities divided by the temperature that maximizes the likelihood of "
            "held-out rows. It costs next to nothing, so better training should beat it."
        )
    return says


def _tables(
    found: Mapping[str, Calibrated], temperatures: Mapping[str, float], *, several: bool
) -> tuple[Table, Table]:
    """What is asked first, and the rest."""
    # Prediction has the NLL of all labels together, which a model that ties them to each other finds less of.
    columns = ("", "ECE", "95 % interval", "by chance, 95 %", "NLL, label by label" if several else "NLL")
    rows: list[tuple[Cell, ...]] = [
        (name, f.ece, _span(f.interval), _span(f.by_chance), f.nll) for name, f in found.items()
    ]
    more: list[tuple[Cell, ...]] = [
        (name, temperatures.get(name), f.by_chance.mean, f.ece_equal_mass, f.ece_classwise, f.aurc)
        for name, f in found.items()
    ]
    others = ("", "temperature", "ECE by chance", "equal-mass ECE", "classwise ECE", "AURC")
    return Table("Calibration error", columns, tuple(rows)), Table("Other measures", others, tuple(more))


def _span(band: Band) -> str:
    return f"{band.low:.4f} to {band.high:.4f}"


def _temperature(run: Run, most: int) -> float | str:
    """The temperature that suits the run's held-out rows, or the stored one; or, in words, why there is none."""
    try:
        data = run.data
    except InputError as error:
        stored = run.thresholds.temperature
        return str(error) if stored is None else stored.value
    known = (data.y_held != MISSING).any(1).nonzero()[:most, 0]
    if len(known) == 0:
        return "its held-out rows have no labels"
    try:
        return inference.calibrate(run.model, run.rows(data.x_held[known]), data.y_held[known]).value
    except InputError as error:
        return str(error)

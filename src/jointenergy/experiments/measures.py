"""experiments: what is measured of every trained run: a table of measures, each for the kinds of runs that it says.

A recipe asks for none of them: they follow from the model, its labels, its chains and its data alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import EnumerationError
from jointenergy.experiments.pairs import fresh_samples, rows_of_pairs, samples_of_pairs
from jointenergy.kernels import ExactGibbs
from jointenergy.labels import ENUMERATION_LIMIT, MISSING
from jointenergy.metrics import known_density
from jointenergy.metrics.calibration import calibration_error
from jointenergy.metrics.classification import attributes, averages, is_attributes
from jointenergy.metrics.registry import Figures, Taken
from jointenergy.report import predictors
from jointenergy.report.calibration import scaled_figures
from jointenergy.report.predictors import parts_of_names, rows_of, tell
from jointenergy.report.sections import Subject
from jointenergy.training.health import Health

FEW = 32  # labels that have figures of their own, and pairs worth asking for; more are one structure
COMPLETED = 100  # test rows whose x is drawn from their labels alone
DRAWS = 10  # of each
MODE_SAMPLES = 10_000  # drawn with no label given, to count how many fall to each mode of a known density
SCALED = ("logit_temperature", "ece_scaled", "nll_scaled")


@dataclass(frozen=True)
class Measure:
    """What is measured, and of which runs."""

    applies: Callable[[Subject], bool]
    take: Callable[[Subject], Taken]


def take_all(subject: Subject) -> Taken:
    """Every measure that applies, in the order of the table."""
    figures: Figures = {}
    remarks = []
    for measure in MEASURES:
        if measure.applies(subject):
            found, remark = measure.take(subject)
            # JSON has no NaN, and a value that is none is no value.
            figures |= {k: v if v is not None and math.isfinite(v) else None for k, v in found.items()}
            remarks += [remark] if remark else []
    return figures, " ".join(remarks)


def signs_of(health: Health) -> Figures:
    """What the last check of health has measured, beside its verdict."""
    signs = {name: float(value) for name, value in health.values().items() if name not in ("healthy", "finite")}
    return {f"health.{name}": value if math.isfinite(value) else None for name, value in signs.items()}


def tells_labels(subject: Subject) -> bool:
    """Labels under unknown normalizers of their own cannot be compared, and without labels there is nothing to tell."""
    model = subject.run.model
    return model.normalizer == "joint" and len(model.labels) > 0


def _has_density(subject: Subject) -> bool:
    return tells_labels(subject) and not subject.run.is_cross_entropy


def _sums(subject: Subject) -> bool:
    return subject.run.model.can_sum()


def _by_energy(subject: Subject) -> Taken:
    """Exact: accuracy, likelihood and calibration; of several labels how they are told one by one and together."""
    run, labels = subject.run, subject.run.labels
    try:
        told = tell(run.model, rows_of(run, subject.test))
    except EnumerationError:
        return {}, "The labels have too many states to be enumerated: no accuracy by energy is measured."
    answers = told.answers[0]
    if not answers.finite:
        return dict.fromkeys(("accuracy", "nll", "ece")), ""
    figures: Figures = {
        "accuracy": float(answers.right.double().mean()),
        "nll": float(told.nll.mean()),
        "ece": calibration_error(answers.confidence, answers.right),
    }
    if is_attributes(labels):
        each = attributes(answers)
        figures |= averages(answers, each)
        if 1 < len(labels) <= FEW:
            figures["exact_match"] = float(told.exact.double().mean())
            names = parts_of_names([a.name for a in each])
            figures |= {f"accuracy_of.{part}": a.accuracy for part, a in zip(names, each, strict=True)}
    return figures, ""


def _is_baseline(subject: Subject) -> bool:
    return tells_labels(subject) and subject.run.is_cross_entropy


def _scaled(subject: Subject) -> Taken:
    """Cross-entropy with one number fitted afterwards is what a better training has to beat."""
    found = scaled_figures(subject.run, subject.test)
    if isinstance(found, str):
        return dict.fromkeys(SCALED), f"There are no figures at a fitted temperature: {found}."
    remark = "Figures named scaled are at the temperature of the logits that suits held-out training rows best."
    return {**found}, remark


def _has_unknown_constants(subject: Subject) -> bool:
    model = subject.run.model
    return model.normalizer == "conditional" and len(model.labels) > 0 and model.labels.n_states <= ENUMERATION_LIMIT


def _as_if_equal(subject: Subject) -> Taken:
    """What the papers call the accuracy of a class-conditional energy: its values compared as if normalizers agreed."""
    run = subject.run
    told = tell(run.model.with_offsets(assume_equal_constants=True), rows_of(run, subject.test))
    answers = told.answers[0]
    right = float(answers.right.double().mean()) if answers.finite else None
    remark = (
        "accuracy_equal_constants compares log p(x | label) as if all labels had the same normalizer, which nothing in "
        "the training says."
    )
    return {"accuracy_equal_constants": right}, remark


def _draws_labels(subject: Subject) -> bool:
    """Where exact draws are at hand sampling says nothing new."""
    kernel = subject.run.sampling.y_kernel
    return _has_density(subject) and kernel is not None and not isinstance(kernel, ExactGibbs)


def _by_sampling(subject: Subject) -> Taken:
    full = (predictors.SAMPLED_ROWS, predictors.CHAINS, predictors.sampling_steps(len(subject.run.labels)))
    n_rows, n_chains, steps = (10, 2, 20) if subject.small else full
    figures = predictors.accuracy_by_sampling(
        subject.run, subject.test, subject.seed, n_rows=n_rows, n_chains=n_chains, steps=steps
    )
    remark = (
        f"By sampling: {n_chains} chains of {steps} steps a row, from a uniform start, on at most {n_rows:,} test "
        "rows; one_sample is the end of the first chain."
    )
    return {**figures}, remark


def _law_is_known(subject: Subject) -> bool:
    return _has_density(subject) and subject.test.name in known_density.TRUTHS


def _law(subject: Subject) -> Taken:
    run, law = subject.run, known_density.TRUTHS[subject.test.name]
    temperature = run.sampling.temperature
    remark = (
        f"kl_nats is from the true law to the model's density at the temperature of its chains, {temperature:.3g}; "
        f"mode_share counts {MODE_SAMPLES:,} samples from noise by the mode they fall to, and those with its labels."
    )
    drawn = run.sample(MODE_SAMPLES, seed=subject.seed)
    shares = known_density.mode_shares(drawn.x, drawn.y, run.labels.enumerate(), law)
    return {**known_density.divergences(run.model, temperature, law), **shares}, remark


def _tells_pairs(subject: Subject) -> bool:
    return tells_labels(subject) and 1 < len(subject.run.labels) <= FEW and _sums(subject)


def _has_pairs(subject: Subject) -> bool:
    return _has_density(subject) and _tells_pairs(subject)


def _has_structure(subject: Subject) -> bool:
    return _has_density(subject) and len(subject.run.labels) > FEW


def _from_labels(subject: Subject) -> Taken:
    """x from all its labels: the mean of draws against x itself, beside the mean of the training rows."""
    run = subject.run
    n_rows, n_draws = (4, 2) if subject.small else (COMPLETED, DRAWS)
    rows = predictors.labeled_rows(subject.test, n_rows)
    rows = rows.rows((rows.y != MISSING).all(1))
    if len(rows) == 0:
        return {}, ""
    x = run.rows(rows.x)
    asked = rows.y.repeat_interleave(n_draws, dim=0)
    drawn = fresh_samples(subject, len(asked), asked).view(len(rows), n_draws, *run.event_shape)
    mean = run.data.x.mean(0)
    figures: Figures = {
        "inpainting_mse.given_labels": _error(drawn.mean(1), x),
        "inpainting_mse.given_labels_one_draw": _error(drawn[:, 0], x),
        "inpainting_mse.training_mean": _error(mean.expand_as(x), x),
    }
    remark = (
        f"inpainting_mse.given_labels: all of x drawn from its labels, {n_draws} draws of each of {len(rows)} rows."
    )
    return figures, remark


def _error(guess: Tensor, x: Tensor) -> float:
    return float(torch.square(guess - x).double().mean())


MEASURES = (
    Measure(tells_labels, _by_energy),
    Measure(_is_baseline, _scaled),
    Measure(_has_unknown_constants, _as_if_equal),
    Measure(_draws_labels, _by_sampling),
    Measure(_law_is_known, _law),
    Measure(_tells_pairs, rows_of_pairs),
    Measure(_has_pairs, samples_of_pairs),
    Measure(_has_structure, _from_labels),
)

"""experiments: figures of every trained run: a table of measures and the runs they apply to.

Recipes do not select them: they follow from the model, its labels, its chains and its data.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from jointenergy.errors import EnumerationError
from jointenergy.inference.sample import Method
from jointenergy.kernels import ExactGibbs
from jointenergy.labels import ENUMERATION_LIMIT, MISSING
from jointenergy.metrics import known_density, label_patterns
from jointenergy.metrics.calibration import calibration_error
from jointenergy.metrics.classification import attributes, averages, is_attributes
from jointenergy.metrics.registry import Figures, Taken
from jointenergy.recipes.build import kernel_of
from jointenergy.report import conditional_samples, predictors
from jointenergy.report.calibration import scaled_figures
from jointenergy.report.predictors import parts_of_names, rows_of, tell
from jointenergy.report.sample_sets import at_once
from jointenergy.report.sections import Subject
from jointenergy.runs import Run
from jointenergy.training.engine import accelerated, arithmetic, precision_of
from jointenergy.training.health import Health, diversity

FEW = 32  # up to this many labels, each label and pair has its own figures
COMPLETED = 100  # test rows whose x is drawn from their labels alone
DRAWS = 10  # draws of each
PER_PAIR = 100  # samples of each pair of labels
MANY = 400  # pairs of values; with more, only pairs of two present attributes
SPREAD = 1000  # rows whose mean distance is the diversity
FREE = 10_000  # unconditional samples, in which held-out pairs are counted
SCALED = ("logit_temperature", "ece_scaled", "nll_scaled")
MODE_SAMPLES = 10_000  # unconditional samples, counted by mode of a known density


def take_all(subject: Subject) -> Taken:
    """Take every measure that applies, in the order of the table."""
    figures: Figures = {}
    remarks = []
    for applies, take in MEASURES:
        if applies(subject):
            found, remark = take(subject)
            # JSON has no NaN: leave such values out.
            figures |= {k: v if v is not None and math.isfinite(v) else None for k, v in found.items()}
            remarks += [remark] if remark else []
    return figures, " ".join(remarks)


def signs_of(health: Health) -> Figures:
    """Return the measures of the last health check."""
    signs = {name: float(value) for name, value in health.values().items() if name not in ("healthy", "finite")}
    return {f"health.{name}": value if math.isfinite(value) else None for name, value in signs.items()}


def tells_labels(subject: Subject) -> bool:
    """Return whether labels can be predicted: there are some, and they share one normalizer."""
    model = subject.run.model
    return model.normalizer == "joint" and len(model.labels) > 0


def _has_density(subject: Subject) -> bool:
    return tells_labels(subject) and not subject.run.is_cross_entropy


def _by_energy(subject: Subject) -> Taken:
    """Evaluate exact predictions: accuracy, likelihood and calibration; several labels one by one and jointly."""
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


def _scaled(subject: Subject) -> Taken:
    """Evaluate temperature-scaled predictions, the baseline for calibration."""
    found = scaled_figures(subject.run, subject.test)
    if isinstance(found, str):
        return dict.fromkeys(SCALED), f"There are no figures at a fitted temperature: {found}."
    remark = "Figures named scaled use the logit temperature that fits held-out training rows best."
    return {**found}, remark


def _has_unknown_constants(subject: Subject) -> bool:
    model = subject.run.model
    return model.normalizer == "conditional" and len(model.labels) > 0 and model.labels.n_states <= ENUMERATION_LIMIT


def _as_if_equal(subject: Subject) -> Taken:
    """Evaluate what the papers call the accuracy of a class-conditional energy: compare labels as if all normalizers
    were equal."""
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
    """Return whether to predict labels by sampling: only if they cannot be drawn exactly."""
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
    return tells_labels(subject) and 1 < len(subject.run.labels) <= FEW and subject.run.model.can_sum()


def _from_labels(subject: Subject) -> Taken:
    """Draw x from all its labels: compare the mean of draws with x, next to the mean of the training rows."""
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


def asked_pairs(run: Run) -> tuple[Tensor, str]:
    """Return the pairs that samples are drawn for, `[P, L]`, and a description of them."""
    seen, _ = label_patterns.pairs(run.labels, run.data.y)
    if len(seen) > MANY and set(run.labels.cardinalities) == {2}:
        return seen[(seen != 0).all(1)], "attributes that are both present"
    return seen, "labels"


def _question(run: Run) -> tuple[str, Tensor, str]:
    """Return the kind of pairs, the pairs, and a description: held-out pairs, or all pairs of the data."""
    novel = conditional_samples.held_out(run)[1]
    return ("novel", novel, "labels that were held out") if len(novel) else ("pairs", *asked_pairs(run))


def rows_of_pairs(subject: Subject) -> Taken:
    """Judge real rows as samples are judged, for reference; samples at a low temperature may score higher."""
    run, test = subject.run, subject.test
    kind, patterns, _ = _question(run)
    found = conditional_samples.judge_of(run)(run.rows(test.x)).cpu()
    shares = []
    for pattern in patterns:
        having = label_patterns.agreement(test.y, pattern[None])
        if bool(having.any()):
            shares.append(label_patterns.share_with(found[having], pattern[None]))
    if not shares:
        return {}, ""
    name = f"consistency_{kind}_rows"
    remark = f"{name} is of test rows with the pairs, all pairs weighted equally."
    return {name: float(torch.cat(shares).mean())}, remark


def samples_of_pairs(subject: Subject) -> Taken:
    """Draw samples given two labels, the others free; check the labels by the model and by a baseline."""
    run = subject.run
    judges = {"": conditional_samples.judge_of(run)}
    if subject.baseline is not None:
        judges["_baseline"] = conditional_samples.judge_of(subject.baseline)
    kind, patterns, which = _question(run)
    if len(patterns) == 0:
        return {}, ""
    words, novel = conditional_samples.held_out(run)
    names = parts_of_names(words)
    per_pair, n_free = (1, 100) if subject.small else (PER_PAIR, FREE)
    asked = patterns.repeat_interleave(per_pair, dim=0)
    x = fresh_samples(subject, len(asked), asked)
    figures: Figures = {"diversity": _spread(x) / _spread(run.rows(subject.test.x))}
    for judge, labels_of in judges.items():
        shown = label_patterns.agreement(labels_of(x).cpu(), asked).double()
        figures[f"consistency_{kind}{judge}"] = float(shown.mean())
        if len(novel):
            rates = shown.view(len(patterns), per_pair).mean(1).tolist()
            figures |= {f"novel_share{judge}.given.{pair}": r for pair, r in zip(names, rates, strict=True)}
        elif set(run.labels.values) == {("0", "1")} and 0 < (present := (asked != 0).all(1)).sum() < len(asked):
            # Absent attributes are easier: most rows lack most attributes.
            figures[f"consistency_present{judge}"] = float(shown[present].mean())
    if run.sampling.y_kernel is not None:
        x = fresh_samples(subject, len(asked), asked, "marginalize")
        for judge, labels_of in judges.items():
            shown = label_patterns.agreement(labels_of(x).cpu(), asked).double()
            by = judge.removeprefix("_") or "model"
            figures[f"consistency_{kind}.{by}.noise.marginalize"] = float(shown.mean())
    if len(novel):
        x = fresh_samples(subject, n_free, None)
        for judge, labels_of in judges.items():
            rates = label_patterns.share_with(labels_of(x).cpu(), novel).tolist()
            figures |= {f"novel_share{judge}.free.{pair}": r for pair, r in zip(names, rates, strict=True)}
    remark = f"Samples of pairs of {which}, and their diversity: {per_pair} of each from noise, unfiltered, rest free."
    if "consistency_present" in figures:
        remark += " consistency_present is of pairs of two present attributes."
    if run.sampling.y_kernel is not None:
        remark += " The other labels are redrawn; in figures named marginalize they are summed out."
    if len(novel) and subject.baseline is None:
        remark += " The model itself judged held-out pairs: there was no baseline that had seen them."
    return figures, remark


def fresh_samples(subject: Subject, n: int, asked: Tensor | None, method: Method | None = None) -> Tensor:
    """Run chains as in training, in its precision; judges use the weights as they are loaded."""
    run, device = subject.run, subject.run.origin.device
    assert run.recipe is not None  # runs with chains were trained by a recipe
    precision = precision_of(run.recipe.engine, kernel_of(run.recipe), device)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    fast = run.with_weights_of(accelerated(run.model, dtype, compiled=False))
    at_a_time = at_once(run.event_shape, device)
    with arithmetic(run.recipe.engine, precision):
        return fast.sample(n, asked, start="noise", method=method, batch_size=at_a_time, seed=subject.seed).x


def _spread(x: Tensor) -> float:
    """Return the mean distance of evenly spaced rows, so that sorted rows are all represented."""
    return diversity(x[:: max(1, len(x) // SPREAD)][:SPREAD])


def _error(guess: Tensor, x: Tensor) -> float:
    return float(torch.square(guess - x).double().mean())


# The measures, and the runs they apply to.
MEASURES: tuple[tuple[Callable[[Subject], bool], Callable[[Subject], Taken]], ...] = (
    (tells_labels, _by_energy),
    (lambda s: tells_labels(s) and s.run.is_cross_entropy, _scaled),
    (_has_unknown_constants, _as_if_equal),
    (_draws_labels, _by_sampling),
    (lambda s: _has_density(s) and s.test.name in known_density.TRUTHS, _law),
    (_tells_pairs, rows_of_pairs),
    (lambda s: _has_density(s) and _tells_pairs(s), samples_of_pairs),
    (lambda s: _has_density(s) and len(s.run.labels) > FEW, _from_labels),
)

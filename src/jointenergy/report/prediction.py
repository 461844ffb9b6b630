"""report: prediction: how often the model is right about labels, and how probable it found the right ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.labels import MISSING, LabelSpace
from jointenergy.metrics.calibration import share_interval
from jointenergy.metrics.classification import (
    Answers,
    Attribute,
    Told,
    attributes,
    averages,
    class_accuracies,
    confusion,
    decisions,
    is_attributes,
    whole,
)
from jointenergy.metrics.registry import finite_or_none
from jointenergy.report import classification_plots
from jointenergy.report.predictors import defined, parts_of_names, predictors, prefix, shown, told_by
from jointenergy.report.sections import Cell, Picture, Section, Subject, Suite, Table
from jointenergy.runs import Run


@dataclass(frozen=True)
class PredictionSizes:
    """How much is drawn and tabulated, and how hard is tried where labels have to be sampled."""

    panels: int
    """Attributes that have plots of their own, the hardest first."""
    lines: int
    """Classes in the table, the hardest first."""
    sampled_rows: int
    n_chains: int
    steps: int


QUICK = PredictionSizes(panels=12, lines=50, sampled_rows=100, n_chains=5, steps=100)
FULL = PredictionSizes(panels=40, lines=1000, sampled_rows=1000, n_chains=10, steps=200)


def prediction(subject: Subject, suite: Suite) -> Section:
    """Accuracy, likelihood and Brier score of all that predict; classes or attributes one by one."""
    sizes = QUICK if suite == "quick" else FULL
    able, says = predictors(subject)
    told: dict[str, Told] = {}
    metrics: dict[str, float | None] = {}
    for name, run in able.items():
        found = told_by(run, subject.test)
        if isinstance(found, Told):
            told[name] = found
            continue
        says.append(f"No exact probabilities of {shown(name)}: {found}.")
        if "states" in found:
            sampled, sentence = _by_sampling(run, subject, sizes)
            metrics |= {prefix(name) + m: v for m, v in sampled.items()}
            says.append(sentence)
    if not told:
        return Section("prediction", "Prediction", tuple(says), metrics)
    labels = subject.test.labels
    answers = {name: t.answers[0] for name, t in told.items()}
    for name, t in told.items():
        metrics |= {prefix(name) + m: v for m, v in defined(whole(t)).items()}
    says = [*_how_measured(next(iter(told.values())), subject), *says]
    if is_attributes(labels):
        each = {name: attributes(a) for name, a in answers.items()}
        for name, a in answers.items():
            metrics |= {prefix(name) + m: v for m, v in _attribute_metrics(a, each[name]).items()}
        tables = (_overview(told, metrics, labels), *_attribute_tables(each))
        pictures = _attribute_pictures(answers, each, sizes.panels)
    else:
        by_class = {name: class_accuracies(a) for name, a in answers.items()}
        parts = parts_of_names(labels.values[0])
        for name, values in by_class.items():
            named = {f"{prefix(name)}accuracy_of_class.{p}": v for p, v in zip(parts, values.tolist(), strict=True)}
            metrics |= defined(named)
        tables = (_overview(told, metrics, labels), _class_table(answers, by_class, sizes.lines))
        name, first = next(iter(answers.items()))
        pictures = (classification_plots.confusion_matrix(confusion(first), labels.values[0], shown(name)),)
    return Section("prediction", "Prediction", tuple(says), metrics, tables, pictures)


def _how_measured(told: Told, subject: Subject) -> list[str]:
    answers, test = told.answers[0], subject.test
    says = [
        f"Measured on {len(told.nll):,} test rows of {test.name}, with exact label probabilities given x. NLL is the "
        "negative log-likelihood of the true labels of a row, in nats; it penalizes confident errors. The Brier score "
        "is half the squared distance between probabilities and truth. Lower is better for both."
    ]
    missing = len(told.nll) * len(test.labels) - len(answers)
    if len(test.labels) > 1:
        says.append(
            "Accuracy and Brier score are over all labels of all rows; an exact match is a row whose jointly most "
            "probable labels are all right."
        )
    if missing:
        says.append(f"{missing:,} labels of these rows are missing and ignored.")
    if is_attributes(test.labels):
        says.append(
            "F1, AUPRC and AUROC take the second value of a label as positive. AUPRC and AUROC rank by log-odds, which "
            "differ even where probabilities round to 1."
            + (" Micro pools all labels of all rows, macro is the mean over labels." if len(test.labels) > 1 else "")
        )
        if max(test.labels.cardinalities) > 2:
            says.append("Labels of more than two values are evaluated one-vs-rest.")
    return says


def _overview(told: Mapping[str, Told], metrics: Mapping[str, float | None], labels: LabelSpace) -> Table:
    several = is_attributes(labels)
    columns = {"accuracy": "accuracy", "nll": "NLL", "brier": "Brier"}
    if len(labels) > 1:
        columns["exact_match"] = "exact match"
    if several:
        kinds = {"f1": "F1", "auprc": "AUPRC", "auroc": "AUROC", "ece": "ECE"}
        overs = ("micro", "macro") if len(labels) > 1 else ("micro",)
        columns |= {f"{m}_{o}": f"{s} {o}" if len(overs) > 1 else s for m, s in kinds.items() for o in overs}
    rows: list[tuple[Cell, ...]] = []
    for name, t in told.items():
        figures = [metrics[prefix(name) + m] for m in columns]
        interval: list[Cell] = [] if len(labels) > 1 else [_interval(t)]
        rows.append((name, figures[0], *interval, *figures[1:]))
    heads = list(columns.values())
    interval_head = [] if len(labels) > 1 else ["95 % interval"]
    return Table("", ("", heads[0], *interval_head, *heads[1:]), tuple(rows))


def _interval(told: Told) -> str:
    """Of the accuracy of a single label: rows are independent of each other, labels of a row need not be."""
    right = told.answers[0].right.double()
    low, high = share_interval(right.mean(), torch.tensor(float(len(right))))
    return f"{float(low):.4f} to {float(high):.4f}"


def _class_table(answers: Mapping[str, Answers], by_class: Mapping[str, Tensor], lines: int) -> Table:
    first = next(iter(by_class))
    counts = confusion(answers[first]).sum(1)
    values = answers[first].labels.values[0]
    order = list(range(len(values)))
    title = f"Accuracy of each {answers[first].labels.names[0]}"
    if len(values) > lines:
        # Classes without rows are last: they have no accuracy.
        order = by_class[first].nan_to_num(2.0).argsort()[:lines].tolist()
        title += f", the {lines} hardest of {len(values)}"
    rows = [(values[c], int(counts[c]), *(finite_or_none(float(v[c])) for v in by_class.values())) for c in order]
    return Table(title, ("", "rows", *by_class), tuple(rows))


def _attribute_metrics(answers: Answers, each: list[Attribute]) -> dict[str, float | None]:
    metrics = averages(answers, each)
    if len(answers.labels) > 1:
        kinds = ("accuracy", "f1", "auprc", "auroc", "ece")
        names = parts_of_names([a.name for a in each])
        metrics |= {f"{m}_of.{part}": getattr(a, m) for a, part in zip(each, names, strict=True) for m in kinds}
    return defined(metrics)


def _attribute_tables(each: Mapping[str, list[Attribute]]) -> list[Table]:
    if len(next(iter(each.values()))) == 1:
        return []  # the overview has it all
    columns = ("", "rows", "positives", "accuracy", "F1", "AUPRC", "AUROC", "ECE")
    return [
        Table(
            f"Each label, {shown(name)}",
            columns,
            tuple(
                (a.name, a.n, a.share, a.accuracy, *(finite_or_none(v) for v in (a.f1, a.auprc, a.auroc, a.ece)))
                for a in found
            ),
        )
        for name, found in each.items()
    ]


def _attribute_pictures(
    answers: Mapping[str, Answers], each: Mapping[str, list[Attribute]], panels: int
) -> tuple[Picture, ...]:
    """Labels of yes and no, the hardest first, for all who predict."""
    first = next(iter(answers))
    labels = answers[first].labels
    binary = [a for a in each[first] if a.share is not None]
    chosen = sorted(binary, key=lambda a: 2.0 if a.auroc != a.auroc else a.auroc)[:panels]
    if not chosen:
        return ()
    left_out = "" if len(chosen) == len(binary) else f" The {len(chosen)} labels of lowest AUROC, of {len(binary)}."
    places = {a.name: labels.index(a.name) for a in chosen}
    asked = {n: {who: decisions(a, k)[0] for who, a in answers.items()} for n, k in places.items()}
    sure = {
        n: {who: (a.confidence[a.variable == k], a.right[a.variable == k]) for who, a in answers.items()}
        for n, k in places.items()
    }
    return (
        classification_plots.attribute_reliability(sure, left_out),
        classification_plots.attribute_roc(asked, left_out),
        classification_plots.attribute_precision_recall(asked, left_out),
    )


def _by_sampling(run: Run, subject: Subject, sizes: PredictionSizes) -> tuple[dict[str, float | None], str]:
    """Labels that are too many to be summed are drawn instead, for the first rows that have any."""
    known = (subject.test.y != MISSING).any(1).nonzero()[: sizes.sampled_rows, 0]
    rows = subject.test.rows(known)
    chosen = run.predict(rows.x, by="sampling", n_chains=sizes.n_chains, steps=sizes.steps, seed=subject.seed).cpu()
    truth = rows.y.cpu()
    seen = truth != MISSING
    sentence = (
        f"Its labels were sampled instead, on {len(rows):,} rows: the most frequent value of each among the last "
        f"states of {sizes.n_chains} chains of {sizes.steps} steps. This is an estimate without probabilities."
    )
    return {"accuracy_by_sampling": float((chosen == truth)[seen].double().mean())}, sentence

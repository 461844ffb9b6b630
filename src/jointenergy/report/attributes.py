"""report: labels of yes and no, one by one and all together: F1, AUPRC and AUROC by log-odds, calibration error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_average_precision,
    binary_f1_score,
    binary_precision_recall_curve,
    binary_roc,
)

from jointenergy.report.classification import Answers
from jointenergy.report.confidence import calibration_error

MEASURES = ("f1", "auprc", "auroc", "ece")


@dataclass(frozen=True, eq=False)
class Decisions:
    """Questions of yes and no: log-odds of yes, whether it is so, and whether the model says so."""

    log_odds: Tensor
    truth: Tensor
    said: Tensor

    @classmethod
    def together(cls, parts: Sequence[Decisions]) -> Decisions:
        return cls(*(torch.cat([getattr(d, f) for d in parts]) for f in ("log_odds", "truth", "said")))


def decisions(answers: Answers, variable: int) -> list[Decisions]:
    """The questions that a label variable asks: one of a binary label, else one for each value against the rest."""
    of_it = answers.variable == variable
    truth, top, odds = answers.truth[of_it], answers.top[of_it], answers.odds[variable]
    values = [1] if odds.shape[1] == 1 else range(odds.shape[1])
    return [Decisions(odds[:, i], truth == v, top == v) for i, v in enumerate(values)]


def ranked(scores: Tensor) -> Tensor:
    """The places of the scores between 0 and 1, equal ones sharing theirs: what depends on the order alone is kept.

    torchmetrics takes a sigmoid of what is no probability, and different log-odds of 40 and more would then be equal.
    """
    values, place = scores.unique(return_inverse=True)
    places: Tensor = place.double() / max(1, len(values) - 1)
    return places


def f1(asked: Decisions) -> float:
    """Of what the model says yes to. NaN where nothing is so and nothing is said to be."""
    if not bool((asked.truth | asked.said).any()):
        return math.nan
    return float(binary_f1_score(asked.said.long(), asked.truth.long()))


def auprc(asked: Decisions) -> float:
    """Average precision, ranked by log-odds. NaN where nothing is so."""
    if not bool(asked.truth.any()):
        return math.nan
    return float(binary_average_precision(ranked(asked.log_odds), asked.truth.long()))


def auroc(asked: Decisions) -> float:
    """How often what is so has the larger log-odds. NaN where all or nothing is so."""
    if not bool(asked.truth.any()) or bool(asked.truth.all()):
        return math.nan
    return float(binary_auroc(ranked(asked.log_odds), asked.truth.long()))


def roc_curve(asked: Decisions) -> tuple[Tensor, Tensor]:
    """False and true positive rates."""
    false, true, _ = binary_roc(ranked(asked.log_odds), asked.truth.long())
    return false, true


def precision_recall_curve(asked: Decisions) -> tuple[Tensor, Tensor]:
    """Recall and precision."""
    precision, recall, _ = binary_precision_recall_curve(ranked(asked.log_odds), asked.truth.long())
    return recall, precision


@dataclass(frozen=True)
class Attribute:
    """One label: how many entries are known, the share of yes (None of more than two values), and how well it is told.

    A label of more than two values has means over its values, each against the rest; NaN: not defined on these rows.
    """

    name: str
    n: int
    share: float | None
    accuracy: float
    f1: float
    auprc: float
    auroc: float
    ece: float


def attributes(answers: Answers) -> list[Attribute]:
    """Each label for itself; those that no row knows are left out."""
    found = []
    for k, name in enumerate(answers.labels):
        of_it = answers.variable == k
        n = int(of_it.sum())
        if n == 0:
            continue
        asked, right = decisions(answers, k), answers.right[of_it]
        found.append(
            Attribute(
                name,
                n,
                float(asked[0].truth.double().mean()) if len(asked) == 1 else None,
                float(right.double().mean()),
                mean_of(f1(d) for d in asked),
                mean_of(auprc(d) for d in asked),
                mean_of(auroc(d) for d in asked),
                calibration_error(answers.confidence[of_it], right),
            )
        )
    return found


def averages(answers: Answers, each: Sequence[Attribute]) -> dict[str, float]:
    """micro: all questions of all rows pooled; macro: the mean over labels, of those where it is defined."""
    pooled = Decisions.together([d for k in range(len(answers.labels)) for d in decisions(answers, k)])
    micro = {
        "f1": f1(pooled),
        "auprc": auprc(pooled),
        "auroc": auroc(pooled),
        "ece": calibration_error(answers.confidence, answers.right),
    }
    macro = {m: mean_of(getattr(a, m) for a in each) for m in MEASURES}
    return {f"{m}_{over}": v[m] for m in MEASURES for over, v in (("micro", micro), ("macro", macro))}


def mean_of(values: Iterable[float]) -> float:
    """The mean of those that are defined, NaN of none."""
    defined = [v for v in values if not math.isnan(v)]
    return sum(defined) / len(defined) if defined else math.nan

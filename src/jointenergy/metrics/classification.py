"""metrics: classification from log-probabilities of labels: accuracy, likelihood, F1, AUPRC and AUROC of attributes."""

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

from jointenergy.labels import MISSING, LabelSpace
from jointenergy.metrics.calibration import BINS, bins_of, calibration_error


@dataclass(frozen=True, eq=False)
class Answers:
    """Predictions, one entry for each observed label of each row, on the CPU.

    `log_odds` is that of the most probable value, `top`; it orders entries whose probabilities round to 1. `odds`
    holds, for each label variable, the log-odds of each value against the rest: for a binary one those of its second
    value, `[m, 1]`; it is empty for a single label with more than two values. `class_gaps` holds, for each variable,
    sums of (is the value true - p) by value and by bin of p.
    """

    labels: LabelSpace
    row: Tensor
    variable: Tensor
    truth: Tensor
    top: Tensor
    log_odds: Tensor
    nll: Tensor
    brier: Tensor
    odds: tuple[Tensor, ...]
    class_gaps: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def right(self) -> Tensor:
        return self.top == self.truth

    @property
    def confidence(self) -> Tensor:
        return self.log_odds.sigmoid()

    @property
    def finite(self) -> bool:
        return not bool((self.log_odds.isnan() | self.nll.isnan()).any())


@dataclass(frozen=True, eq=False)
class Told:
    """Predictions for rows: `answers` at each temperature, and one value per row over all its observed labels.

    `nll` is -log p(observed labels | x) under the joint model. `exact` tells whether the most probable labeling is
    correct in all of them.
    """

    answers: tuple[Answers, ...]
    nll: Tensor
    exact: Tensor


def is_attributes(labels: LabelSpace) -> bool:
    """Tell whether labels are attributes (several, or a single binary one) and not classes."""
    return len(labels) > 1 or labels.cardinalities == (2,)


def entries_nll(log_probs: Sequence[Tensor], y: Tensor) -> Tensor:
    """Return the summed negative log-likelihood of each row's observed labels."""
    total = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    for k, z in enumerate(log_probs):
        total -= torch.where(y[:, k] == MISSING, 0.0, z.gather(1, y[:, k : k + 1].clamp(min=0))[:, 0])
    return total


class Collector:
    """Collects predictions batch by batch."""

    def __init__(self, labels: LabelSpace) -> None:
        self.labels = labels
        self.keeps_odds = is_attributes(labels)
        self.entries: list[tuple[Tensor, ...]] = []
        self.odds: list[list[Tensor]] = [[] for _ in labels]
        self.gaps = [torch.zeros(c, BINS, dtype=torch.float64) for c in labels.cardinalities]

    def add(self, log_probs: Sequence[Tensor], y: Tensor, numbers: Tensor) -> None:
        for k, z in enumerate(log_probs):
            seen = y[:, k] != MISSING
            z, truth = z[seen], y[seen, k]
            log_odds, top = top_log_odds(z)
            p, so = z.exp(), torch.nn.functional.one_hot(truth, z.shape[1])
            nll = -z.gather(1, truth[:, None])[:, 0]
            # Half the squared distance, between 0 and 1; for a binary label (p - y)^2.
            brier = ((p - so) ** 2).sum(1) / 2
            entry = (numbers[seen], torch.full_like(truth, k), truth, top, log_odds, nll, brier)
            self.entries.append(tuple(e.cpu() for e in entry))
            self.gaps[k] += _gaps(p, so).cpu()
            if self.keeps_odds:
                self.odds[k].append(value_log_odds(z, log_odds, top).cpu())

    def answers(self) -> Answers:
        row, variable, truth, top, log_odds, nll, brier = (torch.cat(e) for e in zip(*self.entries, strict=True))
        odds = tuple(torch.cat(o) for o in self.odds) if self.keeps_odds else ()
        return Answers(self.labels, row, variable, truth, top, log_odds, nll, brier, odds, class_gaps=tuple(self.gaps))


def top_log_odds(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p - log(1 - p) of the most probable value of each row, and that value."""
    value, top = log_probs.max(1)
    rest = log_probs.scatter(1, top[:, None], -torch.inf).logsumexp(1)
    return value - rest, top


def value_log_odds(log_probs: Tensor, log_odds: Tensor, top: Tensor) -> Tensor:
    """Return the log-odds of each value against the rest, `[n, K]`; for two values those of the second, `[n, 1]`."""
    if log_probs.shape[1] == 2:
        return log_probs[:, 1:] - log_probs[:, :1]
    # 1 - p loses no digits where p is not the largest.
    return (log_probs - torch.log1p(-log_probs.exp())).scatter(1, top[:, None], log_odds[:, None])


def _gaps(p: Tensor, so: Tensor) -> Tensor:
    """Return sums of (is the value true - p) for each value, by the bin of p, `[K, BINS]`."""
    k = p.shape[1]
    places = bins_of(p) + BINS * torch.arange(k, device=p.device)
    sums = torch.zeros(k * BINS, dtype=torch.float64, device=p.device)
    return sums.index_add_(0, places.flatten(), (so - p).flatten()).view(k, BINS)


def whole(told: Told) -> dict[str, float]:
    """Return accuracy and Brier score over all entries, and likelihood and exact match over rows."""
    answers = told.answers[0]
    return {
        "accuracy": float(answers.right.double().mean()),
        "nll": float(told.nll.mean()),
        "brier": float(answers.brier.mean()),
        "exact_match": float(told.exact.double().mean()),
    }


def confusion(answers: Answers) -> Tensor:
    """Return the confusion matrix of a single label, true class by predicted class."""
    n = answers.labels.cardinalities[0]
    return torch.bincount(answers.truth * n + answers.top, minlength=n * n).view(n, n)


def class_accuracies(answers: Answers) -> Tensor:
    """Return the accuracy within each class; NaN for a class without rows."""
    counts = confusion(answers)
    return counts.diagonal().double() / counts.sum(1).double()


MEASURES = ("f1", "auprc", "auroc", "ece")


@dataclass(frozen=True, eq=False)
class Decisions:
    """Binary decisions: log-odds of the positive, the truth, and the prediction."""

    log_odds: Tensor
    truth: Tensor
    said: Tensor

    @classmethod
    def together(cls, parts: Sequence[Decisions]) -> Decisions:
        return cls(*(torch.cat([getattr(d, f) for d in parts]) for f in ("log_odds", "truth", "said")))


def decisions(answers: Answers, variable: int) -> list[Decisions]:
    """Return the binary decisions of a label variable: one if binary, else one for each value against the rest."""
    of_it = answers.variable == variable
    truth, top, odds = answers.truth[of_it], answers.top[of_it], answers.odds[variable]
    values = [1] if odds.shape[1] == 1 else range(odds.shape[1])
    return [Decisions(odds[:, i], truth == v, top == v) for i, v in enumerate(values)]


def ranked(scores: Tensor) -> Tensor:
    """Return the ranks of the scores, scaled to [0, 1]; equal scores share a rank.

    torchmetrics applies a sigmoid to scores outside [0, 1], which would make different log-odds above 40 equal.
    """
    values, place = scores.unique(return_inverse=True)
    places: Tensor = place.double() / max(1, len(values) - 1)
    return places


def f1(asked: Decisions) -> float:
    """Return the F1 score of the positives; NaN if there are none, neither true nor predicted."""
    if not bool((asked.truth | asked.said).any()):
        return math.nan
    return float(binary_f1_score(asked.said.long(), asked.truth.long()))


def auprc(asked: Decisions) -> float:
    """Return the average precision, ranked by log-odds; NaN if there are no positives."""
    if not bool(asked.truth.any()):
        return math.nan
    return float(binary_average_precision(ranked(asked.log_odds), asked.truth.long()))


def auroc(asked: Decisions) -> float:
    """Return the AUROC of the log-odds; NaN if all or none are positive."""
    if not bool(asked.truth.any()) or bool(asked.truth.all()):
        return math.nan
    return float(binary_auroc(ranked(asked.log_odds), asked.truth.long()))


def roc_curve(asked: Decisions) -> tuple[Tensor, Tensor]:
    """Return false and true positive rates."""
    false, true, _ = binary_roc(ranked(asked.log_odds), asked.truth.long())
    return false, true


def precision_recall_curve(asked: Decisions) -> tuple[Tensor, Tensor]:
    """Return recall and precision."""
    precision, recall, _ = binary_precision_recall_curve(ranked(asked.log_odds), asked.truth.long())
    return recall, precision


@dataclass(frozen=True)
class Attribute:
    """Metrics of one label: its observed entries, fraction of positives (None if not binary), and scores.

    A label of more than two values has means over its values, each against the rest. NaN: not defined on these rows.
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
    """Return the metrics of each label that is observed in some row."""
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
    """Return micro averages (all decisions pooled) and macro averages (means over labels where defined)."""
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
    """Return the mean of the values that are not NaN; NaN if there are none."""
    defined = [v for v in values if not math.isnan(v)]
    return sum(defined) / len(defined) if defined else math.nan

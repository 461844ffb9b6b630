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
    """One entry for each observed label of each row, on the CPU; the rows themselves are gone.

    `log_odds` is that of the most probable value, `top`, against all others: it orders entries whose probabilities have
    rounded to 1. `odds` has, for each label variable, the log-odds of its values against the rest: of a binary one
    those of its second value, `[m, 1]`; of a class among more than two, alone in its label space, nothing is kept.
    `class_gaps` has for each variable sums of (is it so - p) by value and by bin of p.
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
    """What a model says of rows: `answers` at each temperature asked for; and of all labels of a row together, as the
    model has them, one value for each row that has a label: -log p(the observed labels | x), and whether its most
    probable labeling is right in all of them."""

    answers: tuple[Answers, ...]
    nll: Tensor
    exact: Tensor


def is_attributes(labels: LabelSpace) -> bool:
    """Several labels, or a single one of yes and no; the rest are classes."""
    return len(labels) > 1 or labels.cardinalities == (2,)


def entries_nll(log_probs: Sequence[Tensor], y: Tensor) -> Tensor:
    total = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    for k, z in enumerate(log_probs):
        total -= torch.where(y[:, k] == MISSING, 0.0, z.gather(1, y[:, k : k + 1].clamp(min=0))[:, 0])
    return total


class Collector:
    """Answers as they come in."""

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
            # Half the squared distance: between 0 and 1, and of a binary label (p - y)^2.
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
    """log p - log (1 - p) of the most probable value of each row, and which value it is."""
    value, top = log_probs.max(1)
    rest = log_probs.scatter(1, top[:, None], -torch.inf).logsumexp(1)
    return value - rest, top


def value_log_odds(log_probs: Tensor, log_odds: Tensor, top: Tensor) -> Tensor:
    """The log-odds of each value against the rest, `[n, K]`; of two values those of the second, `[n, 1]`."""
    if log_probs.shape[1] == 2:
        return log_probs[:, 1:] - log_probs[:, :1]
    # 1 - p has no digits lost where p is not the largest.
    return (log_probs - torch.log1p(-log_probs.exp())).scatter(1, top[:, None], log_odds[:, None])


def _gaps(p: Tensor, so: Tensor) -> Tensor:
    """Sums of (is it so - p) for each value, by the bin of p, `[K, BINS]`."""
    k = p.shape[1]
    places = bins_of(p) + BINS * torch.arange(k, device=p.device)
    sums = torch.zeros(k * BINS, dtype=torch.float64, device=p.device)
    return sums.index_add_(0, places.flatten(), (so - p).flatten()).view(k, BINS)


def whole(told: Told) -> dict[str, float]:
    """Over all labels: accuracy and Brier score of the entries pooled; likelihood and exact match of whole rows."""
    answers = told.answers[0]
    return {
        "accuracy": float(answers.right.double().mean()),
        "nll": float(told.nll.mean()),
        "brier": float(answers.brier.mean()),
        "exact_match": float(told.exact.double().mean()),
    }


def confusion(answers: Answers) -> Tensor:
    """Rows counted by their true class and the predicted one, of a single label."""
    n = answers.labels.cardinalities[0]
    return torch.bincount(answers.truth * n + answers.top, minlength=n * n).view(n, n)


def class_accuracies(answers: Answers) -> Tensor:
    """The share of each class's rows that is right; NaN of a class without rows."""
    counts = confusion(answers)
    return counts.diagonal().double() / counts.sum(1).double()


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
    """Return the F1 score of the positives; NaN if there are none, neither true nor predicted."""
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

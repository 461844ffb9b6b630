"""report: what a model says of the labels of rows that pass by, a few numbers for each; accuracy, likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy import inference
from jointenergy import labels as label_room
from jointenergy.data import Dataset
from jointenergy.errors import InputError
from jointenergy.inference.density import log_table
from jointenergy.inference.rows import pieces
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import JointModel
from jointenergy.report.confidence import BINS, bins_of, calibration_error

ROWS = 1000  # rows that are looked at together


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


def batches(data: Dataset, device: torch.device | str) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows in pieces, brought to the device one after the other."""
    for x, y in zip(data.x.split(ROWS), data.y.split(ROWS), strict=True):
        yield x.to(device), y.to(device)


@torch.no_grad()
def tell(model: JointModel, rows: Iterable[tuple[Tensor, Tensor]], temperatures: Sequence[float] = (1.0,)) -> Told:
    """Each row once, in pieces of (x, y). MISSING entries count nowhere. Exact: by closed form or enumeration.

    At a temperature T the probabilities of each label are p^(1/T), normalized.
    """
    collected = [_Collected(model.labels) for _ in temperatures]
    nll: list[Tensor] = []
    exact: list[Tensor] = []
    # Then the labels of a row together are their entries one by one, and no second look is needed.
    apart = model.factorized or len(model.labels) == 1
    begin = 0
    for x, y in rows:
        known = (y != MISSING).any(1)
        numbers = begin + known.nonzero()[:, 0]
        begin += len(y)
        x, y = x[known], y[known]
        for piece in pieces(model, torch.full_like(y, MISSING)):
            log_probs = label_log_probs(model, x[piece])
            for kept, temperature in zip(collected, temperatures, strict=True):
                scaled = log_probs if temperature == 1 else [(z / temperature).log_softmax(1) for z in log_probs]
                kept.add(scaled, y[piece], numbers[piece])
            nll.append(
                _entries_nll(log_probs, y[piece]) if apart else -inference.label_log_prob(model, x[piece], y[piece])
            )
            best = torch.stack([z.argmax(1) for z in log_probs], 1) if apart else None
            best = inference.predict_joint(model, x[piece]).labels if best is None else best
            exact.append(((best == y[piece]) | (y[piece] == MISSING)).all(1))
    if begin == 0 or not nll:
        raise InputError("the rows have no observed label to be told")
    return Told(tuple(c.answers() for c in collected), torch.cat(nll).double().cpu(), torch.cat(exact).cpu())


def label_log_probs(model: JointModel, x: Tensor) -> list[Tensor]:
    """log p(y_k | x) of each variable k, `[n, cardinality]`, in float64: the improbable is not rounded to 0."""
    y = model.labels.given(None, len(x), x.device)
    model.check_summable(y)
    if model.factorized:
        blocks = model.label_logits(model.check_x(x)).logits.double().split(model.labels.cardinalities, dim=1)
        return [b.log_softmax(1) for b in blocks]
    parts = model.blocks()
    if len(parts) > 1:
        found = {
            k: z for block, columns in parts for k, z in zip(columns.tolist(), label_log_probs(block, x), strict=True)
        }
        return [found[k] for k in range(len(model.labels))]
    n_labels = len(model.labels)
    if model.labels.n_states > label_room.ENUMERATION_LIMIT:
        model.labels.enumerate()  # says that they are too many, before memory is asked for all of them
    table = log_table(model, model.check_x(x), y, range(n_labels)).double()
    others = [[1 + j for j in range(n_labels) if j != k] for k in range(n_labels)]
    return [(table.logsumexp(o) if o else table).log_softmax(1) for o in others]


def _entries_nll(log_probs: Sequence[Tensor], y: Tensor) -> Tensor:
    total = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    for k, z in enumerate(log_probs):
        total -= torch.where(y[:, k] == MISSING, 0.0, z.gather(1, y[:, k : k + 1].clamp(min=0))[:, 0])
    return total


class _Collected:
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


@dataclass(frozen=True)
class Classification:
    """Accuracy and calibration are over all observed label entries pooled; nll is -log p(a row's labels | x), a mean.

    All are NaN for a model whose probabilities are not finite.
    """

    accuracy: float
    nll: float
    ece: float


def classify(model: JointModel, data: Dataset) -> Classification:
    """Each row of `data` once. MISSING entries count nowhere, and rows that miss all labels are passed over."""
    if not bool((data.y != MISSING).any()):
        raise InputError(f"data set {data.name!r} has no observed label to be told")
    told = tell(model, batches(data, next(model.parameters()).device))
    (answers,) = told.answers
    if not answers.finite:
        # The largest of values that are no numbers is no prediction.
        return Classification(math.nan, math.nan, math.nan)
    return Classification(
        float(answers.right.double().mean()),
        float(told.nll.mean()),
        calibration_error(answers.confidence, answers.right),
    )

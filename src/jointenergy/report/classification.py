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
from jointenergy.labels import MISSING
from jointenergy.metrics.calibration import calibration_error
from jointenergy.metrics.classification import Collector, Told, entries_nll
from jointenergy.models import JointModel

ROWS = 1000  # rows that are looked at together


def batches(data: Dataset, device: torch.device | str) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows in pieces, brought to the device one after the other."""
    for x, y in zip(data.x.split(ROWS), data.y.split(ROWS), strict=True):
        yield x.to(device), y.to(device)


@torch.no_grad()
def tell(model: JointModel, rows: Iterable[tuple[Tensor, Tensor]], temperatures: Sequence[float] = (1.0,)) -> Told:
    """Each row once, in pieces of (x, y). MISSING entries count nowhere. Exact: by closed form or enumeration.

    At a temperature T the probabilities of each label are p^(1/T), normalized.
    """
    collected = [Collector(model.labels) for _ in temperatures]
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
                entries_nll(log_probs, y[piece]) if apart else -inference.label_log_prob(model, x[piece], y[piece])
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

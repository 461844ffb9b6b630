"""evaluation: how well a model tells labels of rows it has not seen: accuracy, likelihood and calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from jointenergy.data import Dataset
from jointenergy.errors import InputError
from jointenergy.evaluation.calibration import expected_calibration_error
from jointenergy.labels import MISSING
from jointenergy.models import JointModel

ROWS = 1000  # rows that are looked at together


@dataclass(frozen=True)
class Classification:
    """Accuracy and calibration are over all observed label entries pooled; nll is -log p(a row's labels | x), a mean.

    All are NaN for a model whose probabilities are not finite.
    """

    accuracy: float
    nll: float
    ece: float


@torch.no_grad()
def classify(model: JointModel, data: Dataset) -> Classification:
    """Each row of `data` once. MISSING entries count nowhere, and rows that miss all labels are passed over."""
    observed_rows = (data.y != MISSING).any(1)
    if not bool(observed_rows.any()):
        raise InputError(f"data set {data.name!r} has no observed label to be told")
    device = next(model.parameters()).device
    widest = max(data.labels.cardinalities)
    tops: list[Tensor] = []
    truths: list[Tensor] = []
    log_probs: list[Tensor] = []
    for x, y in zip(data.x[observed_rows].split(ROWS), data.y[observed_rows].split(ROWS), strict=True):
        x, y = x.to(device), y.to(device)
        # A difference of two log-densities: rounding may lift it above 0, which no probability is.
        log_probs.append(model.label_log_prob(x, y).double().clamp(max=0.0))
        for k, p in enumerate(model.label_probs(x).values()):
            seen = y[:, k] != MISSING
            # Values that a variable does not have get probability 0, so that variables of all sizes pool.
            tops.append(pad(p[seen], (0, widest - p.shape[1])))
            truths.append(y[seen, k])
    probabilities, y = torch.cat(tops), torch.cat(truths)
    if not bool(probabilities.isfinite().all()):
        # The largest of values that are no numbers is no prediction.
        return Classification(math.nan, math.nan, math.nan)
    return Classification(
        float((probabilities.argmax(1) == y).double().mean()),
        float(-torch.cat(log_probs).mean()),
        expected_calibration_error(probabilities, y),
    )

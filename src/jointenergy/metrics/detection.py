"""metrics: how well a score separates rows of the data from other rows: AUROC, AUPR, FPR at 95 % TPR."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Separation:
    """How well a score tells rows of the data, which should have the larger ones, from others. NaN where it is none.

    `auroc` is the share of pairs in the right order, equals counting half. `aupr` is the average precision with the
    data as the positives and both sets counting alike, so that 0.5 is a guess at any sizes. `fpr95` is the share of the
    others that is accepted where at least 95 % of the data are.
    """

    auroc: float
    aupr: float
    fpr95: float


NOT_KNOWN = Separation(math.nan, math.nan, math.nan)


def separation(inside: Values, outside: Values) -> Separation:
    if not len(inside) or not len(outside) or not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        return NOT_KNOWN
    truth = np.repeat((1, 0), (len(inside), len(outside)))
    scores = np.concatenate((inside, outside))
    weights = np.where(truth == 1, 1 / len(inside), 1 / len(outside))
    passed, accepted, _ = roc_curve(truth, scores, drop_intermediate=False)
    return Separation(
        float(roc_auc_score(truth, scores)),
        float(average_precision_score(truth, scores, sample_weight=weights)),
        float(passed[np.argmax(accepted >= 0.95 - 1e-12)]),
    )

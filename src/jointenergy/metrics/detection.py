"""metrics: out-of-distribution detection, AUROC, AUPR and FPR at 95 % TPR."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Separation:
    """How well a score separates in-distribution rows, which should score higher, from OOD rows; NaN if undefined.

    `aupr` has in-distribution as the positives and both sets weighted equally, so 0.5 is chance. `fpr95` is the false
    positive rate at 95 % true positive rate.
    """

    auroc: float
    aupr: float
    fpr95: float


NOT_KNOWN = Separation(math.nan, math.nan, math.nan)


def separation(inside: Values, outside: Values) -> Separation:
    """Compute AUROC, AUPR and FPR at 95 % TPR."""
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

"""evaluation: how far a model's confidence is from how often it is right."""

from __future__ import annotations

import torch
from torch import Tensor

from jointenergy.errors import InputError


def expected_calibration_error(probabilities: Tensor, y: Tensor, n_bins: int = 15) -> float:
    """The mean distance between confidence and accuracy over equal-width bins of the top label's probability.

    The last bin is closed at 1, so that predictions of full confidence count; published code lost them.
    """
    if probabilities.ndim != 2 or len(probabilities) != len(y) or len(y) == 0:
        raise InputError(
            f"probabilities must be [n, classes], one label a row, got {tuple(probabilities.shape)} and {len(y)}"
        )
    confidence, predicted = probabilities.double().max(dim=1)
    right = (predicted == y.view(-1)).double()
    bins = (confidence * n_bins).long().clamp(max=n_bins - 1)
    gaps = torch.zeros(n_bins, dtype=torch.float64, device=confidence.device).index_add_(0, bins, right - confidence)
    return float(gaps.abs().sum() / len(y))

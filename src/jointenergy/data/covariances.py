"""data: the covariance of rows of numbers, shrunk so that it can be inverted however few rows there are."""

from __future__ import annotations

import torch
from torch import Tensor

from jointenergy.labels import MISSING

LEAST_SHRINKAGE = 1e-3  # of the covariance toward a round one: constant and repeated columns need some
LEAST_SCALE = 1e-2  # of a column, in standard deviations of the median column


def shrinkage(rows: Tensor, counts: Tensor) -> float:
    """Ledoit and Wolf's, of rows without their mean, or without that of their class; a row counts several times."""
    n, n_features = float(counts.sum()), rows.shape[1]
    second = (rows * counts[:, None]).mT @ rows / n
    squares, level = second.square().sum(), second.diagonal().mean()
    noise = ((counts * rows.square().sum(1).square()).sum() / n - squares) / n
    distance = squares - n_features * level**2
    found = float(noise / distance) if float(distance) > 0 else 0.0
    return min(max(found, LEAST_SHRINKAGE), 1.0)


def covariance_of(x: Tensor, y: Tensor | None = None) -> Tensor:
    """The covariance `[D, D]` of rows, float64 on the CPU; with labels `[n, 1]` the one that is left within classes.

    It is shrunk toward one of uncorrelated columns that keep their variances.
    """
    rows = x.detach().cpu().double().flatten(1)
    rows = rows - rows.mean(0)
    for c in () if y is None else y.cpu()[:, 0].unique().tolist():
        members = (y.cpu()[:, 0] == c).nonzero()[:, 0] if y is not None else None
        if c != MISSING:
            rows[members] -= rows[members].mean(0)
    scale = rows.square().mean(0).sqrt()
    least = LEAST_SCALE * max(float(scale.median()), 0.1 * float(scale.mean()))
    scale = scale.clamp(min=least) if least > 0 else torch.ones_like(scale)  # of one row nothing is known
    even = rows / scale
    share = shrinkage(even, even.new_ones(len(even)))
    found = (1 - share) * even.mT @ even / len(even) + share * torch.eye(even.shape[1], dtype=even.dtype)
    return found * scale * scale[:, None]

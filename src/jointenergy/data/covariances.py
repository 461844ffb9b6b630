"""data: shrunk covariances, invertible for any number of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from jointenergy.labels import MISSING

LEAST_SHRINKAGE = 1e-3  # needed for constant and repeated columns
LEAST_SCALE = 1e-2  # smallest scale of a column, relative to the median column


def shrinkage(rows: Tensor, counts: Tensor) -> float:
    """Return the Ledoit-Wolf shrinkage of rows centered by their mean or class mean; rows may be weighted."""
    n, n_features = float(counts.sum()), rows.shape[1]
    second = (rows * counts[:, None]).mT @ rows / n
    squares, level = second.square().sum(), second.diagonal().mean()
    noise = ((counts * rows.square().sum(1).square()).sum() / n - squares) / n
    distance = squares - n_features * level**2
    found = float(noise / distance) if float(distance) > 0 else 0.0
    return min(max(found, LEAST_SHRINKAGE), 1.0)


def covariance_of(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Return the covariance `[D, D]` of rows, float64 on the CPU; with labels `[n, 1]` the within-class covariance.

    It is shrunk toward its diagonal.
    """
    rows = x.detach().cpu().double().flatten(1)
    rows = rows - rows.mean(0)
    for c in () if y is None else y.cpu()[:, 0].unique().tolist():
        members = (y.cpu()[:, 0] == c).nonzero()[:, 0] if y is not None else None
        if c != MISSING:
            rows[members] -= rows[members].mean(0)
    scale = rows.square().mean(0).sqrt()
    least = LEAST_SCALE * max(float(scale.median()), 0.1 * float(scale.mean()))
    scale = scale.clamp(min=least) if least > 0 else torch.ones_like(scale)  # a single row has no scale
    even = rows / scale
    share = shrinkage(even, even.new_ones(len(even)))
    found = (1 - share) * even.mT @ even / len(even) + share * torch.eye(even.shape[1], dtype=even.dtype)
    return found * scale * scale[:, None]

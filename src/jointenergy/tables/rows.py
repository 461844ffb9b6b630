"""tables: weighted rows: merging of repeated rows, weighted quantiles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MANY, TIMES = 2000, 4  # merged rows count as at most MANY rows, or TIMES their number if that is more


def merged(cells: Floats, weight: Floats) -> tuple[npt.NDArray[np.int64], Floats, int]:
    """Merge equal rows: return the first of each, in an order that depends on the rows alone, the sums of their
    weights, and how many rows they count as: integer weights as repeated rows, others as one row each."""
    cells = np.ascontiguousarray(cells)
    rows = cells.view(np.dtype((np.void, cells.dtype.itemsize * cells.shape[1])))[:, 0]
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    total = np.bincount(which, weights=weight, minlength=len(first)).astype(np.float64)
    whole = bool((total == np.rint(total)).all())
    n_rows = min(int(total.sum()), max(MANY, TIMES * len(first))) if whole else len(first)
    return first, total, n_rows


def weighted_quantile(values: Floats, weight: Floats, share: float) -> float:
    """Return numpy's quantile of values repeated by integer weights; other weights are scaled to mean 1."""
    order = np.argsort(values, kind="stable")
    values, weight = values[order], weight[order]
    if not (weight == np.rint(weight)).all():
        weight = weight / weight.mean()
    reach = np.cumsum(weight)
    place = share * (reach[-1] - 1)
    below = np.floor(place)
    ends = np.minimum(np.searchsorted(reach, [below, below + 1], side="right"), len(values) - 1)
    return float(values[ends[0]] + (place - below) * (values[ends[1]] - values[ends[0]]))

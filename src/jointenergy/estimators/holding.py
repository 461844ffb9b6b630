"""estimators: which rows are held out for early stopping, if any."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING

LEAST = 30  # labeled rows that a validation split needs to say anything


def held_out(y: Tensor, mask: Tensor, asked: bool | str, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """The rows of a validation split and the others; none where "auto" finds too few labeled rows for one.

    Held-out rows have all their targets and features, and every class keeps rows to learn from.
    """
    nothing, everything = torch.empty(0, dtype=torch.int64), torch.arange(len(y))
    if asked not in (True, False, "auto"):
        raise InputError(f"early_stopping must be True, False or 'auto', got {asked!r}")
    if not 0 < fraction < 1:
        raise InputError(f"validation_fraction must lie between 0 and 1, got {fraction!r}")
    able = ((y != MISSING).all(1) & mask.all(1)).nonzero()[:, 0]
    n_held = int(len(able) * fraction)
    if asked is False or n_held < (LEAST if asked == "auto" else 1):
        return nothing, everything
    strata = None
    if y.shape[1]:
        counts = np.unique(y[able, 0].numpy(), return_counts=True)[1]
        if counts.min() >= 2 and n_held >= len(counts):
            strata = y[able, 0].numpy()
    _, chosen = train_test_split(able.numpy(), test_size=n_held, random_state=seed, stratify=strata)
    held = torch.from_numpy(np.sort(chosen))
    rest = everything[~torch.isin(everything, held)]
    lost = any(set(y[held, k].tolist()) - set(y[rest, k].tolist()) for k in range(y.shape[1]))
    return (nothing, everything) if lost else (held, rest)

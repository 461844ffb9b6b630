"""tables: to which classes unlabeled rows belong, as their neighbors say: where the reference of few labels begins."""

from __future__ import annotations

import warnings

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.semi_supervised import LabelSpreading
from torch import Tensor

NEIGHBORS = 7


def spread(x: Tensor, classes: Tensor, n_classes: int) -> Tensor:
    """The share of each class in each row, `[n, K]`, from labels that spread along the nearest rows.

    Rows that no label reaches belong to none. `classes` is -1 where a label is missing.
    """
    if not bool((classes >= 0).any()):  # the first piece of many may have no label
        return x.new_full((len(x), n_classes), 1 / n_classes)
    spreading = LabelSpreading(kernel="knn", n_neighbors=min(NEIGHBORS, len(x)))
    with warnings.catch_warnings():
        # Shares are a beginning: where they stand after scikit-learn's rounds is near enough.
        warnings.simplefilter("ignore", ConvergenceWarning)
        spreading.fit(x.numpy(), classes.numpy())
    shares = x.new_zeros(len(x), n_classes)
    shares[:, torch.from_numpy(spreading.classes_)] = torch.from_numpy(spreading.label_distributions_).to(x.dtype)
    return shares

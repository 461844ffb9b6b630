"""data: the 8 x 8 digits that come with scikit-learn, embedded and split in a fixed way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from jointenergy.labels import LabelSpace

LABELS = LabelSpace({"digit": 10})


@dataclass(frozen=True)
class Split:
    """Training and test rows."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def digits(seed: int = 0) -> Split:
    """1,797 digits with 64 pixels scaled to [-1, 1]; 30 % of each class are the test rows."""
    pixels, target = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels).float() / 8.0 - 1.0
    y = torch.from_numpy(target).long()[:, None]
    train, test = train_test_split(range(len(x)), test_size=0.3, stratify=target, random_state=seed)
    return Split(x[train], y[train], x[test], y[test])

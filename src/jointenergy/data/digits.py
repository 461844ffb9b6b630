"""data: the 8 x 8 digits that come with scikit-learn, embedded and split in a fixed way."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from jointenergy.data.base import Dataset, Split, split
from jointenergy.labels import LabelSpace

LABELS = LabelSpace({"digit": 10})


def digits(seed: int = 0) -> Split:
    """1,797 digits with 64 pixels scaled to [-1, 1]; 30 % of each class are the test rows."""
    pixels, target = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels).float() / 8.0 - 1.0
    return Split(*split(Dataset(x, torch.from_numpy(target).long(), LABELS, "digits"), 0.3, seed))

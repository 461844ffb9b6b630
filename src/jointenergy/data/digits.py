"""data: scikit-learn's 8 x 8 digits in a fixed split, with classes, attributes or masks as labels."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from jointenergy.data.base import Dataset, Split, split
from jointenergy.labels import LabelSpace

LABELS = LabelSpace({"digit": 10})
ATTRIBUTES = LabelSpace({"parity": ["even", "odd"], "above_four": ["no", "yes"], "loop": ["no", "yes"]})
LOOPS = (0, 6, 8, 9)
"""Digits that are always written with a closed loop; a 4 sometimes is, and does not count."""


def digits(seed: int = 0) -> Split:
    """Return 1,797 digits of 64 pixels scaled to [-1, 1]; 30 % of each class are test rows."""
    pixels, target = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels).float() / 8.0 - 1.0
    return Split(*split(Dataset(x, torch.from_numpy(target).long(), LABELS, "digits"), 0.3, seed))


def attributes_of(digit: Tensor) -> Tensor:
    """Return attributes of digits `[n]`: parity, above four, has a loop, `[n, 3]`."""
    loop = torch.isin(digit, torch.tensor(LOOPS, device=digit.device))
    return torch.stack([digit % 2, (digit > 4).long(), loop.long()], dim=1)


def with_attributes(dataset: Dataset) -> Dataset:
    """Replace the labels of digits by their attributes."""
    return Dataset(dataset.x, attributes_of(dataset.y[:, 0]), ATTRIBUTES, f"{dataset.name}-attributes")


def with_masks(dataset: Dataset) -> Dataset:
    """Replace the labels of images by foreground masks: one binary variable per pixel, 1 from middle gray up.

    The variable of pixel row 2, column 5 is `r2c5`. Middle gray is 8 of scikit-learn's 16 levels, and 128 of 255.
    """
    x = dataset.x
    middle = 128 if x.dtype == torch.uint8 else 0.0
    mask = (x >= middle).flatten(1).long()
    side = round(mask.shape[1] ** 0.5)
    labels = LabelSpace.binary([f"r{i // side}c{i % side}" for i in range(side * side)])
    return Dataset(x, mask, labels, f"{dataset.name}-masks")

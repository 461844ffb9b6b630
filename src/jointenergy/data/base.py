"""data: data sets, rows of x and y with a label space, and seeded splits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace


@final
@dataclass(frozen=True, eq=False)
class Dataset:
    """Hold data `x`, `[n, *event]`, uint8 or floating-point, and labels `y`, int64 `[n, L]`, MISSING allowed."""

    x: Tensor
    y: Tensor
    labels: LabelSpace
    name: str

    def __post_init__(self) -> None:
        if self.x.dtype != torch.uint8 and not self.x.is_floating_point():
            raise InputError(f"x of data set {self.name!r} must be uint8 or floating-point, got {self.x.dtype}")
        if self.x.ndim < 2:
            raise InputError(f"x of data set {self.name!r} needs a shape [n, *event], got {tuple(self.x.shape)}")
        if self.x.is_floating_point() and not bool(self.x.isfinite().all()):
            row = int((~self.x.isfinite()).flatten(1).any(1).nonzero()[0])
            raise InputError(f"x of data set {self.name!r} has a value that is not finite in row {row}")
        if self.x.device != self.y.device:
            raise InputError(f"x of data set {self.name!r} is on {self.x.device}, its labels are on {self.y.device}")
        object.__setattr__(self, "y", self.labels.check(self.y, len(self.x)))

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self)} rows of {self.event_shape} {self.x.dtype}, {self.labels!r})"

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def rows(self, index: Tensor | Sequence[int] | slice) -> Dataset:
        """Select rows by a tensor of indices, a mask, a list of indices or a slice, in that order."""
        if not isinstance(index, Tensor | slice):
            index = torch.tensor(index, dtype=torch.int64, device=self.x.device)
        return Dataset(self.x[index], self.y[index], self.labels, self.name)

    def to(self, device: torch.device | str) -> Dataset:
        """Move the rows to another device."""
        return Dataset(self.x.to(device), self.y.to(device), self.labels, self.name)


@final
@dataclass(frozen=True)
class Split:
    """Hold training and test rows of one data set."""

    train: Dataset
    test: Dataset

    @property
    def x_train(self) -> Tensor:
        return self.train.x

    @property
    def y_train(self) -> Tensor:
        return self.train.y

    @property
    def x_test(self) -> Tensor:
        return self.test.x

    @property
    def y_test(self) -> Tensor:
        return self.test.y


def split(
    dataset: Dataset, held_out: float | int, seed: int, *, stratify: bool | str = True
) -> tuple[Dataset, Dataset]:
    """Split into the rest and the held-out rows, shuffled; `held_out` is a fraction (float) or a number of rows (int).

    With `stratify` both parts have the label frequencies of the whole, for the first label or the one it names. Rows
    with a MISSING label then count as a class. Rows of classes too small for both parts are split at random.
    """
    rest, chosen = split_rows(dataset, held_out, seed, stratify=stratify)
    return dataset.rows(rest), dataset.rows(chosen)


def split_rows(
    dataset: Dataset, held_out: float | int, seed: int, *, stratify: bool | str = True
) -> tuple[list[int], list[int]]:
    """Return the row indices of the two parts of `split`."""
    n = len(dataset)
    if isinstance(held_out, bool) or not (0 < held_out < (n if isinstance(held_out, int) else 1)):
        raise InputError(
            f"what is held out must be a fraction between 0 and 1 or a number of rows below {n}, got {held_out!r}"
        )
    strata = None
    if stratify and len(dataset.labels):
        name = stratify if isinstance(stratify, str) else dataset.labels.names[0]
        n_held = held_out if isinstance(held_out, int) else math.ceil(held_out * n)
        strata = _strata(dataset.y[:, dataset.labels.index(name)].cpu().numpy(), min(n_held, n - n_held))
    try:
        rest, chosen = train_test_split(range(n), test_size=held_out, stratify=strata, random_state=seed)
    except ValueError as error:
        raise InputError(f"{n} rows of {dataset.name!r} cannot be split at {held_out}: take more rows") from error
    return rest, chosen


def _strata(classes: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return strata: at most `most` classes with two rows or more; rows of other classes join the most frequent one."""
    _, numbers, counts = np.unique(classes, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    large = np.zeros(len(counts), np.bool_)
    large[order[:most]] = counts[order[:most]] >= 2
    return np.where(large[numbers], numbers, order[:1])

"""data: training and held-out rows, scaled to the range of x, with entries hidden on request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from jointenergy.data.base import Dataset, split
from jointenergy.data.views import BINARY, BYTES, View
from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.streams import seeded

Pixels = Literal["none", "bytes", "binary"]


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Hold training and held-out rows as the model takes them, on the training device.

    `mask` is True where x is observed (None: everywhere); elsewhere x holds the start of its completion. Held-out rows
    are complete. `weight` is the weight of each row (None: 1).
    """

    x: Tensor
    y: Tensor
    x_held: Tensor
    y_held: Tensor
    labels: LabelSpace
    mask: Tensor | None = None
    weight: Tensor | None = None

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def to(self, device: torch.device | str) -> TrainingData:
        """Move the rows to another device."""
        x, y, x_held, y_held = (t.to(device) for t in (self.x, self.y, self.x_held, self.y_held))
        mask, weight = (None if t is None else t.to(device) for t in (self.mask, self.weight))
        return TrainingData(x, y, x_held, y_held, self.labels, mask, weight)


def view(low: float, high: float, *, dequantize: Pixels = "none", logit: bool = False) -> View:
    """Return the range of x and how pixels map to it."""
    levels = {"bytes": BYTES, "binary": BINARY}.get(dequantize) if logit else None
    return View(low, high, levels)


def scaled(dataset: Dataset, bounds: View) -> Dataset:
    """Scale pixels to `bounds`; other values stay as they are. The noise of a view is drawn once."""
    if dataset.x.is_floating_point():
        if bounds.levels is not None:
            raise InputError(f"the logit takes pixels, and {dataset.name!r} has numbers: leave data.transform out")
        return dataset
    x = bounds.of_pixels(dataset.x, generator=seeded(0, "pixels of", dataset.name))
    return Dataset(x, dataset.y, dataset.labels, dataset.name)


def prepare(
    dataset: Dataset,
    *,
    low: float = -1.0,
    high: float = 1.0,
    dequantize: Pixels = "none",
    logit: bool = False,
    validation: float | int | Dataset = 0.1,
    labels: bool = True,
    labeled: int | None = None,
    missing_labels: float = 0.0,
    missing_x: float = 0.0,
    seed: int = 0,
) -> TrainingData:
    """Scale pixels to (low, high), hold rows out, and hide some labels or entries of x from training.

    `validation` is a share or a number of rows, the same ones for every seed, or held-out rows of your own. `labeled`
    rows keep their labels, balanced over classes; `missing_labels` and `missing_x` are shares of entries to hide.
    `labels=False` drops the labels. With `logit`, x is the logit of dequantized pixels.
    """
    bounds = view(low, high, dequantize=dequantize, logit=logit)
    dataset = scaled(dataset, bounds)
    if not labels:  # before the split, which is stratified by labels
        dataset = _without_labels(dataset)
    if isinstance(validation, Dataset):
        held = scaled(validation, bounds)
        rest, held = dataset, held if labels else _without_labels(held)
    else:
        rest, held = split(dataset, validation, seed=0)
    x, y, mask = rest.x, rest.y, None
    if labeled is not None:
        y = with_few_labels(y, labeled, generator=seeded(seed, "labeled"))
    if missing_labels > 0:
        hidden = torch.rand(y.shape, generator=seeded(seed, "missing labels")) < missing_labels
        y = y.masked_fill(hidden, MISSING)
    if missing_x > 0:
        mask = torch.rand(x.shape, generator=seeded(seed, "missing x")) >= missing_x
        x = filled(x, mask)
    return TrainingData(x, y, held.x, held.y, dataset.labels, mask)


def _without_labels(dataset: Dataset) -> Dataset:
    return Dataset(dataset.x, dataset.y[:, :0], LabelSpace.none(), dataset.name)


def filled(x: Tensor, mask: Tensor) -> Tensor:
    """Replace hidden entries of x by the mean of the observed ones."""
    mean = torch.where(mask, x, 0.0).sum(0) / mask.sum(0).clamp(min=1)
    return torch.where(mask, x, mean)


def with_few_labels(y: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """Keep the labels of n rows, balanced over classes; all others become MISSING."""
    known = (y != MISSING).any(1).nonzero()[:, 0]
    if n > len(known):
        raise InputError(f"data.labeled asks for {n} labeled rows, and {len(known)} are there to train on")
    order = known[torch.randperm(len(known), generator=generator)]
    _, of_class = y[order].unique(dim=0, return_inverse=True)
    # Take the first of each class, then the second of each, and so on.
    within = torch.empty_like(order)
    for k in range(int(of_class.max()) + 1):
        own = (of_class == k).nonzero()[:, 0]
        within[own] = torch.arange(len(own))
    kept = order[within.argsort(stable=True)[:n]]
    few = torch.full_like(y, MISSING)
    few[kept] = y[kept]
    return few

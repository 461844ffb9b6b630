"""recipes: the rows that a recipe names: read, scaled, split, and what is done to them at each use."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from jointenergy.data import Dataset, GaussianNoise, View, load, split
from jointenergy.data.augmentations import Change, augmentation
from jointenergy.data.views import BINARY, BYTES, DequantizeRows
from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.recipes.schema import Recipe
from jointenergy.recipes.settings import DataSettings
from jointenergy.training.feeds import TrainingData
from jointenergy.training.order import seeded


def data_of(
    recipe: Recipe, folder: Path | None = None, device: torch.device | str = "cpu", seed: int = 0
) -> TrainingData:
    """The training split, scaled, with the recipe's share held out; the held-out rows are the same for every seed."""
    settings = recipe.data
    dataset = dataset_of(settings, folder, "train")
    labels = dataset.labels
    if recipe.model.family == "unconditional":
        labels = LabelSpace.none()
        dataset = Dataset(dataset.x, dataset.y[:, :0], labels, dataset.name)
    rest, held = split(dataset, settings.validation, seed=0)
    y, mask = rest.y, None
    if settings.labeled is not None:
        y = with_few_labels(y, settings.labeled, generator=seeded(seed, "labeled"))
    if settings.missing_labels > 0:
        hidden = torch.rand(y.shape, generator=seeded(seed, "missing labels")) < settings.missing_labels
        y = y.masked_fill(hidden, MISSING)
    if settings.missing_x > 0:
        mask = torch.rand(rest.x.shape, generator=seeded(seed, "missing x")) >= settings.missing_x
        # What is hidden is hidden from all: in its place stands the mean of what is seen there.
        mean = torch.where(mask, rest.x, 0.0).sum(0) / mask.sum(0).clamp(min=1)
        rest = Dataset(torch.where(mask, rest.x, mean), rest.y, labels, rest.name)
    try:
        mask = None if mask is None else mask.to(device)
        return TrainingData(rest.x.to(device), y.to(device), held.x.to(device), held.y.to(device), labels, mask)
    except torch.OutOfMemoryError:
        size = (rest.x.nbytes + held.x.nbytes + (0 if mask is None else mask.nbytes)) / 1e9
        raise InputError(
            f"{len(dataset)} rows of {settings.name!r} take {size:.1f} GB, more than is free on {device}, where all "
            "data live: take smaller images (data.options.image_size), or train with --device cpu"
        ) from None


def with_few_labels(y: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """The labels of n rows that have one, as many of each class as can be; all others are missing."""
    known = (y != MISSING).any(1).nonzero()[:, 0]
    if n > len(known):
        raise InputError(f"data.labeled asks for {n} labeled rows, and {len(known)} are there to train on")
    order = known[torch.randperm(len(known), generator=generator)]
    _, of_class = y[order].unique(dim=0, return_inverse=True)
    # The first of each class, then the second of each, and so on.
    within = torch.empty_like(order)
    for k in range(int(of_class.max()) + 1):
        own = (of_class == k).nonzero()[:, 0]
        within[own] = torch.arange(len(own))
    kept = order[within.argsort(stable=True)[:n]]
    few = torch.full_like(y, MISSING)
    few[kept] = y[kept]
    return few


def dataset_of(settings: DataSettings, folder: Path | None, split: str) -> Dataset:
    """The rows of a split of the recipe's data set, as its options say, scaled to the recipe's bounds."""
    return scaled(load(settings.name, folder, split, options=settings.options), settings)


def view_of(settings: DataSettings) -> View:
    """The recipe's bounds of x, with how it sees pixels."""
    levels = {"bytes": BYTES, "binary": BINARY}.get(settings.dequantize) if settings.transform == "logit" else None
    return View(settings.low, settings.high, levels)


def scaled(dataset: Dataset, settings: DataSettings) -> Dataset:
    """Pixels as the recipe sees them; what is no pixel is taken as it is. Noise of a view is one draw for good."""
    if dataset.x.is_floating_point():
        if settings.transform != "none":
            raise InputError(f"data.transform takes pixels, and {settings.name!r} has numbers: set it to 'none'")
        return dataset
    x = view_of(settings).of_pixels(dataset.x, generator=seeded(0, "pixels of", dataset.name))
    return Dataset(x, dataset.y, dataset.labels, dataset.name)


def changes_of(settings: DataSettings, *, augment: bool) -> tuple[Change, ...]:
    """What is done to rows each time they are used: dequantized, augmented, noised."""
    low, high = settings.low, settings.high
    changes: list[Change] = []
    if settings.dequantize != "none":
        changes.append(DequantizeRows(settings.dequantize, low, high, logit=settings.transform == "logit"))
    if augment:
        changes += augmentation(settings.augment, (low, high))
    if settings.noise > 0:
        changes.append(GaussianNoise(settings.noise, clamp=(low, high) if settings.noise_clamp else None))
    return tuple(changes)

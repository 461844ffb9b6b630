"""recipes: load the data that a recipe names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from jointenergy.data import Dataset, View, load
from jointenergy.data.training import TrainingData, prepare, scaled, view
from jointenergy.errors import InputError
from jointenergy.recipes.schema import Recipe
from jointenergy.recipes.settings import DataSettings


def data_of(
    recipe: Recipe, folder: Path | None = None, device: torch.device | str = "cpu", seed: int = 0
) -> TrainingData:
    """Load the scaled training split and hold out the recipe's share; held-out rows are the same for every seed."""
    settings = recipe.data
    data = prepare(load(settings.name, folder, "train", options=settings.options), **preparation(recipe), seed=seed)
    try:
        return data.to(device)
    except torch.OutOfMemoryError:
        size = (data.x.nbytes + data.x_held.nbytes + (0 if data.mask is None else data.mask.nbytes)) / 1e9
        raise InputError(
            f"{len(data.x) + len(data.x_held)} rows of {settings.name!r} need {size:.1f} GB, more than is free on "
            f"{device}: use smaller images (data.options.image_size), or train with --device cpu"
        ) from None


def preparation(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments of `prepare`."""
    settings = recipe.data
    return {
        "low": settings.low,
        "high": settings.high,
        "dequantize": settings.dequantize,
        "logit": settings.transform == "logit",
        "validation": settings.validation,
        "labels": recipe.model.family != "unconditional",
        "labeled": settings.labeled,
        "missing_labels": settings.missing_labels,
        "missing_x": settings.missing_x,
    }


def dataset_of(settings: DataSettings, folder: Path | None, split: str) -> Dataset:
    """Load a split of the recipe's data set, scaled to the recipe's bounds."""
    return scaled(load(settings.name, folder, split, options=settings.options), view_of(settings))


def view_of(settings: DataSettings) -> View:
    """Return the recipe's bounds of x and its view of pixels."""
    return view(settings.low, settings.high, dequantize=settings.dequantize, logit=settings.transform == "logit")

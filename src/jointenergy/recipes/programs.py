"""recipes: print a recipe as an equivalent Python program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jointenergy.data import load, prepare
from jointenergy.data.training import TrainingData
from jointenergy.files.reading import shown
from jointenergy.recipes.build import described_arguments
from jointenergy.recipes.calls import Call, Named, text_of, written
from jointenergy.recipes.data import preparation
from jointenergy.recipes.networks import described_model, weights_seed
from jointenergy.recipes.schema import Recipe
from jointenergy.training.settings import EngineSettings

UNSAID: dict[str, Any] = {
    "label_objective": None,
    "clamp": True,
    "completion_steps": 10,
    "start_labels": "uniform",
    "dequantize": "none",
    "augment": (),
    "classifier_noise": None,
    "chain_augment": (),
    "augment_every": 0,
    "denoising_steps": 0,
    "keep_labels": 0.0,
    "sum_labels": False,
    "allow_batch_statistics": False,
    "engine": EngineSettings(),
}
"""Arguments of `fit` that can be omitted because their defaults do not depend on the data."""


def program_of(recipe: Recipe, data: TrainingData, seed: int, *, folder: Path | None = None) -> str:
    """Return a program that trains the recipe with the public API; `folder` contains its data."""
    place = () if folder is None else (str(folder),)
    rows = Call(load, recipe.data.name, *place, split="train", options=recipe.data.options)
    prepared = Call(prepare, Named("dataset", None), **preparation(recipe), seed=seed)
    arguments = {
        **described_arguments(recipe, data),
        "clamp": recipe.chain.clamp,
        "allow_batch_statistics": recipe.model.allow_batch_statistics,
    }
    said = {name: value for name, value in arguments.items() if name not in UNSAID or value != UNSAID[name]}
    said |= {"folder": f"runs/{recipe.name}-{seed}", "seed": seed}
    lines = [
        f"# {shown(recipe.description)}" if recipe.description else "",
        f"# The recipe {recipe.name} with seed {seed}.",
        "import torch",
        "",
        "import jointenergy as je",
        "",
        f"dataset = {text_of(rows)}",
        f"data = {text_of(prepared)}",
        "",
        f"torch.manual_seed({weights_seed(seed)})",
        f"model = {text_of(described_model(recipe, data))}",
        "",
        f"run = {written('je.fit', (Named('model', None), Named('data', None)), said)}",
    ]
    return "\n".join(lines).lstrip() + "\n"

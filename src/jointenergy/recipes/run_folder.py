"""recipes: run folders, made anew or opened again, and how long a recipe takes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe, read, write
from jointenergy.training import measure
from jointenergy.training.distributed import World, device_of
from jointenergy.training.loop import Loop
from jointenergy.training.trainer import ALONE

RECIPE = "recipe.toml"
FIT = "fit.json"  # in its place where `fit` has made the run
ABOUT = "run.json"  # what a run is beside its recipe: seed, guard, where its data lies, what must be said of it
MEASURED = 30  # iterations that a time is measured by


def create(
    folder: Path,
    settings: Recipe,
    seed: int,
    *,
    data_folder: Path | None = None,
    guarded: bool = True,
    device: torch.device | str = "cpu",
    world: World = ALONE,
    data: TrainingData | None = None,
) -> Loop:
    """A new run in a folder of its own, ready to `fit`. One that is there already is never overwritten.

    `data` is that of the recipe, the folder, the device and the seed, where the caller has it.
    """
    world.from_first(lambda: check_free(folder))
    data = data or data_of(settings, data_folder, device, seed)
    trainer = trainer_of(settings, data, seed, guarded=guarded, world=world)
    known = {
        "seed": seed,
        "guarded": guarded,
        "data": None if data_folder is None else str(data_folder.absolute()),
        "device": torch.device(device).type,
        "warnings": trainer.warnings,
        # So that its weights can be loaded where its data are not.
        "labels": dict(zip(data.labels.names, data.labels.values, strict=True)),
        "event_shape": data.event_shape,
    }
    world.from_first(lambda: _describe(folder, known, settings))
    loop = Loop(trainer, folder)
    loop.begin()
    return loop


def check_free(folder: Path) -> None:
    """Refuse a folder that something is in: a run is never overwritten."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: go on with `jointenergy resume {folder}`, or choose another --out")


def _describe(folder: Path, known: dict[str, Any], settings: Recipe) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).write_text(json.dumps(known))
    (folder / RECIPE).write_text(write(settings))


def about(folder: Path) -> dict[str, Any]:
    """What a run is beside its recipe."""
    try:
        found: dict[str, Any] = json.loads((folder / ABOUT).read_text())
    except (OSError, ValueError):
        if (folder / FIT).exists():
            raise InputError(f"{folder} holds a run of fit, whose network only your code has: call fit again") from None
        raise InputError(f"{folder} is no run folder: {ABOUT} is missing or damaged") from None
    return found


def reopen(folder: Path, *, device: torch.device | str | None = None, world: World = ALONE) -> Loop:
    """The run of a folder, as it was at its newest whole checkpoint, on the device it had unless another is named."""
    known = about(folder)
    settings = read(folder / RECIPE)
    data_folder = None if known["data"] is None else Path(known["data"])
    data = data_of(settings, data_folder, device or device_of(known["device"]), known["seed"])
    trainer = trainer_of(settings, data, known["seed"], guarded=known["guarded"], world=world)
    loop = Loop(trainer, folder)
    loop.resume()
    return loop


def iterations_in(
    settings: Recipe,
    seconds: float,
    seed: int,
    *,
    data_folder: Path | None = None,
    device: torch.device | str = "cpu",
    world: World = ALONE,
    data: TrainingData | None = None,
) -> int:
    """How many iterations fit into a time, by a short run that is thrown away: schedules count iterations only."""
    trainer = trainer_of(settings, data or data_of(settings, data_folder, device, seed), seed, world=world)
    for _ in range(MEASURED // 3):
        trainer.step()
    began = time.perf_counter()
    for _ in range(MEASURED):
        trainer.step()
    if trainer.data.x.is_cuda:
        torch.cuda.synchronize()
    each = (time.perf_counter() - began) / MEASURED
    began = time.perf_counter()
    if world.first:
        measure.accuracy(trainer)
        if trainer.uses_chains:
            measure.check_trainer(trainer)
    each += (time.perf_counter() - began) / settings.cadence.check
    return world.from_first(lambda: max(1, int(seconds / each)))

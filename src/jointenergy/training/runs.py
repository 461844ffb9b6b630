"""training: run folders, made anew or opened again, and how long a recipe takes."""

from __future__ import annotations

import json
import time
from pathlib import Path

from jointenergy.errors import InputError
from jointenergy.training.build import data_of
from jointenergy.training.loop import Run
from jointenergy.training.recipe import Recipe, read
from jointenergy.training.trainer import Trainer

ABOUT = "run.json"  # what a run is beside its recipe: seed, guard, where its data lies
MEASURED = 30  # iterations that a time is measured by


def create(folder: Path, settings: Recipe, seed: int, *, data_folder: Path | None = None, guarded: bool = True) -> Run:
    """A new run in a folder of its own, ready to `fit`. One that is there already is never overwritten."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: go on with `jointenergy resume {folder}`, or choose another --out")
    trainer = Trainer(settings, data_of(settings, data_folder), seed, guarded=guarded)
    folder.mkdir(parents=True, exist_ok=True)
    about = {"seed": seed, "guarded": guarded, "data": None if data_folder is None else str(data_folder.absolute())}
    (folder / ABOUT).write_text(json.dumps(about))
    run = Run(folder, trainer)
    run.begin()
    return run


def reopen(folder: Path) -> Run:
    """The run of a folder, as it was at its newest whole checkpoint."""
    try:
        about = json.loads((folder / ABOUT).read_text())
    except (OSError, ValueError):
        raise InputError(f"{folder} is no run folder: {ABOUT} is missing or damaged") from None
    settings = read(folder / "recipe.toml")
    data_folder = None if about["data"] is None else Path(about["data"])
    run = Run(folder, Trainer(settings, data_of(settings, data_folder), about["seed"], guarded=about["guarded"]))
    run.resume()
    return run


def iterations_in(settings: Recipe, seconds: float, seed: int, *, data_folder: Path | None = None) -> int:
    """How many iterations fit into a time, by a short run that is thrown away: schedules count iterations only."""
    trainer = Trainer(settings, data_of(settings, data_folder), seed)
    for _ in range(MEASURED // 3):
        trainer.step()
    began = time.perf_counter()
    for _ in range(MEASURED):
        trainer.step()
    return max(1, int(seconds / ((time.perf_counter() - began) / MEASURED)))

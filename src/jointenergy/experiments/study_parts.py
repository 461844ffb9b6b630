"""experiments: the parts of a study, each a run folder that is begun, or taken up where it was stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from jointenergy.files.writing import write_text
from jointenergy.recipes.run_folder import RECIPE
from jointenergy.recipes.schema import Recipe, write
from jointenergy.training import checkpoints
from jointenergy.training.loop import Loop
from jointenergy.training.trainer import Trainer

Fitting = Callable[[Loop, str], None]
"""Brings a run to its end; the text says which part of the study it is."""


@dataclass(frozen=True)
class StudySeed:
    """Where one seed of a study is made: the folder of its parts, the folder of the data, the device."""

    folder: Path
    seed: int
    data: Path | None = None
    device: torch.device | str = "cpu"


def fitted(
    folder: Path,
    recipe: Recipe,
    trainer: Trainer,
    part: str,
    fit: Fitting,
    prepare: Callable[[Trainer], None] = lambda _: None,
) -> Loop:
    """The run of a trainer at its end: `prepare` changes the trainer before its first checkpoint, and never after."""
    run = Loop(trainer, folder)
    if checkpoints.all_in(run.checkpoint_folder):
        run.resume()
    else:
        # What was stopped before its first checkpoint has nothing to go on from.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_text(folder / RECIPE, write(recipe))
        prepare(trainer)
        run.begin()
    if trainer.iteration < trainer.plan.iterations:
        fit(run, part)
    return run

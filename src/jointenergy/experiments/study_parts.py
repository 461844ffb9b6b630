"""experiments: the parts of a study, run folders that are started or resumed."""

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
"""Trains a run to its end; the text names the part of the study."""


@dataclass(frozen=True)
class StudySeed:
    """Hold the folders of one seed of a study and of the data, and the device."""

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
    """Train or resume a run to its end; `prepare` changes the trainer before its first checkpoint only."""
    run = Loop(trainer, folder)
    if checkpoints.all_in(run.checkpoint_folder):
        run.resume()
    else:
        # A run that stopped before its first checkpoint cannot be resumed.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_text(folder / RECIPE, write(recipe))
        prepare(trainer)
        run.begin()
    if not run.complete:
        fit(run, part)
    return run

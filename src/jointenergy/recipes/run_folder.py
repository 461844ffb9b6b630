"""recipes: run folders, made anew or opened again, and how long a recipe takes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field, TypeAdapter

from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.files.locks import is_free
from jointenergy.files.reading import told
from jointenergy.files.schema import STRICT, Seed, Shape, read_json
from jointenergy.files.writing import write_json, write_text
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe, read, write
from jointenergy.training import measure
from jointenergy.training.check import check_trainer
from jointenergy.training.distributed import World, device_of
from jointenergy.training.loop import Loop
from jointenergy.training.trainer import ALONE

RECIPE = "recipe.toml"
FIT = "fit.json"  # in its place where `fit` has made the run
ABOUT = "run.json"  # what a run is beside its recipe: seed, guard, where its data lies, what must be said of it
WARM, MEASURED = 10, 30  # iterations before a time is measured, and those that it is measured by


@dataclass(frozen=True)
class About:
    """What a run is beside its recipe. An older run did not note its labels and shape."""

    seed: Seed
    guarded: bool
    data: Annotated[str, Field(pattern=r"^[^\x00]+$")] | None
    device: str
    warnings: tuple[str, ...]
    labels: dict[str, tuple[str, ...]] | None = None
    event_shape: Shape | None = None
    judged: bool = True
    """Whether the command line ends with a status of its own where the run is not healthy: not of small sizes."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @property
    def data_folder(self) -> Path | None:
        return None if self.data is None else Path(self.data)


_ABOUT = TypeAdapter(About)


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
    judged: bool = True,
) -> Loop:
    """A new run in a folder of its own, ready to `fit`. One that is there already is never overwritten.

    `data` is that of the recipe, the folder, the device and the seed, where the caller has it.
    """
    world.from_first(lambda: check_free(folder))
    data = data or data_of(settings, data_folder, device, seed)
    trainer = trainer_of(settings, data, seed, guarded=guarded, world=world)
    known = About(
        seed,
        guarded,
        None if data_folder is None else str(data_folder.absolute()),
        torch.device(device).type,
        tuple(trainer.warnings),
        # So that its weights can be loaded where its data are not.
        dict(zip(data.labels.names, data.labels.values, strict=True)),
        data.event_shape,
        judged,
    )
    world.from_first(lambda: _describe(folder, known, settings))
    loop = Loop(trainer, folder, settings=settings_of(settings, known))
    loop.begin()
    return loop


def check_free(folder: Path) -> None:
    """Refuse a folder that something is in: a run is never overwritten."""
    if not is_free(folder):
        raise InputError(f"{folder} is not empty: go on with `jointenergy resume {folder}`, or choose another --out")


def _describe(folder: Path, known: About, settings: Recipe) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / ABOUT, asdict(known))
    write_text(folder / RECIPE, write(settings))


def settings_of(settings: Recipe, known: About) -> dict[str, Any]:
    """All that a run is made of, as plain values that its checkpoints keep: none may change between them unsaid."""
    return {"seed": known.seed, "guarded": known.guarded, **asdict(settings)}


def about(folder: Path) -> About:
    """What a run is beside its recipe."""
    if not (folder / ABOUT).is_file():
        if (folder / FIT).exists():
            raise InputError(f"{folder} holds a run of fit, whose network only your code has: call fit again")
        raise InputError(f"{folder} is no run folder: {ABOUT} is missing or damaged")
    return read_json(_ABOUT, folder / ABOUT, f"{folder} is no run folder: {ABOUT} is damaged")


def reopen(folder: Path, *, device: torch.device | str | None = None, world: World = ALONE) -> Loop:
    """The run of a folder, as it was at its newest whole checkpoint, on the device it had unless another is named."""
    known = about(folder)
    settings = read(folder / RECIPE)
    data = data_of(settings, known.data_folder, device or device_of(known.device), known.seed)
    trainer = trainer_of(settings, data, known.seed, guarded=known.guarded, world=world)
    loop = Loop(trainer, folder, settings=settings_of(settings, known))
    with told(f"the checkpoints of {folder} are damaged, or of another version of jointenergy"):
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
    """How many iterations fit into a time, by a short run in memory.

    It is thrown away: the rates of the first iterations depend on how many there will be, and the recipe of the folder
    must give the same weights when it is trained again.
    """
    trainer = trainer_of(settings, data or data_of(settings, data_folder, device, seed), seed, world=world)
    for _ in range(WARM):
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
            check_trainer(trainer)
    each += (time.perf_counter() - began) / settings.cadence.check
    return world.from_first(lambda: max(1, int(seconds / each)))

"""recipes: create and reopen run folders, and time a recipe."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field, TypeAdapter

from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.files.locks import emptied, is_free
from jointenergy.files.reading import told
from jointenergy.files.schema import STRICT, Seed, Shape, read_json
from jointenergy.files.writing import write_json, write_text
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe, read, write
from jointenergy.training import measure
from jointenergy.training.callbacks import Callback
from jointenergy.training.check import check_trainer
from jointenergy.training.distributed import World, device_of
from jointenergy.training.loop import Loop
from jointenergy.training.trainer import ALONE

RECIPE = "recipe.toml"
FIT = "fit.json"  # in a run folder of `fit`, instead of the recipe
ABOUT = "run.json"  # seed, guard, data folder and notes of a run
WARM, MEASURED = 10, 30  # iterations of warm-up and timing


@dataclass(frozen=True)
class About:
    """Facts of a run besides its recipe. Older runs did not store labels and shape."""

    seed: Seed
    guarded: bool
    data: Annotated[str, Field(pattern=r"^[^\x00]+$")] | None
    device: str
    warnings: tuple[str, ...]
    labels: dict[str, tuple[str, ...]] | None = None
    event_shape: Shape | None = None
    judged: bool = True
    """Whether the command line exits with an error if the run is not healthy; False for small sizes."""

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
    """Create a new run in its own folder, ready to `fit`; an existing run is never overwritten.

    `data` avoids reading the recipe's data again, if the caller has them.
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
        # Lets weights be loaded without the data.
        dict(zip(data.labels.names, data.labels.values, strict=True)),
        data.event_shape,
        judged,
    )
    try:
        world.from_first(lambda: _describe(folder, known, settings))
        loop = Loop(trainer, folder, settings=settings_of(settings, known))
        loop.begin()
    except OSError:
        if world.first and folder.is_dir():
            emptied(folder)  # without a checkpoint it could not be resumed
        raise
    return loop


def check_free(folder: Path) -> None:
    """Refuse a folder that is not empty: runs are never overwritten."""
    if not is_free(folder):
        raise InputError(f"{folder} is not empty: continue with `jointenergy resume {folder}`, or choose another --out")


def _describe(folder: Path, known: About, settings: Recipe) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / ABOUT, asdict(known))
    write_text(folder / RECIPE, write(settings))


def settings_of(settings: Recipe, known: About) -> dict[str, Any]:
    """Return all settings of a run as plain values; checkpoints store them and detect changes."""
    return {"seed": known.seed, "guarded": known.guarded, **asdict(settings)}


def about(folder: Path) -> About:
    """Read the facts of a run."""
    if not (folder / ABOUT).is_file():
        if (folder / FIT).exists():
            raise InputError(f"{folder} is a run of fit, whose network is in your code: call fit again")
        raise InputError(f"{folder} is not a run folder: {ABOUT} is missing or damaged")
    return read_json(_ABOUT, folder / ABOUT, f"{folder} is not a run folder: {ABOUT} is damaged")


def reopen(folder: Path, *, device: torch.device | str | None = None, world: World = ALONE) -> Loop:
    """Reopen a run at its newest intact checkpoint, on its own device unless another is named."""
    known = about(folder)
    settings = read(folder / RECIPE)
    data = data_of(settings, known.data_folder, device or device_of(known.device), known.seed)
    trainer = trainer_of(settings, data, known.seed, guarded=known.guarded, world=world)
    loop = Loop(trainer, folder, settings=settings_of(settings, known))
    with told(f"the checkpoints of {folder} are damaged or from another version of jointenergy"):
        loop.resume()
    return loop


@dataclass
class InTime(Callback):
    """Set the number of iterations for a training time, once, from the speed of the run's own first iterations.

    They follow the recipe's schedule for its own number of iterations, and are kept. The change is an event of the run
    and stands in the folder's recipe, so that the run resumes bit for bit.
    """

    seconds: float
    settings: Recipe
    began: float = 0.0
    warm: float = 0.0

    @classmethod
    def provisional(cls, settings: Recipe) -> Recipe:
        """Return the recipe with at least the iterations that are timed."""
        return replace(settings, iterations=max(settings.iterations, WARM + MEASURED + 1))

    def before_step(self, loop: Loop) -> None:
        iteration = loop.trainer.iteration
        if iteration in (0, WARM, WARM + MEASURED) and loop.trainer.data.x.is_cuda:
            torch.cuda.synchronize()
        if iteration == 0:
            self.began = time.perf_counter()
        elif iteration == WARM:
            self.warm = time.perf_counter()
        elif iteration == WARM + MEASURED:
            self._set(loop)

    def _set(self, loop: Loop) -> None:
        n = loop.world.from_first(lambda: self._iterations(loop))
        settings = replace(self.settings, iterations=n)
        assert loop.folder is not None
        folder = loop.folder
        loop.world.from_first(lambda: write_text(folder / RECIPE, write(settings)))
        loop.set_iterations(n, settings_of(settings, about(folder)))

    def _iterations(self, loop: Loop) -> int:
        each = (time.perf_counter() - self.warm) / MEASURED
        before = time.perf_counter()
        measure.accuracy(loop.trainer)
        if loop.trainer.plan.of_density:
            check_trainer(loop.trainer)
        now = time.perf_counter()
        each += (now - before) / self.settings.cadence.check
        return WARM + MEASURED + max(1, int((self.seconds - (now - self.began)) / each))

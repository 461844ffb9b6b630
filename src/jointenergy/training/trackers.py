"""training: log metrics, events and sample images to TensorBoard, Weights & Biases or MLflow."""

from __future__ import annotations

import html
import importlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointenergy.data import picture_of
from jointenergy.errors import InputError
from jointenergy.labels import nearest
from jointenergy.training.callbacks import Callback, Event
from jointenergy.training.loop import Loop


class Tracker(Callback):
    """Base class of trackers: override the three `write_` methods."""

    def write_scalar(self, name: str, value: float, iteration: int) -> None:
        """Write one number."""

    def write_text(self, name: str, text: str, iteration: int) -> None:
        """Write one sentence."""

    def write_image(self, name: str, image: NDArray[np.uint8], iteration: int) -> None:
        """Write one picture, `[height, width, 3]`."""

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        for name, value in values.items():
            if name != "iteration" and math.isfinite(value):
                self.write_scalar(name, value, loop.trainer.iteration)

    def on_event(self, loop: Loop, event: Event) -> None:
        self.write_text("events", event.sentence, event.iteration)

    def on_check(self, loop: Loop) -> None:
        iteration, buffer = loop.trainer.iteration, loop.trainer.chains.buffer
        for name, value in ({} if loop.health is None else loop.health.values()).items():
            if math.isfinite(value):
                self.write_scalar(f"health/{name}", float(value), iteration)
        if buffer is None or not loop.trainer.uses_chains:
            return
        drawn = picture_of(buffer.state_dict()["x"][: len(buffer)], loop.trainer.chains.bounds)
        if drawn is not None:
            self.write_image("chains", np.asarray(drawn.convert("RGB")), iteration)


class TensorBoard(Tracker):
    """Write to TensorBoard, in the folder `tensorboard` of the run unless another is named."""

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self.writer: Any = None

    def before_step(self, loop: Loop) -> None:
        if self.writer is None:
            if self.folder is None and loop.folder is None:
                raise InputError("TensorBoard needs a folder for a run without one: pass TensorBoard(folder)")
            place = self.folder or str((loop.folder or "") / "tensorboard")  # type: ignore[operator]
            writer = required("torch.utils.tensorboard", "TensorBoard", "tensorboard").SummaryWriter
            # Hide what a stopped run wrote after its checkpoint, since it will be written again.
            self.writer = writer(place, purge_step=loop.trainer.iteration)

    def write_scalar(self, name: str, value: float, iteration: int) -> None:
        self.writer.add_scalar(name, value, iteration)
        self.writer.flush()

    def write_text(self, name: str, text: str, iteration: int) -> None:
        if self.writer is not None:
            self.writer.add_text(name, text, iteration)

    def write_image(self, name: str, image: NDArray[np.uint8], iteration: int) -> None:
        self.writer.add_image(name, image, iteration, dataformats="HWC")

    def on_end(self, loop: Loop) -> None:
        if self.writer is not None:
            self.writer.close()


class WandB(Tracker):
    """Write to a run of Weights & Biases; keyword arguments are those of `wandb.init`."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 (wandb's own)
        self.wandb = required("wandb", "Weights & Biases", "wandb")
        self.run = self.wandb.init(**options)

    def write_scalar(self, name: str, value: float, iteration: int) -> None:
        self.run.log({name: value}, step=iteration)

    def write_text(self, name: str, text: str, iteration: int) -> None:
        self.run.log({name: self.wandb.Html(f"<p>{html.escape(text)}</p>")}, step=iteration)

    def write_image(self, name: str, image: NDArray[np.uint8], iteration: int) -> None:
        self.run.log({name: self.wandb.Image(image)}, step=iteration)

    def on_end(self, loop: Loop) -> None:
        self.run.finish()


class MLflow(Tracker):
    """Write to an MLflow run: the active one, or a new one; keyword arguments are those of `mlflow.start_run`."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 (mlflow's own)
        self.mlflow = required("mlflow", "MLflow", "mlflow")
        self.own = self.mlflow.active_run() is None
        if self.own:
            self.mlflow.start_run(**options)

    def write_scalar(self, name: str, value: float, iteration: int) -> None:
        self.mlflow.log_metric(name, value, step=iteration)

    def write_text(self, name: str, text: str, iteration: int) -> None:
        self.mlflow.log_text(text, f"{name}/{iteration:08d}.txt")

    def write_image(self, name: str, image: NDArray[np.uint8], iteration: int) -> None:
        self.mlflow.log_image(image, key=name, step=iteration)

    def on_end(self, loop: Loop) -> None:
        if self.own:
            self.mlflow.end_run()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def tracker(name: str) -> Tracker:
    """Return the tracker called `name`, with its defaults."""
    if name not in TRACKERS:
        raise InputError(f"there is no tracker called {name!r}: {nearest(name, tuple(TRACKERS))}")
    return TRACKERS[name]()


def required(module: str, title: str, package: str) -> Any:  # noqa: ANN401 (a module)
    """Import an optional package, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"{title} is not installed: pip install {package}, or 'jointenergy[track]'") from None

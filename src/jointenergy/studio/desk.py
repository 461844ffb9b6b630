"""studio: the runs that lie open, a copy of each model for each worker, and what the page must know of them."""

from __future__ import annotations

import copy
import functools
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jointenergy.data import Dataset
from jointenergy.data.fitting import Form, image_form
from jointenergy.data.tables import columns_of
from jointenergy.errors import InputError
from jointenergy.kernels import Langevin
from jointenergy.recipes import run_folder
from jointenergy.recipes.data import dataset_of
from jointenergy.runs import Run
from jointenergy.runs.loading import open_run

TABLES = ("csv",)  # data sets whose rows are columns of a table, whatever their number


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run on the desk: the run, or why it cannot be opened, and its folder where it has one."""

    name: str
    run: Run | None
    folder: Path | None
    trouble: str = ""
    copies: dict[int, Run] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, worker: int) -> Run:
        """The run for one worker alone: chains hold what they make of weights in the model."""
        if self.run is None:
            raise InputError(self.trouble)
        if worker not in self.copies:
            with self.lock:
                own = copy.copy(self.run)
                own.model = copy.deepcopy(self.run.model)
                self.copies[worker] = own
        return self.copies[worker]

    @property
    def opened(self) -> Run:
        """The run, or one sentence."""
        if self.run is None:
            raise InputError(self.trouble)
        return self.run

    @property
    def kind(self) -> str:
        """What x is to the page: an image, points of a plane or a row of a table."""
        run = self.opened
        if run.recipe is not None and run.recipe.data.name in TABLES:
            return "table"
        if self.form is not None:
            return "image"
        return "points" if run.event_shape == (2,) else "table"

    @property
    def form(self) -> Form | None:
        """Channels, height and width of an image."""
        return image_form(self.opened.event_shape)

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of a table's columns, numbers where its file does not tell them."""
        run = self.opened
        n = run.event_shape[0]
        folder = run.origin.data_folder
        files = [] if folder is None else [folder] if folder.is_file() else sorted(folder.glob("*.csv"))
        if run.recipe is not None and run.recipe.data.name == "csv" and files:
            try:
                names = [name for name in columns_of(files[0]) if name not in run.labels.names]
            except InputError:
                names = []
            if len(names) == n:
                return tuple(names)
        return tuple(f"x{i}" for i in range(n))

    @functools.cached_property
    def test(self) -> Dataset:
        """Rows to pick from: the test rows of its data set, else those that it held out."""
        run = self.opened
        if run.recipe is None:
            data = run.data
            return Dataset(data.x_held, data.y_held, run.labels, "held-out rows")
        return dataset_of(run.recipe.data, run.origin.data_folder, "test")

    @functools.cached_property
    def typical(self) -> Tensor:
        """log p(x) of held-out rows, whose histogram stands behind every answer."""
        run = self.opened
        return run.score(run.data.x_held[:5000]).double().cpu()

    def about(self, number: int) -> dict[str, Any]:
        """What the page is told of the run."""
        told: dict[str, Any] = {"id": number, "name": self.name, "trouble": self.trouble, "trains": self.trains}
        if self.run is None:
            return told
        run, kernel = self.run, self.run.sampling.x_kernel
        return told | {
            "kind": self.kind,
            "form": self.form,
            "bounds": tuple(run.bounds),
            "columns": self.columns if self.kind == "table" else (),
            "labels": [
                {"name": name, "values": values}
                for name, values in zip(run.labels.names, run.labels.values, strict=True)
            ],
            "steps": run.sampling.steps or 100,
            "temperature": run.sampling.temperature,
            "kernel": type(kernel).__name__,
            "step_size": getattr(kernel, "step_size", None),
            "warmed": isinstance(kernel, Langevin) and kernel.noise_scale > 0,
            "about": run.recipe.description if run.recipe else "a network of your own",
            "density": not run.is_cross_entropy,
            "weights": sum(p.numel() for p in run.model.parameters()),
            "notes": run.notes,
        }

    @property
    def trains(self) -> bool:
        """Whether there is a folder whose training can be watched."""
        return self.folder is not None and (self.folder / run_folder.ABOUT).is_file()


def placed(path: Path | str, data: Path | None = None, device: str = "cpu") -> OpenRun:
    """A run on the desk; a folder whose run cannot be opened yet can be watched all the same."""
    folder = Path(path) if Path(path).is_dir() else None
    try:
        run = open_run(path, data=data, device=device)
    except InputError as error:
        if folder is None or not (folder / run_folder.ABOUT).is_file():
            raise
        run_folder.about(folder)  # a damaged folder is refused, not watched
        return OpenRun(_shown(path), None, folder, str(error))
    return OpenRun(_shown(path), run, folder)


def _shown(path: Path | str) -> str:
    return Path(path).name.removesuffix(".safetensors") or str(path)


def values_of(run: Run, x: Tensor) -> Tensor:
    """Rows of a table in the units of its file."""
    if run.recipe is None:
        return x
    options, values = run.recipe.data.options, x.detach().cpu().double()
    if options.scale:
        values = values * torch.tensor(options.scale, dtype=torch.float64)
    return values + torch.tensor(options.center, dtype=torch.float64) if options.center else values


def rows_of_values(run: Run, values: Tensor) -> Tensor:
    """Rows of a table as the run takes them; NaN stays NaN."""
    rows = values.float()
    return rows if run.recipe is None else torch.from_numpy(run.recipe.data.options.standardized(rows.numpy()))

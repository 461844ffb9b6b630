"""studio: the open runs, a copy of each model for each worker, and their descriptions for the page."""

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
from jointenergy.runs import Run, description, portable
from jointenergy.runs.loading import open_run

TABLES = ("csv",)  # data sets that are shown as tables, whatever their number of columns


@dataclass(frozen=True, eq=False)
class OpenRun:
    """Hold an open run, or why it cannot be opened, and its folder if it has one."""

    name: str
    run: Run | None
    folder: Path | None
    trouble: str = ""
    copies: dict[int, Run] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, worker: int) -> Run:
        """Return the copy of the run for one worker: chains cache values in the model."""
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
        """Return the run, or raise InputError."""
        if self.run is None:
            raise InputError(self.trouble)
        return self.run

    @property
    def kind(self) -> str:
        """Return how the page shows x: as an image, points of a plane or a row of a table."""
        run = self.opened
        if run.recipe is not None and run.recipe.data.name in TABLES:
            return "table"
        if self.form is not None:
            return "image"
        return "points" if run.event_shape == (2,) else "table"

    @property
    def form(self) -> Form | None:
        """Return channels, height and width of an image."""
        return image_form(self.opened.event_shape)

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """Return the names of a table's columns, numbers if its file has none."""
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
        """Return rows to pick from: the test rows of its data set, else its held-out rows."""
        run = self.opened
        if run.recipe is None:
            data = run.data
            return Dataset(data.x_held, data.y_held, run.labels, "held-out rows")
        return dataset_of(run.recipe.data, run.origin.data_folder, "test")

    @functools.cached_property
    def typical(self) -> Tensor:
        """Return log p(x) of held-out rows, for the histogram."""
        run = self.opened
        return run.score(run.data.x_held[:5000]).double().cpu()

    def about(self, number: int) -> dict[str, Any]:
        """Describe the run for the page."""
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
        """Return whether there is a folder whose training can be watched."""
        return self.folder is not None and (self.folder / run_folder.ABOUT).is_file()


def placed(place: Run | Path | str, data: Path | None = None, device: str = "cpu") -> OpenRun:
    """Open a run, or take an open one; a folder whose run cannot be opened yet can still be watched."""
    if isinstance(place, Run):
        return OpenRun(_shown(place.origin.name.removeprefix("the run ").removeprefix("the file ")), place, None)
    path = place
    folder = Path(path) if Path(path).is_dir() else None
    try:
        run = open_run(path, data=data, device=device)
    except InputError as error:
        if _has_own_network(Path(path)):
            raise InputError(
                f"{path} is a run of fit or wrap, whose network is in your code: open it with "
                f"jointenergy.load({str(path)!r}, network=...), and show it with jointenergy.studio.serve(run)"
            ) from None
        if folder is None or not (folder / run_folder.ABOUT).is_file():
            raise
        run_folder.about(folder)  # a damaged folder is refused, not watched
        return OpenRun(_shown(path), None, folder, str(error))
    return OpenRun(_shown(path), run, folder)


def _has_own_network(path: Path) -> bool:
    """Return whether a run folder or an exported file has no recipe that defines its network."""
    if path.is_dir():
        return (path / description.FILE).exists()
    return path.is_file() and portable.read(path).recipe is None


def _shown(path: Path | str) -> str:
    return Path(path).name.removesuffix(".safetensors") or str(path)


def values_of(run: Run, x: Tensor) -> Tensor:
    """Convert rows of a table to the units of its file."""
    if run.recipe is None:
        return x
    options, values = run.recipe.data.options, x.detach().cpu().double()
    if options.scale:
        values = values * torch.tensor(options.scale, dtype=torch.float64)
    return values + torch.tensor(options.center, dtype=torch.float64) if options.center else values


def rows_of_values(run: Run, values: Tensor) -> Tensor:
    """Convert rows in the units of the file to what the run takes; NaN stays NaN."""
    rows = values.float()
    return rows if run.recipe is None else torch.from_numpy(run.recipe.data.options.standardized(rows.numpy()))

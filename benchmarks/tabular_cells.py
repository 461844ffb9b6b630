"""benchmarks: the cells of `tabular`, set by task by method by seed, each a small file, so that a run can resume.

Cells made by other code, other versions or another number of threads are measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rounds import versions
from tabular_methods import METHODS, OURS
from tabular_sets import FROM_KEEL, KEEL_PACKAGE, split_of
from tabular_tasks import Cells, applies

from jointenergy.metrics import calibration
from jointenergy.report import provenance

MADE_BY = ("tabular_truth.py", "tabular_sets.py", "tabular_methods.py", "tabular_tasks.py")
THREADS = "OMP_NUM_THREADS"


@cache
def code_of(ours: bool) -> str:
    """Return a checksum of the code behind a cell; this library's modules count only for its own cells."""
    digest = hashlib.sha256()
    for path in (*(Path(__file__).with_name(name) for name in MADE_BY), Path(calibration.__file__)):
        digest.update(path.read_bytes())
    if ours:
        digest.update(provenance.source_digest().encode())
    return digest.hexdigest()[:16]


@cache
def packages_of(name: str, method: str) -> dict[str, str | None]:
    """Return the versions of the packages behind a cell."""
    more = ["torch" if method == OURS else METHODS[method].package, KEEL_PACKAGE if name in FROM_KEEL else None]
    return versions(["scikit-learn", "numpy", *(package for package in more if package is not None)])


@dataclass(frozen=True, order=True)
class Cell:
    """Describe one measurement."""

    set: str
    task: str
    seed: int
    method: str

    def settings(self, threads: int) -> dict[str, Any]:
        """Return the settings that must match for the cell to count."""
        versions = packages_of(self.set, self.method)
        return {"code": code_of(self.method == OURS), "threads": threads, "versions": versions}

    def path(self, folder: Path) -> Path:
        return folder / self.set / self.task / self.method / f"{self.seed}.json"

    def read(self, folder: Path, threads: int) -> dict[str, Any] | None:
        """Read the figures, None if there are none that still count."""
        try:
            found = json.loads(self.path(folder).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return found if found.get("settings") == self.settings(threads) else None

    def write(self, folder: Path, threads: int, figures: dict[str, float], seconds: float) -> None:
        path = self.path(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {**asdict(self), "settings": self.settings(threads), "seconds": seconds, "figures": figures}
        temporary = path.with_suffix(f".{os.getpid()}.part")
        temporary.write_text(json.dumps(kept, indent=1))
        temporary.replace(path)


def every_cell(sets: Sequence[str], tasks: Sequence[str], methods: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """Yield all cells, in the order of the options."""
    known = {name: split_of(name, seeds[0]) for name in sets}
    return [
        Cell(name, task, seed, method)
        for seed in seeds
        for name in sets
        for task in tasks
        for method in methods
        if applies(task, method, known[name])
    ]


def work(cells: Sequence[Cell], folder: Path, threads: int) -> list[str]:
    """Measure the cells of one set, task and seed; return a sentence for each failure, which the next run retries."""
    torch.set_num_threads(threads)
    if any(cell.method == OURS for cell in cells):
        torch.optim.SGD([torch.zeros(1)])  # the first fit of a process imports torch's compiler, which takes seconds
    failed, measure = [], Cells(cells[0].task, split_of(cells[0].set, cells[0].seed))
    for cell in cells:
        began = time.perf_counter()
        try:
            figures = measure(cell.method)
        except Exception as error:  # report a method that fails on one table, and continue
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            failed.append(f"{cell.method} failed on {cell.set}, {cell.task}, seed {cell.seed}: {words}")
            continue
        cell.write(folder, threads, dict(figures), time.perf_counter() - began)
    return failed


def measure_all(cells: Sequence[Cell], folder: Path, jobs: int, threads: int) -> Iterator[tuple[str, list[str]]]:
    """Measure the missing cells; yield each finished group with its failures."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.read(folder, threads) is None:
            groups.setdefault(f"{cell.set}, {cell.task}, seed {cell.seed}", []).append(cell)
    if jobs == 1:
        for name, group in groups.items():
            yield name, work(group, folder, threads)
        return
    os.environ[THREADS] = str(threads)  # for the processes that are started now
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting: dict[Future[list[str]], str] = {
            pool.submit(work, group, folder, threads): name for name, group in groups.items()
        }
        for done in as_completed(waiting):
            yield waiting[done], done.result()

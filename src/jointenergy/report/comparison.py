"""report: runs side by side, from what their evaluations found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from jointenergy.errors import InputError
from jointenergy.files.schema import read_json
from jointenergy.report.sections import Cell, Table
from jointenergy.report.suite import METRICS

FOLDER = "evaluation"  # of a run folder


@dataclass(frozen=True)
class EvaluatedRun:
    """What an evaluation left behind, by the name that its column has."""

    name: str
    suite: str
    headline: str
    metrics: dict[str, float | None]
    data: str


@dataclass(frozen=True)
class _EvaluationAbout:
    data: str


@dataclass(frozen=True)
class _StoredMetrics:
    """What is read of the file of metrics."""

    suite: str
    headline: str
    metrics: dict[str, float | None]
    about: _EvaluationAbout


_STORED = TypeAdapter(_StoredMetrics)


def folder_of(run: Path) -> Path:
    """Where the evaluation of a run lies: inside its folder, or beside its exported file."""
    return run / FOLDER if run.is_dir() else run.with_name(f"{run.stem}-{FOLDER}")


def read(path: Path) -> EvaluatedRun:
    """Of a run folder, an exported run, or the folder of an evaluation."""
    file = next((f for f in (folder_of(path) / METRICS, path / METRICS) if f.is_file()), None)
    if file is None:
        raise InputError(f"{path} has not been evaluated: run `jointenergy evaluate {path}` first")
    try:
        found = read_json(_STORED, file, "")
    except InputError:
        raise InputError(f"{file} is damaged: run `jointenergy evaluate {path}` again") from None
    return EvaluatedRun(str(path), found.suite, found.headline, found.metrics, found.about.data)


def compare(found: Sequence[EvaluatedRun]) -> tuple[Table, tuple[str, ...]]:
    """All metrics that any of them has, a column for each run; and what must be known to read it."""
    names = list(dict.fromkeys(name for one in found for name in one.metrics))
    rows: tuple[tuple[Cell, ...], ...] = tuple((name, *(one.metrics.get(name) for one in found)) for name in names)
    says = []
    if len({one.suite for one in found}) > 1:
        says.append("The suites differ: " + ", ".join(f"{one.name} {one.suite}" for one in found) + ".")
    if len({one.data for one in found}) > 1:
        says.append("The runs are of different data: " + ", ".join(f"{one.name} {one.data}" for one in found) + ".")
    return Table("Runs side by side", ("metric", *(one.name for one in found)), rows), tuple(says)

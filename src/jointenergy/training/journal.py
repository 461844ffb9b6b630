"""training: the log files of a run: rows of metrics.csv and checks.csv, lines of events.jsonl.

They can be truncated to a checkpoint, so that a resumed run leaves the same files as an uninterrupted one.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from jointenergy.files.reading import content_of, parsed_json
from jointenergy.files.schema import Natural, of_json
from jointenergy.files.writing import growing, write_text
from jointenergy.limits import TABLE_BYTES

Row = dict[str, float | int | bool]
EVENTS = "events.jsonl"


@dataclass(frozen=True)
class _TableState:
    n_rows: Natural
    columns: tuple[str, ...]


@dataclass(frozen=True)
class _JournalState:
    n_events: Natural
    metrics: _TableState
    checks: _TableState


_STATE = TypeAdapter(_JournalState)


def checked(state: object) -> dict[str, Any]:
    """Validate the stored state of a journal."""
    of_json(_STATE, json.dumps(state), "the journal of the checkpoint is damaged")
    return cast(dict[str, Any], state)


class CsvTable:
    """A CSV file that grows by rows and can be truncated; the first row defines its columns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.n_rows = 0
        self.columns: list[str] = []

    def add(self, row: Row, *, silent: bool) -> None:
        fresh = self.n_rows == 0
        self.columns = list(row) if fresh else self.columns
        self.n_rows += 1
        if silent:
            return
        with growing(self.path, "w" if fresh else "a") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore", lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(row)

    def state_dict(self) -> dict[str, Any]:
        return {"n_rows": self.n_rows, "columns": self.columns}

    def cut(self, state: dict[str, Any], *, silent: bool) -> str | None:
        """Truncate the file; return a message if rows were lost."""
        n_rows, self.columns = state["n_rows"], state["columns"]
        self.n_rows = n_rows
        if silent:
            return None
        lines = [line for line in _lines(self.path) if line.count(",") == len(self.columns) - 1]
        head = ",".join(self.columns)
        self.n_rows = min(n_rows, len(lines) - 1) if lines[:1] == [head] else 0
        _write(self.path, lines[: self.n_rows + 1] if self.n_rows else [])
        return _lost(self.path, n_rows - self.n_rows, n_rows)


class Journal:
    """The log files of a run folder, flushed line by line; if silent or without a folder, nothing is written."""

    def __init__(self, folder: Path | None, *, silent: bool = False) -> None:
        self.silent = silent or folder is None
        folder = folder or Path()
        self.tables = {name: CsvTable(folder / f"{name}.csv") for name in ("metrics", "checks")}
        self.events_path = folder / EVENTS
        self.n_events = 0

    def row(self, table: str, row: Row) -> None:
        """Add a row of metrics or checks."""
        self.tables[table].add(row, silent=self.silent)

    def event(self, kind: str, iteration: int, sentence: str, **values: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
        line = {"event": kind, "iteration": iteration, "says": sentence, **values}
        self.n_events += 1
        if not self.silent:
            with growing(self.events_path, "a") as file:
                file.write(json.dumps(line) + "\n")
        return line

    def state_dict(self) -> dict[str, Any]:
        return {"n_events": self.n_events, **{name: table.state_dict() for name, table in self.tables.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Truncate all files; return a message for each that had lost rows."""
        lost = self.cut_tables(state)
        self.n_events = state["n_events"]
        if not self.silent:
            lines = [line for line in _lines(self.events_path) if _event(line)][: self.n_events]
            _write(self.events_path, lines)
            lost.append(_lost(self.events_path, self.n_events - len(lines), self.n_events))
            self.n_events = len(lines)
        return [said for said in lost if said is not None]

    def cut_tables(self, state: dict[str, Any]) -> list[str | None]:
        """Truncate only the tables: after a rollback the events are kept."""
        return [table.cut(state[name], silent=self.silent) for name, table in self.tables.items()]


def _lines(path: Path) -> list[str]:
    """Return the complete lines of a file, without a truncated last line."""
    if not path.exists():
        return []
    text = content_of(path, TABLE_BYTES).decode("utf-8", errors="replace")
    return text.replace("\r\n", "\n").split("\n")[:-1]


def _write(path: Path, lines: list[str]) -> None:
    if lines or path.exists():
        write_text(path, "".join(f"{line}\n" for line in lines))


def _lost(path: Path, lost: int, all_of_them: int) -> str | None:
    if not lost:
        return None
    return f"{path.name}: {lost} of {all_of_them} lines are lost or damaged; continuing with the others"


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table; those that were damaged are left out."""
    cells = [line.split(",") for line in _lines(path)]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[1:] if len(row) == len(cells[0])]


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events of a run, skipping damaged lines."""
    return [event for line in _lines(path) if (event := _event(line))]


def _event(line: str) -> dict[str, Any] | None:
    try:
        found = parsed_json(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None

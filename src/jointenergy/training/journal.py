"""training: what a run writes as it goes: rows of metrics.csv and checks.csv, lines of events.jsonl.

All can be cut back to where a checkpoint was made, so that a resumed run's files are those of one that never stopped.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

Row = dict[str, float | int | bool]


class CsvTable:
    """A CSV file that grows by rows and can be cut back; its columns are those of its first row."""

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
        with self.path.open("w" if fresh else "a", newline="") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            if fresh:
                writer.writeheader()
            writer.writerow(row)

    def state_dict(self) -> dict[str, Any]:
        return {"n_rows": self.n_rows, "columns": self.columns}

    def cut(self, state: dict[str, Any], *, silent: bool) -> None:
        self.n_rows, self.columns = state["n_rows"], state["columns"]
        if not silent:
            _cut(self.path, self.n_rows + 1 if self.n_rows else 0)


class Journal:
    """The files of a run folder, flushed line by line; a silent one, or one without a folder, writes nothing."""

    def __init__(self, folder: Path | None, *, silent: bool = False) -> None:
        self.silent = silent or folder is None
        folder = folder or Path()
        self.tables = {name: CsvTable(folder / f"{name}.csv") for name in ("metrics", "checks")}
        self.events_path = folder / "events.jsonl"
        self.n_events = 0

    def row(self, table: str, row: Row) -> None:
        """A row of metrics or of checks."""
        self.tables[table].add(row, silent=self.silent)

    def event(self, kind: str, iteration: int, sentence: str, **values: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
        line = {"event": kind, "iteration": iteration, "says": sentence, **values}
        self.n_events += 1
        if not self.silent:
            with self.events_path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return line

    def state_dict(self) -> dict[str, Any]:
        return {"n_events": self.n_events, **{name: table.state_dict() for name, table in self.tables.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cut_tables(state)
        self.n_events = state["n_events"]
        if not self.silent:
            _cut(self.events_path, self.n_events)

    def cut_tables(self, state: dict[str, Any]) -> None:
        """The tables alone: after a rollback the events still tell what happened."""
        for name, table in self.tables.items():
            table.cut(state[name], silent=self.silent)


def _cut(path: Path, n_lines: int) -> None:
    if path.exists():
        lines = path.read_text().splitlines(keepends=True)[:n_lines]
        temporary = path.with_suffix(".part")
        temporary.write_text("".join(lines))
        temporary.replace(path)

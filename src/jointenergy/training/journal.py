"""training: what a run writes as it goes: metrics.csv, one row now and then, and events.jsonl, one line each.

Both can be cut back to where a checkpoint was made, so that a resumed run's files are those of one that never stopped.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any


class Journal:
    """The two files of a run folder, flushed line by line; a silent one counts and writes nothing."""

    def __init__(self, folder: Path, *, silent: bool = False) -> None:
        self.silent = silent
        self.metrics_path, self.events_path = folder / "metrics.csv", folder / "events.jsonl"
        self.n_metrics, self.n_events = 0, 0
        self.columns: list[str] = []

    def metrics(self, row: dict[str, float | int]) -> None:
        fresh = self.n_metrics == 0
        self.columns = list(row) if fresh else self.columns
        self.n_metrics += 1
        if self.silent:
            return
        with self.metrics_path.open("w" if fresh else "a", newline="") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            if fresh:
                writer.writeheader()
            writer.writerow(row)

    def event(self, kind: str, iteration: int, sentence: str, **values: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
        line = {"event": kind, "iteration": iteration, "says": sentence, **values}
        self.n_events += 1
        if not self.silent:
            with self.events_path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return line

    def state_dict(self) -> dict[str, Any]:
        return {"n_metrics": self.n_metrics, "n_events": self.n_events, "columns": self.columns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cut_metrics(state)
        self.n_events = state["n_events"]
        if not self.silent:
            _cut(self.events_path, self.n_events)

    def cut_metrics(self, state: dict[str, Any]) -> None:
        """Metrics alone: after a rollback the events still tell what happened."""
        self.n_metrics, self.columns = state["n_metrics"], state["columns"]
        if not self.silent:
            _cut(self.metrics_path, self.n_metrics + 1 if self.n_metrics else 0)


def _cut(path: Path, n_lines: int) -> None:
    if path.exists():
        lines = path.read_text().splitlines(keepends=True)[:n_lines]
        temporary = path.with_suffix(".part")
        temporary.write_text("".join(lines))
        temporary.replace(path)

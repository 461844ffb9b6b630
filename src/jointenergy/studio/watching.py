"""studio: a run folder during training: curves, checks, events of the guard and the newest samples."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

from jointenergy.errors import InputError
from jointenergy.files.reading import content_of
from jointenergy.limits import MIB
from jointenergy.recipes import run_folder
from jointenergy.recipes.schema import read
from jointenergy.training.journal import EVENTS, read_events

SAMPLES = "samples"
MOST_POINTS = 400  # per curve
MOST_EVENTS = 100
MOST_BYTES = 64 * MIB
CURVES = ("loss", "f_data", "f_samples", "gap", "gradient_norm")


def watched(folder: Path) -> dict[str, Any]:
    """Read the current state of the folder."""
    metrics, checks = _table(folder / "metrics.csv"), _table(folder / "checks.csv")
    samples = sorted(p.name for p in (folder / SAMPLES).glob("iteration-*.png"))
    at = [row["iteration"] for row in metrics]
    return {
        "iterations": read(folder / run_folder.RECIPE).iterations,
        "at": at,
        "curves": {name: [row[name] for row in metrics] for name in CURVES if metrics and name in metrics[0]},
        "seconds": metrics[-1].get("seconds") if metrics else None,
        "checks": [
            {k: row.get(k) for k in ("iteration", "accuracy", "healthy")} for row in checks if row.get("iteration")
        ],
        "events": [
            {k: event.get(k) for k in ("event", "iteration", "says")}
            for event in read_events(folder / EVENTS)[-MOST_EVENTS:]
        ],
        "samples": samples[-1:] if samples else [],
    }


def sample_picture(folder: Path, name: str) -> bytes:
    """Return a picture of samples of the run, by file name."""
    known = {p.name: p for p in (folder / SAMPLES).glob("iteration-*.png")}
    if name not in known:
        raise InputError(f"the run has no picture of samples {name!r}")
    return content_of(known[name], MOST_BYTES)


def _table(path: Path) -> list[dict[str, float | None]]:
    """Read rows of numbers, thinned evenly if there are many; an incomplete last line is skipped."""
    if not path.is_file():
        return []
    text = content_of(path, MOST_BYTES).decode("utf-8", errors="replace")
    lines = list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))
    every = max(1, math.ceil(len(lines) / MOST_POINTS))
    kept = [line for i, line in enumerate(lines) if i % every == 0 or i == len(lines) - 1]
    return [{k: _number(v) for k, v in line.items() if k is not None} for line in kept]


def _number(text: str | None) -> float | None:
    if text in ("True", "False"):
        return float(text == "True")
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None

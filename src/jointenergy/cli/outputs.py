"""cli: what is shown of an answer: a table, JSON or CSV on the screen; pictures and arrays in files."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from jointenergy.cli.screen import console
from jointenergy.errors import InputError
from jointenergy.runs.film import drawable, picture

Value = str | int | float | bool | None
Record = Mapping[str, Value]

MOST_ROWS = 40  # of a table on the screen
PICTURES = (".png", ".gif", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")


def show(records: Sequence[Record], *, as_json: bool, as_csv: bool, shown: Sequence[Record] | None = None) -> None:
    """All records as JSON or CSV; or the first of them, in the form of `shown` where that reads better, as a table."""
    if as_json and as_csv:
        raise InputError("--json and --csv are two ways to show one answer: choose one")
    if as_json:
        plain = [{k: _finite(v) for k, v in record.items()} for record in records]
        print(json.dumps(plain, indent=1, ensure_ascii=False))
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, list(dict.fromkeys(k for r in records for k in r)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    else:
        _table(records if shown is None else shown)


def _finite(value: Value) -> Value:
    """JSON knows no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(records: Sequence[Record]) -> None:
    names = list(dict.fromkeys(k for record in records[:MOST_ROWS] for k in record))
    table = Table(box=None, pad_edge=False)
    for name in names:
        numeric = all(isinstance(r.get(name), int | float) for r in records)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for record in records[:MOST_ROWS]:
        table.add_row(*(_cell(record.get(name)) for name in names))
    console.print(table)
    if len(records) > MOST_ROWS:
        console.print(f"... and {len(records) - MOST_ROWS:,} more: --csv or --json shows all", highlight=False)


def _cell(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def say(sentences: Iterable[str]) -> None:
    """Notes, on stderr so that they stand in no file that an answer is piped to."""
    for sentence in dict.fromkeys(sentences):
        Console(stderr=True).print(f"note: {sentence}", highlight=False, markup=False, soft_wrap=True)


def written(path: Path) -> None:
    Console(stderr=True).print(f"written to {path}", highlight=False, markup=False, soft_wrap=True)


def check_file(path: Path) -> None:
    """A name that rows can be written under; before the chains are run, not after."""
    if path.suffix.lower() not in (*PICTURES, ".npy", ".npz"):
        raise InputError(f"--out writes a picture (.png), .npy or .npz (x and y), got {path.name!r}")
    path.parent.mkdir(parents=True, exist_ok=True)


def check_rows(paths: Iterable[Path | None], event_shape: tuple[int, ...]) -> None:
    """Rows of this shape can be shown where a picture is asked for."""
    if not drawable(event_shape) and any(p is not None and p.suffix.lower() in PICTURES for p in paths):
        raise InputError(f"rows of shape {event_shape} are no images and no points: write them with --out FILE.npy")


def check_film(path: Path | None) -> None:
    if path is not None and path.suffix.lower() != ".gif":
        raise InputError(f"--film writes an animated .gif, got {path.name!r}")


def save(path: Path, x: Tensor, y: Tensor, bounds: tuple[float, float], columns: int | None = None) -> None:
    """Rows as a picture, or as arrays with their labels."""
    if path.suffix.lower() == ".npy":
        np.save(path, x.cpu().numpy())
    elif path.suffix.lower() == ".npz":
        np.savez(path, x=x.cpu().numpy(), y=y.cpu().numpy())
    else:
        picture(x, bounds, columns).save(path)
    written(path)


def beside(*parts: Tensor) -> Tensor:
    """Several pictures of each row, one row of a grid: `[rows * parts, *event]`."""
    return torch.stack(parts, dim=1).flatten(0, 1)

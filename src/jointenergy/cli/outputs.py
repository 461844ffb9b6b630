"""cli: show results: a table, JSON or CSV on the screen; pictures and arrays in files."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from jointenergy.cli.screen import cell, console, note
from jointenergy.cli.waiting import waiting
from jointenergy.errors import InputError
from jointenergy.files.reading import shown as shown_text
from jointenergy.files.writing import check_target, whole
from jointenergy.runs.film import check_drawable, picture

Value = str | int | float | bool | None
Record = Mapping[str, Value]

MOST_ROWS = 40  # rows of a table on the screen
PICTURES = (".png", ".gif", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")


def show(records: Sequence[Record], *, as_json: bool, as_csv: bool, shown: Sequence[Record] | None = None) -> None:
    """Print all records as JSON or CSV, or the first ones as a table (from `shown`, if given)."""
    if as_json and as_csv:
        raise InputError("--json and --csv exclude each other: give one of them")
    if as_json:
        plain = [{k: _finite(v) for k, v in record.items()} for record in records]
        print(json_text(plain))
    elif as_csv:
        names = list(dict.fromkeys(k for r in records for k in r))
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(map(shown_text, names))
        for record in records:
            values = [record.get(name) for name in names]
            writer.writerow([shown_text(v) if isinstance(v, str) else v for v in values])
    else:
        _table(records if shown is None else shown)


def json_text(plain: object) -> str:
    """Format as JSON, escaping control characters but no letters."""
    text = json.dumps(plain, indent=1, ensure_ascii=False)
    return "\n".join(re.sub(r"\\x(..)", r"\\u00\1", shown_text(line)) for line in text.split("\n"))


def _finite(value: Value) -> Value:
    """Replace NaN, which JSON does not have, by None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(records: Sequence[Record]) -> None:
    names = list(dict.fromkeys(k for record in records[:MOST_ROWS] for k in record))
    table = Table(box=None, pad_edge=False)
    for name in names:
        numeric = all(isinstance(r.get(name), int | float) for r in records)
        table.add_column(cell(name), justify="right" if numeric else "left", overflow="fold")
    for record in records[:MOST_ROWS]:
        table.add_row(*(cell(_text(record.get(name))) for name in names))
    console.print(table)
    if len(records) > MOST_ROWS:
        console.print(f"... and {len(records) - MOST_ROWS:,} more: --csv or --json shows all", highlight=False)


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def say(sentences: Iterable[str]) -> None:
    """Print notes on stderr, so that they do not end up in a piped answer."""
    for sentence in dict.fromkeys(sentences):
        note(f"note: {sentence}")


def written(path: Path | str) -> None:
    note(f"written to {path}")


def check_file(path: Path) -> None:
    """Check that the file can be written, before any chain is run."""
    if path.suffix.lower() not in (*PICTURES, ".npy", ".npz"):
        raise InputError(f"--out must end in .npy, .npz, .png or another picture format, got {path.name!r}")
    check_target(path, f"--out {path}")


def check_rows(path: Path | None, n: int, event_shape: tuple[int, ...]) -> None:
    """Check that n rows of this shape can be drawn, if a picture is asked for."""
    if path is not None and path.suffix.lower() in PICTURES:
        check_drawable(n, event_shape)


def check_film(path: Path | None) -> None:
    if path is not None and path.suffix.lower() != ".gif":
        raise InputError(f"--film must end in .gif, got {path.name!r}")


def save(path: Path, x: Tensor, y: Tensor, bounds: tuple[float, float], columns: int | None = None) -> None:
    """Save rows as a picture, or as arrays with their labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with waiting("writing"), whole(path) as part:
        if path.suffix.lower() == ".npy":
            with part.open("w+b") as file:  # not "wb", for which numpy writes past Python and loses the reason
                np.save(file, x.cpu().numpy())
        elif path.suffix.lower() == ".npz":
            np.savez(part, x=x.cpu().numpy(), y=y.cpu().numpy())
        else:
            picture(x, bounds, columns).save(part)
    written(path)


def beside(*parts: Tensor) -> Tensor:
    """Interleave several pictures per row for a grid: `[rows * parts, *event]`."""
    return torch.stack(parts, dim=1).flatten(0, 1)

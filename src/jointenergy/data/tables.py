"""data: tables: csv files with a column of labels, and npz files with arrays x and y."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jointenergy.data.arrays import arrays_of
from jointenergy.data.base import Dataset
from jointenergy.data.options import Options
from jointenergy.data.request import WHERE, Request
from jointenergy.errors import InputError
from jointenergy.files.reading import content_of, shortened
from jointenergy.labels import MISSING, LabelSpace, nearest
from jointenergy.limits import LARGEST, LINES, TABLE_BYTES

MISSING_CELLS = ("", "nan", "na", "?")
"""Lowercase texts of a cell without a value."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")

MOST_VALUES = 50  # values of a column that is used as a label without being named
MOST_CLASSES = 100_000  # that an npz file may have, or one per row if that is more: test files may be short


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING_CELLS


def lines_of(path: Path) -> list[list[str]]:
    """Read the non-empty lines of a csv file; raise InputError if it is not one."""
    # Spreadsheets start UTF-8 with a byte order mark, which would turn the first number into text.
    content = content_of(path, TABLE_BYTES, "the table")
    if content.count(b"\n") > LINES:
        raise InputError(f"the table {path} has more than {LINES:,} lines: give it in parts, or numbers as .npy")
    try:
        text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
        lines = [line for line in csv.reader(text) if any(cell.strip() for cell in line) or len(line) > 1]
    except UnicodeDecodeError:
        raise InputError(f"the table {path} is not UTF-8 text: save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"the table {path} is no valid CSV: {error}") from None
    if not lines:
        raise InputError(f"the table {path} is empty")
    return lines


def columns_of(path: Path) -> dict[str, list[str]]:
    """Read the columns of a csv file by the names in its first line; all lines must have as many cells."""
    names, *rows = lines_of(path)
    names = [name.strip() for name in names]
    if len(set(names)) < len(names):
        twice = next(name for name, n in Counter(names).items() if n > 1)
        raise InputError(f"the table {path} names a column twice: {shortened(repr(twice), 80)}")
    if not rows:
        raise InputError(f"the table {path} has names and no rows")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise InputError(
                f"the table {path} is damaged or cut off: row {number} has {len(row)} cells for {len(names)} names"
            )
    return {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}


def column(columns: dict[str, list[str]], name: str, path: Path) -> list[str]:
    """Return one column; raise InputError with the names that exist."""
    if name not in columns:
        raise InputError(f"the table {path} has no column {name!r}: {nearest(name, list(columns))}")
    return columns[name]


# csv.


def read_csv(request: Request) -> Dataset:
    """Read numbers as x, float32 `[n, columns]`, and one column as the label: `data.options.label`, or the last.

    --data names the file or a folder with a single .csv file; train.csv and test.csv are the two splits.
    """
    place = request.place("a .csv file")
    path, own = _file(request, place, ".csv")
    columns = columns_of(path)
    name = request.options.label or list(columns)[-1]
    cells = column(columns, name, path)
    if not request.options.label:
        _check_unnamed_label(cells, name, path)
    features = {k: v for k, v in columns.items() if k != name}
    if not features:
        raise InputError(f"the table {path} has no column beside the label {name!r}")
    x = np.array([_numbers(v, k, path) for k, v in features.items()], np.float32).T
    values, y = coded(cells)
    x = _standardized(x, request.options, path)
    dataset = _dataset(np.ascontiguousarray(x), y, space({name: values}, path), request.name, path)
    return dataset if own else request.part(dataset, stratify=True)


def _check_unnamed_label(cells: Sequence[str], name: str, path: Path) -> None:
    """Refuse a last column of measurements or of many values, of which each would become a class."""
    known = [cell for cell in cells if not is_missing(cell)]
    n = len(set(known))
    if n > MOST_VALUES or (2 * n > len(known) and any(_is_fraction(cell) for cell in known)):
        raise InputError(
            f"the last column {name!r} of the table {path} has {n:,} different values in {len(known):,} rows, too many "
            "for a label that nobody named: name the column with the label by `jointenergy init --label COLUMN` or by "
            "data.options.label, save a table without labels as the array x of an .npz file, or learn a target of "
            "numbers with JointEnergyRegressor"
        )


def _is_fraction(cell: str) -> bool:
    value = _number(cell)
    return value is not None and value % 1 != 0


def _number(cell: str) -> float | None:
    """Return the number in a cell, which need not be finite; None if there is none."""
    try:
        return float(cell)
    except ValueError:
        return None


def _numbers(cells: Sequence[str], name: str, path: Path) -> list[float]:
    found = []
    for number, cell in enumerate(cells, start=2):
        value = _number(cell)
        if value is None or not abs(value) <= LARGEST:  # true for NaN too
            if is_missing(cell):
                remedy = "fill or leave out such rows, or train by jointenergy.fit, where NaN marks unknown entries"
            elif value is None:
                remedy = "leave out a column of words, or train JointEnergyClassifier, which takes such columns"
            else:
                remedy = "correct or leave out such rows"
            raise InputError(
                f"the table {path} has {shortened(repr(cell), 60)} in row {number} of column {name!r}, where a finite "
                f"number should be: {remedy}"
            )
        found.append(value)
    return found


def coded(cells: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the sorted values of a label, integers by size and words by text, and the code of each cell.

    Cells without a value are MISSING.
    """
    present = {cell for cell in cells if not is_missing(cell)}
    whole = all(_WHOLE.fullmatch(cell) for cell in present)
    values = sorted(present, key=int) if whole else sorted(present)
    number = {value: i for i, value in enumerate(values)}
    return values, np.array([number.get(cell, MISSING) for cell in cells])


def _standardized(x: NDArray[np.float32], options: Options, path: Path) -> NDArray[np.float32]:
    for name, values in (("center", options.center), ("scale", options.scale)):
        if values and x.shape[1:] != (len(values),):
            raise InputError(
                f"data.options.{name} has {len(values)} numbers, and rows of {path} have the shape {x.shape[1:]}: give "
                "one number for each column"
            )
    return options.standardized(x)


# npz.


def read_npz(request: Request) -> Dataset:
    """Read arrays `x`, uint8 pixels or floats `[n, ...]`, and `y`, integers or words `[n]` or `[n, L]`.

    Integers count from 0, and -1 is MISSING; without `y` there are no labels. Test rows are the arrays `x_test` and
    `y_test`, if present. --data names the file or a folder with a single .npz file; train.npz and test.npz are the two
    splits.
    """
    place = request.place("a .npz file with the arrays x and y")
    path, own = _file(request, place, ".npz")
    arrays = arrays_of(path)
    if "x" not in arrays:
        raise InputError(f"{path} holds {', '.join(arrays) or 'nothing'}: call the array of inputs x, its labels y")
    if arrays["x"].ndim == 0:
        raise InputError(f"x in {path} is a single number: give one row for each input, [n, ...]")
    labels, y = _label_arrays(arrays, path)
    end = ""
    if "x_test" in arrays and not own:
        own, end = True, "_test" if request.split == "test" else ""
    x = arrays[f"x{end}"]
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise InputError(f"x{end} in {path} holds {x.dtype}: give floats, or pixels as uint8")
    if x.ndim == 1:
        x = x[:, None]
    if end not in y:
        raise InputError(f"{path} has x{end} and no y{end}, while the other rows have labels")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused
        x = x if x.dtype == np.uint8 else _standardized(x.astype(np.float32), request.options, path)
    dataset = _dataset(x, y[end], labels, request.name, path)
    return dataset if own else request.part(dataset, stratify=True)


def _label_arrays(arrays: dict[str, NDArray[Any]], path: Path) -> tuple[LabelSpace, dict[str, NDArray[np.int64]]]:
    """Return the labels of training and test rows together, so that both have the same values."""
    ends = [end for end in ("", "_test") if f"y{end}" in arrays]
    if "" not in ends:
        sizes = {end: len(arrays[f"x{end}"]) for end in ("", "_test") if f"x{end}" in arrays}
        return LabelSpace.none(), {end: np.zeros((n, 0), np.int64) for end, n in sizes.items()}
    parts = {end: arrays[f"y{end}"] for end in ends}
    parts = {end: y[:, None] if y.ndim == 1 else y for end, y in parts.items()}
    if any(y.ndim != 2 or y.shape[1] != parts[""].shape[1] for y in parts.values()):
        raise InputError(f"y in {path} must be [n] or [n, L], got {[y.shape for y in parts.values()]}")
    names = ["class"] if parts[""].shape[1] == 1 else [f"label_{k}" for k in range(parts[""].shape[1])]
    whole = np.concatenate(list(parts.values()))
    if whole.dtype.kind not in "iubUS":
        raise InputError(f"y in {path} holds {whole.dtype}: give whole numbers from 0, or words")
    spaces: dict[str, Sequence[str] | int] = {}
    codes = {end: np.empty(y.shape, np.int64) for end, y in parts.items()}
    for k, name in enumerate(names):
        if whole.dtype.kind in "US":
            words = sorted({str(v) for v in whole[:, k]})
            number = {value: i for i, value in enumerate(words)}
            spaces[name] = words
            for end, y in parts.items():
                codes[end][:, k] = [number[str(v)] for v in y[:, k]]
        else:
            spaces[name] = _counted(whole[:, k], path)
            for end, y in parts.items():
                codes[end][:, k] = y[:, k]
    return space(spaces, path), codes


def _counted(y: NDArray[Any], path: Path) -> int:
    """Return the number of classes from the largest; refuse identifiers, which would each become a network output."""
    n = int(y.max(initial=0)) + 1
    if n > max(MOST_CLASSES, len(y)):
        raise InputError(
            f"y in {path} goes up to {n - 1:,} in {len(y):,} rows: number the classes from 0 without gaps, in all "
            "files alike, and leave -1 for missing ones"
        )
    return n


# Shared by csv and npz.


def _file(request: Request, place: Path, end: str) -> tuple[Path, bool]:
    """Return the file to read, and whether it holds only the requested split."""
    if place.is_file():
        return place, False
    place = place / request.name if (place / request.name).is_dir() else place
    if (place / f"{request.split}{end}").is_file():
        return place / f"{request.split}{end}", True
    found = sorted(place.glob(f"*{end}"))
    if len(found) != 1:
        raise InputError(
            f"data set {request.name!r} needs one {end} file, or train{end} and test{end}, in {place}, where "
            f"{len(found) or 'none'} {'are' if len(found) != 1 else 'is'}: name the file itself{WHERE}"
        )
    return found[0], False


def space(values: Mapping[str, Sequence[str] | int], path: Path) -> LabelSpace:
    """Make a label space from the names and values of a file; errors name the file."""
    try:
        return LabelSpace(values)
    except InputError as error:
        raise InputError(f"{path} has no usable labels: {error}") from error


def _dataset(x: NDArray[Any], y: NDArray[np.int64], labels: LabelSpace, name: str, path: Path) -> Dataset:
    try:
        return Dataset(torch.from_numpy(x), torch.from_numpy(y), labels, name)
    except InputError as error:
        raise InputError(f"{path} cannot be used as it is: {error}") from error

"""cli: read user inputs: image files, folders, .npy, .npz and .csv as rows; labels and sizes as text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointenergy.cli.waiting import waiting
from jointenergy.data import Resize
from jointenergy.data.arrays import array_of, arrays_of, shape_of
from jointenergy.data.fitting import image_form
from jointenergy.data.folders import decode, image_bytes, image_endings
from jointenergy.data.tables import is_missing, lines_of
from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace
from jointenergy.runs import Run
from jointenergy.runs.arrays import shaped, tensor_of

ARRAYS = (".npy", ".npz")


@dataclass(frozen=True)
class Inputs:
    """Rows of x in the format of the run, a name for each, and column names if the input is a table."""

    x: Tensor
    names: list[str]
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read(paths: Sequence[Path], run: Run, *, resize: bool, in_part: bool = False) -> Inputs:
    """Read all inputs; those of another size are refused, or resized with `resize`.

    Empty cells and NaN are refused unless `in_part` is set.
    """
    with waiting("reading inputs"):
        parts = [part for path in paths for part in _parts(path, run, resize)]
        x = torch.cat([_checked(part, run) for part in parts])
    names = [name for p in parts for name in p.names]
    unknown = x.isnan().flatten(1).any(1).nonzero()[:, 0].tolist()
    if unknown and not in_part:
        raise InputError(
            f"{len(unknown)} of {len(names)} inputs have empty cells or NaN, first {names[unknown[0]]}: "
            "fill them first, for example with `jointenergy inpaint`"
        )
    columns = parts[0].columns if all(p.columns == parts[0].columns for p in parts) else ()
    notes = tuple(dict.fromkeys(note for p in parts for note in p.notes))
    return Inputs(x, names, columns, notes)


def _parts(path: Path, run: Run, resize: bool) -> Iterator[Inputs]:
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix.lower() in image_endings() and f.is_file())
        if not files:
            raise InputError(f"the folder {path} contains no images: give image files, .npy, .npz or .csv")
        for file in files:
            yield _image(file, file.relative_to(path).as_posix(), run, resize)
    elif not path.exists():
        raise InputError(f"there is no file or folder {path}")
    elif path.suffix.lower() in ARRAYS:
        yield _array(path, run, resize)
    elif path.suffix.lower() == ".csv":
        yield _table(path, run)
    elif path.suffix.lower() in image_endings():
        yield _image(path, path.name, run, resize)
    else:
        raise InputError(f"{path.name} has an unknown file type: give an image, .npy, .npz or .csv")


def _checked(part: Inputs, run: Run) -> Tensor:
    x, (low, high) = part.x, run.bounds
    if tuple(x.shape[1:]) != run.event_shape:
        raise InputError(f"{part.names[0]} has shape {tuple(x.shape[1:])}, but the run expects {size_of(run)}")
    known = x[~x.isnan()]
    # Catch pixels from 0 to 255, but accept a little noise beyond the bounds.
    if known.numel() and not (low - (high - low) <= float(known.min()) <= float(known.max()) <= high + (high - low)):
        raise InputError(
            f"{part.names[0]} has values from {float(known.min()):g} to {float(known.max()):g}, but the run expects x "
            f"between {low:g} and {high:g}: scale it, or give pixels as uint8"
        )
    return x


# Images and arrays.


def size_of(run: Run) -> str:
    form = image_form(run.event_shape)
    if form is None:
        return f"{run.event_shape}"
    return f"{form[1]} x {form[2]} pixels" + (" in 3 colors" if form[0] == 3 else "")


def _image(path: Path, name: str, run: Run, resize: bool) -> Inputs:
    form = image_form(run.event_shape)
    if form is None:
        raise InputError(f"{name} is an image, but the run expects rows of shape {run.event_shape}: give .npy or .csv")
    size = form[1:] if resize else None
    pixels = decode(image_bytes(path), str(path), "RGB" if form[0] == 3 else "L", size)
    if pixels.shape[1:] != form[1:]:
        raise InputError(
            f"{name} is {pixels.shape[1]} x {pixels.shape[2]} pixels, but the run expects {size_of(run)}: add --resize"
        )
    return Inputs(run.rows(pixels[None]), [name])


def _array(path: Path, run: Run, resize: bool) -> Inputs:
    if (shape := shape_of(path)) is not None:
        _arranged(torch.empty(shape, device="meta"), path.name, run, resize)  # refused before values are read
    rows = _arranged(tensor_of(_numbers(path), path.name), path.name, run, resize)
    form = image_form(run.event_shape)
    if tuple(rows.shape[1:]) != run.event_shape and form is not None:
        rows = Resize(form[1], form[2])(rows).reshape(len(rows), *run.event_shape)
    return Inputs(_rows(rows, run, path.name), [f"{path.name}[{i}]" for i in range(len(rows))])


def _arranged(array: Tensor, name: str, run: Run, resize: bool) -> Tensor:
    """Arrange an array as rows of the run or, to be resized, as images `[n, C, H, W]`; refuse other shapes."""
    form = image_form(run.event_shape)
    if form is not None and tuple(array.shape) in (form, form[1:], (*form[1:], form[0])):
        array = array[None]  # one image
    rows = shaped(array, run.event_shape)
    if tuple(rows.shape[1:]) == run.event_shape:
        return rows
    images = rows[:, None] if rows.ndim == 3 else rows
    fits = form is not None and images.ndim == 4 and images.shape[1] == form[0]
    if not (resize and fits):
        remedy = ": add --resize" if fits else ""
        shown = " x ".join(map(str, rows.shape[1:])) or "single numbers"
        raise InputError(f"rows of {name} are {shown}, but the run expects {size_of(run)}{remedy}")
    return images


def labels_in(path: Path) -> NDArray[Any]:
    """Read the labels y of a .npz file."""
    found = arrays_of(path).get("y") if path.suffix.lower() == ".npz" else None
    if found is None:
        raise InputError(f"{path} has no labels: give a .npz with rows x and integer labels y, one for each row")
    return found


def _numbers(path: Path) -> NDArray[Any]:
    array = array_of(path)
    if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"{path.name} has dtype {array.dtype}: give floats on the run's scale, or pixels as uint8")
    return array


# Tables.


def _table(path: Path, run: Run) -> Inputs:
    """Read numbers with or without a header (default names: 0, 1, 2, ...); columns named like labels are dropped."""
    lines = lines_of(path)
    names = tuple(cell.strip() for cell in lines[0])
    # Programs write 0, 1, 2, ... as a header without names; in a single column, "0" may be a value.
    counted = len(names) > 1 and len(lines) > 1 and names == tuple(map(str, range(len(names))))
    named = counted or any(_number(cell) is None for cell in lines[0])
    kept = [i for i, name in enumerate(names) if not (named and name in run.labels.names)]
    rows = []
    for number, line in enumerate(lines[1:] if named else lines, start=1 + named):
        if len(line) != len(names):
            raise InputError(f"line {number} of {path.name} has {len(line)} cells, but the first line has {len(names)}")
        values = [_number(line[i]) for i in kept]
        if None in values:
            wrong = line[kept[values.index(None)]]
            raise InputError(f"line {number} of {path.name} has {wrong!r} where a number is expected")
        rows.append([v for v in values if v is not None])
    if not rows:
        raise InputError(f"the table {path} has a header but no rows")
    wanted = math.prod(run.event_shape)
    if len(kept) != wanted:
        raise InputError(f"{path.name} has {len(kept)} columns of numbers, but the run expects {wanted}")
    left_out = [name for i, name in enumerate(names) if i not in kept]
    notes = [f"ignored label columns: {', '.join(left_out)}"] if left_out else []
    if counted:
        notes.append(f"the first line of {path.name}, 0 to {len(names) - 1}, was read as column names")
    x = _rows(torch.tensor(rows, dtype=torch.float64).view(-1, *run.event_shape), run, path.name)
    columns = tuple(names[i] if named else str(i) for i in kept)
    return Inputs(x, [f"{path.name}[{i}]" for i in range(len(rows))], columns, tuple(notes))


def _rows(rows: Tensor, run: Run, name: str) -> Tensor:
    """Convert rows for the run; columns are standardized as its data set does, if its recipe asks for it."""
    if run.recipe is not None and rows.is_floating_point():
        rows = torch.from_numpy(run.recipe.data.options.standardized(rows.numpy()))
    try:
        return run.rows(rows)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _number(cell: str) -> float | None:
    if is_missing(cell):
        return math.nan
    try:
        return float(cell)
    except ValueError:
        return None


# Labels.


def labels_of(text: str, labels: LabelSpace) -> Mapping[str, int]:
    """Parse `Smiling=1,Male=0`, values by name or number; a model with one label also accepts the value alone."""
    given: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (p.strip() for p in part.partition("="))
        if not equals and len(labels) == 1:
            name, value = labels.names[0], name
        known = labels.values[labels.index(name)]
        if not value:
            raise InputError(f"the label {name!r} needs a value, as in {name}={known[0]}")
        if name in given:
            raise InputError(f"the label {name!r} is given twice in {text!r}")
        number = value not in known and re.fullmatch("[0-9]{1,9}", value)
        given[name] = labels.value_index(name, int(value) if number else value)
    return given


def text_of(given: Mapping[str, int], labels: LabelSpace) -> str | None:
    """Format labels in the syntax that `labels_of` parses."""
    return ",".join(f"{name}={labels.values[labels.index(name)][value]}" for name, value in given.items()) or None


def named_places(words: Sequence[str], option: str, kind: str) -> Mapping[str, str]:
    """Parse NAME=PLACE arguments, each name once."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, place = word.partition("=")
        if not equals or not name or not place:
            raise InputError(f"{option} takes NAME={kind}, got {word!r}")
        if name in found:
            raise InputError(f"{option} names {name!r} twice")
        found[name] = place
    return found

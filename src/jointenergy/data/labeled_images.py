"""data: images of your own with a csv file: a column of file names and columns of labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from jointenergy.data.base import Dataset
from jointenergy.data.cache import cached
from jointenergy.data.folders import image_files, images_at
from jointenergy.data.request import Request
from jointenergy.data.tables import MOST_VALUES, coded, columns_of, is_missing, space
from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace, nearest

SIZE = (64, 64)
KNOWN_SHARE = 0.5  # share of cells that must name images in the column of file names


@dataclass(frozen=True)
class LabeledImages:
    """Hold a folder of images and its table: the file of each row, and the label columns."""

    folder: Path
    table: Path
    key: str
    """The column of file names."""
    files: tuple[Path, ...]
    """Image of each row that has one."""
    columns: dict[str, list[str]]
    """Label columns, for the rows with an image."""
    left_out: dict[str, str]
    """Columns that are not labels, with the reason."""
    without_image: int
    """Number of table rows without an image in the folder."""


def labeled_images(folder: Path, wanted: Sequence[str] = ()) -> LabeledImages:
    """Find the table of a folder, its column of file names and its labels: the named ones, or all suitable ones."""
    files = image_files(folder)
    if not files:
        raise InputError(f"{folder} holds no images beside its table: unpack them there")
    tables = sorted(folder.rglob("*.csv"))
    if not tables:
        raise InputError(f"{folder} holds no .csv file with the labels of its images")
    named = _NamedImages(folder, files)
    found = [(_key(columns, named), table, columns) for table in tables for columns in (columns_of(table),)]
    (share, key), table, columns = max(found, key=lambda one: one[0][0])
    if share < KNOWN_SHARE:
        raise InputError(
            f"no column of {' or '.join(t.name for t in tables[:3])} names the images of {folder}: give one their file "
            f"names, such as {files[0].name} or {files[0].stem}"
        )
    images = [named.file(cell) for cell in columns.pop(key)]
    chosen = [file for file in images if file is not None]
    if len(set(chosen)) < len(chosen):
        (twice, n), *_ = Counter(chosen).most_common(1)
        raise InputError(f"column {key!r} of {table} names the image {twice.name} {n} times: keep one row of each")
    kept = {
        name: [cell for cell, file in zip(cells, images, strict=True) if file is not None]
        for name, cells in columns.items()
    }
    left_out = {name: why for name, cells in kept.items() if (why := _no_label(cells))}
    if strange := [name for name in wanted if name not in kept]:
        raise InputError(f"the table {table} has no column {strange[0]!r}: {nearest(strange[0], list(kept))}")
    if wanted:
        left_out = {name: "not asked for" for name in kept if name not in wanted}
    labels = {name: cells for name, cells in kept.items() if name not in left_out}
    if not labels:
        reasons = "; ".join(f"{name} {why}" for name, why in left_out.items()) or "it has no other column"
        raise InputError(f"the table {table} has no column that can be a label: {reasons}")
    return LabeledImages(folder, table, key, tuple(chosen), labels, left_out, len(images) - len(chosen))


class _NamedImages:
    """Look up images by path in the folder, file name, or file name without ending, if unique."""

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        names = [(name, f) for f in files for name in {f.relative_to(folder).as_posix(), f.name, f.stem}]
        several = {name for name, n in Counter(name for name, _ in names).items() if n > 1}
        self.files = {name: file for name, file in names if name not in several}

    def file(self, cell: str) -> Path | None:
        return self.files.get(cell) or self.files.get(PurePosixPath(cell).name)


def _key(columns: Mapping[str, Sequence[str]], named: _NamedImages) -> tuple[float, str]:
    """Return the column whose cells name the most images, with their share."""
    shares = {name: sum(named.file(cell) is not None for cell in cells) / len(cells) for name, cells in columns.items()}
    best = max(shares, key=lambda name: shares[name])
    return shares[best], best


def _no_label(cells: Sequence[str]) -> str:
    """Return why a column is not a label, or "": names, free text and measurements have too many values."""
    known = [cell for cell in cells if not is_missing(cell)]
    n = len(set(known))
    if n < 2:
        return "is the same in all rows" if n else "is empty"
    if n > MOST_VALUES or 2 * n > len(known):
        return f"has {n:,} different values in {len(known):,} rows"
    return ""


def read_labeled_images(request: Request) -> Dataset:
    """Read images with the label columns of their csv file, uint8 `[n, C, H, W]`, by default 64 x 64.

    Table rows without an image are left out; empty cells are MISSING.
    """
    options = request.options
    place = request.place("a folder of images and a .csv file with their labels")
    if not place.is_dir():
        raise InputError(f"data set {request.name!r} needs a folder of images and a .csv file, and {place} is a file")
    found = labeled_images(place, options.columns)
    frame = request.frame("stretch", SIZE)
    assert frame is not None

    def build() -> Dataset:
        x = images_at(found.files, frame, request.mode)
        return Dataset(torch.from_numpy(x), torch.zeros(len(x), 0, dtype=torch.int64), LabelSpace.none(), request.name)

    images = cached(request.name, build, [found.table, *found.files], frame, request.mode)
    parts = {name: coded(cells) for name, cells in found.columns.items()}
    labels = space({name: values for name, (values, _) in parts.items()}, found.table)
    y = np.stack([codes for _, codes in parts.values()], axis=1)
    dataset = Dataset(images.x, torch.from_numpy(y), labels, request.name)
    return request.part(dataset, stratify=True)

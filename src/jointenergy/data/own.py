"""data: inspecting a folder or file of your own: which data set reads it, at which size, and what it holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jointenergy.data.base import Dataset
from jointenergy.data.folders import GREY, image_files, images_in, opened_image, read_image
from jointenergy.data.labeled_images import labeled_images
from jointenergy.data.options import Options
from jointenergy.data.places import own_name
from jointenergy.data.registry import load
from jointenergy.errors import InputError

COMMON = 0.5  # share of the images that must have one size, to keep its aspect ratio
READABLE = "a folder of images with one folder per class, a folder of images with a .csv file, an .npz or a .csv file"


@dataclass(frozen=True)
class OwnData:
    """Hold the name of the data set that reads a place, its options, its training rows, and remarks for the user."""

    name: str
    options: Options
    train: Dataset
    notes: tuple[str, ...] = ()


def look(place: Path, most: int, label: str = "") -> OwnData:
    """Read a place as a recipe would, with images of at most `most` pixels a side.

    `label` is the column of a table with the class; empty for the last one.
    """
    if not place.exists():
        raise InputError(f"there is no folder or file {place}")
    name = own_name(place)
    if name is None:
        raise InputError(f"{place} cannot be trained on: {_lacking(place)}; give {READABLE}")
    if label and name != "csv":
        raise InputError(f"--label names a column of a .csv file, and {place} is read as {name!r}: leave it out")
    if name in ("npz", "csv"):
        return _numbers(place, name, Options(label=label))
    options, notes = _sizes(place, most)
    if name == "image-attributes":
        found = labeled_images(place)
        options = Options(image_size=options.image_size, grey=options.grey, columns=tuple(found.columns))
        notes += [f"the column {found.key} of {found.table.name} names the images"]
        notes += [f"the column {column} {why}: left out" for column, why in found.left_out.items()]
        if found.without_image:
            notes.append(f"{found.without_image:,} rows of {found.table.name} have no image: left out")
    return OwnData(name, options, load(name, place, options=options), tuple(notes))


def _lacking(place: Path) -> str:
    if place.is_file():
        if place.suffix.lower() == ".npy":
            return "an .npy file has no labels: save both in one .npz file, as x and y"
        return f"it is a file that ends in {place.suffix!r}"
    if not image_files(place):
        return "it holds no images, no .npz and no .csv file"
    if any(place.rglob("*.csv")):
        return "no column of its .csv file names its images, and they lie in no class folders"
    return "its images lie in no class folders, and no .csv file has their labels"


def _sizes(place: Path, most: int) -> tuple[Options, list[str]]:
    """Choose the image size, and whether to read in gray; keeps the most common aspect ratio."""
    sizes: Counter[tuple[int, int]] = Counter()
    grey = True
    for shown, content in images_in(place):
        with read_image(shown), opened_image(content) as image:
            sizes[image.height, image.width] += 1
            grey = grey and image.mode in GREY
    if not sizes:
        raise InputError(f"{place} holds no images: give a folder or an archive of images")
    (common, n), *others = sizes.most_common()
    if n < COMMON * sizes.total():
        side = int(np.median([max(size) for size in sizes.elements()]))
        common = (side, side)
    shrink = min(1.0, most / max(common))
    height, width = (max(1, round(side * shrink)) for side in common)
    notes = []
    if others:
        notes.append(f"the images have {len(sizes)} sizes: all are resized to {height} x {width}")
    elif shrink < 1:
        notes.append(f"images of {common[0]} x {common[1]} are resized to {height} x {width}")
    return Options(image_size=(height, width), grey=grey), notes


def _numbers(place: Path, name: str, options: Options) -> OwnData:
    """Read rows of numbers; columns of a table are centered and scaled by their training rows."""
    train = load(name, place, options=options)
    if not train.x.is_floating_point() or train.x.ndim > 2:
        return OwnData(name, options, train)
    center, spread = train.x.double().mean(0), train.x.double().std(0)
    notes = []
    if constant := int((spread == 0).sum()):
        notes.append(f"{constant} columns are constant and carry no information")
    scale = spread.masked_fill(spread == 0, 1.0)
    options = replace(options, center=_rounded(center.tolist()), scale=_rounded(scale.tolist()))
    return OwnData(name, options, load(name, place, options=options), tuple(notes))


def _rounded(values: list[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)

"""data: CelebA, faces with 40 binary attributes, from `list_attr_celeba.txt` and images of any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from jointenergy.data.attributes import Attributes
from jointenergy.data.base import Dataset
from jointenergy.data.cache import cached
from jointenergy.data.folders import image_sources, images_called
from jointenergy.data.framing import Frame
from jointenergy.data.request import Request
from jointenergy.errors import InputError
from jointenergy.files.reading import text_of
from jointenergy.labels import LabelSpace
from jointenergy.limits import TABLE_BYTES

ATTRIBUTES = "list_attr_celeba.txt"
IDENTITIES = "identity_CelebA.txt"
PARTITION = "list_eval_partition.txt"
PARTS = {"train": "0", "test": "2"}  # as the official list numbers them; 1 is validation
SIZE = (64, 64)

NOVEL_PAIRS = (
    ("Male", "Bangs"),
    ("Male", "Blond_Hair"),
    ("not No_Beard", "Bangs"),
    ("not No_Beard", "Brown_Hair"),
    ("Bangs", "not Young"),
    ("Bangs", "Black_Hair"),
    ("Bangs", "Brown_Hair"),
    ("Bangs", "Blond_Hair"),
    ("not Young", "Black_Hair"),
    ("not Young", "Brown_Hair"),
    ("not Young", "Blond_Hair"),
)
"""Held-out pairs of Kelly, Zemel and Grathwohl (2021), B.2: a beard is "not No_Beard", old is "not Young"."""


def read_celeba(request: Request) -> Dataset:
    """Read faces, uint8 `[n, 3, H, W]`, by default 64 x 64, with binary attributes.

    Images are cropped to the largest centered square and resized. Attributes are counted and selected over all rows.
    Test rows are whole identities, drawn by the seed up to the share in the options. With `split_by = "official"` they
    are the official test rows, and official validation rows are in neither split.
    """
    options, name = request.options, request.name
    where = request.where(f"{ATTRIBUTES} and its images (CelebA of Liu, Luo, Wang and Tang)")
    if not (where / ATTRIBUTES).is_file():
        raise request.missing(f"{ATTRIBUTES} and its images (CelebA of Liu, Luo, Wang and Tang)", where)
    files, attributes = read_attributes(where / ATTRIBUTES)
    frame = request.frame("crop", SIZE)
    assert frame is not None
    chosen = attributes.chosen(options, name)
    wanted = _parts(request, where, files) == PARTS[request.split]
    if request.split == "train":
        wanted &= ~attributes.in_pairs(options.held_out_pairs, name)
    if not wanted.any():
        raise InputError(f"the {request.split} split of {name!r} in {where} has no rows")
    images = _images(name, where, files, frame)
    rows = torch.from_numpy(np.flatnonzero(wanted))
    return Dataset(images.x[rows], torch.from_numpy(chosen.y)[rows], chosen.labels, name)


def _images(name: str, where: Path, files: list[str], frame: Frame) -> Dataset:
    """Return all listed images, decoded once and then cached."""
    sources = image_sources(where)

    def build() -> Dataset:
        x = images_called(files, sources, frame, name=name)
        return Dataset(torch.from_numpy(x), torch.zeros(len(x), 0, dtype=torch.int64), LabelSpace.none(), name)

    return cached(name, build, [where / ATTRIBUTES, *sources], frame)


def read_attributes(path: Path) -> tuple[list[str], Attributes]:
    """Read file names and attributes from a list: a count, the names, then one line of 1 and -1 per image."""
    lines = _lines(path)
    if len(lines) < 2 or not lines[0].strip().isdecimal():
        raise InputError(f"{path} is corrupt: its first line must be the number of images, its second the attributes")
    n, names = int(lines[0]), tuple(lines[1].split())
    rows = [line.split() for line in lines[2:] if line.strip()]
    for number, row in enumerate(rows, start=3):
        if len(row) != len(names) + 1 or not set(row[1:]) <= {"1", "-1"}:
            raise InputError(
                f"{path} is corrupt or truncated: line {number} must be a file name and {len(names)} values of 1 or -1"
            )
    if len(rows) != n:
        raise InputError(f"{path} is corrupt or truncated: it promises {n} images, {len(rows)} lines follow")
    y = np.array([row[1:] for row in rows]).astype(np.int64).reshape(n, len(names))
    return [row[0] for row in rows], Attributes(names, (y > 0).astype(np.int64))


def _lines(path: Path) -> list[str]:
    return text_of(path, TABLE_BYTES).splitlines()


def _listed(path: Path, files: list[str], remedy: str) -> NDArray[np.str_]:
    """Return the entry of a list for each image."""
    if not path.is_file():
        raise InputError(f"there is no file {path}: {remedy}")
    words = {}
    for number, line in enumerate(_lines(path), start=1):
        parts = line.split()
        if len(parts) not in (0, 2):
            raise InputError(f"{path} is corrupt or truncated: line {number} must be a file name and a number")
        if parts:
            words[parts[0]] = parts[1]
    if absent := [file for file in files if file not in words]:
        raise InputError(f"{path} is corrupt or truncated: it does not list {len(absent)} images, such as {absent[0]}")
    return np.array([words[file] for file in files])


def _parts(request: Request, where: Path, files: list[str]) -> NDArray[np.str_]:
    """Return the part of each row, numbered as in the official list."""
    options, generator = request.options, np.random.default_rng(request.seed)
    if options.split_by == "official":
        return _listed(where / PARTITION, files, "get it from CelebA, or set data.options.split_by = 'identity'")
    groups: NDArray[np.str_] = np.array(files)
    if options.split_by == "identity":
        groups = _listed(where / IDENTITIES, files, "get it from CelebA, or set data.options.split_by = 'rows'")
    values, group = np.unique(groups, return_inverse=True)
    order = generator.permutation(len(values))
    # Take whole groups in random order until there are enough rows.
    before = np.cumsum(np.bincount(group)[order]) - np.bincount(group)[order]
    test = order[before < round(options.test_share * len(files))]
    return np.where(np.isin(group, test), PARTS["test"], PARTS["train"])

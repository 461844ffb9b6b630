"""data: CelebA: faces with 40 binary attributes, from `list_attr_celeba.txt` and images of any size."""

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
"""The pairs that Gibbs-JEM held out (its B.2), for `held_out_pairs`: beard is not No_Beard, old is not Young."""


def read_celeba(request: Request) -> Dataset:
    """Faces, uint8 `[n, 3, H, W]`, 64 x 64 unless the options say otherwise, with binary attributes.

    Images are cropped to the largest centered square and resized: the whole width of a face's image, 178 of 178 x 218
    pixels, or 89 of 89 x 109 in copies of half the size. Attributes are counted and chosen over all rows of the list.
    Test rows are those of whole identities, drawn by the seed until they are the share that the options say; with
    `split_by = "official"` those that the official list calls test, while its validation rows are in neither split.
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
    """All images of the list, decoded once and then kept in the cache."""
    sources = image_sources(where)

    def build() -> Dataset:
        x = images_called(files, sources, frame, name=name)
        return Dataset(torch.from_numpy(x), torch.zeros(len(x), 0, dtype=torch.int64), LabelSpace.none(), name)

    return cached(name, build, [where / ATTRIBUTES, *sources], frame)


def read_attributes(path: Path) -> tuple[list[str], Attributes]:
    """The file names and attributes in a list: a count, the names, then a line an image with 1 and -1."""
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
    """The word that a list has for each image."""
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
    """The part that each row belongs to, as the official list numbers them."""
    options, generator = request.options, np.random.default_rng(request.seed)
    if options.split_by == "official":
        return _listed(where / PARTITION, files, "get it from CelebA, or set data.options.split_by = 'identity'")
    groups: NDArray[np.str_] = np.array(files)
    if options.split_by == "identity":
        groups = _listed(where / IDENTITIES, files, "get it from CelebA, or set data.options.split_by = 'rows'")
    values, group = np.unique(groups, return_inverse=True)
    order = generator.permutation(len(values))
    # Whole groups, in a random order, until there are enough rows.
    before = np.cumsum(np.bincount(group)[order]) - np.bincount(group)[order]
    test = order[before < round(options.test_share * len(files))]
    return np.where(np.isin(group, test), PARTS["test"], PARTS["train"])

"""data: the data sets that are known by name, and where their files are looked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from jointenergy.data.base import Dataset
from jointenergy.data.digits import LABELS as DIGITS
from jointenergy.data.digits import digits
from jointenergy.data.folders import image_folder
from jointenergy.data.idx import idx_folder
from jointenergy.data.toy import toy
from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace, nearest

VARIABLE = "JOINTENERGY_DATA"
SPLITS = ("train", "test")

ARTICLES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_ROWS = {"train": 50_000, "test": 10_000}

_WHERE = f"; --data DIR or {VARIABLE} names the folder"

Reader = Callable[[Path | None, str, int], Dataset]
"""Reads one split from a folder (None: not named), with a seed for what is generated or split here."""


def _folder(name: str, folder: Path | None, wanted: str) -> Path:
    """Where the files of a set lie: in the folder's sub-folder with its name if there is one, else in the folder."""
    if folder is None:
        value = os.environ.get(VARIABLE)
        if not value:
            raise InputError(f"data set {name!r} needs {wanted}{_WHERE}")
        folder = Path(value)
    if not folder.is_dir():
        raise InputError(f"data set {name!r} needs {wanted} in {folder}, which is no folder{_WHERE}")
    return folder / name if (folder / name).is_dir() else folder


def _digits(folder: Path | None, split: str, seed: int) -> Dataset:
    both = digits(seed)
    return both.train if split == "train" else both.test


def _toy(folder: Path | None, split: str, seed: int) -> Dataset:
    both = toy(seed)
    return both.train if split == "train" else both.test


def _mnist(folder: Path | None, split: str, seed: int) -> Dataset:
    where = _folder("mnist", folder, "its four idx files, as in the MNIST database of LeCun, Cortes and Burges")
    source = f": they come with the MNIST database of LeCun, Cortes and Burges{_WHERE}"
    return idx_folder(where, split, DIGITS, name="mnist", source=source)


def _fashion_mnist(folder: Path | None, split: str, seed: int) -> Dataset:
    where = _folder("fashion-mnist", folder, "its four idx files, as in Zalando Research's Fashion-MNIST")
    source = f": they come with Zalando Research's Fashion-MNIST{_WHERE}"
    return idx_folder(where, split, LabelSpace({"article": ARTICLES}), name="fashion-mnist", source=source)


def _cifar10(folder: Path | None, split: str, seed: int) -> Dataset:
    wanted = f"image folders {split}/<class>/*, plain or in tar archives (CIFAR-10 of Krizhevsky, Nair and Hinton)"
    where = _folder("cifar10", folder, wanted)
    archives = sorted(where.glob("*.tar*"))
    sources = [where] if (where / split).is_dir() else [a for a in archives if split in a.name] or archives
    if not sources:
        raise InputError(f"data set 'cifar10' needs {wanted} in {where}, where none are{_WHERE}")
    dataset = image_folder(sources, prefix=f"{split}/", classes=CIFAR10, name="cifar10")
    if len(dataset) != CIFAR10_ROWS[split]:
        raise InputError(
            f"the {split} split of 'cifar10' has {CIFAR10_ROWS[split]} images, {len(dataset)} are in "
            f"{', '.join(map(str, sources))}: a part is missing, or it is another data set, which image_folder reads"
        )
    return dataset


READERS: dict[str, Reader] = {
    "digits": _digits,
    "toy": _toy,
    "mnist": _mnist,
    "fashion-mnist": _fashion_mnist,
    "cifar10": _cifar10,
}


def load(name: str, folder: Path | str | None = None, split: str = "train", *, seed: int = 0) -> Dataset:
    """The `split` ("train" or "test") of the data set called `name`.

    `digits` and `toy` come with the library, and `seed` says how they are split or drawn. The others are read from
    `folder`, or else the folder that the environment variable JOINTENERGY_DATA names: from its sub-folder with the
    set's name if there is one, else from the folder itself. Nothing is downloaded.
    """
    if name not in READERS:
        raise InputError(f"there is no data set called {name!r}: {nearest(name, list(READERS))}")
    if split not in SPLITS:
        raise InputError(f"data set {name!r} has the splits 'train' and 'test', not {split!r}")
    return READERS[name](None if folder is None else Path(folder), split, seed)

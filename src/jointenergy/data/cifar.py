"""data: CIFAR-10 and CIFAR-100 in their binary layout, their python layout, or as image folders.

The layout is recognized by the file names, unpacked or in the official archives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jointenergy.data.archives import tar_files
from jointenergy.data.base import Dataset
from jointenergy.data.cache import cached
from jointenergy.data.folders import Pixels, image_folder
from jointenergy.data.request import Request
from jointenergy.data.unpickling import unpickle
from jointenergy.errors import InputError
from jointenergy.files.reading import content_of
from jointenergy.labels import LabelSpace
from jointenergy.limits import MEMBER_BYTES

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
CIFAR100 = tuple(_CIFAR100.split())
CIFAR10_ROWS = {"train": 50_000, "test": 10_000}
CIFAR100_ROWS = {"train": 50_000, "test": 10_000}
SHAPE = (3, 32, 32)
N_PIXELS = 3072

Rows = tuple[Pixels, NDArray[Any]]


@dataclass(frozen=True)
class Layout:
    """Describe the files of a layout, in the folder, in its sub-folder `inside` or in the `archive`."""

    inside: str
    archive: str
    files: dict[str, tuple[str, ...]]
    read: Callable[[bytes, str], Rows]

    def contents(self, where: Path, split: str) -> list[tuple[str, bytes]] | None:
        """Return the display name and content of each file of the split; None if there are none."""
        wanted = self.files[split]
        for folder in (where, where / self.inside):
            found = [folder / file for file in wanted if (folder / file).is_file()]
            if found and len(found) < len(wanted):
                absent = next(file for file in wanted if not (folder / file).is_file())
                raise InputError(
                    f"{folder} has {found[0].name} and no {absent}: a part of the {split} split is missing"
                )
            if found:
                return [(str(file), content_of(file, MEMBER_BYTES)) for file in found]
        archive = where / self.archive
        return self.members(archive, wanted) if archive.is_file() else None

    def members(self, archive: Path, wanted: Sequence[str]) -> list[tuple[str, bytes]]:
        files = tar_files(archive, lambda name: PurePosixPath(name).name in wanted)
        found = {PurePosixPath(name).name: content for name, content in files}
        if absent := [name for name in wanted if name not in found]:
            raise InputError(f"archive {archive} is truncated, or another one: it has no {absent[0]}")
        return [(f"{archive}:{name}", found[name]) for name in wanted]


def _binary(n_labels: int) -> Callable[[bytes, str], Rows]:
    """Read records of label bytes, of which the last counts, and 3,072 pixel bytes."""
    size = n_labels + N_PIXELS

    def read(content: bytes, shown: str) -> Rows:
        if not content or len(content) % size:
            raise InputError(f"{shown} is corrupt or truncated: its {len(content)} bytes are no records of {size}")
        records = np.frombuffer(content, np.uint8).reshape(-1, size)
        return records[:, n_labels:].reshape(-1, *SHAPE), records[:, n_labels - 1]

    return read


def _python(label: bytes) -> Callable[[bytes, str], Rows]:
    """Read a pickled dict with the pixels under "data" and the labels under their own key."""

    def read(content: bytes, shown: str) -> Rows:
        found = unpickle(content, shown)
        parts = (
            {k.encode() if isinstance(k, str) else k: v for k, v in found.items()} if isinstance(found, dict) else {}
        )
        x, y = parts.get(b"data"), parts.get(label)
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != N_PIXELS:
            raise InputError(f"{shown} holds no array 'data' of bytes with {N_PIXELS} columns: it is no file of CIFAR")
        if not isinstance(y, list) or len(y) != len(x) or not all(type(v) is int for v in y):
            raise InputError(f"{shown} holds no list {label.decode()!r} of {len(x)} numbers: it is no file of CIFAR")
        return x.reshape(-1, *SHAPE), np.array(y)

    return read


_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
LAYOUTS = {
    "cifar10": (
        Layout(
            "cifar-10-batches-bin",
            "cifar-10-binary.tar.gz",
            {"train": tuple(f"{name}.bin" for name in _BATCHES), "test": ("test_batch.bin",)},
            _binary(1),
        ),
        Layout(
            "cifar-10-batches-py",
            "cifar-10-python.tar.gz",
            {"train": tuple(_BATCHES), "test": ("test_batch",)},
            _python(b"labels"),
        ),
    ),
    "cifar100": (
        Layout(
            "cifar-100-binary",
            "cifar-100-binary.tar.gz",
            {"train": ("train.bin",), "test": ("test.bin",)},
            _binary(2),
        ),
        Layout(
            "cifar-100-python",
            "cifar-100-python.tar.gz",
            {"train": ("train",), "test": ("test",)},
            _python(b"fine_labels"),
        ),
    ),
}


def read_cifar(request: Request) -> Dataset:
    """Read CIFAR-10, or CIFAR-100 with its 100 fine classes, uint8 `[n, 3, 32, 32]`."""
    name, split = request.name, request.split
    classes, rows = (CIFAR10, CIFAR10_ROWS) if name == "cifar10" else (CIFAR100, CIFAR100_ROWS)
    wanted = (
        f"its binary or python files, or image folders {split}/<class>/*, plain or in tar archives "
        f"(CIFAR-{len(classes)} of Krizhevsky, Nair and Hinton)"
    )
    where = request.where(wanted)
    read = _from_files(request, where, classes) or _from_images(request, where, classes)
    if read is None:
        raise request.missing(wanted, where)
    dataset, sources = read
    if len(dataset) != rows[split]:
        raise InputError(
            f"the {split} split of {name!r} has {rows[split]} images, {len(dataset)} are in {sources}: "
            "a part is missing, or it is another data set, which 'images' reads"
        )
    return dataset


def _from_files(request: Request, where: Path, classes: tuple[str, ...]) -> tuple[Dataset, str] | None:
    """Read the split from the layout whose files exist; return their names too, or None if there are none."""
    for layout in LAYOUTS[request.name]:
        contents = layout.contents(where, request.split)
        if contents is not None:
            parts = [layout.read(content, shown) for shown, content in contents]
            x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
            sources = ", ".join(shown for shown, _ in contents)
            return _labeled(x, y, classes, request.name, sources), sources
    return None


def _from_images(request: Request, where: Path, classes: tuple[str, ...]) -> tuple[Dataset, str] | None:
    name, split = request.name, request.split
    official = {layout.archive for layout in LAYOUTS[name]}
    archives = [a for a in sorted(where.glob("*.tar*")) if a.name not in official]
    found = [where] if (where / split).is_dir() else [a for a in archives if split in a.name] or archives
    if not found:
        return None
    traced = [where / split] if found == [where] else found
    build = functools.partial(image_folder, found, prefix=f"{split}/", classes=classes, name=name)
    return cached(name, build, traced, split), ", ".join(map(str, found))


def _labeled(x: Pixels, y: NDArray[Any], classes: tuple[str, ...], name: str, sources: str) -> Dataset:
    labels = LabelSpace({"class": classes})
    try:
        return Dataset(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)), labels, name)
    except InputError as error:
        raise InputError(f"{sources} does not hold the labels of {name!r}: {error}") from error

"""data: idx files, the format of MNIST and its relatives, plain or gzipped."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from jointenergy.data.base import Dataset
from jointenergy.errors import InputError
from jointenergy.files.reading import opened, told
from jointenergy.labels import LabelSpace
from jointenergy.limits import memory

PREFIXES = {"train": "train", "test": "t10k"}
_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTE = 8
_AT_ONCE = 1 << 20  # bytes


def read_idx(path: Path | str, n_dims: int) -> Tensor:
    """Read the array of an idx file, uint8 with `n_dims` dimensions (3 for images, 1 for labels)."""
    return torch.cat(list(idx_pieces(path, n_dims)))


def idx_pieces(path: Path | str, n_dims: int, size: int | None = None) -> Iterator[Tensor]:
    """Yield the array of `read_idx` in pieces of `size` rows, or whole."""
    with opened(Path(path)) as plain, told(f"{path} is corrupt or truncated"):
        packed = plain.read(2) == _GZIP
        plain.seek(0)
        if packed:
            with gzip.open(plain) as file:
                yield from _pieces(file, path, n_dims, size)
        else:
            yield from _pieces(plain, path, n_dims, size)


def _pieces(file: BinaryIO | gzip.GzipFile, path: Path | str, n_dims: int, size: int | None) -> Iterator[Tensor]:
    sizes = _sizes(file.read(4 + 4 * n_dims), path, n_dims)
    n_rows, row = sizes[0], math.prod(sizes[1:])
    shown = " x ".join(map(str, sizes))
    if (size is None and n_rows * row > memory()) or (row == 0 and n_rows > 0):
        raise InputError(f"{path} is corrupt, or too large to be read: its header promises {shown} values")
    read = 0
    for begin in range(0, max(1, n_rows), size or max(1, n_rows)):
        n = min(size or n_rows, n_rows - begin)
        content = _read(file, n * row)
        read += len(content)
        if len(content) < n * row:
            break
        yield torch.from_numpy(np.frombuffer(content, np.uint8).reshape(n, *sizes[1:]))
    read += len(file.read(_AT_ONCE))
    if read != n_rows * row:
        raise InputError(f"{path} is corrupt or truncated: its header promises {shown} values, {read} follow")


def _read(file: BinaryIO | gzip.GzipFile, n: int) -> bytearray:
    """Read n bytes, or as many as there are: a broken header may state more than fits in memory."""
    content = bytearray()
    while more := file.read(min(_AT_ONCE, n - len(content))):
        content += more
    return content


def _sizes(head: bytes, path: Path | str, n_dims: int) -> tuple[int, ...]:
    """Read the sizes in the header of an idx file; raise InputError if it is not one."""
    magic = bytes((0, 0, _UNSIGNED_BYTE, n_dims))
    if head[:4] != magic:
        raise InputError(
            f"{path} is no idx file of {'labels' if n_dims == 1 else 'images'}: it begins with the bytes "
            f"{head[:4].hex(' ') or 'of an empty file'} where {magic.hex(' ')} is expected"
        )
    if len(head) < 4 + 4 * n_dims:
        raise InputError(f"{path} is corrupt or truncated: it ends within its header, so of its values, 0 follow")
    return tuple(int.from_bytes(head[at : at + 4], "big") for at in range(4, 4 + 4 * n_dims, 4))


def idx_files(
    images: Path | str, labels: Path | str, space: LabelSpace | None = None, *, name: str = "idx", first_label: int = 0
) -> Dataset:
    """Read images, uint8 `[n, 1, H, W]`, and one label each from two idx files of any name.

    Labels in the file count from `first_label` (EMNIST letters: 1). Without a `space` the label is called "class" and
    has as many values as the file shows.
    """
    x, y = read_idx(images, 3)[:, None], read_idx(labels, 1).long() - first_label
    if len(x) != len(y):
        raise InputError(f"{images} holds {len(x)} images, {labels} holds {len(y)} labels: they do not belong together")
    if space is None:
        if not len(y):
            raise InputError(f"{labels} holds no labels: say which there are with a LabelSpace")
        space = LabelSpace({"class": int(y.max()) + 1})
    try:
        return Dataset(x, y, space, name)
    except InputError as error:
        raise InputError(f"{labels} does not hold the labels of {name!r}: {error}") from error


def idx_folder(
    folder: Path | str, split: str, space: LabelSpace | None = None, *, name: str = "idx", source: str = ""
) -> Dataset:
    """Read the `split` "train" or "test" of `folder`, under MNIST's file names; `source` ends the error for missing
    files."""
    if split not in PREFIXES:
        raise InputError(f"data set {name!r} has the splits 'train' and 'test', not {split!r}")
    wanted = [f"{PREFIXES[split]}-images-idx3-ubyte", f"{PREFIXES[split]}-labels-idx1-ubyte"]
    found = [_find(Path(folder), file) for file in wanted]
    missing = [file for file, path in zip(wanted, found, strict=True) if path is None]
    if missing:
        raise InputError(
            f"the {split} split of {name!r} needs the files {' and '.join(wanted)} (.gz or not) in {folder}, "
            f"where {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing" + source
        )
    images, labels = (path for path in found if path is not None)
    return idx_files(images, labels, space, name=name)


def _find(folder: Path, file: str) -> Path | None:
    """Find the file with or without .gz, also with a dot before "idx" as in some copies of MNIST."""
    names = [spelled + end for spelled in (file, file.replace("-idx", ".idx")) for end in (".gz", "")]
    return next((folder / name for name in names if (folder / name).is_file()), None)

"""data: idx files, the format of MNIST and its relatives, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from jointenergy.data.base import Dataset
from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace

PREFIXES = {"train": "train", "test": "t10k"}
_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTE = 8


def read_idx(path: Path | str, n_dims: int) -> Tensor:
    """The array of unsigned bytes in an idx file, uint8 with `n_dims` dimensions (3 for images, 1 for labels)."""
    content = _content(Path(path))
    magic = bytes((0, 0, _UNSIGNED_BYTE, n_dims))
    if content[:4] != magic:
        raise InputError(
            f"{path} is no idx file of {'labels' if n_dims == 1 else 'images'}: it begins with the bytes "
            f"{content[:4].hex(' ') or 'of an empty file'} where {magic.hex(' ')} is expected"
        )
    start = 4 + 4 * n_dims
    sizes = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if len(content) != start + math.prod(sizes) or len(content) < start:
        raise InputError(
            f"{path} is corrupt or truncated: its header promises {' x '.join(map(str, sizes))} values, "
            f"{max(0, len(content) - start)} follow"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(sizes).copy())


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is corrupt or truncated: {error}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def idx_files(
    images: Path | str, labels: Path | str, space: LabelSpace | None = None, *, name: str = "idx", first_label: int = 0
) -> Dataset:
    """Images, uint8 `[n, 1, H, W]`, and one label each from two idx files; any names will do.

    The labels in the file count from `first_label` (EMNIST letters: 1). Without a `space` the label is called "class"
    and has as many values as the file shows.
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
    """The `split` "train" or "test" in `folder`, under MNIST's file names; `source` ends a sentence on missing ones."""
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
    """The file with or without .gz, also as some copies of MNIST spell it, with a dot before "idx"."""
    names = [spelled + end for spelled in (file, file.replace("-idx", ".idx")) for end in (".gz", "")]
    return next((folder / name for name in names if (folder / name).is_file()), None)

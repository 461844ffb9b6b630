"""data: a cache folder, which may be deleted at any time, for data sets and features that take long to compute.

An entry is one file, named by a digest of the names, sizes and times of its source files and of the options. It is
written to a temporary name and then moved, so that no partial file is ever read. Arrays have checksums, and damaged
entries are computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointenergy.data.arrays import arrays_of
from jointenergy.data.base import Dataset
from jointenergy.errors import InputError
from jointenergy.files.writing import whole
from jointenergy.labels import LabelSpace

VARIABLE = "JOINTENERGY_CACHE"
_DAMAGED = (OSError, ValueError, TypeError, KeyError, RecursionError)
_FORM = 1  # raise it when the same key must give another array


def cache_folder() -> Path:
    """Return the cache folder: JOINTENERGY_CACHE, or the user's cache folder."""
    value = os.environ.get(VARIABLE)
    if value:
        return Path(value)
    import pooch  # imported here because it is slow to load

    return Path(pooch.os_cache("jointenergy"))


def cached(name: str, build: Callable[[], Dataset], sources: Iterable[Path], *about: object) -> Dataset:
    """Return the data set that `build` makes from the files and folders `sources`, from the cache if possible.

    `about` is everything else that it depends on, compared by `repr`. A cache that cannot be written only costs time.
    """
    key = repr((_FORM, name, about, [entry for source in sources for entry in _traces(source)]))
    path = cache_folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"
    found = _read(path, name)
    if found is None:
        found = build()
        labels = json.dumps(dict(zip(found.labels.names, found.labels.values, strict=True)))
        _write(path, x=found.x.numpy(), y=found.y.numpy(), labels=np.array(labels))
    return found


def cached_features(name: str, key: str, n: int, build: Callable[[], Tensor]) -> Tensor:
    """Return the features `[n, d]` of `build`, from the cache if possible; `key` holds everything they depend on."""
    path = cache_folder() / f"{name}-{hashlib.sha256(repr((_FORM, key)).encode()).hexdigest()[:32]}.npz"
    try:
        features = torch.from_numpy(arrays_of(path)["features"])
        if features.ndim == 2 and len(features) == n and features.is_floating_point():
            return features
    except _DAMAGED:
        pass
    features = build()
    _write(path, features=features.cpu().numpy())
    return features


def _traces(source: Path) -> list[tuple[str, int, int]]:
    """Return path, size and time of a file, or of every file in a folder."""
    if not source.is_dir():
        return [_trace(source, str(source.absolute()))]
    folders = [(Path(folder), sorted(files)) for folder, _, files in sorted(os.walk(source))]
    return [_trace(folder / file, str((folder / file).absolute())) for folder, files in folders for file in files]


def _trace(file: Path, shown: str) -> tuple[str, int, int]:
    try:
        status = file.stat()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    return shown, status.st_size, status.st_mtime_ns


def _read(path: Path, name: str) -> Dataset | None:
    """Read a cache file; None if it does not exist or is damaged."""
    try:
        found = arrays_of(path)
        labels = LabelSpace(json.loads(str(found["labels"])))
        return Dataset(torch.from_numpy(found["x"]), torch.from_numpy(found["y"]), labels, name)
    except _DAMAGED:
        return None


def _write(path: Path, **arrays: NDArray[Any]) -> None:
    with contextlib.suppress(OSError):  # a full or read-only disk
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as part:
            np.savez(part, **cast(Any, arrays))

"""data: data sets and features that take long to make, kept as arrays in a cache folder that may be deleted any time.

An entry is one file, named by a digest of what it was made of: the names, sizes and times of the source files and the
options. It is written beside its place and then moved there, so that nothing half-read is ever found, and every array
in it is under a checksum: what is damaged is made anew.
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
_FORM = 1  # counts up when the same key must give another array


def cache_folder() -> Path:
    """Where decoded data sets are kept: the folder that JOINTENERGY_CACHE names, or the user's own cache folder."""
    value = os.environ.get(VARIABLE)
    if value:
        return Path(value)
    import pooch  # here, as it loads more than most programs need

    return Path(pooch.os_cache("jointenergy"))


def cached(name: str, build: Callable[[], Dataset], sources: Iterable[Path], *about: object) -> Dataset:
    """The data set that `build` makes of the files and folders `sources`, from the cache where it is known.

    `about` is all else that it depends on, compared by `repr`. A cache that cannot be written only costs time.
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
    """The features `[n, d]` that `build` extracts, from the cache where `key` is known: it tells all they depend on."""
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
    """Path, size and time of a file, or of every file in a folder."""
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
    """What a cache file holds; None where there is none, or where it is damaged."""
    try:
        found = arrays_of(path)
        labels = LabelSpace(json.loads(str(found["labels"])))
        return Dataset(torch.from_numpy(found["x"]), torch.from_numpy(found["y"]), labels, name)
    except _DAMAGED:
        return None


def _write(path: Path, **arrays: NDArray[Any]) -> None:
    with contextlib.suppress(OSError):  # a full or foreign disk
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as part:
            np.savez(part, **cast(Any, arrays))

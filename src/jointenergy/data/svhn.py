"""data: SVHN's cropped digits, from its MATLAB files or as image folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from jointenergy.data.base import Dataset
from jointenergy.data.cache import cached
from jointenergy.data.digits import LABELS
from jointenergy.data.folders import image_folder, image_sources
from jointenergy.data.matlab import matlab_arrays
from jointenergy.data.request import Request
from jointenergy.errors import InputError


def read_svhn(request: Request) -> Dataset:
    """Read color digits, uint8 `[n, 3, 32, 32]`, from <split>_32x32.mat or from images <split>/<digit>/*."""
    name, split = request.name, request.split
    wanted = f"{split}_32x32.mat, or image folders {split}/<digit>/* (SVHN of Netzer et al., format 2)"
    where = request.where(wanted)
    file = where / f"{split}_32x32.mat"
    if file.is_file():
        return read_mat(file, name)
    sources = [where] if (where / split).is_dir() else [s for s in image_sources(where) if not s.is_dir()]
    if not sources:
        raise request.missing(wanted, where)
    traced = [where / split] if sources == [where] else sources
    return cached(
        name,
        lambda: image_folder(sources, prefix=f"{split}/", classes=LABELS.values[0], label="digit", name=name),
        traced,
        split,
    )


def read_mat(path: Path, name: str = "svhn") -> Dataset:
    """Read a MATLAB file with X `[32, 32, 3, n]` and y `[n, 1]`, where 10 stands for the digit 0."""
    found = matlab_arrays(path, ("X", "y"))
    x, y = found.get("X"), found.get("y")
    if x is None or x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3:
        raise InputError(f"{path} holds no array X of bytes, [height, width, 3, n]: it is no file of SVHN")
    if y is None or y.size != x.shape[3] or not np.isin(y, range(1, 11)).all():
        raise InputError(f"{path} holds no array y of {x.shape[3]} digits from 1 to 10: it is no file of SVHN")
    images = np.ascontiguousarray(x.transpose(3, 2, 0, 1))
    digits = y.reshape(-1).astype(np.int64) % 10
    return Dataset(torch.from_numpy(images), torch.from_numpy(digits), LABELS, name)

"""cli: masks of the known part of inputs, from text: half of an image, a file, or column names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from jointenergy.cli.inputs import ARRAYS, size_of
from jointenergy.data.arrays import array_of
from jointenergy.data.fitting import image_form
from jointenergy.data.folders import decode, image_bytes
from jointenergy.errors import InputError
from jointenergy.labels import nearest
from jointenergy.runs import Run
from jointenergy.runs.arrays import tensor_of

HALVES = ("upper", "lower", "left", "right")


def mask_of(text: str, run: Run, n: int, columns: Sequence[str] = ()) -> Tensor:
    """Return the known part of n rows (one mask, or one per row): a half, a file (True or white), or columns."""
    found = _part_of(text, run, columns)
    mask = run.mask(found)
    if tuple(mask.shape) not in (run.event_shape, (n, *run.event_shape)):
        raise InputError(
            f"the mask {text} has shape {tuple(found.shape)}: give one mask of {size_of(run)}, or one for each of the "
            f"{n} inputs"
        )
    return mask


def _part_of(text: str, run: Run, columns: Sequence[str]) -> Tensor:
    form = image_form(run.event_shape)
    if text in HALVES and form is not None:
        _, height, width = form
        rows, across = torch.arange(height)[:, None], torch.arange(width)
        half = {"upper": rows < height / 2, "lower": rows >= height / 2}.get(text)
        if half is None:
            half = across < width / 2 if text == "left" else across >= width / 2
        return half.expand(form).reshape(run.event_shape)
    path = Path(text)
    if path.exists():
        return _mask_file(path, run, form)
    chosen = [c.strip() for c in text.split(",")]
    if columns and all(c in columns for c in chosen):
        return torch.tensor([c in chosen for c in columns]).view(run.event_shape)
    known = [*HALVES, *columns] if form is not None else list(columns)
    wrong = next((c for c in chosen if c not in known), text)
    raise InputError(f"--mask names the known part: {wrong!r} is no file and no part;  {nearest(wrong, known)}")


def _mask_file(path: Path, run: Run, form: tuple[int, int, int] | None) -> Tensor:
    if path.suffix.lower() in ARRAYS:
        found = array_of(path)
        if found.dtype != np.bool_:
            raise InputError(f"the mask {path.name} must be an array of True and False, got {found.dtype}")
        return torch.from_numpy(found)
    if form is None:
        raise InputError(f"a picture cannot mask rows of shape {run.event_shape}: give a .npy file")
    pixels = tensor_of(decode(image_bytes(path), str(path), "L", None), "the mask")
    if tuple(pixels.shape[1:]) != form[1:]:
        raise InputError(
            f"the mask {path.name} is {pixels.shape[1]} x {pixels.shape[2]} pixels; expected {size_of(run)}"
        )
    return (pixels >= 128).expand(form).reshape(run.event_shape)

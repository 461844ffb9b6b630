"""runs: convert arrays, tensors, data frames or lists to the format of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointenergy.data import View
from jointenergy.errors import InputError, plural
from jointenergy.inputs import has_no_value
from jointenergy.labels import Given


class DataFrame(Protocol):
    """Protocol of a data frame, such as that of pandas."""

    def to_numpy(self) -> NDArray[Any]: ...


Array = Tensor | NDArray[Any] | DataFrame | Sequence[Any]
Labels = Given | NDArray[Any] | DataFrame | Sequence[Any]
"""Labels by name, or an array with MISSING where they are unknown."""


def rows_of(
    x: Array, event_shape: tuple[int, ...], bounds: tuple[float, float], like: Tensor, *, whole: bool = False
) -> Tensor:
    """Convert x to the dtype and device of `like`; uint8 pixels, 0 to 255, are scaled to the bounds.

    A single row may lack the first dimension, and images may lack dimensions of size 1. Runs of flat rows also accept
    gray images. Whole numbers are floats in lists and data frames, and with `whole` in all arrays.
    """
    found = tensor_of(x, "x")
    if found.dtype == torch.uint8:
        found = View.of(bounds).of_pixels(found)
    elif not found.is_floating_point() and (whole or not isinstance(x, Tensor | np.ndarray)) and not found.is_complex():
        found = found.double()
    if found.is_floating_point():  # the model refuses other dtypes
        wide, found = found, found.to(like)
        check_finite(found, wide)
    return shaped(found, event_shape)


def check_finite(x: Tensor, wide: Tensor, name: str = "x") -> None:
    """Refuse infinite values of x, with the largest of `wide` where they come from a conversion; NaN may pass."""
    infinite = x.isinf()
    if not bool(infinite.any()):
        return
    n, largest = int(infinite.sum()), float(wide[infinite].abs().max())
    if math.isinf(largest):
        raise InputError(f"{name} has {plural(n, 'infinite value')}: replace them, or leave their rows out")
    raise InputError(
        f"{name} has values up to {largest:.3g}, more than the {torch.finfo(x.dtype).max:.3g} that {x.dtype} can hold: "
        "scale it"
    )


def check_near(x: Tensor, bounds: tuple[float, float], name: str = "x") -> None:
    """Refuse known values far outside the bounds, such as pixels from 0 to 255; a little noise beyond them may pass."""
    low, high = bounds
    known = x[~x.isnan()]
    if known.numel() and not bool(((known - (low + high) / 2).abs() <= 1.5 * (high - low)).all()):
        raise InputError(
            f"{name} has values from {float(known.min()):g} to {float(known.max()):g}, but the run expects x between "
            f"{low:g} and {high:g}: scale it, or give pixels as uint8"
        )


def shaped(x: Tensor, event_shape: tuple[int, ...]) -> Tensor:
    """Reshape x to `[n, *event]`, if only dimensions of size 1 or the flattening of a gray image differ."""
    if x.shape == event_shape:
        return x[None]
    if x.ndim < 2 or x.shape[1:] == event_shape:
        return x
    if x.ndim == 4 and len(event_shape) == 3 and x.shape[1:] == (*event_shape[1:], event_shape[0]):
        return x.permute(0, 3, 1, 2).contiguous()  # channels last to channels first
    own, wanted = ([s for s in shape if s != 1] for shape in (x.shape[1:], event_shape))
    # Flattened color images are ambiguous (channels first or last), so they are not reshaped.
    grey = len(wanted) == 1 and len(own) <= 2 and math.prod(x.shape[1:]) == wanted[0]
    return x.reshape(len(x), *event_shape) if own == wanted or grey else x


def shaped_mask(mask: Tensor, event_shape: tuple[int, ...]) -> Tensor:
    """Reshape a mask of one or many rows to the shape of x."""
    one = shaped(mask[None], event_shape)
    return one[0] if one.shape[1:] == event_shape else shaped(mask, event_shape)


def tensor_of(value: object, name: str) -> Tensor:
    """Convert an array, a data frame or a list of numbers to a tensor, NaN where a masked array has no value.

    Tensors are returned as they are.
    """
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "to_numpy"):  # a data frame
        value = value.to_numpy()
    if isinstance(value, list):
        try:
            value = np.ma.stack(value) if any(map(np.ma.isMaskedArray, value)) else np.asarray(value)
        except ValueError:
            raise InputError(f"{name} must be one array, but its rows have different lengths") from None
    if not isinstance(value, np.ndarray):
        raise InputError(f"{name} must be an array, a tensor, a data frame or a list, got {type(value).__name__}")
    if value.dtype.names is not None:
        raise InputError(f"{name} must hold numbers, got an array of {value.dtype}")
    if np.ma.is_masked(value) and value.dtype == np.uint8:
        raise InputError(
            f"{name} has masked entries, which pixels cannot have: pass it as floats, scaled to the bounds"
        )
    value = unmasked(value)
    if value.dtype.kind in "OUS":
        try:  # such as a column of numbers with None
            cells = [np.nan if has_no_value(v) else v for v in value.ravel().tolist()]
            value = np.array(cells, dtype=np.float64).reshape(value.shape)
        except (TypeError, ValueError):
            raise InputError(f"{name} must be numbers, but has other values: encode words as numbers") from None
    # Torch supports neither foreign byte orders nor floats beyond 64 bits.
    long = value.dtype.kind == "f" and value.itemsize > 8
    value = value.astype(np.float64 if long else value.dtype.newbyteorder("="), copy=False)
    try:
        # Copy if torch cannot share the memory: negative strides or a read-only array.
        return torch.from_numpy(value if value.flags.writeable and value.flags.c_contiguous else value.copy(order="C"))
    except TypeError:
        raise InputError(f"{name} must hold numbers, got an array of {value.dtype}") from None


def unmasked(value: object) -> NDArray[Any]:
    """Convert to an array, with NaN (or None among words) where a masked array is masked."""
    if not (isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value)):
        return np.asarray(value)
    number = value.dtype.kind in "biuf"
    found = np.array(value.data, dtype=np.float64 if number else object)
    found[value.mask] = np.nan if number else None
    return found

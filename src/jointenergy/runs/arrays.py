"""runs: x and labels as users have them, numpy arrays or tensors, made into what the model takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointenergy.data import View
from jointenergy.errors import InputError
from jointenergy.labels import Given

Array = Tensor | NDArray[Any]
Labels = Given | NDArray[Any]
"""Labels by names, or as an array with MISSING where they are not known."""


def rows_of(x: Array, event_shape: tuple[int, ...], bounds: tuple[float, float], like: Tensor) -> Tensor:
    """x in the dtype and on the device of `like`: uint8 is pixels, 0 to 255, seen as the bounds say.

    A single row may come without its first dimension, and images without the dimensions of size 1; a run of flat rows
    takes grey images too.
    """
    x = tensor_of(x, "x")
    if x.dtype == torch.uint8:
        x = View.of(bounds).of_pixels(x)
    if x.is_floating_point():  # others are refused by the model, with a sentence
        x = x.to(like)
    return shaped(x, event_shape)


def shaped(x: Tensor, event_shape: tuple[int, ...]) -> Tensor:
    """x as `[n, *event]` where only dimensions of size 1, or the flattening of a grey image, stand between."""
    if x.shape == event_shape:
        return x[None]
    if x.ndim < 2 or x.shape[1:] == event_shape:
        return x
    if x.ndim == 4 and len(event_shape) == 3 and x.shape[1:] == (*event_shape[1:], event_shape[0]):
        return x.permute(0, 3, 1, 2).contiguous()  # channels last, as most programs keep colors
    own, wanted = ([s for s in shape if s != 1] for shape in (x.shape[1:], event_shape))
    # A flattened picture of colors has no one order of its values, so it is not guessed.
    grey = len(wanted) == 1 and len(own) <= 2 and math.prod(x.shape[1:]) == wanted[0]
    return x.reshape(len(x), *event_shape) if own == wanted or grey else x


def shaped_mask(mask: Tensor, event_shape: tuple[int, ...]) -> Tensor:
    """A mask of one row, or of many, in the shape of x."""
    one = shaped(mask[None], event_shape)
    return one[0] if one.shape[1:] == event_shape else shaped(mask, event_shape)


def given_of(given: Labels) -> Given:
    """Labels as `jointenergy.inference` takes them."""
    return given if given is None or isinstance(given, Mapping) else tensor_of(given, "labels")


def tensor_of(value: Array, name: str) -> Tensor:
    """A tensor of a numpy array, or the tensor itself."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise InputError(f"{name} must be a numpy array or a tensor, got {type(value).__name__}")
    # Torch knows the machine's own order of bytes alone, and no floats of more than 64 bits.
    long = value.dtype.kind == "f" and value.itemsize > 8
    value = value.astype(np.float64 if long else value.dtype.newbyteorder("="), copy=False)
    try:
        # A copy where torch cannot share the memory: negative strides, or an array that may not be written.
        return torch.from_numpy(value if value.flags.writeable and value.flags.c_contiguous else value.copy(order="C"))
    except TypeError:
        raise InputError(f"{name} must hold numbers, got an array of {value.dtype}") from None

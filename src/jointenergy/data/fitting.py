"""data: fitting images of other sizes and colors to what a model takes, with a description of what was done."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from jointenergy.data.transforms import Resize
from jointenergy.errors import InputError

Form = tuple[int, int, int]
"""Channels, height and width."""

MOST_PADDING = 0.125  # share of a side: enough for 28 x 28 in 32 x 32
LUMA = (0.299, 0.587, 0.114)  # red, green and blue in gray, ITU-R 601, as in Pillow


def image_form(event_shape: tuple[int, ...]) -> Form | None:
    """Return channels, height and width if x is an image; square vectors are gray images."""
    shape = event_shape
    side = math.isqrt(shape[0])
    if len(shape) == 1 and side >= 4 and side * side == shape[0]:
        return 1, side, side
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 and shape[0] in (1, 3) else None


def fitted(x: Tensor, form: Form) -> tuple[Tensor, str]:
    """Fit floating-point images `[n, C, H, W]` to `[n, *form]`; describe what was done ("" for nothing).

    If the size is an integer multiple, or becomes one by a little padding, blocks of pixels are averaged, which keeps
    the grain of small images; otherwise images are resized, bilinear and antialiased.
    """
    if x.ndim != 4 or x.shape[1] not in (1, 3) or form[0] not in (1, 3):
        raise InputError(f"images are [n, 1 or 3, height, width], got {tuple(x.shape)} for {form}")
    done = []
    if x.shape[1] != form[0]:
        done.append("converted to gray" if form[0] == 1 else "converted to color with three equal channels")
        x = (x * x.new_tensor(LUMA)[:, None, None]).sum(1, keepdim=True) if form[0] == 1 else x.expand(-1, 3, -1, -1)
    if x.shape[2:] != form[1:]:
        factor = _factor(tuple(x.shape[2:]), form[1:])
        if factor:
            height, width = form[1] * factor, form[2] * factor
            if x.shape[2:] != (height, width):
                done.append(f"padded to {height} x {width} with the most common value of their border")
                x = _padded(x, height, width)
            done.append(f"averaged in blocks of {factor} x {factor}")
            x = avg_pool2d(x, factor)
        else:
            done.append(f"resized to {form[1]} x {form[2]}, bilinear and antialiased")
            x = Resize(form[1], form[2])(x)
    return x, ", ".join(done)


def _factor(size: tuple[int, ...], wanted: tuple[int, int]) -> int:
    """Return the side of the averaged blocks, 0 if averaging does not apply."""
    factors = {-(-have // want) for have, want in zip(size, wanted, strict=True)}
    if len(factors) != 1 or (factor := factors.pop()) < 2:
        return 0
    padding = max(1 - have / (want * factor) for have, want in zip(size, wanted, strict=True))
    return factor if padding <= MOST_PADDING else 0


def _padded(x: Tensor, height: int, width: int) -> Tensor:
    """Pad images on all sides with the most common value of each image's border."""
    border = torch.cat((x[..., 0, :], x[..., -1, :], x[..., 1:-1, 0], x[..., 1:-1, -1]), dim=-1)
    canvas = border.mode(dim=-1).values[..., None, None].expand(*x.shape[:2], height, width).clone()
    top, left = (height - x.shape[2]) // 2, (width - x.shape[3]) // 2
    canvas[..., top : top + x.shape[2], left : left + x.shape[3]] = x
    return canvas

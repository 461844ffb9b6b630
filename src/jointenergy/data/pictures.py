"""data: pictures of rows: grids of images, points in a plane."""

from __future__ import annotations

import math

from PIL import Image
from torch import Tensor

from jointenergy.data.views import View
from jointenergy.errors import InputError


def image_grid(x: Tensor, columns: int, bounds: tuple[float, float], zoom: int = 1, gap: int = 2) -> Image.Image:
    """Arrange images `[n, 1 or 3, height, width]` in rows of `columns`; the bounds are black and white."""
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        raise InputError(f"images must be [n, 1 or 3, height, width], got {tuple(x.shape)}")
    n, channels, height, width = x.shape
    levels = (View.of(bounds).unit(x.detach().cpu().float()) * 255).round().clamp(0, 255).byte()
    rows = -(-n // columns)
    cell = height + gap, width + gap
    grid = levels.new_full((channels, rows * cell[0] + gap, columns * cell[1] + gap), 128)
    for i, image in enumerate(levels):
        top, left = gap + (i // columns) * cell[0], gap + (i % columns) * cell[1]
        grid[:, top : top + height, left : left + width] = image
    array = grid[0].numpy() if channels == 1 else grid.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array)
    return picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)


def picture_of(x: Tensor, bounds: tuple[float, float], n: int = 64) -> Image.Image | None:
    """Draw the first rows: images as a grid, square vectors as gray images, others by their first two dimensions; None
    for rows of a single number."""
    x = x[:n].detach().cpu().float()
    shape = tuple(x.shape[1:])
    side = math.isqrt(math.prod(shape))
    if len(shape) == 1 and side >= 4 and side * side == shape[0]:
        x = x.view(-1, 1, side, side)
    elif len(shape) == 2:
        x = x[:, None]
    if x.ndim == 4 and x.shape[1] in (1, 3):
        zoom = max(1, 24 // x.shape[2])
        return image_grid(x, columns=8, bounds=bounds, zoom=zoom)
    flat = x.flatten(1)
    if flat.shape[1] < 2:
        return None
    size, (low, high) = 240, bounds
    canvas = Image.new("L", (size, size), 255)
    places = ((flat[:, :2] - low) / (high - low) * (size - 1)).nan_to_num(-1.0).round().long()
    for across, up in places.tolist():
        if 0 <= across < size and 0 <= up < size:
            canvas.putpixel((across, size - 1 - up), 0)
    return canvas

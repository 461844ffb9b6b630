"""evaluation: pictures of samples, grids that a person can look at."""

from __future__ import annotations

from PIL import Image
from torch import Tensor

from jointenergy.errors import InputError


def image_grid(x: Tensor, columns: int, bounds: tuple[float, float], zoom: int = 1, gap: int = 2) -> Image.Image:
    """Images `[n, channels, height, width]` (1 or 3 channels) in rows of `columns`, bounds black and white."""
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        raise InputError(f"images must be [n, 1 or 3, height, width], got {tuple(x.shape)}")
    n, channels, height, width = x.shape
    low, high = bounds
    levels = ((x.detach().cpu().float() - low) / (high - low) * 255).round().clamp(0, 255).byte()
    rows = -(-n // columns)
    cell = height + gap, width + gap
    grid = levels.new_full((channels, rows * cell[0] + gap, columns * cell[1] + gap), 128)
    for i, image in enumerate(levels):
        top, left = gap + (i // columns) * cell[0], gap + (i % columns) * cell[1]
        grid[:, top : top + height, left : left + width] = image
    array = grid[0].numpy() if channels == 1 else grid.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array)
    return picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)

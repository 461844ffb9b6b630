"""runs: record chains as frames and write them as an animated GIF."""

from __future__ import annotations

import io
import math
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from jointenergy.data import image_grid, picture_of
from jointenergy.data.pictures import GAP, check_pixels
from jointenergy.errors import InputError
from jointenergy.files.writing import write_bytes
from jointenergy.inputs import check_count
from jointenergy.kernels import State

SMALLEST = 48  # minimum pixels of the shorter side of an image in a picture
LARGEST = 60  # maximum number of frames
WAIT = 12  # how long the last frame is shown, in frames


class Film:
    """Frames of chains: `run.sample(16, frames=film)`, then `film.save("chains.gif", run.bounds)`."""

    def __init__(self, steps: int, n: int = 64) -> None:
        """Prepare for chains of `steps` steps, of which at most `n` are shown."""
        self.steps, self.n = check_count("steps", steps, least=0), check_count("n", n)
        self.every = max(1, math.ceil(steps / LARGEST))
        self.frames: list[Tensor] = []

    def __call__(self, step: int, state: State) -> None:
        self.add(step, state.x)

    def add(self, step: int, x: Tensor) -> None:
        """Add the chains after a step, if this step is among the recorded frames."""
        if step % self.every == 0 or step == self.steps:
            self.frames.append(x[: self.n].detach().cpu().clone())

    def save(
        self, path: Path | str, bounds: tuple[float, float], milliseconds: int = 80, columns: int | None = None
    ) -> None:
        """Write all frames as an animated GIF; images are arranged in `columns`, or in a square."""
        write_bytes(Path(path), self.content(bounds, milliseconds, columns))

    def content(self, bounds: tuple[float, float], milliseconds: int = 80, columns: int | None = None) -> bytes:
        """The bytes of that GIF."""
        pictures = [picture(x, bounds, columns) for x in self.frames]
        if not pictures:
            raise InputError("the film has no frames: pass it as frames= to sample, inpaint or compose")
        pictures = [p.convert("P", palette=Image.Palette.ADAPTIVE) for p in pictures]
        times = [milliseconds] * (len(pictures) - 1) + [WAIT * milliseconds]
        file = io.BytesIO()
        pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=times, loop=0)
        return file.getvalue()


def picture(x: Tensor, bounds: tuple[float, float], columns: int | None = None) -> Image.Image:
    """Draw rows as one picture: a grid of images, or points in a plane."""
    check_drawable(len(x), tuple(x.shape[1:]))
    images = as_images(x)
    if images is not None:
        return image_grid(images, columns or math.ceil(math.sqrt(len(x))), bounds, zoom=_zoom(images))
    drawn = picture_of(x, bounds, n=len(x))
    assert drawn is not None  # rows of two numbers
    return drawn


def check_drawable(n: int, event_shape: tuple[int, ...]) -> None:
    """Refuse n rows of a shape that `picture` cannot draw."""
    images = as_images(torch.empty(1, *event_shape))
    if images is not None:
        check_pixels(n, images.shape[2] + GAP, images.shape[3] + GAP, _zoom(images))
    elif math.prod(event_shape) != 2:
        raise InputError(f"rows of shape {event_shape} are neither images nor points: write them as .npy instead")


def _zoom(images: Tensor) -> int:
    return max(1, math.ceil(SMALLEST / min(images.shape[2:])))


def as_images(x: Tensor) -> Tensor | None:
    """Reshape rows to images `[n, 1 or 3, height, width]`, square vectors to gray ones; None if impossible."""
    side = math.isqrt(x[0].numel())
    if x.ndim == 2 and side >= 4 and side * side == x.shape[1]:
        return x.view(-1, 1, side, side)
    if x.ndim == 3:
        return x[:, None]
    return x if x.ndim == 4 and x.shape[1] in (1, 3) else None

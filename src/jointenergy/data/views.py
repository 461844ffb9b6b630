"""data: how pixels become x: scaled to the bounds of x, or dequantized and passed through the logit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from jointenergy.data.transforms import Dequantize, DequantizeBinary, Logit, Scale, dequantized
from jointenergy.errors import InputError

LOGIT = Logit()
BYTES, BINARY = 256, 8
"""Levels of dequantized bytes, and of dequantized binary images."""


class View(tuple[float, float]):
    """Hold the bounds of x, (low, high), and how pixels map to them.

    A pair of bounds is the plain view: black is the lower and white the upper bound. With `levels`, x is the logit of
    dequantized pixels, ((levels - 1) v + u) / levels with v in [0, 1]: 256 levels for bytes, 8 for binary images, as
    in Kelly and Grathwohl (2021).
    """

    levels: int | None

    def __new__(cls, low: float, high: float, levels: int | None = None) -> View:
        view = super().__new__(cls, (low, high))
        view.levels = levels
        if levels is not None and not (low <= -LOGIT.bound and LOGIT.bound <= high):
            raise InputError(
                f"logits of pixels lie between {-LOGIT.bound:.1f} and {LOGIT.bound:.1f}: set data.low = -14 and "
                f"data.high = 14, not {low:g} and {high:g}"
            )
        return view

    @classmethod
    def of(cls, bounds: tuple[float, float]) -> View:
        """Return the view of bounds; a pair of numbers is the plain view."""
        return bounds if isinstance(bounds, View) else cls(*bounds)

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and self.levels == getattr(other, "levels", None)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((*self, self.levels))

    def __repr__(self) -> str:
        return f"({self[0]}, {self[1]})" + (f" of logits of {self.levels} levels" if self.levels else "")

    def of_pixels(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Convert uint8 pixels to x. Noise is drawn for each row, or is one fixed draw that all rows share."""
        scaled = Scale(*self)(x)
        if self.levels is None:
            return scaled
        # Bytes are the levels themselves.
        cells = x.float() if self.levels == BYTES else x.float() / 255.0 * (self.levels - 1)
        return LOGIT.unchecked(dequantized(cells, self.levels, _noise(cells, generator)))

    def seen(self, x: Tensor) -> Tensor:
        """Convert x scaled to the bounds to what the model takes; the identity in the plain view."""
        if self.levels is None:
            return x
        cells = (x - self[0]) / (self[1] - self[0]) * (self.levels - 1)
        return LOGIT.unchecked(dequantized(cells, self.levels, _noise(cells, None)))

    def unit(self, x: Tensor) -> Tensor:
        """Convert x to pixels from 0, black, to 1, white, for pictures and other networks."""
        if self.levels is None:
            return (x - self[0]) / (self[1] - self[0])
        return LOGIT.inverse(x).clamp(0, 1)

    def dequantized_again(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """Dequantize the same pixels with fresh noise; a value that rounding puts beyond its cell moves to the next."""
        assert self.levels is not None
        cell = (LOGIT.inverse(x).clamp(0, 1) * self.levels).floor().clamp(max=self.levels - 1)
        return LOGIT.unchecked(dequantized(cell, self.levels, _noise(cell, generator)))

    def log_jacobian(self, x: Tensor) -> Tensor:
        """Return log |det dx/dv| of each row, `[n]`, v being dequantized pixels: the change of density from x to v."""
        if self.levels is None:
            return x.new_zeros(len(x))
        return LOGIT.log_jacobian(LOGIT.inverse(x.double()).clamp(0, 1))


@dataclass(frozen=True)
class DequantizeRows:
    """Scale pixels to (low, high), dequantized with new noise at each use, and apply the logit if `logit`."""

    pixels: Literal["bytes", "binary"]
    low: float
    high: float
    logit: bool = False

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        if self.logit:
            view = View(self.low, self.high, BYTES if self.pixels == "bytes" else BINARY)
            return view.dequantized_again(x, generator=generator)
        if self.pixels == "bytes":
            unit = Dequantize()(Scale(self.low, self.high).inverse(x), generator=generator)
        else:
            unit = DequantizeBinary().unchecked((x - self.low) / (self.high - self.low), generator=generator)
        return self.low + (self.high - self.low) * unit


def _noise(x: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        fixed = torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=x.dtype)
        return fixed.to(x.device).expand_as(x)
    return torch.rand(x.shape, generator=generator, device=generator.device, dtype=x.dtype).to(x.device)

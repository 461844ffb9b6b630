"""metrics: dequantization of discrete values, such as pixels.

A density has no meaningful likelihood at discrete values: spikes at the values would make it arbitrarily large. With
uniform noise over each value's cell, E log p(x + noise) + log(volume of a cell) is a lower bound on the log-probability
of the discrete values (Theis, van den Oord and Bethge 2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_LEVELS = 256
LOOK = 1000  # rows that are searched for levels


@dataclass(frozen=True)
class Cells:
    """`n` cells of equal width that fill the bounds; value v in [0, 1] has the cell from (n - 1) v / n on."""

    n: int
    low: float
    high: float

    @classmethod
    def of(cls, x: Tensor, bounds: tuple[float, float], *, binary: bool = False) -> Cells | None:
        """Return 8 cells for binary data, as in training, else one cell per level; None for continuous data."""
        if binary:
            return cls(8, *bounds)
        n = n_levels(x, bounds)
        return None if n is None else cls(n, *bounds)

    def spread(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """Move each value uniformly within its cell."""
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.device)
        share = (x.double() - self.low) / (self.high - self.low)
        spread = (self.low + (self.high - self.low) * ((self.n - 1) * share + noise) / self.n).to(x.dtype)
        return spread.clamp(self.low, self.high)

    def log_volume(self, n_dims: int) -> float:
        """Return the log volume of the cell of one row."""
        return n_dims * math.log((self.high - self.low) / self.n)


def n_levels(x: Tensor, bounds: tuple[float, float]) -> int | None:
    """Return the number of equally spaced levels between the bounds, at most 256; None for other values."""
    low, high = bounds
    share = (x[:LOOK].double() - low) / (high - low)
    values = (share * 1e6).round().unique() / 1e6
    if not 2 <= len(values) <= MOST_LEVELS or bool((values < 0).any()) or bool((values > 1).any()):
        return None
    n = round(1 / float(values.diff().min())) + 1
    on_grid = bool(((values * (n - 1) - (values * (n - 1)).round()).abs() < 1e-3).all())
    return n if on_grid and n <= MOST_LEVELS else None

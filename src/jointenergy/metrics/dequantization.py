"""metrics: rows of few values, such as pixels, spread over the cells that the values stand for.

A density has no likelihood at rows of few values: a spike on each value would make it as large as one likes. With
uniform noise over each value's cell, E log p(x + noise) + log(volume of a cell) is a lower bound on the log-probability
of the values themselves (Theis, van den Oord and Bethge 2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_LEVELS = 256
LOOK = 1000  # rows


@dataclass(frozen=True)
class Cells:
    """`n` cells of equal width fill the bounds; value v in [0, 1] has the cell from (n - 1) v / n on."""

    n: int
    low: float
    high: float

    @classmethod
    def of(cls, x: Tensor, bounds: tuple[float, float], *, binary: bool = False) -> Cells | None:
        """Those of training where these are binary, else as many as there are values; None of real numbers."""
        if binary:
            return cls(8, *bounds)
        n = n_levels(x, bounds)
        return None if n is None else cls(n, *bounds)

    def spread(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """Each value anywhere in its cell."""
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.device)
        share = (x.double() - self.low) / (self.high - self.low)
        spread = (self.low + (self.high - self.low) * ((self.n - 1) * share + noise) / self.n).to(x.dtype)
        return spread.clamp(self.low, self.high)

    def log_volume(self, n_dims: int) -> float:
        """Of the cell of one row, which turns a density of x into one of values."""
        return n_dims * math.log((self.high - self.low) / self.n)


def n_levels(x: Tensor, bounds: tuple[float, float]) -> int | None:
    """How many equally spaced values from bound to bound x may take, 256 at the most; None where it takes others."""
    low, high = bounds
    share = (x[:LOOK].double() - low) / (high - low)
    values = (share * 1e6).round().unique() / 1e6
    if not 2 <= len(values) <= MOST_LEVELS or bool((values < 0).any()) or bool((values > 1).any()):
        return None
    n = round(1 / float(values.diff().min())) + 1
    on_grid = bool(((values * (n - 1) - (values * (n - 1)).round()).abs() < 1e-3).all())
    return n if on_grid and n <= MOST_LEVELS else None

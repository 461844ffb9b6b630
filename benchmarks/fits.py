"""benchmarks: how a cost grows: the exponent of a power law, and the part of it that does not grow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Power:
    """t = scale * n^exponent, and the exponent's standard error."""

    exponent: float
    error: float
    scale: float

    def at(self, n: float) -> float:
        return float(self.scale * n**self.exponent)


@dataclass(frozen=True)
class FixedAndGrowing:
    """t = fixed + scale * n^exponent, and how far the points lie off it."""

    fixed: float
    fixed_error: float
    scale: float
    exponent: float
    error: float
    worst: float
    """The largest deviation of a point, as a share of it."""


def upper_half(sizes: Sequence[int]) -> slice:
    """The points that an exponent is fitted to: there what grows outweighs what does not."""
    return slice(len(sizes) // 2, None)


def fair_medians(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The median of each contestant's times, each taken against the level of the round that it was measured in.

    A machine that is slow in one round is slow for all: against the round's geometric mean it falls out.
    """
    levels = [statistics.geometric_mean(times) for times in zip(*rounds, strict=True)]
    usual = statistics.median(levels)
    return [usual * statistics.median(t / level for t, level in zip(times, levels, strict=True)) for times in rounds]


def power_law(sizes: Sequence[float], times: Sequence[float]) -> Power:
    """Least squares in logs. The error comes from the residuals, so it holds noise and what is no power law alike."""
    x, y = [math.log(n) for n in sizes], [math.log(t) for t in times]
    middle, spread = statistics.fmean(x), sum((a - statistics.fmean(x)) ** 2 for a in x)
    exponent = sum((a - middle) * b for a, b in zip(x, y, strict=True)) / spread
    level = statistics.fmean(y) - exponent * middle
    residuals = sum((b - level - exponent * a) ** 2 for a, b in zip(x, y, strict=True))
    return Power(exponent, math.sqrt(residuals / (len(x) - 2) / spread), math.exp(level))


def power_of_two_points(sizes: Sequence[float], rounds: Sequence[Sequence[float]]) -> Power:
    """The median over rounds that measured both; two points leave no residual, so the error is that of the median."""
    (small, large), ratio = sizes, math.log(sizes[1] / sizes[0])
    found = [math.log(after / before) / ratio for before, after in zip(*rounds, strict=True)]
    exponent = statistics.median(found)
    error = math.sqrt(math.pi / 2) * statistics.stdev(found) / math.sqrt(len(found))
    middle = math.exp(statistics.fmean(math.log(statistics.median(times)) for times in rounds))
    return Power(exponent, error, middle / (small * large) ** (exponent / 2))


def fixed_and_growing(sizes: Sequence[float], times: Sequence[float]) -> FixedAndGrowing:
    """Least squares of relative deviations over all sizes: each has the same say, as on logarithmic paper.

    For a given exponent the best line is known; so only the exponent is searched for, from .05 to 4.
    """
    n, t = np.asarray(sizes, dtype=float), np.asarray(times, dtype=float)
    n = n / n.max()  # powers of like size: the columns below can be told apart

    def best(exponent: float) -> tuple[Array, Array]:
        """Where the line begins and how fast it grows, and the relative deviations."""
        columns = np.stack((1 / t, n**exponent / t), 1)
        found = np.linalg.lstsq(columns, np.ones_like(t), rcond=None)[0]
        return found, columns @ found - 1

    grid = np.linspace(0.05, 4, 80)
    for _ in range(6):  # finer each time, around the best
        at = int(np.argmin([(best(p)[1] ** 2).sum() for p in grid]))
        grid = np.linspace(grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)], 21)
    exponent = float(grid[10])
    (fixed, growing), off = best(exponent)
    slopes = np.stack((1 / t, n**exponent / t, growing * n**exponent * np.log(n) / t), 1)
    errors = np.sqrt(np.diag(np.linalg.pinv(slopes.T @ slopes)) * (off**2).sum() / (len(t) - 3))
    scale = float(growing) / max(sizes) ** exponent
    return FixedAndGrowing(float(fixed), errors[0].item(), scale, exponent, errors[2].item(), np.abs(off).max().item())

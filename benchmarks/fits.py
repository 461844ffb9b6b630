"""benchmarks: fits of growing costs: the exponent of a power law, and a fixed part."""

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
    """Hold t = scale * n^exponent, and the exponent's standard error."""

    exponent: float
    error: float
    scale: float

    def at(self, n: float) -> float:
        return float(self.scale * n**self.exponent)


@dataclass(frozen=True)
class FixedAndGrowing:
    """Hold t = fixed + scale * n^exponent, and the deviation of the points."""

    fixed: float
    fixed_error: float
    scale: float
    exponent: float
    error: float
    worst: float
    """Largest relative deviation of a point."""


def upper_half(sizes: Sequence[int]) -> slice:
    """Return the points that an exponent is fitted to, where the growing part dominates."""
    return slice(len(sizes) // 2, None)


def fair_medians(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Return the median time of each contestant, relative to the level of each round.

    A machine that is slow in one round is slow for all: division by the round's geometric mean removes this.
    """
    levels = [statistics.geometric_mean(times) for times in zip(*rounds, strict=True)]
    usual = statistics.median(levels)
    return [usual * statistics.median(t / level for t, level in zip(times, levels, strict=True)) for times in rounds]


def power_law(sizes: Sequence[float], times: Sequence[float]) -> Power:
    """Fit by least squares in logs. The error comes from the residuals: noise and deviations from a power law."""
    x, y = [math.log(n) for n in sizes], [math.log(t) for t in times]
    middle, spread = statistics.fmean(x), sum((a - statistics.fmean(x)) ** 2 for a in x)
    exponent = sum((a - middle) * b for a, b in zip(x, y, strict=True)) / spread
    level = statistics.fmean(y) - exponent * middle
    residuals = sum((b - level - exponent * a) ** 2 for a, b in zip(x, y, strict=True))
    return Power(exponent, math.sqrt(residuals / (len(x) - 2) / spread), math.exp(level))


def power_of_two_points(sizes: Sequence[float], rounds: Sequence[Sequence[float]]) -> Power:
    """Return the median over rounds; two points leave no residual, so the error is that of the median."""
    (small, large), ratio = sizes, math.log(sizes[1] / sizes[0])
    found = [math.log(after / before) / ratio for before, after in zip(*rounds, strict=True)]
    exponent = statistics.median(found)
    error = math.sqrt(math.pi / 2) * statistics.stdev(found) / math.sqrt(len(found))
    middle = math.exp(statistics.fmean(math.log(statistics.median(times)) for times in rounds))
    return Power(exponent, error, middle / (small * large) ** (exponent / 2))


def fixed_and_growing(sizes: Sequence[float], times: Sequence[float]) -> FixedAndGrowing:
    """Fit by least squares of relative deviations over all sizes, so that each size counts the same.

    For a given exponent the best line has a closed form; the exponent is searched from 0.05 to 4.
    """
    n, t = np.asarray(sizes, dtype=float), np.asarray(times, dtype=float)
    n = n / n.max()  # powers of similar size, for a well-conditioned fit

    def best(exponent: float) -> tuple[Array, Array]:
        """Return intercept, slope and relative deviations."""
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

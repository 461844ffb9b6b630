"""training: healthy or not, one function on held-out data with the function that a user loads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

# The numbers of health, in one place and no fields of a recipe: they were set on runs known to live and known dead.
AUROC_PERSISTENT = (0.1, 0.9)
AUROC_FRESH = (0.05, 0.95)
AUROC_NOISE = 0.99
GAP = 3.0
DIVERSITY = 0.5
AT_BOUNDS = 0.10

Joint = tuple[Tensor, Tensor]
"""States x with their labels y."""


@dataclass(frozen=True)
class Health:
    """What was measured, and the sentences for what is wrong: none when healthy.

    AUROCs say how often f(data) lies above f of the other set. The gap is the difference of the means of f(data) and
    f(persistent chains) in standard deviations of f(data); diversity is a ratio to the data's own.
    """

    finite: bool
    auroc_persistent: float
    gap: float
    auroc_noise: float
    auroc_fresh: float
    auroc_fresh_long: float
    diversity: float
    at_bounds: float

    @property
    def complaints(self) -> list[str]:
        if not self.finite:
            return ["some log-densities or chains are not finite"]
        said = []
        if not _within(self.auroc_persistent, AUROC_PERSISTENT):
            said.append(f"persistent chains are distinguishable from data (AUROC {self.auroc_persistent:.2f})")
        if not abs(self.gap) < GAP:
            said.append(f"the gap between data and persistent chains is {self.gap:.1f} standard deviations")
        if not self.auroc_noise > AUROC_NOISE:
            said.append(f"uniform noise is not distinguishable from data (AUROC {self.auroc_noise:.3f})")
        if not _within(self.auroc_fresh, AUROC_FRESH):
            said.append(f"fresh chains do not look like data (AUROC {self.auroc_fresh:.2f})")
        if not _within(self.auroc_fresh_long, AUROC_FRESH):
            said.append(
                f"fresh chains of ten times the length drift away from data (AUROC {self.auroc_fresh_long:.2f})"
            )
        if not self.diversity >= DIVERSITY:
            said.append(f"samples are all alike (diversity {self.diversity:.2f} of the data's)")
        if not self.at_bounds <= AT_BOUNDS:
            said.append(f"{self.at_bounds:.0%} more values lie at the bounds than in the data")
        return said

    @property
    def drifting(self) -> bool:
        """Whether all that is wrong is that fresh chains leave the data: what they are trained with is too short."""
        stayed = replace(self, auroc_fresh=0.5, auroc_fresh_long=0.5)
        return not self.healthy and stayed.healthy

    @property
    def healthy(self) -> bool:
        return not self.complaints

    def values(self) -> dict[str, float | bool]:
        return {"healthy": self.healthy, **asdict(self)}


def measure(
    log_density: Callable[[Tensor, Tensor], Tensor],
    data: Joint,
    persistent: Joint,
    fresh: Joint,
    run: Callable[[Tensor, Tensor, int], Joint],
    sampling_steps: int,
    bounds: tuple[float, float],
    *,
    generator: torch.Generator,
) -> Health:
    """Health of a density of states (x, y): `run` moves chains under it, `fresh` is where the recipe's begin."""
    low, high = bounds
    noise = torch.rand(data[0].shape, generator=generator, device=generator.device).to(data[0]) * (high - low) + low
    nan = math.nan
    dead = Health(False, nan, nan, nan, nan, nan, nan, nan)
    short = run(*fresh, sampling_steps)
    if not _finite(short[0], persistent[0]):
        return dead
    long = run(*short, 9 * sampling_steps)
    if not _finite(long[0]):
        return dead
    with torch.no_grad():
        values = [log_density(*state) for state in (data, persistent, (noise, data[1]), short, long)]
    if not _finite(*values):
        return dead
    f_data, f_persistent, f_noise, f_short, f_long = values
    gap = float((f_data.mean() - f_persistent.mean()) / f_data.std(correction=int(len(f_data) > 1)).clamp(min=1e-6))
    return Health(
        finite=True,
        auroc_persistent=auroc(f_data, f_persistent),
        gap=gap,
        auroc_noise=auroc(f_data, f_noise),
        auroc_fresh=auroc(f_data, f_short),
        auroc_fresh_long=auroc(f_data, f_long),
        diversity=diversity(short[0]) / max(diversity(data[0]), 1e-12),
        at_bounds=float(at_bounds(short[0], bounds) - at_bounds(data[0], bounds)),
    )


def auroc(above: Tensor, below: Tensor) -> float:
    """How often a value of the first set lies above one of the second; ties count half."""
    scores = torch.cat((above, below)).double()
    # torchmetrics puts scores outside [0, 1] through a sigmoid, which ties large ones: ranks have the same order.
    ranks = scores.unique(return_inverse=True)[1].double()
    target = torch.cat((torch.ones(len(above)), torch.zeros(len(below)))).long().to(scores.device)
    return float(binary_auroc(ranks / ranks.max().clamp(min=1.0), target))


def diversity(x: Tensor) -> float:
    """The mean distance between pairs of rows."""
    return float(torch.pdist(x.flatten(1).float()).mean())


def at_bounds(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The share of values within a thousandth of the range from either bound, or beyond."""
    margin = 1e-3 * (bounds[1] - bounds[0])
    return ((x <= bounds[0] + margin) | (x >= bounds[1] - margin)).float().mean()


def _finite(*tensors: Tensor) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors)


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]

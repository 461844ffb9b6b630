"""kernels: diagonal metrics, reflection at the walls of a box, and the leapfrog integrator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.kernels.base import Evaluation, State, Target, evaluate_x
from jointenergy.models.domains import Box

Walls = Literal["reflect", "reject"]
"""How trajectories treat the walls of a box: reflect x there, or reject proposals that end outside."""


@final
@dataclass(frozen=True, eq=False)
class DiagonalMetric:
    """Scale each entry of x, for example by its standard deviation: kernels move in units of the scales.

    Parameters
    ----------
    scale
        Positive and finite, of the shape of one row of x.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> metric = je.kernels.DiagonalMetric(torch.tensor([0.1, 10.0]))
    >>> je.kernels.MALA(step_size=0.5, metric=metric).metric is metric
    True
    """

    scale: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.scale, Tensor) or not bool((self.scale.isfinite() & (self.scale > 0)).all()):
            raise InputError("a metric needs a tensor of finite positive scales, one for each entry of x")

    def check(self, x: Tensor) -> None:
        """Refuse an x of another shape."""
        if tuple(self.scale.shape) != tuple(x.shape[1:]):
            raise InputError(f"the metric is for x of shape {tuple(self.scale.shape)}, got {tuple(x.shape[1:])}")


def scale_of(metric: DiagonalMetric | None, x: Tensor) -> Tensor | float:
    """Return the scales in the dtype and on the device of x; 1 without a metric."""
    return 1.0 if metric is None else metric.scale.to(x)


class Place(NamedTuple):
    """A point of a trajectory: x, its velocity in units of the metric, and the evaluation there."""

    x: Tensor
    velocity: Tensor
    seen: Evaluation


def drift(target: Target, x: Tensor, velocity: Tensor, size: Tensor | float, walls: Walls) -> tuple[Tensor, Tensor]:
    """Move x by size * velocity in straight lines, reflected at the walls of a box; also return the new velocity.

    This is the exact flow of a free particle: volume-preserving and reversible.
    """
    moved, domain = plus(x, velocity, size), target.model.domain
    if walls == "reflect" and isinstance(domain, Box):
        width = domain.high - domain.low
        place = (moved - domain.low) / width
        times = place.floor()
        odd = times.remainder(2.0) == 1.0
        rest = place - times
        folded = (domain.low + width * torch.where(odd, 1.0 - rest, rest)).clamp(domain.low, domain.high)
        moved = torch.where(times == 0, moved, folded)  # keep entries that meet no wall free of rounding
        velocity = torch.where(odd, -velocity, velocity)
    return target.hold_x(moved), velocity


def leapfrog(
    target: Target,
    state: State,
    velocity: Tensor,
    here: Evaluation,
    *,
    step_size: float,
    steps: int,
    metric: DiagonalMetric | None,
    walls: Walls,
) -> Place:
    """Make `steps` leapfrog steps from the state, whose evaluation is `here`."""
    size, x = step_size * scale_of(metric, state.x), state.x
    velocity = plus(velocity, here.gradient, 0.5 * size)
    for left in range(steps, 0, -1):
        x, velocity = drift(target, x, velocity, size, walls)
        here = evaluate_x(target, State(x, state.y, state.keys, known=state.known))
        # The second half of this step's kick and the first half of the next one's.
        velocity = plus(velocity, here.gradient, size if left > 1 else 0.5 * size)
    return Place(x, velocity, here)


def plus(x: Tensor, change: Tensor, size: Tensor | float) -> Tensor:
    """x + size * change in one pass."""
    return torch.addcmul(x, change, size) if isinstance(size, Tensor) else torch.add(x, change, alpha=size)


def kinetic(velocity: Tensor) -> Tensor:
    """Return half the squared velocity of each row."""
    return 0.5 * velocity.square().flatten(1).sum(1)


def check_metric(owner: object, metric: object) -> None:
    if metric is not None and not isinstance(metric, DiagonalMetric):
        raise InputError(f"{type(owner).__name__} needs a DiagonalMetric, got {type(metric).__name__}")


def check_walls(walls: str) -> None:
    if walls not in ("reflect", "reject"):
        raise InputError(f"walls must be 'reflect' or 'reject', got {walls!r}")

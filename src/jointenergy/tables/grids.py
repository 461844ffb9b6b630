"""tables: p(one number | the rest of a row), normalized on a grid, for training and prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from jointenergy.models import JointModel
from jointenergy.objectives import DrawName, Term
from jointenergy.objectives.values import Values, needs_draws
from jointenergy.tables.gaussians import Gaussians

POINTS, REACH = 48, 6.0  # grid points of a training row, and its half-width in conditional standard deviations


@dataclass(frozen=True, eq=False)
class TargetGrid:
    """Hold a grid around the number's conditional mean under the Gaussian reference."""

    place: int
    slope: Tensor  # [D], zero at the place itself
    offset: float
    deviation: float

    @classmethod
    def of(cls, gaussians: Gaussians, place: int) -> TargetGrid:
        row = gaussians.precision[place]
        mean = gaussians.log_weights.exp() @ gaussians.means
        slope = -row / row[place]
        slope[place] = 0.0
        offset = float(mean[place] - slope @ mean)
        return cls(place, slope, offset, float(row[place]) ** -0.5)

    def points(self, x: Tensor, n: int, shift: Tensor | float = 0.5, *, reach: float = REACH) -> tuple[Tensor, float]:
        """Return `n` evenly spaced values for each row of x, `[rows, n]`, and their spacing."""
        center = x @ self.slope.to(x) + self.offset
        width = 2 * reach * self.deviation / n
        steps = (torch.arange(n, dtype=x.dtype, device=x.device) + shift) * width
        return center[:, None] - reach * self.deviation + steps, width

    def filled(self, x: Tensor, points: Tensor) -> Tensor:
        """Return rows with the number set to each of the points, `[rows, n, D]`."""
        wide = x[:, None, :].repeat(1, points.shape[1], 1)
        wide[:, :, self.place] = points
        return wide


@final
@dataclass(frozen=True)
class LogPNumberGivenRest(Term):
    """Compute log p(one number | other numbers and labels) of rows that have it, normalized by a sum over a grid.

    The grid is shifted randomly for each row, so that no narrow peak stays between its points. Where other entries are
    missing, the term is averaged over completions given all observed entries.
    """

    grid: TargetGrid | None = None

    name: ClassVar[str] = "log_p_number_given_rest"
    maximized: ClassVar[bool] = True
    draws: ClassVar[tuple[DrawName, ...]] = ("given_xy",)

    def needs(self, model: JointModel, *, missing_labels: bool = True, masked_x: bool = False) -> frozenset[DrawName]:
        needed = needs_draws(model, "given_xy", missing_labels=missing_labels, masked_x=masked_x)
        return frozenset(self.draws if needed else ())

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        assert self.grid is not None
        x, y = values.states("given_xy")
        samples = None if values.exact("given_xy") else values.samples("given_xy")
        # The shift comes from the rows, which carry fresh noise each time: no random state is touched.
        shift = (1e4 * x.detach().sum(1, keepdim=True)).frac().abs()
        gap = log_conditional(values.model, self.grid, x, y, shift)
        gap = gap if samples is None else samples.mean_by_row(gap, values.n)
        if values.mask is not None:
            gap = torch.where(values.mask[:, self.grid.place], gap, 0.0)
        return values.total(gap) / values.n


def log_conditional(model: JointModel, grid: TargetGrid, x: Tensor, y: Tensor, shift: Tensor | float) -> Tensor:
    """Return log p(number | rest) of complete rows, per standardized unit."""
    points, width = grid.points(x, POINTS, shift)
    own = model.log_density_unchecked(x, y)
    wide = grid.filled(x, points)
    around = model.log_density_unchecked(wide.flatten(0, 1), y.repeat_interleave(POINTS, dim=0))
    around = around.view(len(x), POINTS)
    # Include the row's own value in the sum, so that a number outside the grid gets a low probability.
    total = torch.cat((around, own[:, None]), dim=1).logsumexp(1) + math.log(width)
    return own - total

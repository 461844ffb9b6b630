"""kernels: MALA whose moves have the shape of a Gaussian, for features that depend on each other; exact like MALA."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.inputs import check_positive
from jointenergy.kernels.base import (
    Evaluation,
    Info,
    Kernel,
    State,
    Target,
    check_inside,
    choose,
    evaluate_x,
    metropolis,
    over,
)


class WhitenedFrame(NamedTuple):
    """The precision of the free entries as a product `root @ root.T`, and the inverse of `root.T`.

    Matrices `[D, D]`, or one for each row where each has its own mask. A held entry has a one on the diagonal: its
    gradient and its noise are zero.
    """

    root: Tensor
    inverse: Tensor


@final
@dataclass(frozen=True, eq=False)
class Preconditioner:
    """The precision matrix `[D, D]` of a Gaussian that the target resembles, over the flattened x."""

    precision: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.precision.shape)
        if len(shape) != 2 or shape[0] != shape[1] or not bool(self.precision.isfinite().all()):
            raise InputError(f"a metric needs a finite square matrix, the precision of a Gaussian, got shape {shape}")

    def frame(self, target: Target, x: Tensor) -> WhitenedFrame:
        """The frame of the entries that the target leaves free, worked out once for each target.

        Given the held entries a Gaussian's free ones have their part of the precision matrix as their own precision.
        """
        if self not in target.frames:
            precision = self.precision.to(x.device, torch.float64)
            if target.mask is not None:
                free = ~target.mask.to(x.device).flatten(target.mask.ndim - (x.ndim - 1))
                apart = torch.diag_embed((~free).to(precision.dtype))
                precision = precision * free[..., :, None] * free[..., None, :] + apart
            root, failed = torch.linalg.cholesky_ex(precision)
            if bool(failed.any()):
                raise InputError("a metric needs a positive definite precision matrix: add to its diagonal")
            one = torch.eye(len(self.precision), dtype=root.dtype, device=root.device).expand_as(root)
            inverse = torch.linalg.solve_triangular(root, one, upper=False).mT
            target.frames[self] = WhitenedFrame(root.to(x.dtype), inverse.to(x.dtype))
        found = target.frames[self]
        assert isinstance(found, WhitenedFrame)
        return found


@final
@dataclass(frozen=True)
class PreconditionedMALA(Kernel):
    """MALA in the coordinates in which the metric's Gaussian is round: one step size suits all directions.

    The proposal is x + step_size * S gradient + sqrt(2 step_size temperature) * noise of covariance S, S the inverse of
    the metric's precision among the entries that are free. A box rejects what lies outside.
    """

    step_size: float
    metric: Preconditioner
    temperature: float = 1.0

    moves_x: ClassVar[bool] = True
    rejects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "step_size", self.step_size)
        check_positive(self, "temperature", self.temperature)
        if not isinstance(self.metric, Preconditioner):
            raise InputError(f"PreconditionedMALA needs a Preconditioner, got {type(self.metric).__name__}")

    @property
    def noise_scale(self) -> float:
        return math.sqrt(2.0 * self.step_size * self.temperature)

    def check_start(self, target: Target, x: Tensor) -> None:
        if x[0].numel() != len(self.metric.precision):
            raise InputError(f"the metric is for {len(self.metric.precision)} entries of x, and x has {x[0].numel()}")
        check_inside(self, target, x)

    def log_acceptance(
        self, target: Target, move: Tensor, to: Tensor, there: Evaluation, here: Evaluation, frame: WhitenedFrame
    ) -> Tensor:
        """The log of the acceptance ratio of a move to `to`; minus infinity outside the domain.

        `move` is the move in the round coordinates, `root.T @ (to - x)`: there the proposal is MALA's own.
        """
        drifts = [_times(frame.inverse.mT, e.gradient.flatten(1)) for e in (here, there)]
        ahead = (move - self.step_size * drifts[0]).square_().sum(1)
        back = (move + self.step_size * drifts[1]).square_().sum(1)
        ratio = (there.log_density - here.log_density) / self.temperature + (ahead - back) / (2 * self.noise_scale**2)
        return ratio.masked_fill(~target.model.domain.contains(to), -torch.inf)

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        keys, noise_key, accept_key = streams.split(state.keys, 3)
        here = evaluate_x(target, state)
        frame = self.metric.frame(target, state.x)
        noise = target.moving(streams.normal_like(noise_key, state.x)).flatten(1)
        move = (
            _times(frame.inverse.mT, here.gradient.flatten(1)).mul_(self.step_size).add_(noise, alpha=self.noise_scale)
        )
        moved = state.x + _times(frame.inverse, move).view_as(state.x)
        proposed = replace(state, x=target.hold_x(moved), evaluation=None)
        there = evaluate_x(target, proposed)
        log_ratio = self.log_acceptance(target, move, proposed.x, there, here, frame)
        accept, acceptance = metropolis(accept_key, log_ratio)
        x = torch.where(over(accept, state.x), proposed.x, state.x)
        info = Info(log_density=here.log_density, gradient=here.gradient, x_acceptance=acceptance)
        return replace(state, x=x, keys=keys, step=state.step + 1, evaluation=choose(accept, there, here)), info


def _times(matrix: Tensor, rows: Tensor) -> Tensor:
    """Each row multiplied by the matrix, or by its own."""
    return rows @ matrix.mT if matrix.ndim == 2 else torch.bmm(matrix, rows[:, :, None])[:, :, 0]

"""kernels: MALA with a dense metric, for correlated features."""

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
    only_inside,
    over,
)


class WhitenedFrame(NamedTuple):
    """The precision of the free entries as `root @ root.T`, and the inverse of `root.T`.

    Matrices are `[D, D]`, or one per row if each row has its own mask. Held entries have a one on the diagonal; their
    gradient and noise are zero.
    """

    root: Tensor
    inverse: Tensor


@final
@dataclass(frozen=True, eq=False)
class Preconditioner:
    """Define a dense metric: the precision matrix of a Gaussian that resembles the target, over the flattened x.

    Parameters
    ----------
    precision
        Positive definite, `[D, D]`: an inverse covariance of the data, for example.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
    >>> metric = je.kernels.Preconditioner(torch.linalg.inv(covariance))
    >>> metric.precision.shape
    torch.Size([2, 2])
    """

    precision: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.precision.shape) if isinstance(self.precision, Tensor) else ()
        if len(shape) != 2 or shape[0] != shape[1] or not bool(self.precision.isfinite().all()):
            raise InputError(f"a metric needs a finite square matrix, the precision of a Gaussian, got shape {shape}")

    def frame(self, target: Target, x: Tensor) -> WhitenedFrame:
        """Factorize the precision of the entries that the target leaves free, once per target.

        Conditioned on held entries, a Gaussian's free entries have the corresponding submatrix of the precision matrix.
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
    """Move x by MALA with a dense metric: one step size suits all directions of correlated features.

        proposal:  x' = x + step_size * S gradient + sqrt(2 step_size temperature) * noise,   noise ~ N(0, S)

    S is the inverse of the metric's precision among the free entries. Samples exp(f / temperature) without bias;
    proposals outside a box are rejected.

    Parameters
    ----------
    step_size
        The factor of the preconditioned gradient; `adapt` tunes it.
    metric
        The precision matrix.
    temperature
        The temperature T of exp(f / T).

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.PreconditionedMALA(0.5, je.kernels.Preconditioner(torch.eye(2)))
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 20).x.shape
    torch.Size([64, 2])
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
        """Return the log acceptance ratio of a move to `to`; minus infinity outside the domain.

        `move` is the move in whitened coordinates, `root.T @ (to - x)`, where the proposal is that of MALA.
        """
        drifts = [_times(frame.inverse.mT, e.gradient.flatten(1)) for e in (here, there)]
        ahead = (move - self.step_size * drifts[0]).square_().sum(1)
        back = (move + self.step_size * drifts[1]).square_().sum(1)
        ratio = (there.log_density - here.log_density) / self.temperature + (ahead - back) / (2 * self.noise_scale**2)
        return only_inside(target, to, ratio)

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
    """Multiply each row by the matrix, or by its own matrix."""
    return rows @ matrix.mT if matrix.ndim == 2 else torch.bmm(matrix, rows[:, :, None])[:, :, 0]

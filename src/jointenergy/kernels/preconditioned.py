"""kernels: MALA with a dense metric, for correlated features."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, final

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

    def frame(self, target: Target, x: Tensor) -> Tensor:
        """Return `frames` of the entries that the target leaves free, computed once per target."""
        if self not in target.frames:
            mask = None if target.mask is None else target.mask.flatten(target.mask.ndim - (x.ndim - 1))
            target.frames[self] = self.frames(mask, x)
        found = target.frames[self]
        assert isinstance(found, Tensor)
        return found

    def frames(self, mask: Tensor | None, like: Tensor) -> Tensor:
        """Factorize the precision of the entries that a mask leaves free as `root @ root.T`; return `inverse(root.T)`.

        It is `[D, D]`, or one matrix for each row of the mask. Conditioned on held entries, a Gaussian's free entries
        have the corresponding submatrix of the precision matrix. Held ones have a one on the diagonal; their gradient
        and noise are zero.
        """
        precision = self.precision.to(like.device, torch.float64)
        if mask is not None:
            free = ~mask.to(like.device)
            apart = torch.diag_embed((~free).to(precision.dtype))
            precision = precision * free[..., :, None] * free[..., None, :] + apart
        root, failed = torch.linalg.cholesky_ex(precision)
        if bool(failed.any()):
            raise InputError("a metric needs a positive definite precision matrix: add to its diagonal")
        one = torch.eye(len(self.precision), dtype=root.dtype, device=root.device).expand_as(root)
        inverse: Tensor = torch.linalg.solve_triangular(root, one, upper=False).mT.to(like.dtype)
        return inverse


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

    def drift(self, frame: Tensor, at: Evaluation) -> Tensor:
        """Return the gradient in whitened coordinates, the direction of the proposals."""
        return _times(frame.mT, at.gradient.flatten(1))

    def log_acceptance(
        self, target: Target, move: Tensor, to: Tensor, there: Evaluation, here: Evaluation, drifts: tuple[Tensor, ...]
    ) -> Tensor:
        """Return the log acceptance ratio of a move to `to`; minus infinity outside the domain.

        `move` is the move in whitened coordinates, `root.T @ (to - x)`. With drifts a here and b there, the proposals
        contribute, as in `MALA`,

            -(a + b) . (move + step_size / 2 (b - a)) / (2 temperature)
        """
        a, b = drifts
        half = self.step_size / 2
        way = torch.add(move, b, alpha=half).sub_(a, alpha=half).mul_(a + b).sum(1)
        ratio = (there.log_density - here.log_density - 0.5 * way) / self.temperature
        return only_inside(target, to, ratio)

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        drawn = streams.proposal(state.ahead, state.keys, state.x)
        assert drawn.accept is not None
        here = evaluate_x(target, state)
        frame = self.metric.frame(target, state.x)
        noise = target.moving(drawn.like(state.x)).flatten(1)
        drift = self.drift(frame, here)
        move = torch.mul(noise, self.noise_scale).add_(drift, alpha=self.step_size)
        moved = state.x + _times(frame, move).view_as(state.x)
        proposed = replace(state, x=target.hold_x(moved), evaluation=None)
        there = evaluate_x(target, proposed)
        log_ratio = self.log_acceptance(target, move, proposed.x, there, here, (drift, self.drift(frame, there)))
        accept, acceptance = metropolis(drawn.accept, log_ratio, drawn.log_uniforms)
        x = torch.where(over(accept, state.x), proposed.x, state.x)
        info = Info(log_density=here.log_density, gradient=here.gradient, x_acceptance=acceptance)
        later = replace(state, x=x, keys=drawn.following, step=state.step + 1, ahead=state.ahead[1:])
        return replace(later, evaluation=choose(accept, there, here)), info

    def look_ahead(self, state: State, steps: int) -> State:
        steps = streams.steps_ahead(state.x, steps)
        return replace(state, ahead=streams.proposals_ahead(state.keys, state.x, steps)) if steps else state


def _times(matrix: Tensor, rows: Tensor) -> Tensor:
    """Multiply each row by the matrix, or by its own matrix."""
    return rows @ matrix.mT if matrix.ndim == 2 else torch.bmm(matrix, rows[:, :, None])[:, :, 0]

"""kernels: the Metropolis-adjusted Langevin algorithm on x."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.inputs import check_positive
from jointenergy.kernels.base import (
    Evaluation,
    Info,
    Kernel,
    State,
    Target,
    check_inside,
    choose,
    chosen,
    evaluate_x,
    metropolis,
    only_inside,
)
from jointenergy.kernels.motion import DiagonalMetric, check_metric


@dataclass(frozen=True)
class MALA(Kernel):
    """Move x by the Metropolis-adjusted Langevin algorithm.

        proposal:  x' = x + step_size * gradient of f + sqrt(2 step_size temperature) * noise,   noise ~ N(0, I)

    The Metropolis test makes it sample exp(f / temperature) without bias at any step size. Proposals outside the
    model's box are rejected, never clamped.

    Parameters
    ----------
    step_size
        The factor of the gradient; `adapt` tunes it to an acceptance rate of 0.574.
    temperature
        The temperature T of exp(f / T).
    gradient_clamp
        Clamp each entry of the drift. It enters both proposal densities, so the sampler stays exact.
    metric
        Scales of the entries of x: each moves in units of its scale.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.MALA(step_size=0.5)
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 20).x.shape
    torch.Size([64, 2])
    """

    step_size: float
    temperature: float = 1.0
    gradient_clamp: float | None = None
    metric: DiagonalMetric | None = None

    moves_x: ClassVar[bool] = True
    rejects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "step_size", self.step_size)
        check_positive(self, "temperature", self.temperature)
        if self.gradient_clamp is not None:
            check_positive(self, "gradient_clamp", self.gradient_clamp)
        check_metric(self, self.metric)

    @property
    def noise_scale(self) -> float:
        return math.sqrt(2.0 * self.step_size * self.temperature)

    def check_start(self, target: Target, x: Tensor) -> None:
        check_inside(self, target, x)
        if self.metric is not None:
            self.metric.check(x)

    def drift(self, gradient: Tensor) -> Tensor:
        """Return the clamped gradient, the direction of the proposals."""
        return gradient if self.gradient_clamp is None else gradient.clamp(-self.gradient_clamp, self.gradient_clamp)

    def log_acceptance(self, target: Target, to: Tensor, there: Evaluation, x: Tensor, here: Evaluation) -> Tensor:
        """Return the log acceptance ratio of a move from x to `to`; minus infinity outside the domain.

        With drifts a at x and b at `to`, the proposals contribute

            log q(x | to) - log q(to | x) = -(a + b) . (to - x + step_size / 2 (b - a)) / (2 temperature)

        With a metric the step size is multiplied by the squared scales.
        """
        a, b = self.drift(here.gradient), self.drift(there.gradient)
        half = self.step_size / 2
        if self.metric is None:
            way = (to - x).add_(b, alpha=half).sub_(a, alpha=half).mul_(a + b)
        else:
            way = (to - x + half * self.metric.scale.to(x) ** 2 * (b - a)) * (a + b)
        gain = (there.log_density - here.log_density).sub_(way.flatten(1).sum(1), alpha=0.5)
        return only_inside(target, to, gain.div_(self.temperature))

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        drawn = streams.proposal(state.ahead, state.keys, state.x)
        assert drawn.accept is not None
        here, noise = evaluate_x(target, state), target.moving(drawn.like(state.x))
        slope = self.drift(here.gradient)
        if self.metric is not None:
            scale = self.metric.scale.to(state.x)
            slope, noise = scale**2 * slope, scale * noise
        moved = torch.add(state.x, slope, alpha=self.step_size).add_(noise, alpha=self.noise_scale)
        to = target.hold_x(moved)
        there = evaluate_x(target, State(to, state.y, state.keys, known=state.known))
        log_ratio = self.log_acceptance(target, to, there, state.x, here)
        accept, acceptance = metropolis(drawn.accept, log_ratio, drawn.log_uniforms)
        x, seen = chosen(accept, to, state.x), choose(accept, there, here)
        rest = state.known, state.both, state.ahead[1:], state.velocity
        later = State(x, state.y, drawn.following, state.step + 1, seen, *rest)
        return later, Info(here.log_density, here.gradient, x_acceptance=acceptance)

    def look_ahead(self, state: State, steps: int) -> State:
        steps = streams.steps_ahead(state.x, steps)
        return replace(state, ahead=streams.proposals_ahead(state.keys, state.x, steps)) if steps else state

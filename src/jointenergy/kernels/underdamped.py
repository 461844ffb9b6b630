"""kernels: underdamped Langevin dynamics on x."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from jointenergy import streams
from jointenergy.inputs import check_positive
from jointenergy.kernels.base import Info, Kernel, State, Target, evaluate_x
from jointenergy.kernels.motion import drift


@dataclass(frozen=True)
class UnderdampedLangevin(Kernel):
    """Move x by underdamped Langevin dynamics with the BAOAB splitting (Leimkuhler and Matthews 2013).

        dx = v dt,   dv = (gradient of f - friction v) dt + sqrt(2 friction temperature) dW

    There is no Metropolis test, so x has a bias of second order in the step size (none on a Gaussian); use `HMC` for
    exact samples. The state carries the velocity from step to step. In a box, x is reflected at the walls.

    Parameters
    ----------
    step_size
        The time step dt.
    friction
        Larger values forget the velocity faster.
    temperature
        The temperature T of exp(f / T).

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.UnderdampedLangevin(step_size=0.3)
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 20).x.shape
    torch.Size([64, 2])
    """

    step_size: float
    friction: float = 1.0
    temperature: float = 1.0

    moves_x: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "step_size", self.step_size)
        check_positive(self, "friction", self.friction)
        check_positive(self, "temperature", self.temperature)

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        # Nothing is accepted or rejected: the third key of a proposal is that of the first velocity.
        drawn = streams.proposal(state.ahead, state.keys, state.x)
        assert drawn.accept is not None
        here, spread = evaluate_x(target, state), math.sqrt(self.temperature)
        velocity = state.velocity
        if velocity is None:
            velocity = target.moving(streams.normal_like(drawn.accept, state.x)) * spread
        half, kept = 0.5 * self.step_size, math.exp(-self.friction * self.step_size)
        velocity = (half * here.gradient).add_(velocity)
        x, velocity = drift(target, state.x, velocity, half, "reflect")
        noise = target.moving(drawn.like(state.x))
        velocity = ((spread * math.sqrt(1.0 - kept**2)) * noise).add_(kept * velocity)
        x, velocity = drift(target, x, velocity, half, "reflect")
        there = evaluate_x(target, State(x, state.y, state.keys, known=state.known))
        velocity = (half * there.gradient).add_(velocity)
        rest = state.known, state.both, state.ahead[1:], velocity
        return State(x, state.y, drawn.following, state.step + 1, there, *rest), Info(here.log_density, here.gradient)

    def look_ahead(self, state: State, steps: int) -> State:
        steps = streams.steps_ahead(state.x, steps)
        return replace(state, ahead=streams.proposals_ahead(state.keys, state.x, steps)) if steps else state

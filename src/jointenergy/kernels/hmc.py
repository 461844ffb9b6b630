"""kernels: Hamiltonian Monte Carlo on x for batches of chains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.inputs import check_count, check_positive
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
from jointenergy.kernels.motion import DiagonalMetric, Place, Walls, check_metric, check_walls, kinetic, leapfrog


@dataclass(frozen=True)
class HMC(Kernel):
    """Move x by Hamiltonian Monte Carlo: a leapfrog trajectory with a fresh velocity, then a Metropolis test.

    Samples exp(f / temperature) without bias at any step size.

    Parameters
    ----------
    step_size
        The leapfrog step size.
    leapfrog_steps
        The number of leapfrog steps, or the largest number with `jitter`.
    temperature
        The temperature T of exp(f / T).
    jitter
        Whether the trajectory length varies from step to step between 1 and `leapfrog_steps` (a quasi-random sequence
        shared by all chains, as in ChEES-HMC: Hoffman, Radul and Sountsov 2021), so that no length is a period of the
        target.
    walls
        In a box, "reflect" trajectories at the walls or "reject" those that end outside.
    metric
        Scales of the entries of x; `adapt` estimates them.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.HMC(step_size=0.3, leapfrog_steps=5)
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 20).x.shape
    torch.Size([64, 2])
    """

    step_size: float
    leapfrog_steps: int = 10
    temperature: float = 1.0
    jitter: bool = True
    walls: Walls = "reflect"
    metric: DiagonalMetric | None = None

    moves_x: ClassVar[bool] = True
    rejects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "step_size", self.step_size)
        check_positive(self, "temperature", self.temperature)
        check_count("leapfrog_steps", self.leapfrog_steps)
        if not isinstance(self.jitter, bool):
            raise InputError(f"jitter must be True or False, got {self.jitter!r}")
        check_walls(self.walls)
        check_metric(self, self.metric)

    def check_start(self, target: Target, x: Tensor) -> None:
        check_inside(self, target, x)
        if self.metric is not None:
            self.metric.check(x)

    def length(self, step: int) -> int:
        """Return the number of leapfrog steps at a chain's step: the van der Corput sequence in base 2, scaled."""
        return max(1, math.ceil(self.leapfrog_steps * van_der_corput(step + 1))) if self.jitter else self.leapfrog_steps

    def trajectory(self, target: Target, state: State, velocity: Tensor, here: Evaluation, steps: int) -> Place:
        """Integrate a trajectory. It is reversible: from its end with negated velocity it leads back to its start."""
        return leapfrog(
            target,
            state,
            velocity,
            here,
            step_size=self.step_size,
            steps=steps,
            metric=self.metric,
            walls=self.walls,
        )

    def log_acceptance(self, target: Target, end: Place, begin: Place) -> Tensor:
        """Return minus the change of -f + |velocity|^2 / 2 over the temperature; minus infinity outside a box."""
        gain = end.seen.log_density - begin.seen.log_density + kinetic(begin.velocity) - kinetic(end.velocity)
        return only_inside(target, end.x, gain / self.temperature)

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        drawn = streams.proposal(state.ahead, state.keys, state.x)
        assert drawn.accept is not None
        here = evaluate_x(target, state)
        velocity = target.moving(drawn.like(state.x)) * math.sqrt(self.temperature)
        end = self.trajectory(target, state, velocity, here, self.length(state.step))
        log_ratio = self.log_acceptance(target, end, Place(state.x, velocity, here))
        accept, acceptance = metropolis(drawn.accept, log_ratio, drawn.log_uniforms)
        x, seen = chosen(accept, end.x, state.x), choose(accept, end.seen, here)
        info = Info(here.log_density, here.gradient, x_acceptance=acceptance, reached=(end.x, end.velocity))
        rest = state.known, state.both, state.ahead[1:], state.velocity
        later = State(x, state.y, drawn.following, state.step + 1, seen, *rest)
        return later, info

    def look_ahead(self, state: State, steps: int) -> State:
        steps = streams.steps_ahead(state.x, steps)
        return replace(state, ahead=streams.proposals_ahead(state.keys, state.x, steps)) if steps else state


def van_der_corput(n: int) -> float:
    """Return element n of the van der Corput sequence in base 2, evenly spread over (0, 1)."""
    value, weight = 0.0, 0.5
    while n:
        value, n, weight = value + weight * (n & 1), n >> 1, weight / 2
    return value

"""kernels: Mixed HMC on x and labels (Zhou 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.inputs import check_count, check_positive
from jointenergy.kernels.base import (
    Evaluation,
    Info,
    Kernel,
    State,
    Target,
    evaluate_x,
    metropolis,
    only_inside,
    over,
)
from jointenergy.kernels.hmc import HMC
from jointenergy.kernels.motion import DiagonalMetric, Walls, check_metric, check_walls, kinetic, leapfrog
from jointenergy.labels import constant


class Journey(NamedTuple):
    """A point of the extended state space of Mixed HMC."""

    x: Tensor
    y: Tensor
    velocity: Tensor
    energy: Tensor
    """The kinetic energy of each label, `[n, L]`, exponentially distributed with the temperature as its mean."""
    sites: Tensor
    """The label that each visit tries to change, `[n, visits]`."""
    shifts: Tensor
    """By how many values each visit tries to shift its label (cyclically), `[n, visits]`."""


@dataclass(frozen=True)
class MixedHMC(Kernel):
    """Move x and labels together by Mixed HMC (Zhou 2020): leapfrog steps with label updates in between.

    A trajectory has `visits` label updates, with `leapfrog_steps` leapfrog steps before, between and after them. Each
    label has a kinetic energy. A visit changes the label if its kinetic energy covers the drop of f, and updates the
    energy by the change of f. The whole trajectory is accepted or rejected by the energy error of its leapfrog steps
    alone, since label updates conserve the total energy. Samples exp(f / temperature) without bias.

    Parameters
    ----------
    step_size
        The leapfrog step size.
    visits
        The number of label updates in a trajectory.
    leapfrog_steps
        Leapfrog steps before, between and after the label updates.
    temperature
        The temperature T of exp(f / T).
    walls
        In a box, "reflect" trajectories at the walls or "reject" those that end outside.
    metric
        Scales of the entries of x; `adapt` estimates them.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace({"class": 3})
    >>> model = je.LogitModel(torch.nn.Linear(2, 3), labels, domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.MixedHMC(step_size=0.3)
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 10).y.shape
    torch.Size([64, 1])
    """

    step_size: float
    visits: int = 3
    leapfrog_steps: int = 3
    temperature: float = 1.0
    walls: Walls = "reflect"
    metric: DiagonalMetric | None = None

    moves_x: ClassVar[bool] = True
    moves_y: ClassVar[bool] = True
    rejects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "step_size", self.step_size)
        check_positive(self, "temperature", self.temperature)
        check_count("visits", self.visits)
        check_count("leapfrog_steps", self.leapfrog_steps)
        check_walls(self.walls)
        check_metric(self, self.metric)

    @property
    def x_kernel(self) -> HMC:
        """The kernel on x, used when all labels are given: the same trajectory without label updates."""
        leaps = self.leapfrog_steps * (self.visits + 1)
        return HMC(self.step_size, leaps, self.temperature, False, self.walls, self.metric)

    def check_start(self, target: Target, x: Tensor) -> None:
        self.x_kernel.check_start(target, x)

    def drawn(self, target: Target, state: State, keys: Tensor) -> Journey:
        """Draw the start of a trajectory: velocities, label energies and the labels to visit."""
        velocity_key, energy_key, site_key, shift_key = streams.split(keys, 4)
        velocity = target.moving(streams.normal_like(velocity_key, state.x)) * math.sqrt(self.temperature)
        n, labels = len(state.x), target.model.labels
        energy = -self.temperature * streams.uniform(energy_key, len(labels), state.x.dtype).log()
        free = target.free_labels(state.y).expand_as(state.y)
        logits = torch.zeros(n, len(labels), device=state.x.device).masked_fill(~free, -torch.inf)
        sites = torch.stack([streams.categorical(k, logits) for k in streams.split(site_key, self.visits)], 1)
        others = constant(labels.cardinalities, state.y.device)[sites] - 1
        shifts = 1 + (streams.uniform(shift_key, self.visits, torch.float64) * others).long()
        # Visits to a held label, or to one with a single value, change nothing.
        shifts = torch.where(free.gather(1, sites) & (others > 0), shifts, 0)
        return Journey(state.x, state.y, velocity, energy, sites, shifts)

    def traveled(self, target: Target, state: State, begin: Journey, here: Evaluation) -> tuple[Journey, Tensor]:
        """Return the end of the trajectory, with the visits of its reverse, and the energy error of the leapfrog steps.

        The trajectory is reversible: from its end with negated velocity it leads back to its start.
        """
        x, y, velocity, energy, sites, shifts = begin
        sizes = constant(target.model.labels.cardinalities, y.device)
        error, done = torch.zeros_like(here.log_density), []
        for visit in range(self.visits + 1):
            before = here.log_density - kinetic(velocity)
            x, velocity, here = leapfrog(
                target,
                State(x, y, state.keys, known="complete"),
                velocity,
                here,
                step_size=self.step_size,
                steps=self.leapfrog_steps,
                metric=self.metric,
                walls=self.walls,
            )
            error = error + here.log_density - kinetic(velocity) - before
            if visit == self.visits:
                break
            site, shift = sites[:, visit, None], shifts[:, visit, None]
            value = (y.gather(1, site) + shift) % sizes[site]
            tried = y.scatter(1, site, value)
            there = evaluate_x(target, State(x, tried, state.keys, known="complete"))
            left = energy.gather(1, site)[:, 0] + there.log_density - here.log_density
            # A shift of 0 changes nothing, whatever the energy.
            moves = (left > 0) & (shift[:, 0] > 0)
            y = torch.where(moves[:, None], tried, y)
            energy = torch.where(moves[:, None], energy.scatter(1, site, left[:, None]), energy)
            rows = over(moves, x)
            here = Evaluation(
                "x",
                torch.where(moves, there.log_density, here.log_density),
                torch.where(rows, there.gradient, here.gradient),
            )
            done.append(torch.where(moves, (sizes[site] - shift)[:, 0], shift[:, 0]))
        return Journey(x, y, velocity, energy, sites.flip(1), torch.stack(done[::-1], 1)), error

    def log_acceptance(self, target: Target, end: Journey, begin: Journey, error: Tensor) -> Tensor:
        """Return the energy error of the leapfrog steps over the temperature; minus infinity outside a box."""
        return only_inside(target, end.x, error / self.temperature)

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        keys, journey_key, accept_key = streams.split(state.keys, 3)
        here = evaluate_x(target, replace(state, known="complete"))
        begin = self.drawn(target, state, journey_key)
        end, error = self.traveled(target, state, begin, here)
        accept, acceptance = metropolis(accept_key, self.log_acceptance(target, end, begin, error))
        later = replace(
            state,
            x=torch.where(over(accept, state.x), end.x, state.x),
            y=torch.where(accept[:, None], end.y, state.y),
            keys=keys,
            step=state.step + 1,
            evaluation=None,
        )
        return later, Info(here.log_density, here.gradient, x_acceptance=acceptance)

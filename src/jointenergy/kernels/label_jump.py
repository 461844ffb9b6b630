"""kernels: joint Metropolis moves of a label and x, so that a class and what it means for x change at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.inputs import check_count, check_positive
from jointenergy.kernels.base import Evaluation, Info, Kernel, State, Target, check_inside, evaluate_x, metropolis, over
from jointenergy.kernels.mala import MALA
from jointenergy.labels import constant


class Ends(NamedTuple):
    """The density at one x and its gradient, under the labels that a move begins with and those that it ends with."""

    old: Evaluation
    new: Evaluation

    def slope(self, share: float) -> Tensor:
        """The gradient of f, the share `share` of the way from the old labels to the new ones."""
        return torch.lerp(self.old.gradient, self.new.gradient, share)


@dataclass(frozen=True)
class LabelJump(Kernel):
    """Another value for one free label, and `steps` Langevin steps of x on the way to it, accepted jointly.

    The label and its value are drawn uniformly. Step k of K moves x along the gradient of (1 - s) f(x, y) + s f(x, y')
    with s = k / K: with K = 1 by the gradient at the new label; the way back is scored at the old one. With more steps
    x follows from one class to the other, and the move is accepted by its work: the change of f minus what the noise
    has paid for (Nilmeier et al. 2011). Where a single step is always rejected many may not be. It samples
    f / temperature, and rejects what ends outside a box. By itself it is slow within a class: use it in a Cycle.
    """

    step_size: float
    steps: int = 1
    temperature: float = 1.0

    moves_x: ClassVar[bool] = True
    moves_y: ClassVar[bool] = True
    rejects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "step_size", self.step_size)
        check_positive(self, "temperature", self.temperature)
        check_count("steps", self.steps)

    @property
    def x_kernel(self) -> MALA:
        """What moves x where no label is free."""
        return MALA(self.step_size, self.temperature)

    def check_start(self, target: Target, x: Tensor) -> None:
        check_inside(self, target, x)
        if min(target.model.labels.cardinalities) < 2:
            raise InputError("LabelJump changes labels, and one has a single value")

    def proposed_labels(self, target: Target, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The labels with one free one changed, and which rows have such a one; the way back is as probable."""
        site_key, shift_key = streams.split(keys, 2)
        free = target.free_labels(y).expand_as(y)
        site = streams.categorical(site_key, torch.zeros_like(free, dtype=torch.float32).masked_fill(~free, -torch.inf))
        sizes = constant(target.model.labels.cardinalities, y.device)[site]
        shift = 1 + (streams.uniform(shift_key, 1, torch.float64)[:, 0] * (sizes - 1)).long()
        old = y.gather(1, site[:, None])[:, 0]
        return target.hold_y(y.scatter(1, site[:, None], ((old + shift) % sizes)[:, None])), free.any(1)

    def look(self, target: Target, state: State, x: Tensor, to: Tensor) -> Ends:
        """Both densities at x, in one pass."""
        n = len(x)
        both = State(torch.cat((x, x)), torch.cat((state.y, to)), state.keys, known="complete")
        seen = evaluate_x(_free(target), both)
        old, new = slice(n), slice(n, None)
        return Ends(*(Evaluation("x", seen.log_density[p], target.moving(seen.gradient[p])) for p in (old, new)))

    def log_heat(self, x: Tensor, to: Tensor, ahead: Tensor, back: Tensor) -> Tensor:
        """log q of the step from `to` back to x minus that from x to `to`, with their drifts."""
        way = to - x
        there = (way - self.step_size * ahead).square().flatten(1).sum(1)
        here = (way + self.step_size * back).square().flatten(1).sum(1)
        return (there - here) / (4 * self.step_size * self.temperature)

    def log_acceptance(self, target: Target, x: Tensor, heat: Tensor, there: Ends, here: Ends) -> Tensor:
        """Of a move that ends at x: the change of f over the temperature, and log q of the way back over the way."""
        gain = (there.new.log_density - here.old.log_density) / self.temperature + heat
        return gain.masked_fill(~target.model.domain.contains(x), -torch.inf)

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        keys, label_key, noise_key, accept_key = streams.split(state.keys, 4)
        to, movable = self.proposed_labels(target, state.y, label_key)
        scale = math.sqrt(2.0 * self.step_size * self.temperature)
        begin = here = self.look(target, state, state.x, to)
        x, heat = state.x, torch.zeros_like(begin.old.log_density)
        for k, key in enumerate(streams.split(noise_key, self.steps), start=1):
            ahead = here.slope(k / self.steps)
            moved = target.hold_x(x + self.step_size * ahead + scale * target.moving(streams.normal_like(key, x)))
            here = self.look(target, state, moved, to)
            # The way back goes through the same stages from its own side: one later than the way there.
            heat = heat + self.log_heat(x, moved, ahead, here.slope((k - 1) / self.steps))
            x = moved
        ratio = self.log_acceptance(target, x, heat, here, begin).masked_fill(~movable, -torch.inf)
        accept, acceptance = metropolis(accept_key, ratio)
        later = replace(
            state,
            x=torch.where(over(accept, x), x, state.x),
            y=torch.where(accept[:, None], to, state.y),
            keys=keys,
            step=state.step + 1,
            evaluation=None,
        )
        return later, Info(begin.old.log_density, begin.old.gradient, y_acceptance=acceptance)


def _free(target: Target) -> Target:
    """The target without what it holds: its rows are not those of a doubled batch."""
    if target.mask is None and target.given_y is None:
        return target
    free = Target(target.model)
    free.offers = target.offers
    return free

"""kernels: joint Metropolis moves of a label and x, to switch between classes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
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
    evaluate_x,
    metropolis,
    only_inside,
    over,
)
from jointenergy.kernels.mala import MALA
from jointenergy.labels import constant


class Ends(NamedTuple):
    """Evaluations at one x under the old and the new labels of a move."""

    old: Evaluation
    new: Evaluation

    def slope(self, share: float) -> Tensor:
        """Interpolate the gradient between the old labels (`share` 0) and the new ones (`share` 1)."""
        return torch.lerp(self.old.gradient, self.new.gradient, share)


@dataclass(frozen=True)
class LabelJump(Kernel):
    """Change one label and move x towards the new label in `steps` Langevin steps, accepted or rejected jointly.

        step k of K:  x <- x + step_size * gradient of [(1 - s) f(x, y) + s f(x, y')] + noise,   s = k / K

    The label and its new value y' are drawn uniformly. The acceptance ratio uses the nonequilibrium work of the path:
    the change of f minus the heat of the Langevin steps (Nilmeier et al. 2011). More steps follow the path from one
    class to the other more closely and raise the acceptance. Samples exp(f / temperature); proposals outside a box are
    rejected.

    The kernel mixes slowly within a class: combine it with another one in a `Cycle`.

    Parameters
    ----------
    step_size
        Step size of the Langevin steps.
    steps
        The number K of Langevin steps in one proposal.
    temperature
        The temperature T of exp(f / T).

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace({"class": 3})
    >>> model = je.LogitModel(torch.nn.Linear(2, 3), labels, domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.LabelJump(step_size=0.1, steps=5)
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 20).y.shape
    torch.Size([64, 1])
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
        """The kernel on x, used when all labels are given."""
        return MALA(self.step_size, self.temperature)

    def check_start(self, target: Target, x: Tensor) -> None:
        check_inside(self, target, x)
        if min(target.model.labels.cardinalities) < 2:
            raise InputError("LabelJump needs labels with at least two values each")

    def proposed_labels(self, target: Target, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Change one free label of each row; also return which rows have one. The proposal is symmetric."""
        site_key, shift_key = streams.split(keys, 2)
        free = target.free_labels(y).expand_as(y)
        site = streams.categorical(site_key, torch.zeros_like(free, dtype=torch.float32).masked_fill(~free, -torch.inf))
        sizes = constant(target.model.labels.cardinalities, y.device)[site]
        shift = 1 + (streams.uniform(shift_key, 1, torch.float64)[:, 0] * (sizes - 1)).long()
        old = y.gather(1, site[:, None])[:, 0]
        return target.hold_y(y.scatter(1, site[:, None], ((old + shift) % sizes)[:, None])), free.any(1)

    def look(self, target: Target, state: State, x: Tensor, to: Tensor) -> Ends:
        """Evaluate x under the old and the new labels in one pass."""
        n = len(x)
        both = State(torch.cat((x, x)), torch.cat((state.y, to)), state.keys, known="complete")
        seen = evaluate_x(_free(target), both)
        old, new = slice(n), slice(n, None)
        return Ends(*(Evaluation("x", seen.log_density[p], target.moving(seen.gradient[p])) for p in (old, new)))

    def log_heat(self, x: Tensor, to: Tensor, ahead: Tensor, back: Tensor) -> Tensor:
        """Return log q of the reverse step minus log q of the forward step, from their drifts."""
        way = to - x
        there = (way - self.step_size * ahead).square().flatten(1).sum(1)
        here = (way + self.step_size * back).square().flatten(1).sum(1)
        return (there - here) / (4 * self.step_size * self.temperature)

    def log_acceptance(self, target: Target, x: Tensor, heat: Tensor, there: Ends, here: Ends) -> Tensor:
        """Return the log acceptance ratio: the change of f over the temperature, plus the heat of the path."""
        gain = (there.new.log_density - here.old.log_density) / self.temperature + heat
        return only_inside(target, x, gain)

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
            # The reverse path uses the same interpolations in reverse order, so its step k has the share (k - 1) / K.
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
    """Return the target without held values, whose rows would not match a doubled batch."""
    if target.mask is None and target.given_y is None:
        return target
    free = Target(target.model)
    free.offers = target.offers
    return free

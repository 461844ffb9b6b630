"""kernels: discrete Langevin on y, Metropolis-adjusted (Zhang, Liu and Liu 2022): all labels in one move."""

from __future__ import annotations

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
    categorical_by_label,
    check_codes,
    choose,
    evaluate_code,
    metropolis,
)
from jointenergy.kernels.gibbs_with_gradients import places_of


@dataclass(frozen=True)
class DiscreteMALA(Kernel):
    """Every free label proposes a value of its own by the gradient; the change of all is accepted or rejected at once.

    A label's proposal has weights exp(d / 2 - 1 / step_size) for each other value, d the first-order estimate of the
    change in log-density, and 1 for its own: one over the step size is half the squared distance of two codes over
    it. A large step size proposes many changes; `adapt` finds the one at which 57 % of moves are accepted. Two values
    and gradients of the model a step, however many labels there are and change.
    """

    step_size: float

    moves_y: ClassVar[bool] = True
    rejects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "step_size", self.step_size)

    def check_start(self, target: Target, x: Tensor) -> None:
        check_codes(target, x)

    def value_log_probs(self, target: Target, y: Tensor, gradient: Tensor) -> Tensor:
        """log q of every value of every label, `[n, n_codes]`: independent from label to label."""
        offsets, variables, closed = places_of(target, y)
        places = y + offsets
        weights = 0.5 * (gradient - gradient.gather(1, places)[:, variables]) - 1.0 / self.step_size
        weights = weights.scatter(1, places, 0.0)
        if closed is not None:
            weights = weights.masked_fill(closed.expand_as(weights).scatter(1, places, False), -torch.inf)
        index = variables.expand_as(weights)
        largest = torch.full_like(y, -torch.inf, dtype=weights.dtype).scatter_reduce(1, index, weights, "amax")
        shifted = weights - largest[:, variables]
        total = torch.zeros_like(largest).scatter_add(1, index, shifted.exp())
        return shifted - total.log()[:, variables]

    def log_proposal(self, target: Target, log_probs: Tensor, to: Tensor) -> Tensor:
        """log q of all labels of `to` together."""
        return log_probs.gather(1, to + places_of(target, to)[0]).sum(1)

    def log_acceptance(
        self, target: Target, forward: Tensor, reverse: Tensor, there: Evaluation, here: Evaluation
    ) -> Tensor:
        """The log of the acceptance ratio of a move, `forward` and `reverse` its log q and that of the way back."""
        return there.log_density - here.log_density + reverse - forward

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        keys, move_key, accept_key = streams.split(state.keys, 3)
        here = evaluate_code(target, state)
        log_probs = self.value_log_probs(target, state.y, here.gradient)
        proposed = categorical_by_label(target.model, move_key, log_probs)
        there = evaluate_code(target, State(state.x, proposed, keys, both=state.both))
        forward = self.log_proposal(target, log_probs, proposed)
        reverse = self.log_proposal(target, self.value_log_probs(target, proposed, there.gradient), state.y)
        accept, acceptance = metropolis(accept_key, self.log_acceptance(target, forward, reverse, there, here))
        y = torch.where(accept[:, None], proposed, state.y)
        info = Info(log_density=here.log_density, y_acceptance=acceptance)
        return replace(state, y=y, keys=keys, step=state.step + 1, evaluation=choose(accept, there, here)), info

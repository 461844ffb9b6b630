"""kernels: Metropolis-adjusted discrete Langevin on labels (Zhang, Liu and Liu 2022)."""

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
    """Move all labels at once with the Metropolis-adjusted discrete Langevin proposal.

        q(y'_k = v | y)  is proportional to  exp(d_kv / 2 - 1 / step_size)  for v != y_k,  and to 1 for v = y_k

    Here d_kv is the first-order estimate of the change in log-density when label k is set to v. Labels are proposed
    independently and accepted or rejected together. A step takes two evaluations of the model and its gradient, for any
    number of labels (Zhang, Liu and Liu 2022).

    Parameters
    ----------
    step_size
        Larger values propose more changes. `adapt` tunes it to an acceptance rate of 0.574.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace.binary(["smiling", "hat"])
    >>> model = je.LogitModel(torch.nn.Linear(2, 4), labels, domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.DiscreteMALA(step_size=2.0)
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 20).y.shape
    torch.Size([64, 2])
    """

    step_size: float

    moves_y: ClassVar[bool] = True
    rejects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "step_size", self.step_size)

    def check_start(self, target: Target, x: Tensor) -> None:
        check_codes(target, x)

    def value_log_probs(self, target: Target, y: Tensor, gradient: Tensor) -> Tensor:
        """Return log q of every value of every label, `[n, n_codes]`."""
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
        """Return log q of all labels of `to` together."""
        return log_probs.gather(1, to + places_of(target, to)[0]).sum(1)

    def log_acceptance(
        self, target: Target, forward: Tensor, reverse: Tensor, there: Evaluation, here: Evaluation
    ) -> Tensor:
        """Return the log acceptance ratio, from log q of the move (`forward`) and of its reverse."""
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

"""kernels: Gibbs-With-Gradients on y (Grathwohl et al. 2021; equations 4 and 5 of the mixed joint EBM paper)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.kernels.base import Evaluation, Info, Kernel, State, Target, choose, evaluate_code, metropolis
from jointenergy.labels import constant


@dataclass(frozen=True)
class GibbsWithGradients(Kernel):
    """One label of each chain changed by a Metropolis move whose proposal is informed by the gradient by the code.

    The proposal goes over the Hamming ball of radius 1, the present state counted once, with weights exp(d / 2), d the
    first-order estimate of the change in log-density. It needs the model's value and gradient at two states a step,
    however many labels there are.
    """

    moves_y: ClassVar[bool] = True

    def check_start(self, target: Target, x: Tensor) -> None:
        labels = target.model.labels
        corner = labels.code_of(torch.zeros(len(x), len(labels), dtype=torch.int64, device=x.device), x.dtype)
        with torch.no_grad():
            target.model.log_density_of_codes(x, corner)  # raises where a model knows no codes

    def move_log_probs(self, target: Target, y: Tensor, gradient: Tensor) -> Tensor:
        """log q of every move from y, `[n, n_codes + 1]`: set a label to a value, or, last, stay put."""
        labels = target.model.labels
        places = y + constant(labels.offsets, y.device)
        present = gradient.gather(1, places).index_select(1, constant(labels.variable_of_code, y.device))
        # One memory for all moves, the last of which stays put: with many labels every pass over it counts.
        weights = gradient.new_zeros(len(y), labels.n_codes + 1)
        torch.sub(gradient, present, out=weights[:, :-1]).mul_(0.5)
        weights.scatter_(1, places, -torch.inf)
        if target.given_y is not None:
            weights[:, :-1].masked_fill_(~target.free_codes(y), -torch.inf)
        return weights.log_softmax(1)

    def moved(self, target: Target, y: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
        """The labels after a move, and the move that leads back."""
        labels = target.model.labels
        stays = move == labels.n_codes
        entry = move.clamp(max=labels.n_codes - 1)
        site = constant(labels.variable_of_code, y.device)[entry]
        offset = constant(labels.offsets, y.device)[site]
        old = y.gather(1, site[:, None])[:, 0]
        new = torch.where(stays, old, entry - offset)
        return y.scatter(1, site[:, None], new[:, None]), torch.where(stays, move, offset + old)

    def log_acceptance(
        self, target: Target, forward: Tensor, back: Tensor, there_y: Tensor, there: Evaluation, here: Evaluation
    ) -> Tensor:
        """The log of the acceptance ratio of a move to there_y: `forward` is its log q, `back` the way back."""
        reverse = self.move_log_probs(target, there_y, there.gradient).gather(1, back[:, None])[:, 0]
        return there.log_density - here.log_density + reverse - forward

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        keys, move_key, accept_key = streams.split(state.keys, 3)
        here = evaluate_code(target, state)
        log_probs = self.move_log_probs(target, state.y, here.gradient)
        move = streams.categorical(move_key, log_probs)
        forward = log_probs.gather(1, move[:, None])[:, 0]
        proposed_y, back = self.moved(target, state.y, move)
        there = evaluate_code(target, State(state.x, proposed_y, keys))
        log_ratio = self.log_acceptance(target, forward, back, proposed_y, there, here)
        accept, acceptance = metropolis(accept_key, log_ratio)
        y = torch.where(accept[:, None], proposed_y, state.y)
        info = Info(log_density=here.log_density, y_acceptance=acceptance)
        after = replace(state, y=y, keys=keys, step=state.step + 1, evaluation=choose(accept, there, here))
        return after, info

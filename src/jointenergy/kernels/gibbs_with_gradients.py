"""kernels: Gibbs-With-Gradients on y (Grathwohl et al. 2021; equations 4 and 5 of the mixed joint EBM paper)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.fusing import fused
from jointenergy.kernels.base import (
    Evaluation,
    Info,
    Kernel,
    State,
    Target,
    check_codes,
    choose,
    evaluate_code,
    metropolis,
)
from jointenergy.labels import constant

Balancing = Literal["sqrt", "barker", "min", "max"]
"""The locally balanced functions that weigh a change of the density."""


@dataclass(frozen=True)
class GibbsWithGradients(Kernel):
    """One label of each chain changed by a Metropolis move whose proposal is informed by the gradient by the code.

    The proposal goes over the Hamming ball of radius 1, the present state counted once, with weights g(exp(d)), d the
    first-order estimate of the change in log-density and g locally balanced, g(t) = t g(1 / t) (Zanella 2020): "sqrt"
    is the paper's, t / (1 + t) is "barker", and "min" and "max" are the lesser and the larger of t and 1. It needs the
    model's value and gradient at two states a step, however many labels there are.
    """

    balancing: Balancing = "sqrt"

    moves_y: ClassVar[bool] = True
    rejects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.balancing not in get_args(Balancing):
            raise InputError(f"balancing must be one of {', '.join(get_args(Balancing))}, got {self.balancing!r}")

    def check_start(self, target: Target, x: Tensor) -> None:
        check_codes(target, x)

    def move_log_probs(self, target: Target, y: Tensor, gradient: Tensor) -> Tensor:
        """log q of every move from y, `[n, n_codes + 1]`: set a label to a value, or, last, stay put."""
        return _move_log_probs(gradient, y, *places_of(target, y), self.balancing)

    def moved(self, target: Target, y: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
        """The labels after a move, and the move that leads back."""
        return _moved(y, move, *places_of(target, y)[:2])

    def log_acceptance(
        self, target: Target, forward: Tensor, reverse: Tensor, there: Evaluation, here: Evaluation
    ) -> Tensor:
        """The log of the acceptance ratio of a move, `forward` and `reverse` its log q and that of the way back."""
        return there.log_density - here.log_density + reverse - forward

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        here = self._look(target, state)
        offsets, variables, _ = places_of(target, state.y)
        keys, key, proposed, forward, back = _propose(state.keys, here.log_probs, state.y, offsets, variables)
        there = self._look(target, State(state.x, proposed, keys, both=state.both))
        reverse = there.log_probs.gather(1, back[:, None])[:, 0]
        log_ratio = self.log_acceptance(target, forward, reverse, there, here)
        accept, acceptance = metropolis(key, log_ratio)
        y, log_probs = _chosen(accept, proposed, state.y, there.log_probs, here.log_probs)
        chosen = choose(accept, there, here)
        evaluation = _Look("code", chosen.log_density, chosen.gradient, chosen.by_x, log_probs=log_probs)
        info = Info(log_density=here.log_density, y_acceptance=acceptance)
        return replace(state, y=y, keys=keys, step=state.step + 1, evaluation=evaluation), info

    def _look(self, target: Target, state: State) -> _Look:
        """The density and the moves at a state; those that it carries are not computed again."""
        if isinstance(state.evaluation, _Look):
            return state.evaluation
        e = evaluate_code(target, state)
        log_probs = self.move_log_probs(target, state.y, e.gradient)
        return _Look("code", e.log_density, e.gradient, e.by_x, log_probs=log_probs)


@dataclass(frozen=True)
class _Look(Evaluation):
    """An evaluation with the log q of every move from where it was made."""

    log_probs: Tensor = field(kw_only=True)


Places = tuple[Tensor, Tensor, Tensor | None]
"""Where each label's block begins, the label of each entry of a code, and the entries of given labels."""


def places_of(target: Target, y: Tensor) -> Places:
    """What a move of labels must know of the target."""
    labels = target.model.labels
    variables = constant(labels.variable_of_code, y.device)
    closed = None if target.given_y is None else ~target.free_labels(y)[:, variables]
    return constant(labels.offsets, y.device), variables, closed


@fused
def _move_log_probs(
    gradient: Tensor, y: Tensor, offsets: Tensor, variables: Tensor, closed: Tensor | None, balancing: Balancing
) -> Tensor:
    places = y + offsets
    present = gradient.gather(1, places).index_select(1, variables)
    # One memory for all moves, the last of which stays put: with many labels every pass over it counts.
    weights = gradient.new_zeros(len(y), gradient.shape[1] + 1)
    half = 0.5 if balancing == "sqrt" else 1.0
    weights[:, :-1].add_(gradient, alpha=half).sub_(present, alpha=half)
    if balancing == "barker":
        weights = torch.nn.functional.logsigmoid(weights)
    elif balancing != "sqrt":
        weights = weights.clamp_(max=0.0) if balancing == "min" else weights.clamp_(min=0.0)
    weights.scatter_(1, places, -torch.inf)
    if closed is not None:
        weights[:, :-1].masked_fill_(closed, -torch.inf)
    return weights.log_softmax(1)


def _moved(y: Tensor, move: Tensor, offsets: Tensor, variables: Tensor) -> tuple[Tensor, Tensor]:
    stays = move == len(variables)
    entry = move.clamp(max=len(variables) - 1)
    site = variables[entry]
    offset = offsets[site]
    old = y.gather(1, site[:, None])[:, 0]
    new = torch.where(stays, old, entry - offset)
    return y.scatter(1, site[:, None], new[:, None]), torch.where(stays, move, offset + old)


@fused
def _propose(
    keys: Tensor, log_probs: Tensor, y: Tensor, offsets: Tensor, variables: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The next keys, the one to decide by, the labels proposed, the log q of the move and the way back."""
    keys, move_key, accept_key = streams.split(keys, 3)
    move = streams.categorical(move_key, log_probs)
    proposed, back = _moved(y, move, offsets, variables)
    return keys, accept_key, proposed, log_probs.gather(1, move[:, None])[:, 0], back


@fused
def _chosen(
    accept: Tensor, proposed: Tensor, y: Tensor, there_log_probs: Tensor, log_probs: Tensor
) -> tuple[Tensor, Tensor]:
    """The labels after acceptance or rejection, and the log q of the moves from there."""
    rows = accept[:, None]
    return torch.where(rows, proposed, y), torch.where(rows, there_log_probs, log_probs)

"""kernels: Gibbs-With-Gradients on labels (Grathwohl et al. 2021; equations 4 and 5 of Kelly and Grathwohl 2021)."""

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
"""Names of the locally balanced functions."""


@dataclass(frozen=True)
class GibbsWithGradients(Kernel):
    """Change one label of each chain by a Metropolis-Hastings move with a gradient-informed proposal.

        q(y' | y)  is proportional to  g(exp(d(y')))   for y' in the Hamming ball of radius 1 around y

    Here d(y') is the first-order estimate of the change in log-density, from the gradient with respect to the one-hot
    code. A step takes two evaluations of the model and its gradient, for any number of labels.

    Parameters
    ----------
    balancing
        The locally balanced function, g(t) = t g(1 / t) (Zanella 2020): "sqrt" is sqrt(t) as in the paper, "barker" t /
        (1 + t), "min" min(t, 1) and "max" max(t, 1).

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace.binary(["smiling", "hat"])
    >>> model = je.PairModel(je.Concat(torch.nn.Linear(6, 1)), labels, domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.GibbsWithGradients()
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 20).y.shape
    torch.Size([64, 2])
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
        """Return log q of every move from y, `[n, n_codes + 1]`: set a label to a value, or (last entry) stay."""
        return _move_log_probs(gradient, y, *places_of(target, y), self.balancing)

    def moved(self, target: Target, y: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
        """Return the labels after a move, and the reverse move."""
        return _moved(y, move, *places_of(target, y)[:2])

    def log_acceptance(
        self, target: Target, forward: Tensor, reverse: Tensor, there: Evaluation, here: Evaluation
    ) -> Tensor:
        """Return the log acceptance ratio, from log q of the move (`forward`) and of its reverse."""
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
        """Evaluate the density and the move probabilities at a state, or reuse those that it carries."""
        if isinstance(state.evaluation, _Look):
            return state.evaluation
        e = evaluate_code(target, state)
        log_probs = self.move_log_probs(target, state.y, e.gradient)
        return _Look("code", e.log_density, e.gradient, e.by_x, log_probs=log_probs)


@dataclass(frozen=True)
class _Look(Evaluation):
    """An evaluation with log q of every move from its state."""

    log_probs: Tensor = field(kw_only=True)


Places = tuple[Tensor, Tensor, Tensor | None]
"""Where each label's block begins, the label of each code entry, and the code entries of given labels."""


def places_of(target: Target, y: Tensor) -> Places:
    """Return the index tensors that a label move needs."""
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
    # One tensor for all moves (the last one stays), changed in place: with many labels each pass over it is costly.
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
    """Return the next keys, the key of the accept step, the proposed labels, log q of the move and the reverse move."""
    keys, move_key, accept_key = streams.split(keys, 3)
    move = streams.categorical(move_key, log_probs)
    proposed, back = _moved(y, move, offsets, variables)
    return keys, accept_key, proposed, log_probs.gather(1, move[:, None])[:, 0], back


@fused
def _chosen(
    accept: Tensor, proposed: Tensor, y: Tensor, there_log_probs: Tensor, log_probs: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the labels after acceptance or rejection, and log q of the moves from them."""
    rows = accept[:, None]
    return torch.where(rows, proposed, y), torch.where(rows, there_log_probs, log_probs)

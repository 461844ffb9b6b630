"""kernels: path auxiliary sampling of labels, many changes in one step (Sun, Dai, Xia and Ramamurthy 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.inputs import check_count
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
from jointenergy.kernels.gibbs_with_gradients import Balancing, GibbsWithGradients


@dataclass(frozen=True)
class PathAuxiliary(Kernel):
    """Change up to `flips` labels along a path of Gibbs-With-Gradients moves, accepted or rejected as a whole.

    All moves of the path use the gradient at its start, and those of the reverse path the gradient at its end. A step
    takes two evaluations of the model and its gradient, as with one change. The path is an auxiliary variable, so the
    kernel is reversible (Sun, Dai, Xia and Ramamurthy 2022).

    Parameters
    ----------
    flips
        The number of moves in a path.
    balancing
        The locally balanced function, as for `GibbsWithGradients`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace.binary(["smiling", "hat", "glasses"])
    >>> model = je.PairModel(je.Concat(torch.nn.Linear(8, 1)), labels, domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.PathAuxiliary(flips=2)
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 20).y.shape
    torch.Size([64, 3])
    """

    flips: int = 4
    balancing: Balancing = "sqrt"

    moves_y: ClassVar[bool] = True
    rejects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("flips", self.flips)
        _ = self.single  # checks the balancing

    @property
    def single(self) -> GibbsWithGradients:
        """The kernel that proposes the moves of a path."""
        return GibbsWithGradients(self.balancing)

    def check_start(self, target: Target, x: Tensor) -> None:
        check_codes(target, x)

    def path_log_prob(self, target: Target, y: Tensor, moves: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """Return log q of a path of moves from y under one gradient."""
        total = gradient.new_zeros(len(y))
        for move in moves:
            total = total + self.single.move_log_probs(target, y, gradient).gather(1, move[:, None])[:, 0]
            y, _ = self.single.moved(target, y, move)
        return total

    def followed(self, target: Target, y: Tensor, moves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the end of a path and the moves of the reverse path in order."""
        back: list[Tensor] = []
        for move in moves:
            y, way = self.single.moved(target, y, move)
            back.insert(0, way)
        return y, back

    def log_acceptance(
        self, target: Target, forward: Tensor, reverse: Tensor, there: Evaluation, here: Evaluation
    ) -> Tensor:
        """Return the log acceptance ratio, from log q of the path (`forward`) and of its reverse."""
        return there.log_density - here.log_density + reverse - forward

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        keys, accept_key, *move_keys = streams.split(state.keys, 2 + self.flips)
        here = evaluate_code(target, state)
        y, moves, forward = state.y, [], torch.zeros_like(here.log_density)
        for key in move_keys:
            log_probs = self.single.move_log_probs(target, y, here.gradient)
            move = streams.categorical(key, log_probs)
            moves.append(move)
            forward = forward + log_probs.gather(1, move[:, None])[:, 0]
            y, _ = self.single.moved(target, y, move)
        proposed, back = self.followed(target, state.y, moves)
        there = evaluate_code(target, State(state.x, proposed, keys, both=state.both))
        reverse = self.path_log_prob(target, proposed, back, there.gradient)
        accept, acceptance = metropolis(accept_key, self.log_acceptance(target, forward, reverse, there, here))
        y = torch.where(accept[:, None], proposed, state.y)
        info = Info(log_density=here.log_density, y_acceptance=acceptance)
        return replace(state, y=y, keys=keys, step=state.step + 1, evaluation=choose(accept, there, here)), info

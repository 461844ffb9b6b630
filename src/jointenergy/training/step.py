"""training: one iteration, as in the papers' algorithms.

Compilation, recording and distribution are up to the caller.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from jointenergy.objectives import Draws, Loss
from jointenergy.training.chains import Moved

if TYPE_CHECKING:
    from jointenergy.training.trainer import Trainer


class Outcome(NamedTuple):
    """Outcome of a step: the loss with its parts, the chains, the gradient norm."""

    loss: Loss
    moved: Moved | None
    norm: Tensor


def step(trainer: Trainer) -> Outcome:
    """Take a batch, move chains, compare both, update the weights, and store the chains in the buffer."""
    compared, moved = [], None
    for part in trainer.due:
        batch, draws = part.feed.batch(), Draws()
        for name in part.completed:
            draws = trainer.complete(draws, name, batch, part.feed.rows)
        for term in part.noised:
            draws = term.draw(draws, batch, trainer.noise)
        for name in part.moved:
            moved = trainer.move(batch if name == "given_y" else None, len(batch.x))
            draws = trainer.draws_of(moved, name, draws, part.needs)
            trainer.chains.store(moved)
        compared.append((part.objective, batch, draws))
    loss, norm = trainer.update(partial(trainer.compare, compared))
    return Outcome(loss, moved, norm)

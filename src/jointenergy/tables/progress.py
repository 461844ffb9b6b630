"""tables: where a training stands, kept from one call of `partial_fit` or of a warm `fit` to the next."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from jointenergy.streams import seeded
from jointenergy.training import state
from jointenergy.training.trainer import Trainer


@dataclass(frozen=True, eq=False)
class TrainingState:
    """What the next call needs beside the model, on the CPU.

    A fitted density has averaged weights. To go on from those would take back nearly all that a short call has learned:
    of one step an average with a decay of 0.99 keeps a hundredth.
    """

    weights: dict[str, Tensor]
    """Of the model, not averaged."""
    optimizer: dict[str, Tensor]
    """Its moments and counts, as checkpoints name them."""
    iterations: int
    """Of all calls so far."""

    @classmethod
    def of(cls, trainer: Trainer, before: int, *, set_back: bool) -> TrainingState:
        """After `before` iterations of earlier calls. One that was set back goes on from the averaged weights that it
        was set back to, with an optimizer that knows nothing."""
        tensors = {k: v.detach().cpu().clone() for k, v in state.save(trainer, {}).tensors.items()}
        weights = state.under(tensors, "ema/" if set_back else "model/")
        optimizer = {} if set_back else state.under(tensors, "optimizer/")
        return cls(weights, optimizer, before + trainer.iteration)

    def seed(self, seed: int) -> int:
        """Of the next call, which must not draw again the noise, the rows and the chains of the one before."""
        return int(seeded(seed, "after", self.iterations).initial_seed())


def unbiased(decay: float, n: int) -> float:
    """The decay at the n-th step of an average that forgets where it began, however few its steps are."""
    return decay * (1.0 - decay ** (n - 1)) / (1.0 - decay**n)

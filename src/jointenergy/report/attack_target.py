"""report: a classifier as its adversary sees it: what it decides after refinement, and losses to follow uphill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.inference import Refined, refine
from jointenergy.kernels import Langevin
from jointenergy.labels import MISSING
from jointenergy.models import JointModel
from jointenergy.runs import Run

Norm = Literal["linf", "l2"]
NORMS: tuple[Norm, Norm] = ("linf", "l2")
Gradient = Literal["through", "identity"]

VALUES = 1 << 21
"""The most values of x, copies of it counted, that are looked at together: it bounds the memory."""


def distance(change: Tensor, norm: Norm) -> Tensor:
    """The norm of each row's change, in units of x."""
    length: Tensor = torch.linalg.vector_norm(change.flatten(1), ord=torch.inf if norm == "linf" else 2, dim=1)
    return length


def units(bounds: tuple[float, float]) -> float:
    """What one unit of [0, 1] is in units of x: a radius of 8/255 is 16/255 where x lies in [-1, 1], in any norm."""
    return bounds[1] - bounds[0]


def margins(log_probs: dict[str, Tensor], y: Tensor) -> Tensor:
    """By how much the true value of a label leads the best other, in nats, `[n]`; of several labels the least lead.

    A row is right where it is above 0, so where all its labels are; a MISSING one cannot be wrong.
    """
    least = torch.full((len(y),), torch.inf, device=y.device)
    for k, value in enumerate(log_probs.values()):
        own = y[:, k : k + 1].clamp(min=0)
        lead = value.gather(1, own)[:, 0] - value.scatter(1, own, -torch.inf).amax(1)
        least = torch.minimum(least.to(lead), lead.masked_fill(y[:, k] == MISSING, torch.inf))
    return least


def cross_entropies(log_probs: dict[str, Tensor], y: Tensor) -> Tensor:
    """Minus the log-probability of the true labels, each by itself, `[n]`; a MISSING one adds nothing."""
    own = [
        value.gather(1, y[:, k : k + 1].clamp(min=0))[:, 0].masked_fill(y[:, k] == MISSING, 0.0)
        for k, value in enumerate(log_probs.values())
    ]
    return -torch.stack(own).sum(0)


@dataclass(frozen=True)
class Budget:
    """How hard a gradient attack tries: `restarts` runs of `steps` steps at every radius, then `halvings` between them.

    The first restart begins at the row, the others at random points of the ball. Odd ones raise minus the margin, the
    others cross-entropy. A step is 2.5 radii divided by the number of steps: enough to cross the ball, as Madry has it.
    """

    steps: int = 20
    restarts: int = 2
    halvings: int = 4
    draws: int = 2
    """Fresh draws of a refinement's noise that a gradient is the mean of."""


@dataclass(frozen=True, eq=False)
class ClassifiedRows:
    """Rows with their true labels, and the classifier that must keep them right, after `steps` steps of refinement.

    With refinement the decision is random. It is the most probable label by the mean of the probabilities over `votes`
    draws of the chain, whose noise is a function of the row's key: the same row is always judged with the same noise.
    """

    model: JointModel
    kernel: Langevin
    bounds: tuple[float, float]
    x: Tensor
    y: Tensor
    keys: Tensor
    steps: int = 0
    votes: int = 1

    @classmethod
    def of(cls, run: Run, x: Tensor, y: Tensor, *, steps: int = 0, votes: int = 1, seed: int = 0) -> ClassifiedRows:
        """Rows of a run. An adversary stays within its bounds; rows that lie beyond them widen these."""
        low, high = run.bounds
        keys = streams.chain_keys(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
        bounds = (min(low, float(x.min())), max(high, float(x.max())))
        return cls(run.model, run.sampling.langevin, bounds, x, y.to(x.device), keys, steps, votes if steps else 1)

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: Tensor | slice) -> ClassifiedRows:
        return replace(self, x=self.x[index], y=self.y[index], keys=self.keys[index])

    def repeated(self, times: int) -> ClassifiedRows:
        """All rows once, then all again: row i is also row i + n, i + 2n, ..."""
        return self.rows(torch.arange(len(self), device=self.x.device).repeat(times))

    def pieces(self, copies: int) -> Iterator[slice]:
        """Slices of rows so small that so many copies of each fit; a step that a graph holds is a copy of its own."""
        size = max(1, VALUES // (self.x[0].numel() * copies))
        for begin in range(0, len(self), size):
            yield slice(begin, begin + size)

    @torch.no_grad()
    def margin(self, x: Tensor) -> Tensor:
        """The margin of the decision on changed rows x, `[n]`; what is no number is minus infinity."""
        found = [self.rows(piece)._margin(x[piece]) for piece in self.pieces(self.votes)]
        return torch.cat(found).nan_to_num(-torch.inf, torch.inf, -torch.inf)

    def wrong(self, x: Tensor) -> Tensor:
        """Where the decision on changed rows x is wrong; a tie is."""
        return self.margin(x) <= 0

    def _margin(self, x: Tensor) -> Tensor:
        return margins(self._refined(x, self.steps, self.keys, n_draws=self.votes).log_probs, self.y)

    def losses(
        self, x: Tensor, *, by_margin: Tensor, gradient: Gradient, draws: int, generator: torch.Generator
    ) -> Tensor:
        """What the adversary raises, `[n]`, with a graph to x: cross-entropy, or minus the margin where asked for.

        Both, because the gradient of cross-entropy rounds away where a classifier is sure. With refinement it is the
        mean of the losses over `draws` fresh draws of the chain. The gradient goes through every step of the chain,
        or takes these for the identity: that by the refined x is used as that by x.
        """
        if self.steps == 0:
            draws = 1
        many, y = x.repeat(draws, *(1,) * (x.ndim - 1)), self.y.repeat(draws, 1)
        keys = streams.chain_keys(len(many), generator=generator).to(x.device)
        steps = self.steps
        if steps and gradient == "identity":
            end = self._refined(many.detach(), steps, keys).x[0]
            many, steps = many + (end - many.detach()), 0
        log_probs = self._refined(many, steps, keys, differentiable=True).log_probs
        chosen = torch.where(by_margin.repeat(draws), -margins(log_probs, y), cross_entropies(log_probs, y))
        return chosen.view(draws, -1).mean(0)

    def _refined(
        self, x: Tensor, steps: int, keys: Tensor, *, n_draws: int = 1, differentiable: bool = False
    ) -> Refined:
        return refine(
            self.model,
            x,
            kernel=self.kernel,
            steps=steps,
            keys=keys,
            n_draws=n_draws,
            differentiable=differentiable,
        )

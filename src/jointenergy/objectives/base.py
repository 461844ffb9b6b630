"""objectives: what goes in (a batch, draws of the model) and what comes out (a loss with named parts)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

DrawName = Literal[
    "negatives", "given_x", "given_y", "given_xy", "last_step", "neighbors", "noised", "renoised", "noise"
]
"""The fields of `Draws`, as objectives ask for them."""


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of data; entries of `y` may be MISSING, `mask` is True where x is observed (None: everywhere).

    No `y` means that all labels are missing. Where x is not observed its values are ignored, and may be NaN.
    `complete` promises that no entry of `y` is MISSING, so that nobody looks for one. `weight` says how much each row
    counts in the likelihood terms, `[n]`; no weights: all count 1.
    """

    x: Tensor
    y: Tensor | None = None
    mask: Tensor | None = None
    complete: bool = False
    weight: Tensor | None = None


@final
@dataclass(frozen=True, eq=False)
class Samples:
    """Joint states drawn from a law; labels that are MISSING (no `y`: all) are summed out by the model.

    `weight` is relative, equal if not given: importance weights, or exact probabilities. In draws that belong to rows
    of the batch, `row` names the row of each state, so a row may have several; without it state i belongs to row i.
    `divisor` stands for the sum of the weights in a mean: states that are a part of more have the share of all.
    `complete` promises that no entry of `y` is MISSING.
    """

    x: Tensor
    y: Tensor | None = None
    weight: Tensor | None = None
    row: Tensor | None = None
    divisor: Tensor | None = None
    complete: bool = False

    def mean(self, values: Tensor) -> Tensor:
        """The weighted mean of one value per state."""
        if self.weight is None:
            return values.mean()
        weight = self.weight.detach().to(values.dtype)
        return (weight * values).sum() / (weight.sum() if self.divisor is None else self.divisor)

    def mean_by_row(self, values: Tensor, n: int) -> Tensor:
        """The weighted means of one value per state over the states of each of n rows, `[n]`."""
        if self.row is None:
            return values
        weight = torch.ones_like(values) if self.weight is None else self.weight.detach().to(values.dtype)
        total = values.new_zeros(n).index_add(0, self.row, weight)
        return values.new_zeros(n).index_add(0, self.row, weight * values) / total


@final
@dataclass(frozen=True, eq=False)
class NoiseDraws:
    """Draws of a known noise density, as many for each row of the batch, and its log-density at them and at the rows.

    States come row by row. A label that a row misses is MISSING in its states too, and summed out of the noise.
    """

    states: Samples
    log_density: Tensor  # [m]
    log_density_of_rows: Tensor  # [n]


@final
@dataclass(frozen=True, eq=False)
class Draws:
    """What kernels drew for a batch; an objective's `needs` says which of these it cannot do without.

    - `negatives`: from the model, nothing given. Any number of states.
    - `given_x`: row i given what is observed of x_i. For complete x these are labels y' at fixed x.
    - `given_y`: row i given what is observed of y_i: the negatives of p(x | y).
    - `given_xy`: row i given what is observed of both: the completed positives of equation 8 of the mixed joint EBM.
    - `last_step`: chains whose last Langevin step was recomputed, so that x has a graph to the weights.
    - `neighbors`: other samples x, to which `last_step` measures its distance.
    - `noised`: row i with Gaussian noise added, the labels of the row.
    - `renoised`: row i with Gaussian noise added twice, several times, row by row, the labels of the row.
    - `noise`: draws of a noise density that is known, several for each row.

    What is given is held: it has the batch's values. Free labels that persist from visit to visit of a data row make
    `given_x` and `given_xy` less biased; keeping them is the caller's part. All but `last_step` enter as constants.
    """

    negatives: Samples | None = None
    given_x: Samples | None = None
    given_y: Samples | None = None
    given_xy: Samples | None = None
    last_step: Samples | None = None
    neighbors: Tensor | None = None
    noised: Samples | None = None
    renoised: Samples | None = None
    noise: NoiseDraws | None = None


@final
@dataclass(frozen=True, eq=False)
class Loss:
    """`total` is to be minimized. `parts` are the terms before their weights, detached, by name.

    A likelihood term is reported as it is maximized, the penalties as they are minimized. Only an exact log p(y | x)
    is a log-likelihood in nats; the other terms lack their normalizer and are gaps f(data) - f(samples), near 0 when
    chains and data agree.
    """

    total: Tensor
    parts: dict[str, Tensor]

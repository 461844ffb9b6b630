"""objectives: the inputs of an objective (a batch, draws of the model) and its output (a loss with named parts)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

DrawName = Literal[
    "negatives", "given_x", "given_y", "given_xy", "last_step", "neighbors", "noised", "renoised", "noise"
]
"""The fields of `Draws`."""


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of data, with missing labels and missing entries of x.

    Parameters
    ----------
    x
        Data, `[n, *event]`. Entries where `mask` is False are ignored and may be NaN.
    y
        Labels, int64 `[n, L]`, MISSING where unknown; None if all are missing.
    mask
        Boolean, True where x is observed; None if all of x is.
    complete
        Promises that no entry of `y` is MISSING, which saves a check.
    weight
        Weights of the rows in the likelihood terms, `[n]`; None for equal weights.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> batch = je.objectives.Batch(torch.zeros(2, 3), torch.tensor([[1], [je.MISSING]]))
    >>> batch.x.shape, batch.mask is None
    (torch.Size([2, 3]), True)
    """

    x: Tensor
    y: Tensor | None = None
    mask: Tensor | None = None
    complete: bool = False
    weight: Tensor | None = None


@final
@dataclass(frozen=True, eq=False)
class Samples:
    """Joint states drawn from a distribution. Labels that are MISSING are summed out by the model.

    Parameters
    ----------
    x
        States, `[m, *event]`.
    y
        Labels, int64 `[m, L]`; None if all are missing.
    weight
        Relative weights, `[m]`: importance weights or exact probabilities; None for equal weights.
    row
        The row of the batch that each state belongs to, int64 `[m]`; None if state i belongs to row i.
    divisor
        Replaces the sum of the weights in a mean, for states that are a part of a larger set.
    complete
        Promises that no entry of `y` is MISSING, which saves a check.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> samples = je.objectives.Samples(torch.zeros(2, 3), weight=torch.tensor([1.0, 3.0]))
    >>> samples.mean(torch.tensor([0.0, 1.0]))
    tensor(0.7500)
    """

    x: Tensor
    y: Tensor | None = None
    weight: Tensor | None = None
    row: Tensor | None = None
    divisor: Tensor | None = None
    complete: bool = False

    def mean(self, values: Tensor) -> Tensor:
        """Return the weighted mean of one value per state."""
        if self.weight is None:
            return values.mean()
        weight = self.weight.detach().to(values.dtype)
        return (weight * values).sum() / (weight.sum() if self.divisor is None else self.divisor)

    def mean_by_row(self, values: Tensor, n: int) -> Tensor:
        """Return the weighted means of one value per state over the states of each of n rows, `[n]`."""
        if self.row is None:
            return values
        weight = torch.ones_like(values) if self.weight is None else self.weight.detach().to(values.dtype)
        total = values.new_zeros(n).index_add(0, self.row, weight)
        return values.new_zeros(n).index_add(0, self.row, weight * values) / total


@final
@dataclass(frozen=True, eq=False)
class NoiseDraws:
    """Draws of a known noise density, as many for each row of the batch, with its log-density at them and at the rows.

    States come row by row. A label that a row misses is MISSING in its states too, and summed out of the noise.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> states = je.objectives.Samples(torch.zeros(8, 3))
    >>> je.objectives.NoiseDraws(states, torch.zeros(8), torch.zeros(4)).log_density.shape
    torch.Size([8])
    """

    states: Samples
    log_density: Tensor  # [m]
    log_density_of_rows: Tensor  # [n]


@final
@dataclass(frozen=True, eq=False)
class Draws:
    """What kernels drew for a batch. An objective's `needs` tells which fields it requires.

    Given values are those of the batch. All but `last_step` enter the loss as constants. `given_x` and `given_xy` are
    less biased if the free labels of a data row persist from epoch to epoch; that is up to the caller.

    Parameters
    ----------
    negatives
        Any number of samples of the model, with nothing given.
    given_x
        For each row, samples given the observed x. For complete x these are labels at fixed x.
    given_y
        For each row, samples given the observed labels: the negatives of p(x | y).
    given_xy
        For each row, samples given everything observed: completed rows (Kelly and Grathwohl 2021, equation 8).
    last_step
        Chains with their last Langevin step recomputed, so that x has a graph to the weights.
    neighbors
        Other samples of x, to which the entropy term of `KLTerm` measures distances.
    noised
        Each row with Gaussian noise added, with the labels of the row.
    renoised
        Each row with Gaussian noise added twice, several times, with the labels of the row.
    noise
        Samples of a known noise density, several for each row.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> negatives = je.objectives.Samples(torch.randn(16, 3))
    >>> je.objectives.Draws(negatives=negatives).given_x is None
    True
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
    """The result of an objective.

    Likelihood terms are reported with the sign in which they are maximized, penalties as they are minimized. Only an
    exact log p(y | x) is a log-likelihood in nats. The other terms lack their normalizer: they are differences f(data)
    - f(samples), near 0 when chains and data agree.

    Parameters
    ----------
    total
        The number to minimize.
    parts
        The value of each term before its weight, detached, by name.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.LogitModel(torch.nn.Linear(3, 2), je.LabelSpace({"class": 2}))
    >>> loss = je.objectives.CrossEntropy()(model, je.objectives.Batch(torch.zeros(4, 3), torch.tensor([0, 1, 1, 0])))
    >>> loss.total.backward()
    >>> list(loss.parts)
    ['log_p_y_given_x']
    """

    total: Tensor
    parts: dict[str, Tensor]

"""objectives: a term, and an objective as a weighted sum of terms."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.models import JointModel
from jointenergy.objectives.base import Batch, DrawName, Draws, Loss
from jointenergy.objectives.checks import check_complete_x, check_draws, checked_batch, checked_draws
from jointenergy.objectives.values import Values


@dataclass(frozen=True)
class Term(ABC):
    """Base class of one term of an objective. Terms add and multiply: `LogPX() + 2.0 * LogPYGivenX()`.

    Subclasses implement `value`, and set `name`, `maximized` and `draws`.

    Parameters
    ----------
    weight
        The factor of the term, not negative.

    Examples
    --------
    >>> from jointenergy.objectives import LogPX, LogPYGivenX
    >>> objective = LogPX() + 2.0 * LogPYGivenX()
    >>> [(term.name, term.weight) for term in objective.terms]
    [('log_p_x', 1.0), ('log_p_y_given_x', 2.0)]
    """

    weight: float = 1.0

    name: ClassVar[str]
    """The key of the term in `Loss.parts` and reports."""
    maximized: ClassVar[bool] = False
    """True for likelihoods, False for penalties."""
    draws: ClassVar[tuple[DrawName, ...]] = ()
    """All draws that the term can use; `needs` returns those that a given model requires."""
    labeled_only: ClassVar[bool] = False
    """Whether the term skips rows without labels."""
    of_density: ClassVar[bool] = True
    """Whether the term trains a density of x, whose samples can be judged; terms of labels alone do not."""
    needs_complete_x: ClassVar[bool] = False
    """Whether the term has no meaning for rows with masked x."""
    differentiates_x: ClassVar[bool] = False
    """Whether the term differentiates f by x, so that its gradient differentiates the network twice."""

    def __post_init__(self) -> None:
        check_weight(self, "weight", self.weight)

    def needs(self, model: JointModel, *, missing_labels: bool = True, masked_x: bool = False) -> frozenset[DrawName]:
        """Return the draws that a batch requires.

        Parameters
        ----------
        model
            The model to train.
        missing_labels
            Whether labels may be missing.
        masked_x
            Whether entries of x may be missing.
        """
        return frozenset(self.draws)

    @abstractmethod
    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        """Return the term's value: the sum over the rows it applies to, divided by the batch size."""

    def check(self, values: Values) -> None:
        """Raise an InputError for a model or batch that the term cannot handle."""
        return

    def __mul__(self, factor: float) -> Self:
        return replace(self, weight=self.weight * factor)

    __rmul__ = __mul__

    def __add__(self, other: Term | Objective) -> Objective:
        return Objective((self,)) + other


@final
@dataclass(frozen=True)
class Objective:
    """A weighted sum of terms: a pure function of the model, a batch and draws.

    Where the model can sum over labels, the gradient is exact; elsewhere it is an average over the draws that `needs`
    names.

    Parameters
    ----------
    terms
        Terms with different names.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> from jointenergy.objectives import Batch, Draws, LogPX, LogPYGivenX, Samples
    >>> model = je.LogitModel(torch.nn.Linear(3, 2), je.LabelSpace({"class": 2}), domain=je.Reals(1.0))
    >>> objective = LogPX() + LogPYGivenX()
    >>> sorted(objective.needs(model))
    ['negatives']
    >>> batch = Batch(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> loss = objective(model, batch, Draws(negatives=Samples(torch.randn(4, 3))))
    >>> loss.total.backward()
    """

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(self.terms))
        if not self.terms or not all(isinstance(t, Term) for t in self.terms):
            raise InputError(f"an objective needs terms such as LogPX(), got {self.terms!r}")
        names = [t.name for t in self.terms]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"the objective has the term {twice!r} twice: give it once, with the sum of the weights")

    def __add__(self, other: Term | Objective) -> Objective:
        return Objective(self.terms + (other.terms if isinstance(other, Objective) else (other,)))

    def __mul__(self, factor: float) -> Objective:
        return Objective(tuple(factor * t for t in self.terms))

    __rmul__ = __mul__

    def needs(self, model: JointModel, *, missing_labels: bool = True, masked_x: bool = False) -> frozenset[DrawName]:
        """Return the draws that a batch requires; see `Term.needs`."""
        for term in self.terms:
            check_complete_x(term, masked_x=masked_x)
        return frozenset().union(
            *(t.needs(model, missing_labels=missing_labels, masked_x=masked_x) for t in self.terms)
        )

    def __call__(self, model: JointModel, batch: Batch, draws: Draws | None = None) -> Loss:
        """Compute the loss of a batch. Each term sums over the rows it applies to and is divided by the batch size.

        Parameters
        ----------
        model
            The model to train.
        batch
            The data.
        draws
            The draws that `needs` names.
        """
        batch, draws = checked_batch(model, batch), checked_draws(model, draws or Draws())
        values = Values(model, batch, draws, self._labeled_only)
        for term in self.terms:
            check_draws(term, values)
            term.check(values)
        return self.unchecked(model, batch, draws)

    def unchecked(self, model: JointModel, batch: Batch, draws: Draws) -> Loss:
        """Do the same for internal callers: labels are `[n, L]`, a mask has the shape of x."""
        values = Values(model, batch, draws, self._labeled_only)
        total, parts = values.x.new_zeros(()), {}
        for term in self.terms:
            value = term.value(values, self.terms)
            total = total + (-term.weight if term.maximized else term.weight) * value
            parts[term.name] = value.detach()
        return Loss(total, parts)

    @functools.cached_property
    def of_density(self) -> bool:
        """Whether a term trains a density of x."""
        return any(t.of_density for t in self.terms)

    @functools.cached_property
    def differentiates_x(self) -> bool:
        """Whether a term differentiates the network twice."""
        return any(t.differentiates_x for t in self.terms)

    @functools.cached_property
    def _labeled_only(self) -> set[DrawName]:
        """The draws that no term uses in rows without labels."""
        every = {name for t in self.terms if not t.labeled_only for name in t.draws}
        return {name for t in self.terms if t.labeled_only for name in t.draws} - every


def check_weight(term: Term, name: str, value: float) -> None:
    """Refuse a number that is negative or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value >= 0):
        raise InputError(f"{type(term).__name__} needs a finite {name}, zero or positive, got {value}")

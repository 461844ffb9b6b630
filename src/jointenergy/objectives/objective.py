"""objectives: a term, and an objective as a weighted sum of terms: model, batch and draws in, a loss out."""

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
    """One summand of an objective, a frozen dataclass of numbers: `LogPX() + 2.0 * LogPYGivenX()` is an objective."""

    weight: float = 1.0

    name: ClassVar[str]
    """What the term is called in a report."""
    maximized: ClassVar[bool] = False
    """Likelihoods are maximized, penalties minimized."""
    draws: ClassVar[tuple[DrawName, ...]] = ()
    """The draws that the term knows of; `needs` says which of them a model and its data cannot do without."""
    labeled_only: ClassVar[bool] = False
    """Whether the term applies to no row without labels."""
    of_density: ClassVar[bool] = True
    """Whether the term trains a density of x, whose samples can be judged; terms of labels alone do not."""
    needs_complete_x: ClassVar[bool] = False
    """Whether the term has no meaning for rows with masked x."""
    differentiates_x: ClassVar[bool] = False
    """Whether the term differentiates f by x, so that its gradient differentiates the network twice."""

    def __post_init__(self) -> None:
        check_weight(self, "weight", self.weight)

    def needs(self, model: JointModel, *, missing_labels: bool = True, masked_x: bool = False) -> frozenset[DrawName]:
        """The draws that must come with a batch in which labels may be missing and x may be masked."""
        return frozenset(self.draws)

    @abstractmethod
    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        """One number, as it is reported: the sum over the rows that it applies to, divided by the batch size."""

    def check(self, values: Values) -> None:
        """Refuse, in one sentence, a model or a batch that this term has no meaning for."""
        return

    def __mul__(self, factor: float) -> Self:
        return replace(self, weight=self.weight * factor)

    __rmul__ = __mul__

    def __add__(self, other: Term | Objective) -> Objective:
        return Objective((self,)) + other


@final
@dataclass(frozen=True)
class Objective:
    """A weighted sum of terms; a pure function of the model, the batch and the draws.

    What `needs` does not name is summed exactly. The gradient of the loss is minus that of the weighted
    log-likelihoods of the batch, exactly where sums are exact and on average over the draws elsewhere.
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
        """The draws that must come with a batch in which labels may be missing and x may be masked."""
        for term in self.terms:
            check_complete_x(term, masked_x=masked_x)
        return frozenset().union(
            *(t.needs(model, missing_labels=missing_labels, masked_x=masked_x) for t in self.terms)
        )

    def __call__(self, model: JointModel, batch: Batch, draws: Draws | None = None) -> Loss:
        """The loss of a batch; each term counts the rows that it applies to and is divided by the batch size."""
        batch, draws = checked_batch(model, batch), checked_draws(model, draws or Draws())
        values = Values(model, batch, draws, self._labeled_only)
        for term in self.terms:
            check_draws(term, values)
            term.check(values)
        return self.unchecked(model, batch, draws)

    def unchecked(self, model: JointModel, batch: Batch, draws: Draws) -> Loss:
        """The same for callers inside, who have checked once: labels are `[n, L]`, a mask has the shape of x."""
        values = Values(model, batch, draws, self._labeled_only)
        total, parts = values.x.new_zeros(()), {}
        for term in self.terms:
            value = term.value(values, self.terms)
            total = total + (-term.weight if term.maximized else term.weight) * value
            parts[term.name] = value.detach()
        return Loss(total, parts)

    @property
    def of_density(self) -> bool:
        """Whether a term trains a density of x."""
        return any(t.of_density for t in self.terms)

    @property
    def differentiates_x(self) -> bool:
        """Whether a term differentiates the network twice."""
        return any(t.differentiates_x for t in self.terms)

    @functools.cached_property
    def _labeled_only(self) -> set[DrawName]:
        """The draws that no term asks for in rows without labels."""
        every = {name for t in self.terms if not t.labeled_only for name in t.draws}
        return {name for t in self.terms if t.labeled_only for name in t.draws} - every


def check_weight(term: Term, name: str, value: float) -> None:
    """One sentence for a number that must be finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value >= 0):
        raise InputError(f"{type(term).__name__} needs a finite {name}, zero or positive, got {value}")

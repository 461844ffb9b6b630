"""objectives: the energy L2 penalty, and the KL term through the last Langevin step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.models import JointModel
from jointenergy.objectives.base import DrawName
from jointenergy.objectives.objective import Term, check_weight
from jointenergy.objectives.terms import LikelihoodTerm
from jointenergy.objectives.values import Values


@final
@dataclass(frozen=True)
class EnergyL2(Term):
    """Penalize large energies: mean f^2 of the data plus mean f^2 of the negatives.

    It fixes the additive constant of f, which a likelihood leaves open. f is what the likelihood terms of the objective
    compare: log p(x) up to a constant with `LogPX` (labels summed out), log p(x, y) with `LogPXY` and `LogPXGivenY`. If
    the negatives have no labels, the data's labels are summed out too, so that the penalty itself does not separate
    them (completed rows keep theirs). With several such terms the penalties add up.

    Parameters
    ----------
    weight
        The factor of the term.

    Examples
    --------
    >>> import jointenergy as je
    >>> objective = je.objectives.LogPX() + je.objectives.EnergyL2(0.1)
    >>> objective.terms[1].weight
    0.1
    """

    name: ClassVar[str] = "energy_l2"

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        total = values.x.new_zeros(())
        contrasts = [t for t in terms if isinstance(t, LikelihoodTerm) and t.under != "given_x"]
        if not contrasts:
            raise InputError("EnergyL2 needs a likelihood term with negatives of x, such as LogPX(): add one")
        for term in contrasts:
            over, under = values.alike(term.over, term.under), values.at(term.under)
            squares = over.mean(over.log_density**2) + under.mean(under.log_density**2)
            total = total + torch.where(term.applies(values), squares, 0.0).sum() / values.n
        return total


@final
@dataclass(frozen=True)
class KLTerm(Term):
    """Add the gradient that contrastive divergence leaves out (Du et al. 2021).

        KL(q || p) = E_q[-f(x)] - H(q) + constant,   q the distribution of the chains

    The weights of f are held fixed; the gradient flows through x, the recomputed last Langevin step. f is log p(x),
    labels summed out, unless the draws have labels. The entropy H is estimated by the mean log-distance to the nearest
    of `draws.neighbors`, which must be other samples.

    Parameters
    ----------
    weight
        The factor of the term.
    entropy_weight
        The factor of the mean log-distance; 0 leaves it out. In the nearest-neighbor estimate of the entropy it is the
        number of dimensions of x; improved contrastive divergence uses 0.3.

    Examples
    --------
    >>> import jointenergy as je
    >>> term = je.objectives.KLTerm(entropy_weight=0.3)
    >>> (je.objectives.LogPXY() + term).terms[1] is term
    True
    """

    entropy_weight: float = 0.0

    name: ClassVar[str] = "kl"
    draws: ClassVar[tuple[DrawName, ...]] = ("last_step", "neighbors")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight(self, "entropy_weight", self.entropy_weight)

    def needs(self, model: JointModel, *, missing_labels: bool = True, masked_x: bool = False) -> frozenset[DrawName]:
        return frozenset(self.draws if self.entropy_weight > 0 else self.draws[:1])

    def check(self, values: Values) -> None:
        last, others = values.samples("last_step"), values.draws.neighbors
        if not last.x.requires_grad:
            raise InputError(
                "draws.last_step has no graph from x to the weights: recompute the last Langevin step with gradients on"
            )
        values.model.check_summable(values.labels_of(last))
        if self.entropy_weight > 0:
            assert others is not None
            if values.model.check_x(others).shape[1:] != last.x.shape[1:]:
                raise InputError(
                    f"draws.neighbors must have rows of the shape of x, {tuple(last.x.shape[1:])}, got "
                    f"{tuple(others.shape[1:])}"
                )

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        last = values.samples("last_step")
        with torch.enable_grad():
            point = last.x.detach().requires_grad_()
            model = values.model
            f = model.log_density_of_x(point) if last.y is None else model.log_density_unchecked(point, last.y)
            (slope,) = torch.autograd.grad(f.sum(), point)
        # The first-order expansion of f in x has its value and its gradient through x, and none through the weights.
        frozen = f.detach() + (slope * (last.x - point.detach())).flatten(1).sum(1)
        value = -last.mean(frozen)
        if self.entropy_weight > 0 and values.draws.neighbors is not None:
            value = value - self.entropy_weight * last.mean(log_distance(last.x, values.draws.neighbors))
        return value


def log_distance(x: Tensor, others: Tensor) -> Tensor:
    """Return the log Euclidean distance of each row of x to the nearest of `others`, which are constants."""
    flat, fixed = x.flatten(1), others.detach().flatten(1)
    nearest = torch.cdist(flat.detach(), fixed).argmin(1)
    squares = ((flat - fixed[nearest]) ** 2).sum(1)
    # Coinciding points have no direction and get no gradient.
    return squares.clamp(min=torch.finfo(squares.dtype).tiny).log() / 2

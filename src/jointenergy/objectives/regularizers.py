"""objectives: the energy L2 penalty, and the KL term through the last Langevin step with its entropy."""

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
    """Mean f^2 of the data plus mean f^2 of the negatives: it ties down the constant that a likelihood leaves open.

    f is what the objective's likelihood terms compare: log p(x) up to its constant beside `LogPX` (labels summed out),
    log p(x, y) beside `LogPXY` and `LogPXGivenY`. Negatives without labels have log p(x), and the data beside them too:
    else the penalty itself would push the two apart, by what the labels of a row tell (rows with masked x, which are
    completed, keep theirs). With several such terms their penalties add up. A term without negatives of x
    (`LogPYGivenX`) has none.
    """

    name: ClassVar[str] = "energy_l2"

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        total, compared = values.x.new_zeros(()), False
        for term in terms:
            if isinstance(term, LikelihoodTerm) and term.under != "given_x":
                over, under = values.alike(term.over, term.under), values.at(term.under)
                squares = over.mean(over.log_density**2) + under.mean(under.log_density**2)
                total, compared = total + torch.where(term.applies(values), squares, 0.0).sum() / values.n, True
        if not compared:
            raise InputError("EnergyL2 needs a likelihood term with negatives of x beside it, such as LogPX()")
        return total


@final
@dataclass(frozen=True)
class KLTerm(Term):
    """The gradient that contrastive divergence leaves out: the chains' law q is drawn towards the model's p.

    KL(q || p) = E_q[-f(x)] - H(q) up to a constant, with the weights of f held and the gradient flowing through x, the
    recomputed last Langevin step, alone. f is log p(x), labels summed out, where the draws have no labels; training
    gives them none unless labels are given or too many to sum. The entropy H is estimated by `entropy_weight` times the
    mean log-distance to the nearest of `draws.neighbors`, which must be other samples; the estimate itself has the
    number of dimensions of x as its factor, the improved contrastive divergence used 0.3. At 0 it is left out.
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
                    f"draws.neighbors must be like x, {tuple(last.x.shape[1:])}, got {tuple(others.shape)}"
                )

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        last = values.samples("last_step")
        with torch.enable_grad():
            point = last.x.detach().requires_grad_()
            model = values.model
            f = model.log_density_of_x(point) if last.y is None else model.log_density_unchecked(point, last.y)
            (slope,) = torch.autograd.grad(f.sum(), point)
        # The value of f, and its gradient through x without one through the weights: f's first-order expansion in x.
        frozen = f.detach() + (slope * (last.x - point.detach())).flatten(1).sum(1)
        value = -last.mean(frozen)
        if self.entropy_weight > 0 and values.draws.neighbors is not None:
            value = value - self.entropy_weight * last.mean(log_distance(last.x, values.draws.neighbors))
        return value


def log_distance(x: Tensor, others: Tensor) -> Tensor:
    """The log of the Euclidean distance of each row of x to the nearest of the others, which stay where they are."""
    flat, fixed = x.flatten(1), others.detach().flatten(1)
    nearest = torch.cdist(flat.detach(), fixed).argmin(1)
    squares = ((flat - fixed[nearest]) ** 2).sum(1)
    # Where two coincide there is no direction to push in, and no gradient.
    return squares.clamp(min=torch.finfo(squares.dtype).tiny).log() / 2

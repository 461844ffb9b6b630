"""objectives: the pseudo-likelihood of labels (Besag 1975), each label given x and all the others; no chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from jointenergy.labels import MISSING
from jointenergy.objectives.objective import Term
from jointenergy.objectives.values import Values


@final
@dataclass(frozen=True)
class PseudoLikelihood(Term):
    """The sum over labels of log p(label | x, the other labels), of the rows that miss none.

    It needs no normalizer over all labels and no chains: each label's values are enumerated, the sum of all
    cardinalities in place of their product. Where labels are independent given x it is log p(y | x). Its maximum is
    that of the likelihood where the model can have the law of the data.
    """

    name: ClassVar[str] = "pseudo_likelihood"
    maximized: ClassVar[bool] = True
    labeled_only: ClassVar[bool] = True
    of_density: ClassVar[bool] = False
    needs_complete_x: ClassVar[bool] = True

    def check(self, values: Values) -> None:
        values.model.check_summable(torch.full_like(values.y, MISSING))

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        y, total = values.y.clamp(min=0), values.x.new_zeros(values.n)
        for k, cardinality in enumerate(values.model.labels.cardinalities):
            states = y[:, None, :].repeat(1, cardinality, 1)
            states[:, :, k] = torch.arange(cardinality, device=y.device)
            logits = values.model.log_density_of_states(values.x, states)
            total = total + logits.log_softmax(1).gather(1, y[:, k, None])[:, 0]
        complete = (values.y != MISSING).all(1)
        return values.total(torch.where(complete, total, 0.0)) / values.n

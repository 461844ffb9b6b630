"""objectives: the pseudo-likelihood of labels (Besag 1975)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING
from jointenergy.objectives.objective import Term
from jointenergy.objectives.values import Values


@final
@dataclass(frozen=True)
class PseudoLikelihood(Term):
    """Maximize the pseudo-likelihood of the labels (Besag 1975), over rows with complete labels.

        sum over k of log p(y_k | x, all other labels)

    It needs no chains and no sum over all label states: each label's values are enumerated. If labels are independent
    given x, it equals log p(y | x). It has the same maximum as the likelihood if the model can represent the data.

    Parameters
    ----------
    weight
        The factor of the term.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace.binary(["smiling", "hat"])
    >>> model = je.PairModel(je.Concat(torch.nn.Linear(7, 1)), labels)
    >>> objective = je.objectives.Objective((je.objectives.PseudoLikelihood(),))
    >>> batch = je.objectives.Batch(torch.zeros(4, 3), torch.zeros(4, 2, dtype=torch.int64))
    >>> objective(model, batch).total.shape
    torch.Size([])
    """

    name: ClassVar[str] = "pseudo_likelihood"
    maximized: ClassVar[bool] = True
    labeled_only: ClassVar[bool] = True

    def check(self, values: Values) -> None:
        values.model.check_summable(torch.full_like(values.y, MISSING))
        if values.mask is not None:
            raise InputError("the pseudo-likelihood of labels needs complete x: leave it out for rows with masked x")

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        y, total = values.y.clamp(min=0), values.x.new_zeros(values.n)
        for k, cardinality in enumerate(values.model.labels.cardinalities):
            states = y[:, None, :].repeat(1, cardinality, 1)
            states[:, :, k] = torch.arange(cardinality, device=y.device)
            logits = values.model.log_density_of_states(values.x, states)
            total = total + logits.log_softmax(1).gather(1, y[:, k, None])[:, 0]
        complete = (values.y != MISSING).all(1)
        return values.total(torch.where(complete, total, 0.0)) / values.n

"""models: a model at another temperature."""

from __future__ import annotations

import math

from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import is_number
from jointenergy.models.base import JointModel, LabelLogits


class Tempered(JointModel):
    """A model at temperature T: f(x, y) times an inverse temperature 1 / T.

        p(x, y)  is proportional to  exp(f(x, y) / T)

    This is the distribution of chains that move x and y at temperature T. Labels are summed after the tempering: a
    chain at T on log p(x), labels summed out of f, samples another distribution of x. The two agree at T = 1, and for
    models without labels.

    Parameters
    ----------
    model
        The model at temperature 1.
    inverse_temperature
        1 / T.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> x = torch.ones(4, 2)
    >>> torch.allclose(model.tempered(0.5).log_density(x), 0.5 * model.log_density(x))
    True
    """

    def __init__(self, model: JointModel, inverse_temperature: float) -> None:
        if not (is_number(inverse_temperature) and math.isfinite(inverse_temperature) and inverse_temperature > 0):
            raise InputError(f"the inverse temperature must be positive and finite, got {inverse_temperature}")
        super().__init__(
            model.labels,
            domain=model.domain.tempered(inverse_temperature),
            event_shape=model.event_shape,
            normalizer=model.normalizer,
        )
        self.model = model
        self.inverse_temperature = inverse_temperature
        self.factorized = model.factorized

    def label_logits(self, x: Tensor) -> LabelLogits:
        closed = self.model.label_logits(x)
        return LabelLogits(closed.bias * self.inverse_temperature, closed.logits * self.inverse_temperature)

    def with_gradient(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor] | None:
        offered = None if y is None else self.model.with_gradient(x, y)  # labels are summed after the tempering
        if offered is None:
            return None
        value, gradient = offered
        return value * self.inverse_temperature, gradient * self.inverse_temperature

    def blocks(self) -> list[tuple[JointModel, Tensor]]:
        inner = self.model.blocks()
        if len(inner) == 1:
            return super().blocks()
        return [(Tempered(block, self.inverse_temperature), columns) for block, columns in inner]

    def conditional_columns(self) -> list[int]:
        return self.model.conditional_columns()

    def log_density_of_codes(self, x: Tensor, code: Tensor) -> Tensor:
        return self.model.log_density_of_codes(x, code) * self.inverse_temperature

    def log_density_of_complete(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model.log_density_of_complete(x, y) * self.inverse_temperature

    def log_density_of_states(self, x: Tensor, states: Tensor) -> Tensor:
        return self.model.log_density_of_states(x, states) * self.inverse_temperature

"""models: a model at another temperature, f(x, y) times an inverse temperature."""

from __future__ import annotations

import math

from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import is_number
from jointenergy.models.base import JointModel, LabelLogits


class Tempered(JointModel):
    """f(x, y) / T for an inverse temperature 1 / T; labels are summed after the tempering.

    It is the law of chains on (x, y) that move both at T: p(x, y) proportional to exp(f(x, y) / T), with the marginal
    sum over y of exp(f(x, y) / T). A chain at T on the marginal, labels summed out of f, samples another law of x:
    exp(log-sum-exp over y of f(x, y), divided by T). The two are equal at T = 1, and for models without labels.
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

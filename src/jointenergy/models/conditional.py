"""models: class-conditional and unconditional energies (IGEBM)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.input_gradients import with_vjp
from jointenergy.labels import LabelSpace
from jointenergy.models.base import JointModel, LabelLogits, one_per_row
from jointenergy.models.domains import Domain


class ConditionalModel(JointModel):
    """f(x, y) = network(x, y) for label indices y, each label with an unknown normalizer of its own.

    It gives p(x | y) and nothing that sums or compares over labels, until `with_offsets` says how they relate.
    """

    def __init__(
        self,
        network: nn.Module,
        labels: LabelSpace,
        *,
        domain: Domain | None = None,
        event_shape: tuple[int, ...] | None = None,
    ) -> None:
        if len(labels) == 0:
            raise InputError("a conditional model needs at least one label; for a density of x alone use EnergyModel")
        super().__init__(labels, domain=domain, event_shape=event_shape, normalizer="conditional")
        self.network = network

    def log_density_of_complete(self, x: Tensor, y: Tensor) -> Tensor:
        return one_per_row(self.network(x, y), len(x), self.network) + self.domain.log_reference(x)


class EnergyModel(JointModel):
    """f(x) = network(x), no labels: an unconditional energy with one normalizer."""

    factorized = True

    def __init__(
        self,
        network: nn.Module,
        *,
        domain: Domain | None = None,
        event_shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(LabelSpace.none(), domain=domain, event_shape=event_shape)
        self.network = network

    def label_logits(self, x: Tensor) -> LabelLogits:
        value = self.log_density_of_complete(x, x)
        return LabelLogits(value, value.new_empty(len(x), 0))

    def log_density_of_complete(self, x: Tensor, y: Tensor) -> Tensor:
        # Without labels there is no sum over them: a step of a small chain would pay for it.
        value = one_per_row(self.network(x), len(x), self.network)
        return value if self.domain.flat else value + self.domain.log_reference(x)

    def with_gradient(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor] | None:
        # A derived class may have another f.
        offered = with_vjp(self.network, x) if type(self) is EnergyModel and self.domain.flat else None
        if offered is None:
            return None
        value, vjp = offered
        return one_per_row(value, len(x), self.network), vjp(torch.ones_like(value))

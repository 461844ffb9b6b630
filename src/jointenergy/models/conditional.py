"""models: class-conditional and unconditional energies (IGEBM)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.input_gradients import with_vjp
from jointenergy.labels import LabelSpace
from jointenergy.models.base import JointModel, LabelLogits, one_per_row
from jointenergy.models.domains import Domain, Reals


class ConditionalModel(JointModel):
    """A class-conditional density p(x | y) with f(x, y) = network(x, y) for label indices y.

    Each label has its own unknown normalizer, so labels cannot be summed or compared until `with_offsets` relates them.

    Parameters
    ----------
    network
        A module of (x, y) that returns one value per row.
    labels
        The label variables, at least one.
    domain
        `Box(low, high)` or `Reals(scale)`.
    event_shape
        The shape of one row of x.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> class Network(torch.nn.Module):
    ...     def forward(self, x, y):
    ...         return -(x - y).square().sum(1)
    >>> model = je.ConditionalModel(Network(), je.LabelSpace({"class": 3}), domain=je.Box(-5, 5))
    >>> model.log_density(torch.zeros(1, 1), torch.tensor([[2]]))
    tensor([-4.])
    >>> model.with_offsets(assume_equal_constants=True).label_probs(torch.zeros(1, 1))["class"].shape
    torch.Size([1, 3])
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
    """An unconditional density with f(x) = network(x), without labels.

    Parameters
    ----------
    network
        A module of x that returns one value per row.
    domain
        `Box(low, high)` or `Reals(scale)`.
    event_shape
        The shape of one row of x.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> model.log_density(torch.zeros(4, 2)).shape
    torch.Size([4])
    """

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
        # Skips the sum over labels, which would slow down chains of small networks.
        value = one_per_row(self.network(x), len(x), self.network)
        return value if self.domain.flat else value + self.domain.log_reference(x)

    def with_gradient(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor] | None:
        # A subclass may define another f.
        offered = with_vjp(self.network, x) if type(self) is EnergyModel else None
        if offered is None:
            return None
        value, vjp = offered
        value, gradient = one_per_row(value, len(x), self.network), vjp(torch.ones_like(value))
        if isinstance(self.domain, Reals) and not self.domain.flat:
            return value + self.domain.log_reference(x), gradient + self.domain.reference_gradient(x)
        return value, gradient

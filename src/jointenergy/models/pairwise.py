"""models: pair models, any network of features of x and one-hot y (the mixed joint EBM)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from jointenergy.labels import LabelSpace
from jointenergy.models.base import JointModel, Normalizer, one_per_row
from jointenergy.models.domains import Domain


class PairModel(JointModel):
    """A density with f(x, y) = head(features(x), one-hot y): the head can model dependence between labels.

    Parameters
    ----------
    head
        A module of (features, code) that returns one value per row, such as `Concat` or `InnerProduct`.
    labels
        The label variables.
    features
        A module of x; by default x is flattened.
    domain
        `Box(low, high)` or `Reals(scale)`.
    event_shape
        The shape of one row of x.
    normalizer
        "joint", or "conditional" if each label has its own unknown normalizer.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace.binary(["smiling", "hat"])
    >>> model = je.PairModel(je.Concat(je.networks.MLP((2 + 4, 16, 1))), labels, domain=je.Reals(1.0))
    >>> model.log_density(torch.zeros(4, 2)).shape
    torch.Size([4])
    """

    def __init__(
        self,
        head: nn.Module,
        labels: LabelSpace,
        *,
        features: nn.Module | None = None,
        domain: Domain | None = None,
        event_shape: tuple[int, ...] | None = None,
        normalizer: Normalizer = "joint",
    ) -> None:
        super().__init__(labels, domain=domain, event_shape=event_shape, normalizer=normalizer)
        self.features = nn.Flatten() if features is None else features
        self.head = head

    def log_density_of_codes(self, x: Tensor, code: Tensor) -> Tensor:
        return one_per_row(self.head(self.features(x), code), len(x), self.head) + self.domain.log_reference(x)

    def log_density_of_states(self, x: Tensor, states: Tensor) -> Tensor:
        # The features of x are the costly part: computed once, not once per state.
        n, n_states = states.shape[:2]
        features = self.features(x).repeat_interleave(n_states, dim=0)
        code = self.labels.code_of(states.flatten(0, 1), x.dtype)
        value = one_per_row(self.head(features, code), n * n_states, self.head)
        return value.view(n, n_states) + self.domain.log_reference(x)[:, None]


class Concat(nn.Module):
    """Make a head of a network of one vector, the features and the code concatenated.

    Parameters
    ----------
    network
        Takes `[n, n_features + n_codes]`, returns one value per row.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> je.Concat(torch.nn.Linear(5, 1))(torch.zeros(4, 2), torch.zeros(4, 3)).shape
    torch.Size([4, 1])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, code: Tensor) -> Tensor:
        value: Tensor = self.network(torch.cat((features, code), dim=1))
        return value


class InnerProduct(nn.Module):
    """Make the bilinear head g(x)^T h(y): features of x times a network of the code.

    Parameters
    ----------
    network
        h, takes `[n, n_codes]` and returns `[n, n_features]`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> je.InnerProduct(torch.nn.Linear(3, 2))(torch.zeros(4, 2), torch.zeros(4, 3)).shape
    torch.Size([4])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, code: Tensor) -> Tensor:
        value: Tensor = (features * self.network(code)).sum(1)
        return value

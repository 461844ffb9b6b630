"""models: pair models, any network of features of x and one-hot y (the mixed joint EBM)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from jointenergy.labels import LabelSpace
from jointenergy.models.base import JointModel, Normalizer, one_per_row
from jointenergy.models.domains import Domain


class PairModel(JointModel):
    """f(x, y) = head(features(x), one-hot y): structure in y is the head's to model.

    `PairModel(Concat(mlp), labels)` is a network of the concatenation, `PairModel(InnerProduct(h), labels, features=g)`
    the bilinear g(x)^T h(y); a head of one's own is any module of (features, code) that gives one value per row.
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
        # The features of x are the costly half: computed once, not once per state.
        n, n_states = states.shape[:2]
        features = self.features(x).repeat_interleave(n_states, dim=0)
        code = self.labels.code_of(states.flatten(0, 1), x.dtype)
        value = one_per_row(self.head(features, code), n * n_states, self.head)
        return value.view(n, n_states) + self.domain.log_reference(x)[:, None]


class Concat(nn.Module):
    """A head from a network of one vector: it sees the features and the code side by side."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, code: Tensor) -> Tensor:
        value: Tensor = self.network(torch.cat((features, code), dim=1))
        return value


class InnerProduct(nn.Module):
    """The bilinear head g(x)^T h(y): the features of x against a network of the code."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, code: Tensor) -> Tensor:
        value: Tensor = (features * self.network(code)).sum(1)
        return value

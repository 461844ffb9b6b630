"""inference: features of the last linear layer of a classifier, and distances to training rows there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.labels import MISSING
from jointenergy.models import JointModel, LogitModel

BANK = 10_000  # maximum number of training rows whose features are kept
NEIGHBOR = 10  # k of the kNN score; fewer if there are fewer rows
RIDGE = 1e-3  # added to the covariance, as a share of its mean variance, since features may be redundant
ROWS = 500  # rows per batch


@torch.no_grad()
def penultimate(network: nn.Module, x: Tensor) -> Tensor:
    """Return the input of the last called linear layer, `[n, d]`, with forward hooks."""
    seen: list[Tensor] = []
    layers = [m for m in network.modules() if isinstance(m, nn.Linear)]
    # The last one called, which need not be the last one defined.
    hooks = [layer.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for layer in layers]
    try:
        network(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        raise InputError("the network has no linear layer and so no features: use another score")
    return seen[-1].flatten(1)


def features_of(model: JointModel, x: Tensor) -> Tensor:
    """Compute features of x with the network of a classifier, in batches."""
    if not isinstance(model, LogitModel):
        raise InputError("features need a classifier of x, which this model is not: use another score")
    return torch.cat([penultimate(model.network, piece) for piece in x.split(ROWS)])


@dataclass(frozen=True, eq=False)
class Reference:
    """Features of training rows: class means, the inverse of the within-class covariance, and the features scaled to
    length 1."""

    means: Tensor
    precision: Tensor
    bank: Tensor

    @classmethod
    def fit(cls, model: JointModel, x: Tensor, y: Tensor) -> Reference:
        """Fit to training rows, subsampled if there are many. With several labels, or none, there is one class."""
        if len(x) < 2:
            raise InputError(f"feature-based scores need at least 2 training rows, got {len(x)}")
        rows = torch.linspace(0, len(x) - 1, min(len(x), BANK), dtype=torch.float64).round().long().to(x.device)
        x, y = x[rows], y.to(x.device)[rows]
        features = features_of(model, x).double()
        classes = y[:, 0] if y.shape[1] == 1 else torch.zeros(len(x), dtype=torch.int64, device=x.device)
        known = classes != MISSING
        if not bool(known.any()):
            classes, known = torch.zeros_like(classes), torch.ones_like(known)
        groups = [features[classes == c] for c in classes[known].unique().tolist()]
        means = torch.stack([g.mean(0) for g in groups])
        centered = torch.cat([g - m for g, m in zip(groups, means, strict=True)])
        covariance = centered.T @ centered / len(centered)
        ridge = RIDGE * covariance.diagonal().mean().clamp(min=1e-12)
        precision = torch.linalg.inv(covariance + ridge * torch.eye(len(covariance)).to(covariance))
        return cls(means, precision, nn.functional.normalize(features, dim=1))


def mahalanobis(features: Tensor, reference: Reference) -> Tensor:
    """Return minus the squared Mahalanobis distance to the nearest class mean (Lee et al., 2018)."""
    apart = features.double()[:, None] - reference.means
    return -torch.einsum("ncd,de,nce->nc", apart, reference.precision, apart).amin(1)


def nearest_neighbor(features: Tensor, reference: Reference) -> Tensor:
    """Return minus the distance to the k-th nearest training row, with features of length 1 (Sun et al., 2022)."""
    unit = nn.functional.normalize(features.double(), dim=1)
    k = min(NEIGHBOR, len(reference.bank))
    far = torch.cdist(unit, reference.bank, compute_mode="donot_use_mm_for_euclid_dist")
    return -far.kthvalue(k, dim=1).values

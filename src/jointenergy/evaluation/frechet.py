"""evaluation: how far features of samples lie from those of data: Frechet distance, class score, precision, recall."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import InputError

NEAREST = 3  # the neighbor whose distance is the radius of a row's ball (Kynkaanniemi et al., 2019)
PIECE = 1024  # rows whose distances to all others are held at once


@dataclass(frozen=True, eq=False)
class Moments:
    """Number, mean and covariance of features, in float64: all that a Frechet distance needs of a set."""

    n: int
    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, features: Iterable[Tensor]) -> Moments:
        """From pieces `[n, d]` that pass by once; nothing of them is kept."""
        n, mean, scatter = 0, torch.zeros(0), torch.zeros(0)
        for piece in features:
            wide = _wide(piece)
            if n == 0:
                mean, scatter = wide.new_zeros(wide.shape[1]), wide.new_zeros(wide.shape[1], wide.shape[1])
            own = wide.mean(0)
            shift, total = own - mean, n + len(wide)
            # Chan's update: sums of squares of large numbers would lose the small spread around them.
            scatter = scatter + (wide - own).T @ (wide - own) + shift.outer(shift) * (n * len(wide) / total)
            mean, n = mean + shift * (len(wide) / total), total
        if n < 2:
            raise InputError(f"a covariance needs at least 2 rows of features, got {n}")
        return cls(n, mean, scatter / (n - 1))


def frechet_distance(a: Moments, b: Moments) -> float:
    """The squared 2-Wasserstein distance between Gaussians with these moments: |m - n|^2 + tr(A + B - 2 (AB)^(1/2)).

    tr((AB)^(1/2)) is the sum of the singular values of A^(1/2) B^(1/2). So nothing is inverted and no square root is
    taken of a small difference: it holds for fewer rows than features, where the covariances are singular.
    """
    if a.mean.shape != b.mean.shape:
        raise InputError(f"features of {len(a.mean)} and of {len(b.mean)} numbers a row cannot be compared")
    if not all(bool(t.isfinite().all()) for t in (a.mean, b.mean, a.covariance, b.covariance)):
        return math.nan
    cross = torch.linalg.svdvals(_root(a.covariance) @ _root(b.covariance)).sum()
    value = (a.mean - b.mean).square().sum() + a.covariance.trace() + b.covariance.trace() - 2 * cross
    return max(0.0, float(value))


def _root(covariance: Tensor) -> Tensor:
    """The symmetric square root; eigenvalues as small as rounding are none, and their roots would be large."""
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    least = values.abs().max() * len(values) * torch.finfo(values.dtype).eps
    root: Tensor = (vectors * torch.where(values > least, values, 0.0).sqrt()) @ vectors.T
    return root


def inception_score(logits: Iterable[Tensor]) -> float:
    """exp of the mean KL(p(class | x) || p(class)), from pieces of logits: 1 to the number of classes.

    High where each row is of one class for sure and all classes occur. All rows are one group: no split is drawn.
    """
    n, total, entropy = 0, torch.zeros(0), torch.zeros(())
    for piece in logits:
        log_probs = _wide(piece).log_softmax(1)
        probs = log_probs.exp()
        total = probs.sum(0) if n == 0 else total + probs.sum(0)
        entropy = entropy.to(probs) - torch.xlogy(probs, probs).sum()
        n += len(probs)
    if n == 0:
        raise InputError("a score needs at least one row of logits")
    mean = total / n
    return math.exp(float(-torch.xlogy(mean, mean).sum() - entropy / n))


@dataclass(frozen=True)
class Manifolds:
    """`precision`: the share of samples that lie among data; `recall`: the share of data that lie among samples."""

    precision: float
    recall: float


def precision_and_recall(data: Tensor, samples: Tensor, k: int = NEAREST) -> Manifolds:
    """Improved precision and recall of features `[n, d]`, a row's surroundings being the ball to its k-th neighbor.

    Balls grow with fewer rows: compare only figures of as many rows of both.
    """
    if min(len(data), len(samples)) <= k:
        raise InputError(f"the {k}-th neighbor needs more than {k} rows, got {len(data)} and {len(samples)}")
    return Manifolds(_among(samples, data, k), _among(data, samples, k))


def _among(rows: Tensor, others: Tensor, k: int) -> float:
    """The share of rows that lie in the ball of at least one of the others."""
    # The nearest of a row's own set is the row itself.
    radius = torch.cat([_distances(p, others).kthvalue(k + 1).values for p in others.split(PIECE)])
    held = [(_distances(p, others) <= radius).any(1) for p in rows.split(PIECE)]
    return float(torch.cat(held).double().mean())


def _distances(a: Tensor, b: Tensor) -> Tensor:
    # Not by products, which would put a small distance between a row and itself.
    return torch.cdist(_single(a), _single(b), compute_mode="donot_use_mm_for_euclid_dist")


def _single(features: Tensor) -> Tensor:
    return features.flatten(1).float()


def _wide(features: Tensor) -> Tensor:
    """In float64, on the CPU where a device has none."""
    features = features.detach().flatten(1)
    return features.cpu().double() if features.device.type == "mps" else features.double()

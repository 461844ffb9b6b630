"""metrics: how far features of samples lie from those of data: FID, KID, inception score, precision, recall,
density, coverage.

torchmetrics computes the distances and the score, here in float64.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import KernelInceptionDistance

from jointenergy.errors import InputError

NEAREST = 3  # the neighbor whose distance is the radius of a row's ball (Kynkaanniemi et al., 2019)
COVERED = 5  # the same of density and coverage (Naeem et al., 2020)
PIECE = 1024  # rows whose distances to all others are held at once
SUBSETS, SUBSET = 100, 1000  # over which KID is averaged, and the rows of each
LEAST = -700.0  # log-probability: what is less would be 0 in float64, and its logarithm infinite


class _Given(nn.Module):
    """Features that were extracted before, as the network that torchmetrics asks for."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        return x


def frechet_distance(data: Tensor, samples: Tensor) -> float:
    """FID of features `[n, d]`: |m - n|^2 + tr(A + B - 2 (AB)^(1/2)) of means m, n and covariances A, B.

    It holds for fewer rows than features too. NaN where a feature is not finite.
    """
    data, samples = _pair(data, samples)
    if not (bool(data.isfinite().all()) and bool(samples.isfinite().all())):
        return math.nan
    # torchmetrics takes covariances from sums of squares, which lose a small spread far from zero.
    center = data.mean(0)
    metric = FrechetInceptionDistance(_Given(data.shape[1]), sync_on_compute=False).to(data.device)
    metric.update(data - center, real=True)
    metric.update(samples - center, real=False)
    return max(0.0, float(metric.compute()))


def kernel_distance(data: Tensor, samples: Tensor, *, seed: int = 0) -> float:
    """KID of features `[n, d]`: the unbiased squared MMD by (x.y / d + 1)^3, so that it may be below 0.

    The mean over random subsets, or one value of all rows where a subset would hold them all.
    """
    data, samples = _pair(data, samples)
    if not (bool(data.isfinite().all()) and bool(samples.isfinite().all())):
        return math.nan
    size = min(SUBSET, len(data), len(samples))
    subsets = 1 if len(data) == len(samples) == size else SUBSETS
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", UserWarning)  # that it keeps the features
        torch.manual_seed(seed)  # subsets are drawn from the global state
        metric = KernelInceptionDistance(_Given(data.shape[1]), subsets, size, sync_on_compute=False)
        metric.update(data, real=True)
        metric.update(samples, real=False)
        return float(metric.compute()[0])


def inception_score(logits: Iterable[Tensor]) -> float:
    """exp of the mean KL(p(class | x) || p(class)), from pieces of logits: 1 to the number of classes.

    High where each row is of one class for sure and all classes occur. All rows are one group: no split is drawn.
    """
    pieces = [_wide(piece).log_softmax(1).clamp(min=LEAST) for piece in logits]
    if not pieces:
        raise InputError("a score needs at least one row of logits")
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", UserWarning)  # that it keeps the logits, and that one group has no spread
        metric = InceptionScore(_Given(pieces[0].shape[1]), splits=1, sync_on_compute=False)
        for piece in pieces:
            metric.update(piece)
        return float(metric.compute()[0])  # it shuffles rows by the global state


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


@dataclass(frozen=True)
class Coverage:
    """`density`: how many balls of data hold a sample, over k (1 for samples that are data, may be above it);
    `coverage`: the share of data whose ball holds at least one sample."""

    density: float
    coverage: float


def density_and_coverage(data: Tensor, samples: Tensor, k: int = COVERED) -> Coverage:
    """Density and coverage of features `[n, d]` (Naeem et al., 2020): balls of data reach to the k-th neighbor.

    An outlier among the samples changes neither: only data have balls. Rows of the same distribution, n of both, have
    density 1 and coverage 1 - (n - 1)...(n - k) / ((2n - 1)...(2n - k)), about 1 - 0.5^k. Compare figures of as many
    rows of both.
    """
    if len(data) <= k or not len(samples):
        raise InputError(f"coverage needs more than {k} rows of data and a sample, got {len(data)} and {len(samples)}")
    held, covered = 0, 0
    for radius, piece in zip(_radii(data, k).split(PIECE), data.split(PIECE), strict=True):
        inside = _distances(piece, samples) <= radius[:, None]
        held += int(inside.sum())
        covered += int(inside.any(1).sum())
    return Coverage(held / (k * len(samples)), covered / len(data))


def _radii(rows: Tensor, k: int) -> Tensor:
    """Each row's distance to its k-th neighbor; the nearest of a row's own set is the row itself."""
    return torch.cat([_distances(p, rows).kthvalue(k + 1).values for p in rows.split(PIECE)])


def _among(rows: Tensor, others: Tensor, k: int) -> float:
    """The share of rows that lie in the ball of at least one of the others."""
    radius = _radii(others, k)
    held = [(_distances(p, others) <= radius).any(1) for p in rows.split(PIECE)]
    return float(torch.cat(held).double().mean())


def _distances(a: Tensor, b: Tensor) -> Tensor:
    # Not by products, which would put a small distance between a row and itself.
    return torch.cdist(_single(a), _single(b), compute_mode="donot_use_mm_for_euclid_dist")


def _single(features: Tensor) -> Tensor:
    return features.flatten(1).float()


def _pair(data: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float64 and on one device, or one sentence why they cannot be compared."""
    a, b = _wide(data), _wide(samples)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"features of {a.shape[1]} and of {b.shape[1]} numbers a row cannot be compared")
    if min(len(a), len(b)) < 2:
        raise InputError(f"a distance of features needs at least 2 rows of each, got {len(a)} and {len(b)}")
    return a, b.to(a.device)


def _wide(features: Tensor) -> Tensor:
    """In float64, on the CPU where a device has none."""
    features = features.detach().flatten(1)
    return features.cpu().double() if features.device.type == "mps" else features.double()

"""metrics: sample quality in a feature space: FID, KID, inception score, precision, recall, density and coverage.

torchmetrics computes FID, KID and the inception score, here in float64.
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

NEAREST = 3  # the neighbor whose distance is the radius of a row's ball (Kynkaanniemi et al. 2019)
COVERED = 5  # the same for density and coverage (Naeem et al. 2020)
PIECE = 1024  # rows whose distances are computed at once
SUBSETS, SUBSET = 100, 1000  # subsets over which KID is averaged, and the rows of each
LEAST = -700.0  # the smallest log-probability: exp of less is 0 in float64


class _Given(nn.Module):
    """Passes extracted features through, as the network that torchmetrics asks for."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        return x


def frechet_distance(data: Tensor, samples: Tensor) -> float:
    """Return the Fréchet distance (FID) of features `[n, d]`.

        |m - n|^2 + tr(A + B - 2 (A B)^(1/2)),   means m, n and covariances A, B

    Works for fewer rows than features too. NaN if a feature is not finite.
    """
    data, samples = _pair(data, samples)
    if not (bool(data.isfinite().all()) and bool(samples.isfinite().all())):
        return math.nan
    # torchmetrics computes covariances from sums of squares, which lose precision far from zero.
    center = data.mean(0)
    metric = FrechetInceptionDistance(_Given(data.shape[1]), sync_on_compute=False).to(data.device)
    metric.update(data - center, real=True)
    metric.update(samples - center, real=False)
    return max(0.0, float(metric.compute()))


def kernel_distance(data: Tensor, samples: Tensor, *, seed: int = 0) -> float:
    """Return the kernel distance (KID) of features `[n, d]`: the unbiased squared MMD with the kernel (x.y / d + 1)^3.

    The mean over random subsets, or one value if a subset would hold all rows. It may be negative.
    """
    data, samples = _pair(data, samples)
    if not (bool(data.isfinite().all()) and bool(samples.isfinite().all())):
        return math.nan
    size = min(SUBSET, len(data), len(samples))
    subsets = 1 if len(data) == len(samples) == size else SUBSETS
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", UserWarning)  # about memory
        torch.manual_seed(seed)  # subsets are drawn from the global state
        metric = KernelInceptionDistance(_Given(data.shape[1]), subsets, size, sync_on_compute=False)
        metric.update(data, real=True)
        metric.update(samples, real=False)
        return float(metric.compute()[0])


def inception_score(logits: Iterable[Tensor]) -> float:
    """Return the inception score exp(mean KL(p(class | x) || p(class))) from batches of logits.

    Between 1 and the number of classes; large if each row has a certain class and all classes occur. Computed without
    splits.
    """
    pieces = [_wide(piece).log_softmax(1).clamp(min=LEAST) for piece in logits]
    if not pieces:
        raise InputError("an inception score needs at least one row of logits")
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", UserWarning)  # about memory, and about the standard deviation of one split
        metric = InceptionScore(_Given(pieces[0].shape[1]), splits=1, sync_on_compute=False)
        for piece in pieces:
            metric.update(piece)
        return float(metric.compute()[0])  # shuffles rows with the global random state


@dataclass(frozen=True)
class Manifolds:
    """Improved precision (fraction of samples near data) and recall (fraction of data near samples)."""

    precision: float
    recall: float


def precision_and_recall(data: Tensor, samples: Tensor, k: int = NEAREST) -> Manifolds:
    """Return improved precision and recall of features `[n, d]`, with balls up to the k-th neighbor.

    Balls grow with fewer rows: compare only values with equal numbers of rows.
    """
    if min(len(data), len(samples)) <= k:
        raise InputError(f"the {k}-th neighbor needs more than {k} rows, got {len(data)} and {len(samples)}")
    return Manifolds(_among(samples, data, k), _among(data, samples, k))


@dataclass(frozen=True)
class Coverage:
    """`density`: data balls around a sample, averaged, over k; `coverage`: the fraction of data balls with a sample."""

    density: float
    coverage: float


def density_and_coverage(data: Tensor, samples: Tensor, k: int = COVERED) -> Coverage:
    """Return density and coverage of features `[n, d]` (Naeem et al. 2020), with balls of data up to the k-th neighbor.

    Outliers among the samples do not change them: only data have balls. For n rows of the same distribution in both,
    density is 1 and coverage 1 - (n - 1)...(n - k) / ((2n - 1)...(2n - k)), about 1 - 0.5^k. Compare only values with
    equal numbers of rows.
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
    """Return each row's distance to its k-th neighbor, not counting the row itself."""
    return torch.cat([_distances(p, rows).kthvalue(k + 1).values for p in rows.split(PIECE)])


def _among(rows: Tensor, others: Tensor, k: int) -> float:
    """Return the fraction of rows inside the ball of at least one of the others."""
    radius = _radii(others, k)
    held = [(_distances(p, others) <= radius).any(1) for p in rows.split(PIECE)]
    return float(torch.cat(held).double().mean())


def _distances(a: Tensor, b: Tensor) -> Tensor:
    # Not by matrix products, which would give a row a small distance to itself.
    return torch.cdist(_single(a), _single(b), compute_mode="donot_use_mm_for_euclid_dist")


def _single(features: Tensor) -> Tensor:
    return features.flatten(1).float()


def _pair(data: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Convert both to float64 on one device, and check that they can be compared."""
    a, b = _wide(data), _wide(samples)
    if a.shape[1] != b.shape[1]:
        raise InputError(
            f"features of data and samples must have one width, got {a.shape[1]} and {b.shape[1]}: use one extractor"
        )
    if min(len(a), len(b)) < 2:
        raise InputError(f"a distance of features needs at least 2 rows of each, got {len(a)} and {len(b)}")
    return a, b.to(a.device)


def _wide(features: Tensor) -> Tensor:
    """Convert to float64, on the CPU if the device has none."""
    features = features.detach().flatten(1)
    return features.cpu().double() if features.device.type == "mps" else features.double()

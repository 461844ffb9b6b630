"""metrics: calibration errors over bins, their noise, risk against coverage, and temperature scaling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import InputError

BINS = 15
LEVEL = 0.95  # of intervals and bands
AT_ONCE = 1 << 22  # random numbers drawn at once
TEMPERATURES = (0.02, 50.0)  # the search range of temperature scaling


def bins_of(confidence: Tensor, n_bins: int = BINS) -> Tensor:
    """Return the equal-width bin of each confidence; confidence 1 falls into the last bin."""
    return (confidence.double() * n_bins).long().clamp(0, n_bins - 1)


def equal_mass_bins(score: Tensor, n_bins: int = BINS) -> Tensor:
    """Return bins with equal numbers of entries; equal scores share a bin."""
    ordered = score.double().sort().values
    edges = ordered[[i * len(score) // n_bins for i in range(1, n_bins)]]
    return torch.bucketize(score.double(), edges.unique(), right=True)


def expected_calibration_error(probabilities: Tensor, y: Tensor, n_bins: int = BINS) -> float:
    """Return the expected calibration error over equal-width bins of the top probability."""
    if probabilities.ndim != 2 or len(probabilities) != len(y) or len(y) == 0:
        raise InputError(
            f"probabilities must be [n, classes] with one label per row, got {tuple(probabilities.shape)} and {len(y)}"
        )
    confidence, predicted = probabilities.double().max(dim=1)
    return calibration_error(confidence, predicted == y.view(-1), bins_of(confidence, n_bins))


def calibration_error(confidence: Tensor, right: Tensor, bins: Tensor | None = None) -> float:
    """Return the sum over bins of |number correct - expected number correct|, over the number of entries."""
    bins = bins_of(confidence) if bins is None else bins
    gaps = _sums(right.double() - confidence.double(), bins)
    return float(gaps.abs().sum() / len(right))


def classwise_error(class_gaps: Sequence[Tensor], counts: Sequence[int]) -> float:
    """Return the class-wise calibration error: that of the probability of each value, averaged over values."""
    errors = [gaps.abs().sum(1) / max(1, n) for gaps, n in zip(class_gaps, counts, strict=True)]
    return float(torch.cat(errors).mean())


def _sums(values: Tensor, bins: Tensor, n_bins: int | None = None) -> Tensor:
    size = int(bins.max()) + 1 if n_bins is None else n_bins
    return torch.zeros(size, dtype=torch.float64, device=values.device).index_add_(0, bins, values)


@dataclass(frozen=True)
class Band:
    """The mean of some values and the interval that holds a fraction LEVEL of them."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Tensor) -> Band:
        ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=values.dtype)
        low, high = values.quantile(ends).tolist()
        return cls(float(values.mean()), low, high)

    def around(self, value: float) -> Band:
        """Shift the band to have its mean at `value`, cut off at 0.

        For bootstrap samples of a binned error: each has the noise of the rows twice, so their errors are too large.
        """
        return Band(value, max(0.0, value + self.low - self.mean), value + self.high - self.mean)


def bootstrap(
    confidence: Tensor, right: Tensor, row: Tensor, bins: Tensor, *, resamples: int, generator: torch.Generator
) -> Tensor:
    """Return the calibration errors of bootstrap samples of the rows, with fixed bins, `[resamples]`.

    Rows are resampled, not entries, because the labels of one row are dependent.
    """
    numbers, place = row.unique(return_inverse=True)
    n, n_bins = len(numbers), int(bins.max()) + 1
    # Each row's contribution to each bin, and its number of entries.
    parts = torch.zeros(n, n_bins + 1, dtype=torch.float64)
    parts.view(-1).index_add_(0, place * (n_bins + 1) + bins, right.double() - confidence.double())
    parts[:, -1] = torch.bincount(place, minlength=n).double()
    errors = []
    for size in _portions(resamples, n):
        drawn = torch.randint(n, (size, n), generator=generator)
        drawn += n * torch.arange(size)[:, None]
        times = torch.bincount(drawn.flatten(), minlength=size * n).view(size, n).double()
        sums = times @ parts
        errors.append(sums[:, :-1].abs().sum(1) / sums[:, -1])
    return torch.cat(errors)


def if_calibrated(confidence: Tensor, bins: Tensor, *, draws: int, generator: torch.Generator) -> Tensor:
    """Return calibration errors of a calibrated model, with labels drawn from its probabilities, `[draws]`."""
    confidence = confidence.double()
    errors = []
    for size in _portions(draws, len(confidence)):
        right = torch.rand(size, len(confidence), generator=generator, dtype=torch.float64) < confidence
        sums = torch.zeros(size, int(bins.max()) + 1, dtype=torch.float64)
        errors.append(sums.index_add_(1, bins, right.double() - confidence).abs().sum(1) / len(confidence))
    return torch.cat(errors)


def _portions(times: int, width: int) -> Iterator[int]:
    """Split `times` into portions of at most AT_ONCE numbers."""
    size = max(1, AT_ONCE // max(1, width))
    for begin in range(0, times, size):
        yield min(size, times - begin)


@dataclass(frozen=True, eq=False)
class Reliability:
    """The non-empty bins of a reliability diagram: counts, mean confidence, accuracy and its interval."""

    count: Tensor
    confidence: Tensor
    accuracy: Tensor
    low: Tensor
    high: Tensor


def reliability(confidence: Tensor, right: Tensor, n_bins: int = BINS) -> Reliability:
    """Compute accuracy against confidence over equal-width bins."""
    bins = bins_of(confidence, n_bins)
    count = torch.bincount(bins, minlength=n_bins)
    full = count > 0
    n = count[full].double()
    mean = _sums(confidence.double(), bins, n_bins)[full] / n
    share = _sums(right.double(), bins, n_bins)[full] / n
    low, high = share_interval(share, n)
    return Reliability(count[full], mean, share, low, high)


def share_interval(share: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Wilson interval of a fraction of n."""
    z = math.sqrt(2.0) * float(torch.special.erfinv(torch.tensor(LEVEL, dtype=torch.float64)))
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)).sqrt()
    return (middle - half).clamp(min=0.0), (middle + half).clamp(max=1.0)


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The error rate (`risk`) among the most confident fraction of entries (`coverage`)."""

    coverage: Tensor
    risk: Tensor

    @property
    def area(self) -> float:
        return float(self.risk.mean())


def risk_coverage(score: Tensor, right: Tensor) -> RiskCoverage:
    """Compute the error rate when predicting only above a score, for all thresholds; ties are averaged."""
    ordered, order = score.double().sort(descending=True)
    wrong = (~right[order]).double()
    _, group = ordered.unique_consecutive(return_inverse=True)
    wrong = (_sums(wrong, group) / torch.bincount(group).double())[group]
    n = torch.arange(1, len(wrong) + 1, dtype=torch.float64)
    return RiskCoverage(n / len(wrong), wrong.cumsum(0) / n)


def fit_temperature(log_probs: Sequence[Tensor], truths: Sequence[Tensor]) -> float:
    """Fit the temperature T of p^(1/T), normalized, by maximum likelihood on held-out entries.

    The likelihood is concave in 1/T, so bisection finds the root of its derivative.
    """
    # Relative to the true label: differences of large sums would hide that all rows are correct and no T is best.
    relative = [
        (z - z.gather(1, y[:, None])).clamp(-1e5, 1e5)
        for z, y in zip((z.double() for z in log_probs), truths, strict=True)
    ]

    def slope(inverse: float) -> float:
        return -sum(float(((inverse * z).softmax(1) * z).sum()) for z in relative)

    low, high = (math.log(1 / t) for t in reversed(TEMPERATURES))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(math.exp(middle)) >= 0 else (low, middle)
    return math.exp(-(low + high) / 2)

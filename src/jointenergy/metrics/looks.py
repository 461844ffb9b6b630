"""metrics: comparison of samples with data, single samples and distributions, in features that no run has learned.

Images are mapped by three layers of fixed random convolutions, other rows are used as they are. Features are whitened
by the main components of the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import ConfigDict
from torch import Tensor

from jointenergy.files.schema import STRICT, Measured, Natural
from jointenergy.metrics.sample_quality import COVERED, density_and_coverage

WIDTHS = (32, 64, 128)  # of the convolutions
SLOPE = 0.2  # of their leaky ReLUs
COMPONENTS = 64  # principal components that are kept
FLOOR = 1e-3  # relative to the largest variance: smaller ones are not whitened further
REFERENCE = 2048  # rows of data that samples are compared with
COPIED = 10_000  # training rows that are searched for copies
SMALLEST = 4  # the smallest height and width of an image
PIECE = 256  # rows convolved at once
TAIL = 0.01  # the fraction of data rows beyond a quantile
BEYOND = 0.4  # by how much a limit of single images exceeds the quantile, relative to its distance from the median
NEIGHBOR = 3  # the neighbor whose distance tells how far a row is from the data
VOTES = 5  # neighbors that vote on the label of a row
FEWEST = 10  # rows of data that a comparison needs
GROUP = 24  # samples and rows of a label that are judged separately
CERTAIN = 4.0  # standard errors by which means of columns differ by chance
NARROW = 0.5  # of the usual standard deviation of columns: narrower ones, such as dark pixels, count as that wide

TAILS = {
    "artifacts": ("high_frequency", True, "have high-frequency artifacts"),
    "blurred": ("high_frequency", False, "are blurred"),
    "bright": ("brightness", True, "are brighter than the data"),
    "dark": ("brightness", False, "are darker than the data"),
    "harsh": ("contrast", True, "have more contrast than the data"),
    "flat": ("contrast", False, "have less contrast than the data"),
    "saturated": ("chroma", True, "are more saturated than the data"),
    "gray": ("chroma", False, "are less saturated than the data"),
}
"""Ways in which an image can differ from the data: the statistic, whether it is too large, and a phrase for reports."""


@dataclass(frozen=True)
class Looks:
    """A comparison of samples with data. Fractions are those of samples minus those of data."""

    distance: Measured
    """Unbiased squared MMD with a Gaussian kernel: 0 for data, may be negative."""
    coverage: Measured
    """The fraction of data rows with a sample among their 5 nearest; 0.97 for data."""
    unlike: Measured
    """The fraction of samples farther from all data than 99 % of data rows."""
    copies: Measured
    """The fraction of samples nearer to a training row than 99 % of training rows are to each other."""
    rows: Natural = 0
    """Rows of data in the comparison of distributions."""
    shift: Measured = math.nan
    """For tables: the largest difference of the means of a column, in its standard deviations, beyond chance."""
    tails: dict[str, Measured] = field(default_factory=dict)
    """For images: the fraction of samples beyond each limit, by name as in TAILS."""
    groups: dict[str, Measured] = field(default_factory=dict)
    """For conditional samples: the largest fraction of TAILS and `unlike` within each group."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def values(self) -> dict[str, float]:
        """Return the numbers by name."""
        worst = max(self.groups.values(), default=math.nan)
        named = {"distance": self.distance, "coverage": self.coverage, "unlike": self.unlike, "copies": self.copies}
        named["shift"] = self.shift
        return {**named, **self.tails, **({"worst_group": worst} if self.groups else {})}


class Space:
    """A feature space fitted to data: `clean` rows, and the same rows as training shows them, with noise.

    Limits of single samples come from both, since chains may end cleaner than noised data. Of rows that training did
    not see, `unseen`, means have an error of their own, while those of training rows are what samples should have.
    Without `means` they are not compared: chains at another temperature than 1 sample another law.
    """

    def __init__(self, clean: Tensor, shown: Tensor, *, unseen: bool = False, means: bool = True) -> None:
        self.filters = _filters(clean.shape[1], clean) if _is_image(clean) else None
        found = self._raw(shown).double()
        self.mean = found.mean(0)
        variance, directions = _components(found, max(1, min(COMPONENTS, found.shape[1], len(found) // 4)))
        largest = float(variance[0])
        self.constant = not largest > 0 or bool((clean == clean[:1]).all())
        """Whether all rows of data are the same, so that nothing can be compared."""
        self.scale = directions / variance.clamp(min=FLOOR * largest if largest > 0 else 1.0).sqrt()
        self.data = self._scaled(found)
        self.clean, self.shown, self.unseen = clean, shown, unseen
        self.means = means and self.filters is None
        self.width = float(torch.pdist(self.data[:1000]).median()) if len(self.data) > 1 else 1.0
        self.reach = float(_nearest(self.data, self.data, NEIGHBOR + 1).quantile(1 - TAIL))
        flat = clean.flatten(1)
        self.apart = float(_nearest(flat, flat, 2).quantile(TAIL))
        both = [image_statistics(rows) for rows in (clean, shown)]
        self.limits = {
            name: (min(_beyond(s[name], TAIL) for s in both), max(_beyond(s[name], 1 - TAIL) for s in both))
            for name in both[0]
        }
        self.usual = {name: float(bad.float().mean()) for name, bad in self.tails(shown).items()} | {"unlike": TAIL}

    def _raw(self, x: Tensor) -> Tensor:
        if self.filters is None:
            return x.flatten(1)
        return torch.cat([_convolved(piece, self.filters) for piece in x.split(PIECE)])

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features of rows, `[n, components]`."""
        return self._scaled(self._raw(x).double())

    def _scaled(self, found: Tensor) -> Tensor:
        scaled: Tensor = ((found - self.mean) @ self.scale).float()
        return scaled

    def distance(self, samples: Tensor, data: Tensor) -> float:
        """Return the unbiased squared MMD with the kernel exp(-d^2 / width^2), the width being the median distance."""
        width = self.width if self.width > 0 else 1.0

        def mean(a: Tensor, b: Tensor, *, same: bool = False) -> Tensor:
            values = torch.exp(-((torch.cdist(a.double(), b.double()) / width) ** 2))
            n = len(a)
            return (values.sum() - n) / (n * (n - 1)) if same else values.mean()

        return float(mean(samples, samples, same=True) + mean(data, data, same=True) - 2 * mean(samples, data))

    def tails(self, x: Tensor) -> dict[str, Tensor]:
        """Return which images lie beyond each limit, by name."""
        found = image_statistics(x)
        return {
            name: found[what] > self.limits[what][1] if above else found[what] < self.limits[what][0]
            for name, (what, above, _) in TAILS.items()
            if what in found
        }

    def unlike(self, features: Tensor) -> Tensor:
        """Return which rows of features are farther from all data than nearly all data rows."""
        return _nearest(features, self.data, NEIGHBOR) > self.reach

    def shift(self, groups: Sequence[tuple[Tensor, Tensor]], *, all_rows: bool = False) -> float:
        """Return the largest difference of the means of a column beyond chance, over groups of (samples, rows).

        `all_rows` says that the rows are all that samples should resemble, not a part of them.
        """
        if not self.means:
            return math.nan
        spread = self.shown.double().std(0)
        apart, error, n = torch.zeros_like(spread), 0.0, sum(len(x) for x, _ in groups)
        for x, rows in groups:
            share = len(x) / n
            apart += share * (x.double().mean(0) - rows.double().mean(0))
            error += share**2 * (1 / len(x) + (0.0 if all_rows else 1 / len(rows)))
        usual = float(spread.square().mean().sqrt())
        found = float((apart.abs() / spread.clamp(min=NARROW * usual)).max())
        return max(0.0, found - CERTAIN * math.sqrt(error))

    def looks(self, x: Tensor) -> Looks:
        """Compare samples with the fitted data."""
        seen = self(x)
        single = {**self.tails(x), "unlike": self.unlike(seen)}
        shares = {name: float(bad.float().mean()) - self.usual[name] for name, bad in single.items()}
        shift = self.shift([(x, self.shown)], all_rows=not self.unseen)
        return self._looks(x, seen, self.data, shares, shift)

    def looks_given(self, groups: Mapping[str, tuple[Tensor, Tensor]]) -> Looks:
        """Compare conditional samples with rows of data that have the label: (samples, rows as shown) by name.

        If a group has fewer rows than samples, only that many samples enter the comparison of distributions.
        """
        shares: dict[str, list[float]] = {}
        within, counts = {}, []
        for name, (x, rows) in groups.items():
            found = [{**self.tails(a), "unlike": self.unlike(self(a))} for a in (x, rows)]
            excess = {k: float(found[0][k].float().mean() - found[1][k].float().mean()) for k in found[0]}
            if min(len(x), len(rows)) >= GROUP:
                within[name] = max(excess.values())
            counts.append(len(x))
            for k, share in excess.items():
                shares.setdefault(k, []).append(share * len(x))
        x = torch.cat([x for x, _ in groups.values()])
        pairs = (
            torch.cat([a[: len(b)] for a, b in groups.values()]),
            torch.cat([b[: len(a)] for a, b in groups.values()]),
        )
        pooled = {k: sum(parts) / sum(counts) for k, parts in shares.items()}
        shift = self.shift(list(groups.values()))
        return self._looks(x, self(pairs[0]), self(pairs[1]), pooled, shift, within)

    def _looks(
        self,
        x: Tensor,
        seen: Tensor,
        data: Tensor,
        shares: dict[str, float],
        shift: float,
        groups: dict[str, float] | None = None,
    ) -> Looks:
        n = min(len(data), len(seen))
        near = _nearest(x.flatten(1), self.clean.flatten(1), 1) < self.apart
        return Looks(
            distance=self.distance(seen, data),
            coverage=density_and_coverage(data[:n], seen[:n]).coverage if n > COVERED else math.nan,
            unlike=shares.pop("unlike"),
            copies=float(near.float().mean() - TAIL),
            rows=n,
            shift=shift,
            tails=shares,
            groups=groups or {},
        )


def _components(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the n largest variances of rows `[m, d]` and their directions `[d, n]`."""
    if x.shape[1] <= len(x):
        variance, directions = torch.linalg.eigh(torch.cov(x.T).reshape(x.shape[1], -1))
        return variance.flip(0)[:n], directions.flip(1)[:, :n]
    # Fewer rows than columns: the same from the products of rows, which are fewer than those of columns.
    centered = x - x.mean(0)
    variance, parts = torch.linalg.eigh(centered @ centered.T / max(1, len(x) - 1))
    # QR scales the directions to length 1, also those without variance.
    return variance.flip(0)[:n], torch.linalg.qr(centered.T @ parts.flip(1)[:, :n]).Q


def vote(seen: Tensor, data: Tensor, labels: Tensor, *, own: bool = False) -> Tensor:
    """Return the most frequent label among the nearest rows of data; with `own`, each row is excluded itself."""
    nearest = torch.cdist(seen, data).topk(min(VOTES + own, len(data)), largest=False).indices[:, int(own) :]
    return labels[nearest].mode(1).values


def _is_image(x: Tensor) -> bool:
    return x.ndim == 4 and min(x.shape[-2:]) >= SMALLEST


def _filters(channels: int, like: Tensor) -> list[Tensor]:
    """Create fixed random convolutions; every other filter sums to zero and detects edges only."""
    generator, layers = torch.Generator().manual_seed(0), []
    for width in WIDTHS:
        drawn = torch.randn(width, channels, 3, 3, generator=generator)
        drawn[1::2] -= drawn[1::2].mean((2, 3), keepdim=True)
        layers.append((drawn / drawn.flatten(1).norm(dim=1).view(-1, 1, 1, 1)).to(like))
        channels = width
    return layers


def _convolved(x: Tensor, filters: list[Tensor]) -> Tensor:
    """Return means of a 2 x 2 grid and the standard deviation of each channel of each layer."""
    found = []
    for weight in filters:
        x = F.leaky_relu(F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), weight), SLOPE)
        found += [F.adaptive_avg_pool2d(x, 2).flatten(1), x.flatten(2).std(2, correction=0)]
        if min(x.shape[-2:]) >= SMALLEST:
            x = F.avg_pool2d(x, 2)
    return torch.cat(found, 1)


def image_statistics(x: Tensor) -> dict[str, Tensor]:
    """Return statistics of each image: root mean square of its Laplacian, mean, contrast, and chroma if in color."""
    if not _is_image(x):
        return {}
    channels = x.shape[1]
    kernel = x.new_tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]).expand(channels, 1, 3, 3)
    flat = x.flatten(1)
    found = {
        "high_frequency": F.conv2d(x, kernel, groups=channels).flatten(1).square().mean(1).sqrt(),
        "brightness": flat.mean(1),
        "contrast": flat.std(1, correction=0),
    }
    return {**found, "chroma": x.std(1, correction=0).flatten(1).mean(1)} if channels == 3 else found


def _beyond(values: Tensor, quantile: float) -> float:
    """Return a limit a little beyond a quantile, because samples may be slightly sharper than data."""
    at, median = values.quantile(quantile), values.median()
    return float(at + BEYOND * (at - median))


def _nearest(rows: Tensor, others: Tensor, k: int) -> Tensor:
    """Return the distance of each row to its k-th nearest neighbor among `others`."""
    k = min(k, len(others))
    return torch.cat([torch.cdist(piece, others).kthvalue(k).values for piece in rows.split(PIECE)])

"""models: the domain of x, a box or R^D with a Gaussian reference term."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import InputError


@dataclass(frozen=True)
class Box:
    """Restrict every entry of x to [low, high]. The density is zero outside, so it has a normalizer.

    Parameters
    ----------
    low
        The lower bound.
    high
        The upper bound.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> je.Box(-1.0, 1.0).contains(torch.tensor([[0.0, 0.5], [0.0, 2.0]]))
    tensor([ True, False])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InputError(f"a box needs finite bounds with low < high, got low={self.low}, high={self.high}")

    proper = True
    flat = True
    """Whether the reference term is zero everywhere."""

    def contains(self, x: Tensor) -> Tensor:
        """Return which rows of x lie in the domain, bool `[n]`."""
        return ((x >= self.low) & (x <= self.high)).flatten(1).all(1)

    def log_reference(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x))

    def reflected(self, x: Tensor) -> Tensor:
        """x with what lies beyond a wall mirrored there, as often as it takes."""
        width = self.high - self.low
        # Rounding may step over a bound.
        folded = self.low + width - ((x - self.low).remainder(2 * width) - width).abs()
        return folded.clamp(self.low, self.high)

    def tempered(self, inverse_temperature: float) -> Box:
        return self

    def intersect(self, other: Domain) -> Box:
        if isinstance(other, Reals):
            return self
        low, high = max(self.low, other.low), min(self.high, other.high)
        if low >= high:
            raise InputError(f"the domains [{self.low}, {self.high}] and [{other.low}, {other.high}] do not overlap")
        return Box(low, high)


Factor = tuple[tuple[float, ...], ...]
"""The rows of a lower Cholesky factor of a covariance."""


@dataclass(frozen=True)
class Reals:
    """Allow all of R^D. With a `scale`, a Gaussian reference term is added to the log-density.

        f(x, y) - |x - mean|^2 / (2 scale^2)

    Without a `scale` the density may have no normalizer: it can be compared between points, not normalized.

    Parameters
    ----------
    scale
        The standard deviation of the reference, or the rows of a Cholesky factor of its covariance.
    mean
        The mean of the reference, a number or one value for each entry of x.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> je.Reals(scale=2.0).log_reference(torch.tensor([[2.0, 2.0]]))
    tensor([-1.])
    """

    scale: float | Factor | None = None
    mean: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.scale, tuple):
            factor = _matrix(self.scale)
            if not bool(factor.isfinite().all()) or not bool((factor.diagonal() > 0).all()):
                raise InputError(
                    "the reference scale needs the rows of a finite Cholesky factor, positive on its diagonal"
                )
        elif self.scale is not None and not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"the reference scale must be positive and finite, got {self.scale}")
        if not all(math.isfinite(m) for m in (self.mean if isinstance(self.mean, tuple) else (self.mean,))):
            raise InputError(f"the reference mean must be finite, got {self.mean}")

    @classmethod
    def gaussian(cls, mean: Tensor, covariance: Tensor) -> Reals:
        """Create R^D with a Gaussian reference of this mean `[D]` and covariance `[D, D]`."""
        factor, failed = torch.linalg.cholesky_ex(covariance.detach().cpu().double())
        if int(failed):
            raise InputError("the covariance of a reference must be positive definite: add to its diagonal")
        return cls(tuple(map(tuple, factor.tolist())), tuple(mean.detach().cpu().double().flatten().tolist()))

    @property
    def proper(self) -> bool:
        return self.scale is not None

    @property
    def flat(self) -> bool:
        return self.scale is None

    @property
    def width(self) -> float:
        """The root mean square standard deviation of the reference over entries of x; 1 without a reference."""
        if isinstance(self.scale, tuple):
            return float(_matrix(self.scale).square().sum(1).mean().sqrt())
        return self.scale or 1.0

    def contains(self, x: Tensor) -> Tensor:
        """Return which rows of x lie in the domain: all."""
        return torch.ones(len(x), dtype=torch.bool, device=x.device)

    def log_reference(self, x: Tensor) -> Tensor:
        """Return the reference term of each row, `[n]`."""
        if self.scale is None:
            return x.new_zeros(len(x))
        if isinstance(self.scale, tuple):
            return -(self._away(x) @ self._inverse(x).mT).square().sum(1) / 2
        return -self._away(x).square().sum(1) / (2 * self.scale**2)

    def reference_gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of `log_reference` with respect to x."""
        if self.scale is None:
            return torch.zeros_like(x)
        if isinstance(self.scale, tuple):
            inverse = self._inverse(x)
            return -(self._away(x) @ inverse.mT @ inverse).view_as(x)
        # In the order of torch's graph, to have its rounding.
        return (2 * self._away(x)).mul_(-(x.new_ones(()) / (2 * self.scale**2))).view_as(x)

    def of_noise(self, noise: Tensor) -> Tensor:
        """Turn standard normal noise `[n, *event]` into draws of the reference."""
        flat = noise.flatten(1)
        if self.scale is None:
            raise InputError("R^D without a reference term cannot be drawn from: declare domain=Reals(scale)")
        flat = flat @ _as(self.scale, noise).mT if isinstance(self.scale, tuple) else flat * self.scale
        return (flat + self._mean(noise)).view_as(noise)

    def log_normalizer(self, n_dims: int) -> float:
        """Return the log normalizer of the reference term over R^D."""
        if isinstance(self.scale, tuple):
            logs = float(_matrix(self.scale).diagonal().log().sum())
        else:
            logs = n_dims * math.log(self.scale) if self.scale is not None else math.inf
        return n_dims / 2 * math.log(2 * math.pi) + logs

    def tempered(self, inverse_temperature: float) -> Reals:
        root = math.sqrt(inverse_temperature)
        if isinstance(self.scale, tuple):
            return Reals(tuple(tuple(v / root for v in row) for row in self.scale), self.mean)
        return Reals(None if self.scale is None else self.scale / root, self.mean)

    def intersect(self, other: Domain) -> Domain:
        """Return the domain of a product of models: precisions add, and means are weighted by them."""
        if isinstance(other, Box):
            return other
        terms = [d for d in (self, other) if d.scale is not None]
        if not terms:
            return self
        sizes = [len(d.scale) for d in terms if isinstance(d.scale, tuple)]
        sizes += [len(d.mean) for d in terms if isinstance(d.mean, tuple)]
        if len(set(sizes)) > 1:
            raise InputError(
                f"the Gaussian references are for x of {sizes[0]} and {sizes[-1]} entries: multiply models of one x"
            )
        if not sizes:
            precisions = [1 / d.scale**2 for d in terms if isinstance(d.scale, float | int)]
            means = [d.mean for d in terms if isinstance(d.mean, float | int)]
            mean = sum(p * m for p, m in zip(precisions, means, strict=True)) / sum(precisions)
            return Reals(1 / math.sqrt(sum(precisions)), mean)
        matrices = [torch.linalg.inv(d._covariance(sizes[0])) for d in terms]
        covariance = torch.linalg.inv(torch.stack(matrices).sum(0))
        shifted = torch.stack([p @ d._mean(p).expand(len(p)) for p, d in zip(matrices, terms, strict=True)]).sum(0)
        return Reals.gaussian(covariance @ shifted, covariance)

    def _covariance(self, n_dims: int) -> Tensor:
        if isinstance(self.scale, tuple):
            factor = _matrix(self.scale)
            return factor @ factor.mT
        return (self.scale or math.inf) ** 2 * torch.eye(n_dims, dtype=torch.float64)

    def _mean(self, like: Tensor) -> Tensor:
        return _as(self.mean, like)

    def _away(self, x: Tensor) -> Tensor:
        return x.flatten(1) - self._mean(x)

    def _inverse(self, x: Tensor) -> Tensor:
        assert isinstance(self.scale, tuple)
        inverse: Tensor = _inverse_of(self.scale, x.dtype, x.device)
        return inverse


def _matrix(factor: Factor) -> Tensor:
    return torch.tensor(factor, dtype=torch.float64)


# Cached: chains use these at every step.


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # an exported graph holds the inverse
def _inverse_of(factor: Factor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _computed_inverse(factor, dtype, device)


@functools.lru_cache(maxsize=64)
def _computed_inverse(factor: Factor, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        matrix = _matrix(factor)
        one = torch.eye(len(matrix), dtype=matrix.dtype)
        found: Tensor = torch.linalg.solve_triangular(matrix, one, upper=False)
        return found.to(device, dtype)


@functools.lru_cache(maxsize=64)
def _tensor_of(values: float | tuple[float, ...] | Factor, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float64).to(device, dtype)


def _as(values: float | tuple[float, ...] | Factor, like: Tensor) -> Tensor:
    return _tensor_of(values, like.dtype, like.device)


Domain = Box | Reals

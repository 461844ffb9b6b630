"""models: the domain of x that a model declares, a box or R^D with a Gaussian reference term."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import InputError


@dataclass(frozen=True)
class Box:
    """Every entry of x lies in [low, high]; the density is zero outside, so it always has a normalizer."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InputError(f"a box needs finite bounds with low < high, got low={self.low}, high={self.high}")

    proper = True
    flat = True
    """Whether the reference term is zero everywhere."""

    def contains(self, x: Tensor) -> Tensor:
        return ((x >= self.low) & (x <= self.high)).flatten(1).all(1)

    def log_reference(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x))

    def tempered(self, inverse_temperature: float) -> Box:
        return self

    def intersect(self, other: Domain) -> Box:
        if isinstance(other, Reals):
            return self
        low, high = max(self.low, other.low), min(self.high, other.high)
        if low >= high:
            raise InputError(f"the domains [{self.low}, {self.high}] and [{other.low}, {other.high}] do not overlap")
        return Box(low, high)


@dataclass(frozen=True)
class Reals:
    """All of R^D. With a `scale` the model's log-density has the term -|x - mean|^2 / (2 scale^2) added.

    Without a `scale` nothing bounds the density at infinity: it can be compared between points, never normalized.
    """

    scale: float | None = None
    mean: float = 0.0

    def __post_init__(self) -> None:
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"the reference scale must be positive and finite, got {self.scale}")
        if not math.isfinite(self.mean):
            raise InputError(f"the reference mean must be finite, got {self.mean}")

    @property
    def proper(self) -> bool:
        return self.scale is not None

    @property
    def flat(self) -> bool:
        return self.scale is None

    def contains(self, x: Tensor) -> Tensor:
        return torch.ones(len(x), dtype=torch.bool, device=x.device)

    def log_reference(self, x: Tensor) -> Tensor:
        if self.scale is None:
            return x.new_zeros(len(x))
        return -((x - self.mean) ** 2).flatten(1).sum(1) / (2 * self.scale**2)

    def tempered(self, inverse_temperature: float) -> Reals:
        return Reals(None if self.scale is None else self.scale / math.sqrt(inverse_temperature), self.mean)

    def intersect(self, other: Domain) -> Domain:
        """The domain of a product: quadratic terms add, so precisions add and means are weighted by them."""
        if isinstance(other, Box):
            return other
        terms = [d for d in (self, other) if d.scale is not None]
        if not terms:
            return self
        precisions = [1 / d.scale**2 for d in terms if d.scale is not None]
        mean = sum(p * d.mean for p, d in zip(precisions, terms, strict=True)) / sum(precisions)
        return Reals(1 / math.sqrt(sum(precisions)), mean)


Domain = Box | Reals

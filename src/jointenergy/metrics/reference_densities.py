"""metrics: simple densities fitted to the same rows on the same domain, as references for a likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import log_ndtr, ndtr, ndtri
from torch import Tensor

from jointenergy.models.domains import Box, Domain

FIT_ROWS, CHOICE_ROWS = 5000, 500  # the most training and validation rows that are used
WIDTHS = tuple(2.0 ** (k / 2) for k in range(-10, 5))  # in units of the mean standard deviation of an entry of x
RIDGES = tuple(10.0**k for k in range(-4, 2))  # added to the covariance, in units of the mean variance
BOX_DRAWS = 2000
AT_ONCE = 200  # rows evaluated at once

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A Gaussian with full covariance and a ridge; in a box, truncated and normalized."""

    mean: Tensor
    factor: Tensor
    log_mass: float
    ridge: float

    @classmethod
    def fit(cls, x: Tensor, held: Tensor, domain: Domain, *, generator: torch.Generator) -> Gaussian:
        """Fit, with the ridge chosen by the likelihood of validation rows."""
        rows, chosen = _rows(x), _rows(held)
        centered = rows - rows.mean(0)
        covariance = centered.T @ centered / len(rows)
        scale, unit = float(covariance.diagonal().mean()), torch.eye(rows.shape[1], dtype=torch.float64)
        found: list[Gaussian] = []
        for ridge in (r * scale for r in RIDGES):
            factor = torch.linalg.cholesky(covariance + ridge * unit)
            log_mass = 0.0 if not isinstance(domain, Box) else log_box_mass(rows.mean(0), factor, domain, generator)
            found.append(cls(rows.mean(0), factor, log_mass, ridge))
        return max(found, key=lambda g: float(g.log_density(chosen).mean()))

    def log_density(self, x: Tensor) -> Tensor:
        law = torch.distributions.MultivariateNormal(self.mean, scale_tril=self.factor, validate_args=False)
        log_density: Tensor = law.log_prob(_rows(x))
        return log_density - self.log_mass


def log_box_mass(mean: Tensor, factor: Tensor, box: Box, generator: torch.Generator, n: int = BOX_DRAWS) -> float:
    """Estimate the log probability of a box under a Gaussian, one dimension at a time given those before.

    The products of the conditional probabilities are unbiased (Geweke, Hajivassiliou and Keane).
    """
    low, high, lower = (box.low - mean).numpy(), (box.high - mean).numpy(), factor.numpy()
    uniform = torch.rand(n, len(mean), generator=generator, dtype=torch.float64).numpy()
    drawn, log_weight = np.zeros((n, len(mean))), np.zeros(n)
    for d in range(len(mean)):
        before = drawn[:, :d] @ lower[d, :d]
        below, above = (low[d] - before) / lower[d, d], (high[d] - before) / lower[d, d]
        log_weight += _log_mass(below, above)
        drawn[:, d] = _quantile(uniform[:, d], below, above)
    return float(torch.from_numpy(log_weight).logsumexp(0)) - math.log(n)


def _log_mass(below: Array, above: Array) -> Array:
    """Return log(Phi(above) - Phi(below)), computed in the accurate tail."""
    # Mirrored to the left tail, where the distribution function is small and accurate.
    turn = below + above > 0
    left, right = np.where(turn, -above, below), np.where(turn, -below, above)
    log_left, log_right = log_ndtr(left), log_ndtr(right)
    return np.asarray(log_right + np.log(-np.expm1(np.minimum(log_left - log_right, -1e-300))))


def _quantile(share: Array, below: Array, above: Array) -> Array:
    """Return the quantile of a standard normal truncated to [below, above]."""
    turn = below + above > 0
    left, right = np.where(turn, -above, below), np.where(turn, -below, above)
    low, high = ndtr(left), ndtr(right)
    inside = np.clip(ndtri(low + share * (high - low)), left, right)
    return np.asarray(np.where(turn, -inside, inside))


@dataclass(frozen=True, eq=False)
class Kernels:
    """A kernel density estimate with Gaussian kernels of one width; in a box, each is truncated and normalized.

    Summed directly: scikit-learn's KernelDensity approximates sums in a tree, and in 64 dimensions was wrong by 9 nats
    per row. In few dimensions both agree.
    """

    centers: Tensor
    log_masses: Tensor
    width: float

    @classmethod
    def fit(cls, x: Tensor, held: Tensor, domain: Domain) -> Kernels:
        """Fit, with the width chosen by the likelihood of validation rows."""
        rows, chosen = _rows(x), _rows(held)
        scale = float(rows.std(0).mean())
        found = [cls.of(rows, width * scale, domain) for width in WIDTHS]
        return max(found, key=lambda k: float(k.log_density(chosen).mean()))

    @classmethod
    def of(cls, rows: Tensor, width: float, domain: Domain) -> Kernels:
        log_masses = torch.zeros(len(rows), dtype=torch.float64)
        if isinstance(domain, Box):
            below, above = ((bound - rows.numpy()) / width for bound in (domain.low, domain.high))
            log_masses = torch.from_numpy(_log_mass(below, above).sum(1))
        return cls(rows, log_masses, width)

    def log_density(self, x: Tensor) -> Tensor:
        n, n_dims = self.centers.shape
        constant = math.log(n) + n_dims / 2 * math.log(2 * math.pi * self.width**2)
        squares = ((torch.cdist(piece, self.centers) / self.width) ** 2 for piece in _rows(x).split(AT_ONCE))
        return torch.cat([(-s / 2 - self.log_masses).logsumexp(1) for s in squares]) - constant


def _rows(x: Tensor) -> Tensor:
    """Return flat rows in float64 on the CPU."""
    return x.detach().flatten(1).double().cpu()

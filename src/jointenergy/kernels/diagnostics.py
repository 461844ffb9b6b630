"""kernels: convergence diagnostics, effective sample size and split R-hat (Gelman et al., Bayesian Data Analysis 3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from jointenergy.errors import InputError


def _check(draws: Tensor) -> Tensor:
    if draws.ndim != 2 or draws.shape[1] < 4:
        raise InputError(f"draws must have shape [chains, steps] with at least 4 steps, got {tuple(draws.shape)}")
    return draws.double()


def _halves(draws: Tensor) -> Tensor:
    """Split each chain in two, so that a trend within chains shows as a difference between them."""
    half = draws.shape[1] // 2
    return torch.cat((draws[:, :half], draws[:, -half:]))


def _variances(chains: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean variance within chains, and the pooled estimate with the variance between chains."""
    n = chains.shape[1]
    within = chains.var(dim=1).mean()
    return within, within * (n - 1) / n + chains.mean(dim=1).var()


def split_r_hat(draws: Tensor) -> float:
    """Compute split R-hat of one quantity. Values near 1 indicate convergence.

    Parameters
    ----------
    draws
        One quantity, `[chains, steps]`, at least 4 steps.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> draws = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    >>> je.kernels.split_r_hat(draws) < 1.01
    True
    """
    within, pooled = _variances(_halves(_check(draws)))
    return float((pooled / within).sqrt())


def effective_sample_size(draws: Tensor) -> float:
    """Estimate how many independent draws would give the mean of one quantity with the same variance.

    Autocorrelations are summed over Geyer's initial monotone sequence.

    Parameters
    ----------
    draws
        One quantity, `[chains, steps]`, at least 4 steps.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> draws = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    >>> je.kernels.effective_sample_size(draws) > 3000
    True
    """
    chains = _halves(_check(draws))
    m, n = chains.shape
    within, pooled = _variances(chains)
    if float(pooled) == 0.0:
        return float(m * n)
    centered = chains - chains.mean(dim=1, keepdim=True)
    spectrum = torch.fft.rfft(centered, n=2 * n, dim=1)
    covariance = torch.fft.irfft(spectrum.abs() ** 2, n=2 * n, dim=1)[:, :n].mean(dim=0) / n
    rho = 1.0 - (within - covariance) / pooled
    rho[0] = 1.0
    pairs = rho[: n - n % 2].view(-1, 2).sum(dim=1)
    negative = (pairs < 0).nonzero()
    # Estimates at the last lags use two or three products each, so the sequence stops before them, as in Stan.
    stop = min(int(negative[0, 0]) if len(negative) else len(pairs), max((n - 3) | 1, 1) // 2)
    summed = float(pairs[:stop].cummin(dim=0).values.sum()) if stop else 0.0
    # The lag after the last pair is added if it is positive.
    time = -1.0 + 2.0 * summed + max(float(rho[2 * stop]), 0.0)
    return m * n / max(time, 1.0 / math.log10(m * n))

"""Statistical checks that tests share; each returns a p-value to compare with ALPHA."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats
from torch import Tensor

ALPHA = 1e-6
"""The false-failure rate of each statistical check, were its seed drawn afresh."""


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """Pearson's test of counts against probabilities; a count where the probability is zero fails outright.

    Cells that expect fewer than 5 are pooled: the chi-square law does not hold for them alone.
    """
    observed = counts.double().numpy()
    expected = (probabilities.double() / probabilities.sum()).numpy() * observed.sum()
    if observed[expected == 0].sum() > 0:
        return 0.0
    observed, expected = observed[expected > 0], expected[expected > 0]
    rare = expected < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's test that two samples are uncorrelated."""
    return float(stats.pearsonr(a.flatten().numpy(), b.flatten().numpy()).pvalue)


def kolmogorov_smirnov(samples: Tensor, grid: Tensor, cdf: Tensor) -> float:
    """The one-sample test against a distribution function tabulated on a grid."""
    return float(stats.kstest(samples.flatten().numpy(), lambda v: np.interp(v, grid.numpy(), cdf.numpy())).pvalue)


def histogram(values: Tensor, n: int) -> Tensor:
    return torch.bincount(values.flatten(), minlength=n)

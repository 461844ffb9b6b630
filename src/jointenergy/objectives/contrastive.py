"""objectives: rows distinguished from noise: noise contrastive estimation and energy discrepancy, no chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import check_count
from jointenergy.models import JointModel
from jointenergy.objectives.base import Batch, DrawName, Draws, NoiseDraws, Samples
from jointenergy.objectives.noise import (
    NoiseSource,
    NoiseTerm,
    check_above_zero,
    check_aligned,
    check_noise_scale,
    step,
)
from jointenergy.objectives.objective import Term
from jointenergy.objectives.values import Values


@dataclass(frozen=True)
class ContrastiveTerm(NoiseTerm):
    """Minus the log-probability of picking a row among it and `n_noise` states of noise.

    A constant of f is in all of them and cancels: there is no normalizer to be learned. The expected gradient is zero
    at the law of the data with any number of states.
    """

    n_noise: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("n_noise", self.n_noise)

    def told(self, values: Values, of_rows: Tensor, of_noise: Tensor) -> Tensor:
        """The mean cross-entropy of rows against their noise, by log-ratios `[n]` and `[n * n_noise]`."""
        both = torch.cat((of_rows[:, None], of_noise.view(values.n, -1)), dim=1)
        return self.mean(values, -both.log_softmax(1)[:, 0])


@final
@dataclass(frozen=True)
class NoiseContrastiveEstimation(ContrastiveTerm):
    """Noise contrastive estimation of log p(x, y), in its ranking form (Ma and Collins 2018).

        -log of the softmax of f / T - log q at the row, among the row and `n_noise` draws of q(x, y)

    The noise density q is fitted to the data by Gaussians: one for each class of a single label, otherwise one for
    all rows beside the frequencies of labels. The log-normalizer cancels; the binary form (Gutmann and Hyvarinen
    2010) has to learn it.

    Parameters
    ----------
    weight
        The factor of the term.
    temperature
        The temperature T of the density; None takes that of the kernel in `fit`, and 1 elsewhere.
    n_noise
        The number of draws of noise for each row.

    Examples
    --------
    >>> import jointenergy as je
    >>> je.objectives.NoiseContrastiveEstimation(n_noise=16).draws
    ('noise',)
    """

    name: ClassVar[str] = "noise_contrastive_estimation"
    draws: ClassVar[tuple[DrawName, ...]] = ("noise",)

    def draw(self, draws: Draws, batch: Batch, source: NoiseSource) -> Draws:
        if source.fitted is None:
            raise InputError("NoiseContrastiveEstimation needs a noise density: give FittedNoise.fit(x, y, ...)")
        rows = batch.x.new_zeros(len(batch.x), 0, dtype=torch.int64) if batch.y is None else batch.y
        y = rows.repeat_interleave(self.n_noise, dim=0)
        x, y = source.fitted.draw(y, tuple(batch.x.shape[1:]), generator=source.generator)
        found = NoiseDraws(
            Samples(x, y, complete=batch.complete),
            source.fitted.log_density(x, y),
            source.fitted.log_density(batch.x, rows),
        )
        return replace(draws, noise=found)

    def check(self, values: Values) -> None:
        assert values.draws.noise is not None
        check_aligned(self, len(values.draws.noise.states.x), values, self.n_noise)

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        noise = values.draws.noise
        assert noise is not None
        f = values.of_states(noise.states.x.detach(), values.labels_of(noise.states))
        beta = self.inverse_temperature
        return self.told(values, beta * values.of_rows - noise.log_density_of_rows, beta * f - noise.log_density)


@final
@dataclass(frozen=True)
class EnergyDiscrepancy(ContrastiveTerm):
    """Energy discrepancy (Schröder et al. 2023), stabilized with w = 1, of p(x) given the labels of each row.

        -log of the softmax of f / T at the row, among the row and `n_noise` rows that were noised twice

    Noise is added to the row once, then once more for each of the others. It needs no chains, no gradient with
    respect to x and no fitted noise. Levels between labels are left open: add a term of labels such as
    `LogPYGivenX`. In a box the noise is reflected at the walls.

    Parameters
    ----------
    weight
        The factor of the term.
    temperature
        The temperature T of the density; None takes that of the kernel in `fit`, and 1 elsewhere.
    n_noise
        The number of noised rows for each row.
    noise_scale
        The standard deviation of the noise, in units of x; at most a quarter of the width of a box.

    Examples
    --------
    >>> import jointenergy as je
    >>> je.objectives.EnergyDiscrepancy(noise_scale=0.1).draws
    ('renoised',)
    """

    noise_scale: float = 0.2

    name: ClassVar[str] = "energy_discrepancy"
    draws: ClassVar[tuple[DrawName, ...]] = ("renoised",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero(self, "noise_scale", self.noise_scale)

    def needs(self, model: JointModel, *, missing_labels: bool = True, masked_x: bool = False) -> frozenset[DrawName]:
        check_noise_scale(self, self.noise_scale, model.domain)
        return super().needs(model, missing_labels=missing_labels, masked_x=masked_x)

    def draw(self, draws: Draws, batch: Batch, source: NoiseSource) -> Draws:
        noised = step(batch.x, self.noise_scale, source.domain, source.generator)
        again = noised.repeat_interleave(self.n_noise, dim=0)
        x = step(again, self.noise_scale, source.domain, source.generator)
        y = None if batch.y is None else batch.y.repeat_interleave(self.n_noise, dim=0)
        return replace(draws, renoised=Samples(x, y, complete=batch.complete))

    def check(self, values: Values) -> None:
        check_aligned(self, len(values.samples("renoised").x), values, self.n_noise)

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        x, y = values.samples("renoised").x.detach(), values.y.repeat_interleave(self.n_noise, dim=0)
        beta = self.inverse_temperature
        return self.told(values, beta * values.of_rows, beta * values.of_states(x, y))

"""objectives: denoising score matching (Vincent 2011): the gradient of f at noised rows points back to the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from jointenergy.models import JointModel
from jointenergy.objectives.base import Batch, DrawName, Draws, Samples
from jointenergy.objectives.noise import (
    NoiseSource,
    NoiseTerm,
    check_above_zero,
    check_aligned,
    check_noise_scale,
    step,
    step_score,
)
from jointenergy.objectives.objective import Term
from jointenergy.objectives.values import Values


@final
@dataclass(frozen=True)
class DenoisingScoreMatching(NoiseTerm):
    """Match the gradient of f with respect to x to the score of the noised data (Vincent 2011).

        noise_scale^2 / 2 * | gradient of f / T - score of the noise |^2,   at noised rows, given their labels

    The minimizer has the score of the data blurred by Gaussian noise. Levels between labels are left open: add a
    term of labels such as `LogPYGivenX`. In a box the noise is reflected at the walls. It needs no chains and
    differentiates the network twice.

    Parameters
    ----------
    weight
        The factor of the term.
    temperature
        The temperature T of the density; None takes that of the kernel in `fit`, and 1 elsewhere.
    noise_scale
        The standard deviation of the noise, in units of x; at most a quarter of the width of a box.

    Examples
    --------
    >>> import jointenergy as je
    >>> objective = je.objectives.DenoisingScoreMatching(noise_scale=0.1) + je.objectives.LogPYGivenX()
    >>> [term.name for term in objective.terms]
    ['denoising_score_matching', 'log_p_y_given_x']
    """

    noise_scale: float = 0.2

    name: ClassVar[str] = "denoising_score_matching"
    draws: ClassVar[tuple[DrawName, ...]] = ("noised",)
    differentiates_x: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero(self, "noise_scale", self.noise_scale)

    def needs(self, model: JointModel, *, missing_labels: bool = True, masked_x: bool = False) -> frozenset[DrawName]:
        check_noise_scale(self, self.noise_scale, model.domain)
        return super().needs(model, missing_labels=missing_labels, masked_x=masked_x)

    def draw(self, draws: Draws, batch: Batch, source: NoiseSource) -> Draws:
        noised = step(batch.x, self.noise_scale, source.domain, source.generator)
        return replace(draws, noised=Samples(noised, batch.y, complete=batch.complete))

    def check(self, values: Values) -> None:
        check_aligned(self, len(values.samples("noised").x), values, 1)

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        with torch.enable_grad():
            x = values.samples("noised").x.detach().requires_grad_()
            f = values.of_states(x, values.y)
            (slope,) = torch.autograd.grad(f.sum(), x, create_graph=True)
        wanted = step_score(x.detach(), values.x, self.noise_scale, values.model.domain)
        away = self.noise_scale * (self.inverse_temperature * slope - wanted)
        return self.mean(values, away.square().flatten(1).sum(1) / 2)

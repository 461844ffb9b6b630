"""training: sharpness-aware minimization: the gradient at the worst weights nearby."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.inputs import is_number


@final
@dataclass(frozen=True)
class SharpnessAware:
    """Compute gradients at w + e(w), the point within `radius` of the weights w where the loss grows fastest.

    e(w) = radius * t(w)^2 * g / |t(w) * g| with the gradient g at w. Plain (Foret et al., 2021): t(w) = 1. Adaptive
    (Kwon et al., 2021): t(w) = |w|, entry by entry, so that the radius does not depend on the scale of the weights.
    Costs a second pass; the batch and the chains stay the same. In several processes each climbs by its own rows.
    """

    radius: float = 2.0
    adaptive: bool = True

    def __post_init__(self) -> None:
        if not is_number(self.radius) or not 0 < self.radius < float("inf"):
            raise InputError(f"SharpnessAware needs a positive radius, got {self.radius!r}")

    def __call__(self, loss: Callable[[], Tensor], parameters: list[nn.Parameter]) -> None:
        loss().backward()
        with torch.no_grad():
            weights: list[Tensor] = [*parameters]
            sizes = [w.abs() if self.adaptive else torch.ones_like(w) for w in weights]
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            scaled = [s * g for s, g in zip(sizes, gradients, strict=True)]
            rate = self.radius / (torch.nn.utils.get_total_norm(scaled) + 1e-12)
            before = [w.clone() for w in weights]
            for weight, s, g in zip(weights, sizes, scaled, strict=True):
                weight += rate * s * g
        for parameter in parameters:
            parameter.grad = None
        loss().backward()
        with torch.no_grad():
            torch._foreach_copy_(weights, before)  # subtracting would round

"""inference: distal adversarials: turn noise into x that a model or its baseline is confident about."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import check_count, check_memory, check_number, check_positive
from jointenergy.kernels.base import gradient_of, over
from jointenergy.labels import MISSING, Given
from jointenergy.models import Box, JointModel
from jointenergy.starts import XStart


@dataclass(frozen=True, eq=False)
class Distal:
    """The end of the ascent: the first x of each row above the threshold, or the last x."""

    x: Tensor
    probability: Tensor
    steps: Tensor
    """Number of steps of each row."""
    reached: Tensor
    """Whether the probability exceeds the threshold."""


def distal(
    model: JointModel,
    n: int,
    *,
    given: Given,
    start: XStart,
    step_size: float,
    max_steps: int,
    above: float = 0.9,
    normalize: bool = False,
    bounds: tuple[float, float] | None = None,
    generator: torch.Generator,
) -> Distal:
    """Ascend log p(given | x) from noise until p(given | x) > `above` (Grathwohl et al. 2020, figure 6).

    x is clamped to `bounds`, by default those of the model's box. `normalize` gives every step the length `step_size`,
    since gradients nearly vanish where a classifier is confident about another class. Rows stop once they exceed
    `above`.
    """
    check_memory(check_count("n", n), model.event_shape or ())
    check_count("max_steps", max_steps, least=0)
    check_positive(Distal, "step_size", step_size)
    if not 0 < check_number("above", above) < 1:
        raise InputError(f"above must be a probability between 0 and 1, got {above}")
    if bounds is None and isinstance(model.domain, Box):
        bounds = (model.domain.low, model.domain.high)
    if bounds is not None and not bounds[0] < bounds[1]:
        raise InputError(f"bounds must be (low, high) with low < high, got {bounds}")
    weight = next(model.parameters(), None)
    wanted = model.labels.given(given, n, None if weight is None else weight.device)
    if not bool((wanted != MISSING).any(1).all()):
        raise InputError("distal needs at least one target label in each row: pass given=")
    x = model.check_x(start.draw(wanted, generator=generator)).detach()
    wanted = wanted.to(x.device)
    nothing = torch.full_like(wanted, MISSING)
    model.check_summable(nothing)
    steps = torch.zeros(n, dtype=torch.int64, device=x.device)
    # Inference mode would not record the graph for the gradient.
    with torch.inference_mode(False), torch.enable_grad():
        x, wanted, nothing = x.clone(), wanted.clone(), nothing.clone()
        for step in range(max_steps + 1):
            at = x.detach().requires_grad_()
            log_prob = model.log_density_unchecked(at, wanted) - model.log_density_unchecked(at, nothing)
            moving = ~(log_prob.detach().exp() > above)
            if step == max_steps or not bool(moving.any()):
                break
            gradient = gradient_of(log_prob, at)
            if normalize:
                norm = gradient.flatten(1).norm(dim=1).clamp(min=torch.finfo(x.dtype).tiny)
                gradient = gradient / over(norm, gradient)
            there = x + float(step_size) * gradient
            if bounds is not None:
                there = there.clamp(*bounds)
            x = torch.where(over(moving, x), there, x)
            steps = steps + moving
    probability = log_prob.detach().exp()
    return Distal(x.detach(), probability, steps, probability > above)

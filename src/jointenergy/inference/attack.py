"""inference: a small projected gradient attack: x moved within a box around it until the predicted labels change."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inference.density import label_log_probs
from jointenergy.inputs import check_count, check_number
from jointenergy.kernels.base import gradient_of
from jointenergy.models import Box, JointModel


@dataclass(frozen=True, eq=False)
class AttackedRows:
    """AttackedRows rows, and which of them have other labels than before."""

    x: Tensor
    changed: Tensor


def attack(model: JointModel, x: Tensor, *, radius: float, steps: int = 20) -> AttackedRows:
    """Ascend the cross-entropy of the labels predicted at x, within `radius` of each entry (L-infinity PGD).

    Steps are 2.5 radius / steps, without restarts: it shows a weakness, and proves no strength. `evaluate` has attacks
    with restarts and through refinement.
    """
    model.check_x(x)
    check_count("the number of steps", steps)
    radius = check_number("the radius of an attack", radius)
    if not 0 < radius < math.inf:
        raise InputError(f"the radius of an attack must be a number above 0, got {radius}")
    if not len(model.labels):
        raise InputError("an attack changes predicted labels, and the model has none")
    before = _predicted(model, x)
    low, high = x - radius, x + radius
    if isinstance(model.domain, Box):
        low, high = low.clamp(min=model.domain.low), high.clamp(max=model.domain.high)
    at = x.detach().clone()
    for _ in range(steps):
        with torch.enable_grad():
            at.requires_grad_()
            rows = zip(label_log_probs(model, at), before.unbind(1), strict=True)
            loss = torch.stack([-block.gather(1, y[:, None])[:, 0] for block, y in rows]).sum(0)
            gradient = gradient_of(loss, at)
        at = (at.detach() + 2.5 * radius / steps * gradient.sign()).clamp(low, high)
    return AttackedRows(at, (_predicted(model, at) != before).any(1))


@torch.no_grad()
def _predicted(model: JointModel, x: Tensor) -> Tensor:
    return torch.stack([block.argmax(1) for block in label_log_probs(model, x)], 1)

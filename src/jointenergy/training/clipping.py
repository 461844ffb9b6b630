"""training: clip gradients per unit (Brock et al. 2021) or per entry in standard deviations (Du and Mordatch 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import is_number


@torch.no_grad()
def clip_adaptive(parameters: Sequence[Tensor], limit: float, epsilon: float = 1e-3) -> None:
    """Clip, in place, the gradient of each unit to at most `limit` times the norm of the unit's weights.

    A unit is one output of a matrix or a convolution, or a whole vector or scalar. Weight norms below `epsilon` count
    as `epsilon`, so that weights that start at zero can learn. Parameters without a gradient are skipped. The paper
    excludes the last linear layer: leave it out of `parameters`.

    Does not synchronize the device. Non-finite gradients stay non-finite, for a guard to see.
    """
    for name, value in (("limit", limit), ("epsilon", epsilon)):
        if not (is_number(value) and 0 < value < float("inf")):
            raise InputError(f"the {name} of adaptive clipping must be a positive number, got {value!r}")
    with_gradient = [p for p in parameters if p.grad is not None]
    if not with_gradient:
        return
    # Vectors come first, as in `_norms`: they share few launches, while matrices need their own.
    ordered = [p for p in with_gradient if p.ndim < 2] + [p for p in with_gradient if p.ndim >= 2]
    gradients = [p.grad for p in ordered if p.grad is not None]
    allowed, norms = _norms(ordered), _norms(gradients)
    torch._foreach_clamp_min_(allowed, epsilon)
    torch._foreach_mul_(allowed, limit)
    # A zero gradient gives infinity here, and so the factor 1.
    torch._foreach_div_(allowed, norms)
    torch._foreach_clamp_max_(allowed, 1.0)
    torch._foreach_mul_(gradients, allowed)


@torch.no_grad()
def clip_sigma(optimizer: torch.optim.Optimizer, limit: float) -> None:
    """Clip, in place, each gradient entry to `limit` of its running standard deviations.

    The standard deviation is the square root of Adam's bias-corrected second moment before this step. Entries whose
    gradient has always been zero are not clipped, so that they can start to learn.

    Does not synchronize the device. Non-finite gradients stay non-finite, for a guard to see.
    """
    if not (is_number(limit) and 0 < limit < float("inf")):
        raise InputError(f"the limit of clipping by sigma must be a positive number, got {limit!r}")
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p)
            if p.grad is None or not state:
                continue
            square = state["exp_avg_sq"]
            seen = 1.0 - group["betas"][1] ** torch.as_tensor(state["step"])
            bound = torch.where(square > 0, limit * (square / seen).sqrt(), torch.inf)
            p.grad.copy_(torch.where(p.grad.isfinite(), p.grad.clamp(-bound, bound), p.grad))


def _norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Compute the norm of each unit, in a shape that broadcasts with the tensor; vectors and scalars come first."""
    whole = [t for t in tensors if t.ndim < 2]
    norms = list(torch._foreach_norm(whole)) if whole else []
    by_row = [t for t in tensors if t.ndim >= 2]
    return norms + [torch.linalg.vector_norm(t, dim=tuple(range(1, t.ndim)), keepdim=True) for t in by_row]

"""metrics: comparison of a model's density and samples with a known density in the plane."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from jointenergy.data import toy_log_density
from jointenergy.errors import InputError
from jointenergy.models import Box, JointModel

Truth = Callable[[Tensor, Tensor], Tensor]
"""The exact, normalized log p(x, y) of rows x, `[n, 2]`, and their labels."""

TRUTHS: dict[str, Truth] = {"toy": toy_log_density}
"""The data sets with a known density, by name."""

SIDE = 320  # points of the grid along each axis of the box
PIECE = 20_000  # points evaluated at once


def grid(box: Box, side: int = SIDE) -> tuple[Tensor, float]:
    """Return the cell centers of a box, `[side^2, 2]`, row by row, and the area of a cell."""
    step = (box.high - box.low) / side
    line = box.low + step * (torch.arange(side, dtype=torch.float64) + 0.5)
    up, across = torch.meshgrid(line, line, indexing="ij")
    return torch.stack((across.flatten(), up.flatten()), dim=1), step * step


def box_of(model: JointModel) -> Box:
    """Return the box that the model declares."""
    domain = model.domain
    if not isinstance(domain, Box) or model.event_shape != (2,):
        raise InputError(
            f"summing a density over a grid needs x of shape (2,) in a Box, got shape {model.event_shape} in {domain}"
        )
    return domain


@torch.no_grad()
def log_densities(model: JointModel, x: Tensor) -> Tensor:
    """Return f of every point with every labeling, `[n, states]`, float64."""
    states = model.labels.enumerate(device=x.device)
    like = next(model.parameters())
    found = [
        model.log_density_of_states(piece.to(like), states.expand(len(piece), *states.shape).to(like.device))
        for piece in x.split(PIECE)
    ]
    return torch.cat(found).double().cpu()


def true_log_densities(truth: Truth, x: Tensor, states: Tensor) -> Tensor:
    """Return the normalized log-density of the truth, `[n, states]`."""
    return torch.stack([truth(x, s.expand(len(x), -1)) for s in states], dim=1)


def divergences(model: JointModel, temperature: float, truth: Truth) -> dict[str, float]:
    """Return KL(truth || model at a temperature) in nats, by quadrature over the box, of (x, y) and of x alone.

    The grid is much finer than the modes; for smooth functions that vanish at the edges the sum is exact to rounding.
    """
    x, cell = grid(box_of(model))
    f = log_densities(model, x) / temperature
    p = true_log_densities(truth, x, model.labels.enumerate())
    found = {}
    for name, q, t in (("xy", f, p), ("x", f.logsumexp(1), p.logsumexp(1))):
        log_z = q.flatten().logsumexp(0) + math.log(cell)
        mass = t.exp() * cell
        # Points where the truth is zero contribute nothing, however small the model's density is.
        found[f"kl_nats.{name}"] = float(torch.where(mass > 0, mass * (t - q + log_z), 0.0).sum())
    return found


def mode_shares(x: Tensor, y: Tensor, states: Tensor, truth: Truth) -> dict[str, float]:
    """Return the smallest and largest fraction of samples in a mode, and the fraction with the labels of their mode.

    The mode of a sample is the labeling with the largest true density.
    """
    x = x.double().cpu()
    mode = true_log_densities(truth, x, states).argmax(1)
    shares = torch.bincount(mode, minlength=len(states)).double() / len(x)
    own = (states[mode] == y.cpu()).all(1)
    return {
        "mode_share.lowest": float(shares.min()),
        "mode_share.highest": float(shares.max()),
        "mode_share.labeled": float(own.double().mean()),
    }

"""metrics: points of a plane whose law is known: how far the model's density and its samples lie from it."""

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
"""The data sets whose law is known, by name."""

SIDE = 320  # points of the grid along each axis of the box
PIECE = 20_000  # points that are looked at together


def grid(box: Box, side: int = SIDE) -> tuple[Tensor, float]:
    """The middles of the cells of a box, `[side^2, 2]`, rows of equal height together, and the area of a cell."""
    step = (box.high - box.low) / side
    line = box.low + step * (torch.arange(side, dtype=torch.float64) + 0.5)
    up, across = torch.meshgrid(line, line, indexing="ij")
    return torch.stack((across.flatten(), up.flatten()), dim=1), step * step


def box_of(model: JointModel) -> Box:
    """The box that the model declares, which is what its density is normalized over."""
    domain = model.domain
    if not isinstance(domain, Box) or model.event_shape != (2,):
        raise InputError(f"a density is summed over a grid in a box of the plane, and the model's domain is {domain}")
    return domain


@torch.no_grad()
def log_densities(model: JointModel, x: Tensor) -> Tensor:
    """f of every point with every labeling, `[n, states]`, float64."""
    states = model.labels.enumerate(device=x.device)
    like = next(model.parameters())
    found = [
        model.log_density_of_states(piece.to(like), states.expand(len(piece), *states.shape).to(like.device))
        for piece in x.split(PIECE)
    ]
    return torch.cat(found).double().cpu()


def true_log_densities(truth: Truth, x: Tensor, states: Tensor) -> Tensor:
    """The same of the truth, normalized."""
    return torch.stack([truth(x, s.expand(len(x), -1)) for s in states], dim=1)


def divergences(model: JointModel, temperature: float, truth: Truth) -> dict[str, float]:
    """KL from the truth to the model's density at a temperature, by quadrature over its box, in nats.

    Of x with all labels together, and of x alone. The grid is far finer than what a mode's width needs: of smooth
    functions that vanish at the edges a sum over cells is exact to rounding.
    """
    x, cell = grid(box_of(model))
    f = log_densities(model, x) / temperature
    p = true_log_densities(truth, x, model.labels.enumerate())
    found = {}
    for name, q, t in (("xy", f, p), ("x", f.logsumexp(1), p.logsumexp(1))):
        log_z = q.flatten().logsumexp(0) + math.log(cell)
        mass = t.exp() * cell
        # Where the truth is nothing, nothing is counted, however small the model's density is there.
        found[f"kl_nats.{name}"] = float(torch.where(mass > 0, mass * (t - q + log_z), 0.0).sum())
    return found


def mode_shares(x: Tensor, y: Tensor, states: Tensor, truth: Truth) -> dict[str, float]:
    """Of samples with their labels: the least and the largest share of a mode, and how many have its labels.

    The mode of a sample is the labeling under which the truth finds it most probable.
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

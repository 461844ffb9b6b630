"""networks: weights with spectral norm at most 1, by a power iteration that training steps continue."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy.networks.folding import FoldedConv2d

FIRST = 20  # rounds of the power iteration at initialization; then one after each training step


class SpectralBound(nn.Module):
    """Bound weights by their largest singular value, as a matrix with a row for each output.

    The singular value is u^T W v for two unit vectors that `refresh` moves towards the first singular vectors of W. A
    forward pass does not change them, so chains, losses and loaded weights share one function.
    """

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        n_out, n_in = weight.flatten(1).shape
        self.register_buffer("u", weight.new_empty(n_out))
        self.register_buffer("v", weight.new_empty(n_in))
        if weight.is_meta:  # there are no values
            return
        for own in (self.u, self.v):
            own.normal_()
            own.div_(own.norm())
        for _ in range(FIRST):
            self.refresh(weight)

    @torch.no_grad()
    def refresh(self, weight: Tensor) -> None:
        """Make one round of the power iteration in place, without waiting for the device."""
        matrix = weight.flatten(1)
        _turn(self.v, matrix.T @ self.u)
        _turn(self.u, matrix @ self.v)

    def forward(self, weight: Tensor) -> Tensor:
        """Divide the weights by their largest singular value if it is above 1."""
        size = torch.dot(self.u, weight.flatten(1) @ self.v)
        return weight / size.clamp(min=1.0)


def _turn(vector: Tensor, towards: Tensor) -> None:
    """Update a unit vector in place; a zero direction changes nothing."""
    norm = towards.norm()
    vector.copy_(torch.where(norm > 0, towards / norm, vector))


class SpectralConv2d(FoldedConv2d):
    """A convolution with bounded weights, one learned multiplier and a bias per channel."""

    def __init__(self, n_in: int, n_out: int, side: int, *, std: float | None = None) -> None:
        super().__init__(side)
        self.weight = nn.Parameter(torch.empty(n_out, n_in, side, side))
        if std is None:
            nn.init.xavier_uniform_(self.weight)
        else:
            nn.init.normal_(self.weight, std=std)
        self.gain = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.bound = SpectralBound(self.weight)

    def folded(self) -> tuple[Tensor, Tensor]:
        return self.bound(self.weight) * self.gain, self.bias


class SpectralLinear(nn.Module):
    """A linear layer with bounded weights that stays in the precision of its weights under autocast."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))
        nn.init.xavier_uniform_(self.weight)
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.bound = SpectralBound(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(self.weight.dtype), self.bound(self.weight), self.bias)


def has_spectral_bounds(module: nn.Module) -> bool:
    """Tell whether a module has weights with spectral bounds."""
    return any(isinstance(part, SpectralConv2d | SpectralLinear) for part in module.modules())


def refresh(module: nn.Module) -> None:
    """Update all spectral bounds in `module` after a training step; other modules are unchanged."""
    for part in module.modules():
        if isinstance(part, SpectralConv2d | SpectralLinear):
            part.bound.refresh(part.weight)

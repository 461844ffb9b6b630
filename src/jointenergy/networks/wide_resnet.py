"""networks: the wide residual network of JEM (Grathwohl et al. 2020, section 5), by default without normalization."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.inputs import check_count, check_positive
from jointenergy.networks.activations import activation as named_activation
from jointenergy.networks.group_norm import GroupNorm
from jointenergy.networks.layers import Linear, pooled

Norm = Literal["group", "batch"] | None


def checked_blocks(kind: str, depth: int, width: int, n_classes: int, in_channels: int) -> int:
    """Check the arguments and return the number of blocks in each of the three stages."""
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 10 or depth % 6 != 4:
        raise InputError(f"the depth of {kind} must be 6n + 4 (10, 16, 22, 28, ...), got {depth!r}")
    check_count(f"the width of {kind}", width)
    check_count("n_classes", n_classes)
    check_count("in_channels", in_channels)
    return (depth - 4) // 6


class WideResNet(nn.Module):
    """A wide ResNet for images of any size. That of JEM is `WideResNet(28, 10, activation="leaky_relu")`.

    Parameters
    ----------
    depth
        6n + 4: 10, 16, 22, 28, 40.
    width
        The widening factor.
    n_classes
        The number of logits.
    in_channels
        The channels of the images.
    norm
        None, "group" (groups of 16 channels, each row by itself) or "batch". With "batch", rows depend on each other in
        train mode, so there is no density to sample: for comparison only.
    activation
        One of `ACTIVATIONS`.
    residual_gain
        The initial value of a learned gain of each residual branch; None for no gain. 0.2 works well without
        normalization.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> je.networks.WideResNet(10, 1, n_classes=10)(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int = 28,
        width: int = 10,
        *,
        n_classes: int = 10,
        in_channels: int = 3,
        norm: Norm = None,
        activation: str = "silu",
        residual_gain: float | None = None,
    ) -> None:
        super().__init__()
        if norm not in (None, "group", "batch"):
            raise InputError(f"norm must be None, 'group' or 'batch', got {norm!r}")
        if residual_gain is not None:
            check_positive(self, "residual_gain", residual_gain, zero=True)
        n_blocks = checked_blocks("a WideResNet", depth, width, n_classes, in_channels)
        self.stem = nn.Conv2d(in_channels, 16, 3, padding=1, bias=norm is None)
        stages, n_in = [], 16
        for n_out, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            blocks = []
            for i in range(n_blocks):
                first = stride if i == 0 else 1
                blocks.append(
                    WideBlock(n_in, n_out, stride=first, norm=norm, activation=activation, residual_gain=residual_gain)
                )
                n_in = n_out
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.norm = _norm(norm, n_in)
        self.activation = named_activation(activation)
        self.head = Linear(n_in, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.activation(self.norm(self.stages(self.stem(x))))
        logits: Tensor = self.head(pooled(h))
        return logits


class WideBlock(nn.Module):
    """A residual block of two 3 x 3 convolutions, each after its activation; the first may be strided."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        stride: int = 1,
        norm: Norm = None,
        activation: str = "silu",
        residual_gain: float | None = None,
    ) -> None:
        super().__init__()
        # A normalization subtracts the mean and has its own bias.
        bias = norm is None
        self.residual = nn.Sequential(
            _norm(norm, n_in),
            named_activation(activation),
            nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=bias),
            _norm(norm, n_out),
            named_activation(activation),
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=bias)
            if residual_gain is None
            else GainConv2d(n_out, n_out, residual_gain, bias=bias),
        )
        same = n_in == n_out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(n_in, n_out, 1, stride=stride, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.shortcut(x) + self.residual(x)
        return h


class GainConv2d(nn.Conv2d):
    """A 3 x 3 convolution with a learned scalar gain, multiplied into its weights."""

    def __init__(self, n_in: int, n_out: int, residual_gain: float, *, bias: bool) -> None:
        super().__init__(n_in, n_out, 3, padding=1, bias=bias)
        self.residual_gain = nn.Parameter(torch.tensor(float(residual_gain)))

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias * self.residual_gain
        h: Tensor = self._conv_forward(x, self.weight * self.residual_gain, bias)
        return h


def _norm(norm: Norm, n_channels: int) -> nn.Module:
    if norm == "group":
        return GroupNorm(n_channels // 16, n_channels)
    return nn.Identity() if norm is None else nn.BatchNorm2d(n_channels)

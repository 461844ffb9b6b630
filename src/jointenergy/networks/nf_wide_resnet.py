"""networks: the normalizer-free wide residual network (Brock, De and Smith 2021; Brock et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy.inputs import check_positive
from jointenergy.networks.activations import activation as named_activation
from jointenergy.networks.folding import FoldedConv2d, fixed
from jointenergy.networks.layers import Linear, pooled
from jointenergy.networks.wide_resnet import checked_blocks

EPSILON = 1e-4  # of the papers, added to fan_in times the variance of a unit's weights


def activation_scale(name: str) -> float:
    """Return the factor that gives an activation of standard normal input variance 1: gamma in the papers."""
    # On the CPU in double precision whatever the default is; the grid contains 0, where some activations have a kink.
    z = torch.linspace(-12.0, 12.0, 24_001, dtype=torch.float64, device="cpu")
    weight = torch.softmax(-0.5 * z.square(), 0)
    value = named_activation(name)(z)
    mean = (weight * value).sum()
    return float((weight * (value - mean).square()).sum().rsqrt())


def standardized(weight: Tensor, scale: Tensor) -> Tensor:
    """Standardize each output unit's weights to mean 0 and norm 1, times its entry of `scale`, in float32 or better."""
    # In memory order, so that channels-last weights are not copied here or in the convolution.
    is_last = not weight.is_contiguous() and weight.is_contiguous(memory_format=torch.channels_last)
    ordered = weight.permute(0, 2, 3, 1) if is_last else weight
    rows = ordered.flatten(1).to(torch.promote_types(weight.dtype, torch.float32))
    fan_in = rows.shape[1]
    rows = F.layer_norm(rows, (fan_in,), eps=EPSILON / fan_in) * (scale.to(rows.dtype) / math.sqrt(fan_in))[:, None]
    result = rows.view(ordered.shape)
    return result.permute(0, 3, 1, 2) if is_last else result


class ScaledConv2d(FoldedConv2d):
    """A convolution with standardized weights, a gain and a bias per channel: out_scale (conv(in_scale x) + bias).

    All scalar factors are folded into the weights: both scales, and the learned `residual_gain` of the branch that ends
    in this convolution (SkipInit).
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        side: int,
        *,
        stride: int = 1,
        in_scale: float = 1.0,
        out_scale: float = 1.0,
        residual_gain: float | None = None,
    ) -> None:
        super().__init__(side, stride=stride)
        self.in_scale, self.out_scale = in_scale, out_scale
        self.weight = nn.Parameter(torch.empty(n_out, n_in, side, side))
        nn.init.kaiming_uniform_(self.weight, nonlinearity="linear")  # variance 1 / fan_in, where EPSILON is small
        self.gain = nn.Parameter(torch.ones(n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.residual_gain = None if residual_gain is None else nn.Parameter(torch.tensor(float(residual_gain)))

    def folded(self) -> tuple[Tensor, Tensor]:
        scale, bias = self.gain * (self.in_scale * self.out_scale), self.bias * self.out_scale
        if self.residual_gain is not None:
            scale, bias = scale * self.residual_gain, bias * self.residual_gain
        return standardized(self.weight, scale), bias


class NFWideResNet(nn.Module):
    """A wide ResNet without normalization layers whose activations keep their variance (Brock, De and Smith 2021).

        h <- h + alpha gain residual(h / beta),   beta the expected standard deviation of h at initialization

    Rows are independent in both modes. Use `fixed` for many passes with the same weights.

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
    activation
        One of `ACTIVATIONS`.
    alpha
        The scale of the residual branches.
    residual_gain
        The initial value of the learned gain of each residual branch; 0 starts each block as the identity (SkipInit).

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> je.networks.NFWideResNet(10, 1)(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int = 28,
        width: int = 10,
        *,
        n_classes: int = 10,
        in_channels: int = 3,
        activation: str = "silu",
        alpha: float = 0.2,
        residual_gain: float = 1.0,
    ) -> None:
        super().__init__()
        n_blocks = checked_blocks("an NFWideResNet", depth, width, n_classes, in_channels)
        check_positive(self, "alpha", alpha)
        check_positive(self, "residual_gain", residual_gain, zero=True)
        self.scale = activation_scale(activation)
        self.stem = ScaledConv2d(in_channels, 16, 3)
        stages, n_in, variance = [], 16, 1.0
        for n_out, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            blocks = []
            for i in range(n_blocks):
                block = NFWideBlock(
                    n_in,
                    n_out,
                    stride=stride if i == 0 else 1,
                    variance=variance,
                    alpha=alpha,
                    residual_gain=residual_gain,
                    activation=activation,
                    scale=self.scale,
                )
                blocks.append(block)
                n_in, variance = n_out, block.variance
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.activation = named_activation(activation)
        self.head = Linear(n_in, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.activation(self.stages(self.stem(x)))
        logits: Tensor = self.head(pooled(h) * self.scale)
        return logits

    @contextmanager
    def fixed(
        self, dtype: torch.dtype | None = None, memory_format: torch.memory_format = torch.preserve_format
    ) -> Iterator[None]:
        """Standardize weights once for all passes inside; see the function `fixed`."""
        with fixed(self, dtype, memory_format):
            yield


class NFWideBlock(nn.Module):
    """A residual block of two 3 x 3 convolutions, each after its activation: h / beta in, the next h / beta out.

    h is divided by its expected standard deviation, which saves passes over whole images. `variance` is the expected
    one of h: the argument before the block, the attribute after it.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        stride: int = 1,
        variance: float = 1.0,
        alpha: float = 0.2,
        residual_gain: float = 1.0,
        activation: str = "silu",
        scale: float | None = None,
    ) -> None:
        super().__init__()
        scale = activation_scale(activation) if scale is None else scale
        same = n_in == n_out and stride == 1
        self.variance = (variance if same else 1.0) + (alpha * residual_gain) ** 2
        beta = math.sqrt(self.variance)
        self.activation = named_activation(activation)
        self.residual = nn.Sequential(
            ScaledConv2d(n_in, n_out, 3, stride=stride, in_scale=scale),
            named_activation(activation),
            ScaledConv2d(n_out, n_out, 3, in_scale=scale, out_scale=alpha / beta, residual_gain=residual_gain),
        )
        self.kept = math.sqrt(variance) / beta
        self.shortcut: ScaledConv2d | None = None
        if not same:
            self.shortcut = ScaledConv2d(n_in, n_out, 1, stride=stride, in_scale=scale, out_scale=1.0 / beta)

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(x)
        residual: Tensor = self.residual(active)
        if self.shortcut is not None:
            through: Tensor = self.shortcut(active)
            return residual + through
        return torch.add(residual, x, alpha=self.kept)

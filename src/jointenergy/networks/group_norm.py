"""networks: group normalization (Wu and He 2018), fast for channels-last images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

PLACES = (2, 3, 4)  # dimensions to reduce in [n, groups, channels of a group, height, width]


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` for images in two passes, without copying channels-last images.

    Values are the same in float32. In half precision the scale and shift of a channel are rounded too: where the mean
    of a group is ten times its standard deviation, the error is 2 %, and 0.2 % with `nn.GroupNorm`. The latter converts
    channels-last images on a GPU to float32 and back under autocast.
    """

    def forward(self, x: Tensor) -> Tensor:
        groups = x.unflatten(1, (self.num_groups, -1))
        # Autocast would copy the images into float32, which the reductions below do not need.
        with torch.autocast(x.device.type, enabled=False):
            variance, mean = _Moments.apply(groups)  # type: ignore[no-untyped-call]  # torch's own has no types
            scale = (variance + self.eps).rsqrt()
            # Mean, deviation, weight and bias as one scale and one shift for each row and channel.
            factor = scale[:, :, None] * self.weight.view(self.num_groups, -1)
            summand = self.bias.view(self.num_groups, -1) - mean[:, :, None] * factor
            factor, summand = (t.flatten(1)[:, :, None, None] for t in (factor, summand))
            value: Tensor = _Affine.apply(x, factor, summand)  # type: ignore[no-untyped-call]
        return value


class _Moments(torch.autograd.Function):
    """Variance and mean of each group, in float32 or better, with a gradient in one pass.

    Both passes use differentiable operations, so second derivatives are right.
    """

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        if x.dtype.itemsize >= torch.float32.itemsize:
            variance, mean = torch.var_mean(x, PLACES, correction=0)
        else:
            # Neither reduction makes a float32 copy. The cancellation is far below the rounding of half-precision x.
            mean = x.mean(PLACES, dtype=torch.float32)
            squares = torch.linalg.vector_norm(x, dim=PLACES, dtype=torch.float32).square()
            variance = (squares / x[0, 0].numel() - mean.square()).clamp(min=0.0)
        return variance, mean

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: FunctionCtx, by_variance: Tensor, by_mean: Tensor) -> Tensor:
        x, mean = ctx.saved_tensors  # type: ignore[attr-defined]  # set by torch
        count = x[0, 0].numel()
        factor = by_variance * (2.0 / count)
        summand = by_mean / count - factor * mean
        factor, summand = (t.to(x.dtype)[:, :, None, None, None] for t in (factor, summand))
        return torch.addcmul(summand, x, factor)


class _Affine(torch.autograd.Function):
    """factor x + summand per row and channel, with a gradient that saves one pass over x."""

    @staticmethod
    def forward(x: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
        return torch.addcmul(summand.to(x.dtype), x, factor.to(x.dtype))

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: FunctionCtx, by_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, factor = ctx.saved_tensors  # type: ignore[attr-defined]
        by_factor = (by_value * x).sum((2, 3), keepdim=True, dtype=factor.dtype)
        by_summand = by_value.sum((2, 3), keepdim=True, dtype=factor.dtype)
        return by_value * factor.to(x.dtype), by_factor, by_summand

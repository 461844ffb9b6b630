"""networks: a chain of layers that can be cut, and linear layers that stay in full precision."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy import input_gradients


class Layers(nn.Sequential):
    """An `nn.Sequential` whose subclasses may have constructors of their own."""

    def __getitem__(self, index: slice | int) -> nn.Sequential | nn.Module:
        # torch calls the class of the whole on the layers of a slice; `mlp[:-1]`, all but the last layer, is no MLP.
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)


class Linear(nn.Linear):
    """A linear layer in the precision of its own weights, also where convolutions before it run in a lower one.

    Rounded to bfloat16, log-densities in the hundreds would be off by whole nats.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


input_gradients.RULES[Linear] = input_gradients.RULES[nn.Linear]


def pooled(h: Tensor) -> Tensor:
    """The mean over all places of an image, whatever their number, in float32 or better: the image size is free."""
    return h.mean((2, 3), dtype=torch.promote_types(h.dtype, torch.float32))

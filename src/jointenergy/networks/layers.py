"""networks: a sequence of layers that can be sliced, and linear layers that stay in full precision."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy import input_gradients


class Layers(nn.Sequential):
    """An `nn.Sequential` whose subclasses may have their own constructors."""

    def __getitem__(self, index: slice | int) -> nn.Sequential | nn.Module:
        # nn.Sequential would call the subclass's constructor on the layers of a slice such as `mlp[:-1]`.
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)


class Linear(nn.Linear):
    """A linear layer that stays in the precision of its weights under autocast.

    Rounded to bfloat16, log-densities in the hundreds would have errors of whole nats.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


input_gradients.RULES[Linear] = input_gradients.RULES[nn.Linear]


def pooled(h: Tensor) -> Tensor:
    """Average over all positions of an image of any size, in float32 or better."""
    return h.mean((2, 3), dtype=torch.promote_types(h.dtype, torch.float32))

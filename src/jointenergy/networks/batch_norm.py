"""networks: batch norm with fixed statistics, so that a row's value does not depend on the rows beside it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from jointenergy.errors import InputError


class ChannelAffine(nn.Module):
    """A learned scale and shift of each channel: what batch norm is once its statistics are fixed."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1, *(1,) * (x.ndim - 2))
        return torch.addcmul(self.bias.view(shape), x, self.weight.view(shape))


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a row's value depends on the rows beside it while the network trains."""
    return any(isinstance(m, _BatchNorm) for m in module.modules())


def fold_batch_norm(network: nn.Module) -> nn.Module:
    """Return a copy in which each batch norm is its scale and shift at the running statistics.

    The copy gives what the network gives in eval mode, up to rounding, in train mode too, and can be trained further:
    rows are independent. Batch norm directly behind a convolution or a linear layer of an `nn.Sequential` is folded
    into that layer's weights, any other becomes a `ChannelAffine`.
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"fold_batch_norm takes a torch module, got {type(network).__name__}")
    for name, layer in network.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.running_mean is None or layer.running_var is None):
            raise InputError(
                f"the batch norm {name!r} keeps no running statistics (track_running_stats=False): there is nothing "
                "fixed to fold in"
            )
    folded = copy.deepcopy(network)
    if isinstance(folded, _BatchNorm):
        return _affine(folded)
    for parent in list(folded.modules()):
        children = list(parent.named_children())
        for i, (name, layer) in enumerate(children):
            if not isinstance(layer, _BatchNorm):
                continue
            before = children[i - 1][1] if i and isinstance(parent, nn.Sequential) else None
            affine = _affine(layer)
            if isinstance(before, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear) and not _shared(folded, before):
                _scale(before, affine)
                setattr(parent, name, nn.Identity())
            else:
                setattr(parent, name, affine)
    return folded


def _affine(layer: _BatchNorm) -> ChannelAffine:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    with torch.no_grad():
        scale = (layer.running_var + layer.eps).rsqrt()
        scale = scale if layer.weight is None else scale * layer.weight
        shift = -layer.running_mean * scale
        return ChannelAffine(scale, shift if layer.bias is None else shift + layer.bias)


def _shared(module: nn.Module, layer: nn.Module) -> bool:
    """Whether a layer stands in several places, or shares its weights: they cannot all be scaled."""
    places = sum(m is layer for p in module.modules() for m in p.children())
    own = {id(p) for p in layer.parameters()}
    others = (m for m in module.modules() if m is not layer and not any(c is layer for c in m.modules()))
    return places > 1 or any(id(p) in own for m in others for p in m.parameters(recurse=False))


def _scale(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear, affine: ChannelAffine) -> None:
    """Let a layer give what it gave, scaled and shifted."""
    with torch.no_grad():
        layer.weight.mul_(affine.weight.view(-1, *(1,) * (layer.weight.ndim - 1)))
        before = torch.zeros_like(affine.bias) if layer.bias is None else layer.bias
        layer.bias = nn.Parameter(before * affine.weight + affine.bias)

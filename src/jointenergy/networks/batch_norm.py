"""networks: batch norm with fixed statistics, so that rows are independent."""

from __future__ import annotations

import copy
from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from jointenergy.errors import InputError

# Linear layers are left out: after them the channels of batch norm may be another dimension than the outputs.
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class ChannelAffine(nn.Module):
    """Scale and shift each channel by learned parameters: batch norm with fixed statistics.

    Parameters
    ----------
    weight
        The scales, `[channels]`.
    bias
        The shifts, `[channels]`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> layer = je.networks.ChannelAffine(torch.ones(3), torch.zeros(3))
    >>> layer(torch.zeros(4, 3, 8, 8)).shape
    torch.Size([4, 3, 8, 8])
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1, *(1,) * (x.ndim - 2))
        return torch.addcmul(self.bias.view(shape), x, self.weight.view(shape))


def has_batch_norm(module: nn.Module) -> bool:
    """Tell whether a module contains batch norm, which makes rows depend on each other in train mode."""
    return any(isinstance(m, _BatchNorm) for m in module.modules())


def fold_batch_norm(network: nn.Module) -> nn.Module:
    """Return a copy in which each batch norm is replaced by its scale and shift at the running statistics.

    The copy equals the network in eval mode, up to rounding. Its rows are independent in train mode too, so it can be
    trained further as a density. Batch norm directly after a convolution in an `nn.Sequential` is folded into the
    weights; any other becomes a `ChannelAffine`. Shared and frozen parameters stay so.

    Parameters
    ----------
    network
        A module with batch norm that tracks running statistics.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).eval()
    >>> folded = je.networks.fold_batch_norm(network)
    >>> x = torch.randn(4, 3, 8, 8)
    >>> torch.allclose(folded(x), network(x), atol=1e-5)
    True
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"fold_batch_norm takes a torch module, got {type(network).__name__}")
    for name, layer in network.named_modules():
        if isinstance(layer, _BatchNorm):
            _check(name, layer)
    folded = copy.deepcopy(network)
    if isinstance(folded, _BatchNorm):
        return _affine(folded)
    places = [(p, name, m) for p in folded.modules() for name, m in p._modules.items() if m is not None]
    times = Counter(id(m) for _, _, m in places)
    affines = {id(m): _affine(m) for _, _, m in places if isinstance(m, _BatchNorm)}
    for parent, name, layer in places:
        if not isinstance(layer, _BatchNorm):
            continue
        before, affine = _before(parent, name), affines[id(layer)]
        alone = times[id(layer)] == 1 and times[id(before)] == 1
        if isinstance(before, CONVOLUTIONS) and alone and _plain(folded, before) and _alike(before, affine):
            _scale(before, affine)
            setattr(parent, name, nn.Identity())
        else:
            setattr(parent, name, affine)
    return folded


def _check(name: str, layer: _BatchNorm) -> None:
    if isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params():
        raise InputError(f"the lazy batch norm {name!r} has no channels yet: pass a batch through the network first")
    if layer.running_mean is None or layer.running_var is None:
        raise InputError(
            f"the batch norm {name!r} has no running statistics to fold: train it with track_running_stats=True"
        )
    if type(layer).forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
        raise InputError(
            f"the batch norm {name!r} is a {type(layer).__name__}, whose forward does more than normalize: replace it "
            "by torch's batch norm and a layer for the rest"
        )


def _affine(layer: _BatchNorm) -> ChannelAffine:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    with torch.no_grad():
        scale = (layer.running_var + layer.eps).rsqrt()
        scale = scale if layer.weight is None else scale * layer.weight
        shift = -layer.running_mean * scale
        affine = ChannelAffine(scale, shift if layer.bias is None else shift + layer.bias)
    return affine.requires_grad_(layer.weight is None or layer.weight.requires_grad)


def _before(parent: nn.Module, name: str) -> nn.Module | None:
    """Return the layer before a layer of an `nn.Sequential`, if there is one."""
    if type(parent).forward is not nn.Sequential.forward:
        return None
    names = list(parent._modules)
    return parent._modules[names[names.index(name) - 1]] if name != names[0] else None


def _plain(network: nn.Module, layer: nn.Module) -> bool:
    """Tell whether a layer is a convolution with its own parameters, neither reparametrized nor tied."""
    own = {id(p) for p in layer.parameters()}
    others = (p for m in network.modules() if m is not layer for p in m.parameters(recurse=False))
    return type(layer) in CONVOLUTIONS and "weight" in layer._parameters and not any(id(p) in own for p in others)


def _alike(layer: nn.Module, affine: ChannelAffine) -> bool:
    """Tell whether both are trained or both are frozen."""
    return all(p.requires_grad == affine.weight.requires_grad for p in layer.parameters())


def _scale(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, affine: ChannelAffine) -> None:
    """Multiply scale and shift into a convolution's weights and bias."""
    with torch.no_grad():
        layer.weight.mul_(affine.weight.view(-1, *(1,) * (layer.weight.ndim - 1)))
        before = torch.zeros_like(affine.bias) if layer.bias is None else layer.bias
        layer.bias = nn.Parameter(before * affine.weight + affine.bias, requires_grad=layer.weight.requires_grad)

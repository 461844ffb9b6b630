"""training: networks with batch statistics, which a recipe must allow: how they are recognized and kept in check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def running(model: nn.Module) -> list[Tensor]:
    """The running means and variances."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    return [t for m in layers for t in (m.running_mean, m.running_var) if t is not None]


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Running statistics are those of data: chains, which pass through the network far more often, leave them alone."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    momenta = [m.momentum for m in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum

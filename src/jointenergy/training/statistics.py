"""training: networks with batch statistics, which a recipe must allow: detect them and freeze their statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def running(model: nn.Module) -> list[Tensor]:
    """List the running means and variances."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    return [t for m in layers for t in (m.running_mean, m.running_var) if t is not None]


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Freeze running statistics while chains pass through the network, so that they remain those of data."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    momenta = [m.momentum for m in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum

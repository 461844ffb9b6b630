"""networks: a chain of layers that can be cut, the base of the networks that are one `nn.Sequential`."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


class Layers(nn.Sequential):
    """An `nn.Sequential` whose subclasses may have constructors of their own."""

    def __getitem__(self, index: slice | int) -> nn.Sequential | nn.Module:
        # torch calls the class of the whole on the layers of a slice; `mlp[:-1]`, all but the last layer, is no MLP.
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)

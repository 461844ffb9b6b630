"""networks: the multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from jointenergy.errors import InputError
from jointenergy.inputs import check_count
from jointenergy.networks.activations import activation as named_activation
from jointenergy.networks.layers import Layers


class MLP(Layers):
    """A multilayer perceptron: linear layers with activations in between.

    It takes vectors: put `nn.Flatten()` before it for images (a `PairModel` flattens by default).

    Parameters
    ----------
    sizes
        (in, hidden..., out).
    activation
        One of `ACTIVATIONS`.
    linear
        The class of the linear layers. After convolutions use `layers.Linear`, which stays in full precision.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> je.networks.MLP((2, 64, 64, 3))(torch.zeros(4, 2)).shape
    torch.Size([4, 3])
    """

    def __init__(self, sizes: Sequence[int], *, activation: str = "silu", linear: type[nn.Linear] = nn.Linear) -> None:
        if not isinstance(sizes, Sequence) or len(sizes) < 2:
            raise InputError(f"an MLP needs the sizes (in, hidden..., out), at least two of them, got {sizes!r}")
        layers: list[nn.Module] = []
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            check_count(f"size {i} of an MLP", n_in)
            check_count(f"size {i + 1} of an MLP", n_out)
            layers += [linear(n_in, n_out), named_activation(activation)]
        super().__init__(*layers[:-1])

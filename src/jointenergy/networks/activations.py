"""networks: activations by name, an argument of every network."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch import nn

from jointenergy.errors import InputError
from jointenergy.labels import nearest

# None is in place: chains differentiate with respect to the input, and the KL term differentiates twice.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "relu": nn.ReLU,
    "leaky_relu": functools.partial(nn.LeakyReLU, 0.2),  # JEM's slope, not torch's 0.01
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}
"""Constructors of the activations; add one here to use it in every network."""


def activation(name: str) -> nn.Module:
    """Create an activation module by name: one of `ACTIVATIONS`.

    Examples
    --------
    >>> import jointenergy as je
    >>> je.networks.activation("silu")
    SiLU()
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise InputError(f"there is no activation called {name!r}: {nearest(str(name), tuple(ACTIVATIONS))}")
    return ACTIVATIONS[name]()

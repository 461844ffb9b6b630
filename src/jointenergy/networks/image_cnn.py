"""networks: a small CNN for images of any size, fast enough for chains on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from jointenergy.inputs import check_count
from jointenergy.networks.activations import activation as named_activation
from jointenergy.networks.layers import Layers, Linear
from jointenergy.networks.mlp import MLP

FEW = 4  # pixels per side at which the convolutions end
FIRST, MOST = 16, 64  # channels of the first and of the widest convolution; they double in between


class ImageCNN(Layers):
    """A small CNN: strided convolutions until the image is at most 4 x 4, then an MLP.

    Parameters
    ----------
    shape
        (channels, height, width) of the images.
    hidden
        Widths of the hidden layers of the MLP.
    n_outputs
        The number of outputs.
    activation
        One of `ACTIVATIONS`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> je.networks.ImageCNN((1, 28, 28), hidden=(64,), n_outputs=10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, shape: Sequence[int], hidden: Sequence[int], n_outputs: int, *, activation: str = "silu"
    ) -> None:
        channels, *sides = (check_count("each entry of shape", size) for size in shape)
        layers: list[nn.Module] = []
        width = FIRST
        while max(sides) > FEW or not layers:
            layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), named_activation(activation)]
            channels, width, sides = width, min(2 * width, MOST), [(side + 1) // 2 for side in sides]
        sizes = (channels * sides[0] * sides[1], *hidden, check_count("n_outputs", n_outputs))
        super().__init__(*layers, nn.Flatten(), MLP(sizes, activation=activation, linear=Linear))

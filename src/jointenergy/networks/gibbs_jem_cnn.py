"""networks: the CNN of Gibbs-JEM (Kelly, Zemel and Grathwohl 2021, section B.1)."""

from __future__ import annotations

from torch import Tensor, nn

from jointenergy.inputs import check_count
from jointenergy.networks.activations import activation as named_activation
from jointenergy.networks.layers import Linear
from jointenergy.networks.mlp import MLP


class GibbsJemCNN(nn.Module):
    """The CNN of Gibbs-JEM for CelebA: images of 3 x 64 x 64 in, logits out.

    Parameters
    ----------
    n_outputs
        The number of logits; in the paper two for each of 23 attributes.
    activation
        One of `ACTIVATIONS`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> je.networks.GibbsJemCNN()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 46])
    """

    def __init__(self, n_outputs: int = 46, *, activation: str = "silu") -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1),
            named_activation(activation),
            nn.Conv2d(64, 128, 4, stride=2, padding=1),
            named_activation(activation),
            nn.Conv2d(128, 256, 4, stride=2, padding=1),
            named_activation(activation),
            nn.Conv2d(256, 512, 4, stride=2, padding=1),
            named_activation(activation),
            nn.Conv2d(512, 512, 4, stride=2, padding=1),
            named_activation(activation),
            nn.Conv2d(512, 64, 1),
            nn.Flatten(),
        )
        sizes = (1024, 128, 128, check_count("n_outputs", n_outputs))
        self.mlp = MLP(sizes, activation=activation, linear=Linear)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.mlp(self.cnn(x))
        return logits

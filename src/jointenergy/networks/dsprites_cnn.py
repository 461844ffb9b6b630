"""networks: the dSprites CNN and MLP of the mixed joint EBM paper (section B.3)."""

from __future__ import annotations

from torch import nn

from jointenergy.inputs import check_count
from jointenergy.networks.activations import activation as named_activation
from jointenergy.networks.layers import Layers
from jointenergy.networks.mlp import MLP


class DSpritesFeatures(Layers):
    """The paper's h(x): images of 1 x 32 x 32 in, 256 features out."""

    n_features = 256

    def __init__(self, *, activation: str = "silu") -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1),
            named_activation(activation),
            nn.Conv2d(16, 32, 4, stride=2, padding=1),
            named_activation(activation),
            nn.Conv2d(32, 64, 4, stride=2, padding=1),
            named_activation(activation),
            nn.Conv2d(64, 128, 4, stride=2, padding=1),
            named_activation(activation),
            nn.Conv2d(128, 16, 1),
            nn.Flatten(),
        )


def dsprites_head(n_codes: int = 32, *, activation: str = "silu") -> MLP:
    """The MLP of h(x) and one-hot y side by side: as printed, two coordinates of 16 values each."""
    # No codes at all is a density of x alone, so zero is allowed.
    n_in = DSpritesFeatures.n_features + check_count("n_codes", n_codes, least=0)
    return MLP((n_in, 256, 256, 1), activation=activation)

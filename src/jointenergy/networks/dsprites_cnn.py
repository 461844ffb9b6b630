"""networks: the dSprites CNN and MLP of the mixed joint EBM (Kelly and Grathwohl 2021, section B.3)."""

from __future__ import annotations

from torch import nn

from jointenergy.inputs import check_count
from jointenergy.networks.activations import activation as named_activation
from jointenergy.networks.layers import Layers
from jointenergy.networks.mlp import MLP


class DSpritesFeatures(Layers):
    """The feature network of the mixed joint EBM for dSprites: images of 1 x 32 x 32 in, 256 features out.

    Parameters
    ----------
    activation
        One of `ACTIVATIONS`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> je.networks.DSpritesFeatures()(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 256])
    """

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
    """Create the MLP of concatenated features and one-hot y of the mixed joint EBM for dSprites.

    Parameters
    ----------
    n_codes
        The width of the code; in the paper two coordinates of 16 values each.
    activation
        One of `ACTIVATIONS`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace({"x": 16, "y": 16})
    >>> head = je.Concat(je.networks.dsprites_head(labels.n_codes))
    >>> model = je.PairModel(head, labels, features=je.networks.DSpritesFeatures())
    >>> model.log_density(torch.zeros(2, 1, 32, 32), torch.zeros(2, 2, dtype=torch.int64)).shape
    torch.Size([2])
    """
    # Zero codes give a density of x alone.
    n_in = DSpritesFeatures.n_features + check_count("n_codes", n_codes, least=0)
    return MLP((n_in, 256, 256, 1), activation=activation)

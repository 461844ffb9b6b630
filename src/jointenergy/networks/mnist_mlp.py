"""networks: the MNIST MLP of the mixed joint EBM paper (section B.2)."""

from __future__ import annotations

from jointenergy.inputs import check_count
from jointenergy.networks.mlp import MLP


class MnistMLP(MLP):
    """One value for x and one-hot y side by side: as printed, 28 x 28 pixels in a row with ten classes.

    The paper's activation is "elu".
    """

    def __init__(self, n_codes: int = 10, *, n_features: int = 784, activation: str = "silu") -> None:
        # No codes at all is a density of x alone, so zero is allowed.
        n_in = check_count("n_features", n_features) + check_count("n_codes", n_codes, least=0)
        super().__init__((n_in, 1000, 500, 500, 250, 250, 250, 1), activation=activation)

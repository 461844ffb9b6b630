"""networks: the toy MLP of the mixed joint EBM paper (section B.1)."""

from __future__ import annotations

from jointenergy.inputs import check_count
from jointenergy.networks.mlp import MLP


class ToyMLP(MLP):
    """One value for x and one-hot y side by side: as printed, points of the plane with three binary labels.

    The paper's activation is "elu".
    """

    def __init__(self, n_codes: int = 6, *, n_features: int = 2, activation: str = "silu") -> None:
        # No codes at all is a density of x alone, so zero is allowed.
        n_in = check_count("n_features", n_features) + check_count("n_codes", n_codes, least=0)
        super().__init__((n_in, 256, 256, 256, 1), activation=activation)

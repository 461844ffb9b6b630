"""networks: the residual networks of the IGEBM paper (appendix A.10, figure 12), with bounded spectral norms.

The figure gives the layers and their widths; the text gives spectral norms below 1 for all weights, second convolutions
that begin at (nearly) zero, a multiplier and a bias at each layer, gains and biases by class for conditional models,
average pooling and leaky ReLUs. The order of activation and convolution is that of the networks that it follows (Miyato
et al., 2018): activation first, and once more before the sum over places.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.inputs import check_count, check_positive
from jointenergy.labels import nearest
from jointenergy.networks.activations import activation as named_activation
from jointenergy.networks.layers import Linear
from jointenergy.networks.spectral import SpectralConv2d, SpectralLinear

TINY = 1e-10  # the paper's standard deviation of what begins at zero: a power iteration needs a direction

PLANS: dict[str, tuple[int, str]] = {
    "a": (128, "v128 128 v256 256 v256 256"),
    "b": (128, "v128 128 128 v256 256 256 v256 256 256"),
    "c": (128, "v256 256 v512 512 v1024 1024"),
    "d": (64, "v64 v128 v256 v512 v1024 1024"),
}
"""By the letters of figure 12: channels of the first convolution and of each block; `v` halves the image after it."""


class IgebmResNet(nn.Module):
    """Images of any size in, `n_outputs` values out; with `n_codes` also a code of labels in, one-hot or real-valued.

    Plans: `a` (conditional) and `b` (unconditional) for CIFAR-10, `c` for ImageNet 32 x 32, `d` for 128 x 128. `width`
    multiplies all channels. Rows are independent in both modes. The bounds of the spectral norms are part of the state;
    `spectral.refresh` moves them after a training step, and a pass never does.
    """

    def __init__(
        self,
        plan: str = "a",
        *,
        n_codes: int = 0,
        n_outputs: int = 1,
        in_channels: int = 3,
        width: float = 1.0,
        activation: str = "silu",
    ) -> None:
        super().__init__()
        if plan not in PLANS:
            raise InputError(f"there is no network {plan!r} in the IGEBM paper: {nearest(str(plan), tuple(PLANS))}")
        check_count("n_codes", n_codes, least=0)
        check_count("n_outputs", n_outputs)
        check_count("in_channels", in_channels)
        check_positive(self, "width", width)
        first, blocks = PLANS[plan]
        n = max(1, round(first * width))
        self.n_codes = n_codes
        self.stem = SpectralConv2d(in_channels, n, 3)
        self.blocks = nn.ModuleList()
        for block in blocks.split():
            n_out = max(1, round(int(block.lstrip("v")) * width))
            self.blocks.append(IgebmBlock(n, n_out, down=block.startswith("v"), n_codes=n_codes, activation=activation))
            n = n_out
        self.activation = named_activation(activation)
        self.head = SpectralLinear(n, n_outputs)

    def forward(self, x: Tensor, code: Tensor | None = None) -> Tensor:
        if (code is None) != (self.n_codes == 0):
            wanted = "no code of labels" if self.n_codes == 0 else f"a code of {self.n_codes} entries beside x"
            raise InputError(f"this IgebmResNet takes {wanted}")
        h = self.stem(x)
        for block in self.blocks:
            h = block(h, code)
        h = self.activation(h)
        value: Tensor = self.head(h.sum((2, 3), dtype=torch.promote_types(h.dtype, torch.float32)))
        return value


class IgebmBlock(nn.Module):
    """Two 3 x 3 convolutions, each after its activation, added to their input; then, with `down`, average pooling."""

    def __init__(self, n_in: int, n_out: int, *, down: bool, n_codes: int = 0, activation: str = "silu") -> None:
        super().__init__()
        self.down = down
        self.activation = named_activation(activation)
        self.first = IgebmLayer(n_in, n_out, n_codes)
        self.second = IgebmLayer(n_out, n_out, n_codes, std=TINY)
        self.shortcut = nn.Identity() if n_in == n_out else SpectralConv2d(n_in, n_out, 1)

    def forward(self, x: Tensor, code: Tensor | None) -> Tensor:
        h = self.first(self.activation(x), code)
        h = self.shortcut(x) + self.second(self.activation(h), code)
        # A last row or column that stands alone counts too.
        return F.avg_pool2d(h, 2, ceil_mode=True) if self.down else h


class IgebmLayer(nn.Module):
    """A convolution whose channels, with codes, have a gain and a bias for each entry of the code, 1 and 0 at first."""

    def __init__(self, n_in: int, n_out: int, n_codes: int, *, std: float | None = None) -> None:
        super().__init__()
        self.convolution = SpectralConv2d(n_in, n_out, 3, std=std)
        self.by_code = Linear(n_codes, 2 * n_out, bias=False) if n_codes else None
        if self.by_code is not None:
            nn.init.zeros_(self.by_code.weight)

    def forward(self, x: Tensor, code: Tensor | None) -> Tensor:
        h: Tensor = self.convolution(x)
        if self.by_code is None or code is None:
            return h
        changes: Tensor = self.by_code(code).to(h.dtype)[:, :, None, None]
        gain, bias = changes.chunk(2, dim=1)
        return h * (1.0 + gain) + bias

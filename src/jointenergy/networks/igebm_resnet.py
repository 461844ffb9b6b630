"""networks: the residual networks of IGEBM (Du and Mordatch 2019, appendix A.10), with bounded spectral norms.

Their figure 12 gives layers and widths. The text gives spectral norms below 1 for all weights, second convolutions that
start near zero, a multiplier and a bias at each layer, class-dependent gains and biases for conditional models, average
pooling and leaky ReLUs. The order of activation and convolution follows Miyato et al. (2018): activation first, and
once more before the sum over positions.
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

TINY = 1e-10  # the paper's initial standard deviation instead of zero: a power iteration needs a direction

PLANS: dict[str, tuple[int, str]] = {
    "a": (128, "v128 128 v256 256 v256 256"),
    "b": (128, "v128 128 128 v256 256 256 v256 256 256"),
    "c": (128, "v256 256 v512 512 v1024 1024"),
    "d": (64, "v64 v128 v256 v512 v1024 1024"),
}
"""Architectures by the letters of figure 12: channels of the first convolution and of the blocks; `v` downsamples."""


class IgebmResNet(nn.Module):
    """The ResNet of IGEBM (Du and Mordatch 2019), for images of any size, with bounded spectral norms.

    Rows are independent in both modes. The spectral bounds are part of the state: training updates them after each step
    (`spectral.refresh`), a forward pass never does.

    Parameters
    ----------
    plan
        "a" (conditional) and "b" (unconditional) for CIFAR-10, "c" for ImageNet 32 x 32, "d" for 128 x 128.
    n_codes
        The width of a label code that the network takes as a second input; 0 for none.
    n_outputs
        The number of outputs.
    in_channels
        The channels of the images.
    width
        Multiplies all channels.
    activation
        One of `ACTIVATIONS`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> network = je.networks.IgebmResNet("a", width=0.1, n_codes=10)
    >>> network(torch.zeros(2, 3, 16, 16), torch.zeros(2, 10)).shape
    torch.Size([2, 1])
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
            wanted = "no label code" if self.n_codes == 0 else f"x and a label code of {self.n_codes} entries"
            raise InputError(f"this IgebmResNet takes {wanted}")
        h = self.stem(x)
        for block in self.blocks:
            h = block(h, code)
        h = self.activation(h)
        value: Tensor = self.head(h.sum((2, 3), dtype=torch.promote_types(h.dtype, torch.float32)))
        return value


class IgebmBlock(nn.Module):
    """A residual block of two 3 x 3 convolutions, each after its activation; with `down`, average pooling follows."""

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
        # ceil_mode keeps the last row and column of odd sizes.
        return F.avg_pool2d(h, 2, ceil_mode=True) if self.down else h


class IgebmLayer(nn.Module):
    """A convolution with, for each code entry, a gain and a bias per channel that start at 1 and 0."""

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

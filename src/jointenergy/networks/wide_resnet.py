"""networks: the wide residual network of the JEM paper (section 5), without normalization unless told."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.inputs import check_count
from jointenergy.networks.activations import activation as named_activation

Norm = Literal["batch"] | None


class WideResNet(nn.Module):
    """Images of any size in, `n_classes` logits out; JEM's is `WideResNet(28, 10, activation="leaky_relu")`.

    `norm="batch"` is there for comparison: in train mode a row's logits then depend on the rows beside it, and no
    density is left for a chain to sample.
    """

    def __init__(
        self,
        depth: int = 28,
        width: int = 10,
        *,
        n_classes: int = 10,
        in_channels: int = 3,
        norm: Norm = None,
        activation: str = "silu",
    ) -> None:
        super().__init__()
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 10 or depth % 6 != 4:
            raise InputError(f"the depth of a WideResNet must be 6n + 4 (10, 16, 22, 28, ...), got {depth!r}")
        if norm not in (None, "batch"):
            raise InputError(f"norm must be None or 'batch', got {norm!r}")
        check_count("the width of a WideResNet", width)
        check_count("n_classes", n_classes)
        check_count("in_channels", in_channels)
        n_blocks = (depth - 4) // 6
        self.stem = nn.Conv2d(in_channels, 16, 3, padding=1, bias=norm is None)
        stages, n_in = [], 16
        for n_out, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            blocks = [WideBlock(n_in, n_out, stride=stride, norm=norm, activation=activation)]
            blocks += [WideBlock(n_out, n_out, norm=norm, activation=activation) for _ in range(n_blocks - 1)]
            stages.append(nn.Sequential(*blocks))
            n_in = n_out
        self.stages = nn.Sequential(*stages)
        self.norm = _norm(norm, n_in)
        self.activation = named_activation(activation)
        self.head = nn.Linear(n_in, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.activation(self.norm(self.stages(self.stem(x))))
        # The mean over all places, whatever their number: the image size is free.
        logits: Tensor = self.head(h.mean((2, 3)))
        return logits


class WideBlock(nn.Module):
    """Two 3 x 3 convolutions, each after its activation, added to their input; the first one may stride."""

    def __init__(self, n_in: int, n_out: int, *, stride: int = 1, norm: Norm = None, activation: str = "silu") -> None:
        super().__init__()
        # A normalization subtracts the mean, and with it any bias.
        bias = norm is None
        self.residual = nn.Sequential(
            _norm(norm, n_in),
            named_activation(activation),
            nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=bias),
            _norm(norm, n_out),
            named_activation(activation),
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=bias),
        )
        same = n_in == n_out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(n_in, n_out, 1, stride=stride, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.shortcut(x) + self.residual(x)
        return h


def _norm(norm: Norm, n_channels: int) -> nn.Module:
    return nn.Identity() if norm is None else nn.BatchNorm2d(n_channels)

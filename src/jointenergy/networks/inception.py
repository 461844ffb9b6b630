"""networks: Inception-v3 as published on 2015-12-05, whose features define FID and KID of images.

Layers are named as in the published TensorFlow graph. Weights are accepted under these names, under those of its
TorchScript version (prefix `layers.`), or under those of the common PyTorch port (`Mixed_5b.branch1x1.conv` and so on).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy.errors import InputError

SIDE = 299  # pixels of the square images that the network sees
N_FEATURES, N_CLASSES = 2048, 1008
EPSILON = 1e-3  # of the batch normalization

Size = int | tuple[int, int]
Tap = Literal[64, 192, 768, 2048]
"""Channels of the layer whose spatial averages are the features; 2048 is the last, pool3."""


class Inception(nn.Module):
    """Extract features `[n, 2048]` from uint8 images `[n, 3, height, width]`; `head` gives logits if it has weights."""

    def __init__(self, *, head: bool = False) -> None:
        super().__init__()
        self.conv = Conv(3, 32, 3, stride=2)
        self.conv_1 = Conv(32, 32, 3)
        self.conv_2 = Conv(32, 64, 3, padding=1)
        self.conv_3 = Conv(64, 80, 1)
        self.conv_4 = Conv(80, 192, 3)
        self.mixed, self.mixed_1, self.mixed_2 = MixedA(192, 32), MixedA(256, 64), MixedA(288, 64)
        self.mixed_3 = MixedB(288)
        self.mixed_4, self.mixed_5, self.mixed_6, self.mixed_7 = (MixedC(768, n) for n in (128, 160, 160, 192))
        self.mixed_8 = MixedD(768)
        # The published graph pools by the maximum in its last block, and by the average in the one before.
        self.mixed_9, self.mixed_10 = MixedE(1280, pool="average"), MixedE(2048, pool="maximum")
        self.head = nn.Linear(N_FEATURES, N_CLASSES) if head else None

    def forward(self, images: Tensor, at: Tap = 2048) -> Tensor:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise InputError(
                f"Inception takes uint8 images [n, 3, height, width], got {images.dtype} of shape {tuple(images.shape)}"
            )
        h: Tensor = (resized(images.to(self.conv.weight), SIDE) - 128) / 128
        h = h.contiguous(memory_format=torch.channels_last)  # the faster order for these convolutions
        h = F.max_pool2d(self.conv_2(self.conv_1(self.conv(h))), 3, stride=2)
        if at == 64:
            return h.mean((2, 3))
        h = F.max_pool2d(self.conv_4(self.conv_3(h)), 3, stride=2)
        if at == 192:
            return h.mean((2, 3))
        h = self.mixed_3(self.mixed_2(self.mixed_1(self.mixed(h))))
        h = self.mixed_7(self.mixed_6(self.mixed_5(self.mixed_4(h))))
        if at == 768:
            return h.mean((2, 3))
        h = self.mixed_10(self.mixed_9(self.mixed_8(h)))
        return h.mean((2, 3))

    @classmethod
    def of_weights(cls, tensors: Mapping[str, Tensor]) -> Inception:
        """Create the network in eval mode and float32 from weights under any of the known names."""
        found = _renamed(tensors)
        with torch.device("meta"):  # no initialization, which would use the global random state
            network = cls(head="head.weight" in found)
        wanted = network.state_dict()
        for name, tensor in wanted.items():
            if name not in found:
                raise InputError(f"the weights of Inception lack {name}: use the published weights of 2015-12-05")
            got = found[name]
            if got.shape != tensor.shape or not got.is_floating_point():
                raise InputError(
                    f"{name} of Inception has shape {tuple(tensor.shape)}, got {got.dtype} of shape "
                    f"{tuple(got.shape)}: use the published weights of 2015-12-05"
                )
        more = sorted(found.keys() - wanted.keys())
        if more:
            raise InputError(f"Inception has no tensor {more[0]}: use the published weights of 2015-12-05")
        network.load_state_dict({name: found[name].float() for name in wanted}, assign=True)
        return network.requires_grad_(False).eval()


def is_inception(tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether the names are those of an Inception-v3, in any of the known schemes."""
    return any(name.endswith(("mixed_10.conv.weight", "Mixed_7c.branch1x1.conv.weight")) for name in tensors)


def resized(images: Tensor, side: int) -> Tensor:
    """Resize bilinearly as TensorFlow 1 did: position i of the result is i * (size / side), without half pixels."""
    rows, columns = (_weights_of_places(size, side, images) for size in images.shape[2:])
    return rows @ images @ columns.T


def _weights_of_places(size: int, side: int, like: Tensor) -> Tensor:
    """Return the interpolation matrix `[side, size]`."""
    if size == side:
        return torch.eye(side, dtype=like.dtype, device=like.device)
    places = torch.arange(side, dtype=torch.float64) * (size / side)
    low = places.floor().long().clamp(max=size - 1)
    high = (low + 1).clamp(max=size - 1)
    part = (places - low)[:, None]
    eye = torch.eye(size, dtype=torch.float64)
    return ((1 - part) * eye[low] + part * eye[high]).to(like)


class Conv(nn.Module):
    """A convolution, batch norm with stored statistics and without a scale, and a ReLU."""

    def __init__(self, n_in: int, n_out: int, size: Size, *, stride: int = 1, padding: Size = 0) -> None:
        super().__init__()
        height, width = (size, size) if isinstance(size, int) else size
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.zeros(n_out, n_in, height, width))
        for name, value in (("beta", 0.0), ("mean", 0.0), ("var", 1.0)):
            self.register_buffer(name, torch.full((n_out,), value))

    def forward(self, x: Tensor) -> Tensor:
        scale = (self.get_buffer("var") + EPSILON).rsqrt()
        weight = self.weight * scale[:, None, None, None]  # the normalization is linear: it costs no pass of its own
        bias = self.get_buffer("beta") - self.get_buffer("mean") * scale
        return F.relu_(F.conv2d(x, weight, bias, stride=self.stride, padding=self.padding))


class Tower(nn.Module):
    """A sequence of convolutions called conv, conv_1, conv_2 and so on."""

    def __init__(self, *convolutions: Conv) -> None:
        super().__init__()
        for i, layer in enumerate(convolutions):
            self.add_module(f"conv_{i}" if i else "conv", layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


class MixedA(nn.Module):
    """Blocks mixed to mixed_2: 1 x 1, 5 x 5, double 3 x 3, and average pooling."""

    def __init__(self, n_in: int, n_pooled: int) -> None:
        super().__init__()
        self.conv = Conv(n_in, 64, 1)
        self.tower = Tower(Conv(n_in, 48, 1), Conv(48, 64, 5, padding=2))
        self.tower_1 = Tower(Conv(n_in, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, padding=1))
        self.tower_2 = Tower(Conv(n_in, n_pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.conv(x), self.tower(x), self.tower_1(x), self.tower_2(_average(x))), dim=1)


class MixedB(nn.Module):
    """Block mixed_3, which halves the image."""

    def __init__(self, n_in: int) -> None:
        super().__init__()
        self.conv = Conv(n_in, 384, 3, stride=2)
        self.tower = Tower(Conv(n_in, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, stride=2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.conv(x), self.tower(x), F.max_pool2d(x, 3, stride=2)), dim=1)


class MixedC(nn.Module):
    """Blocks mixed_4 to mixed_7: 1 x 1, factorized 7 x 7, double factorized 7 x 7, and average pooling."""

    def __init__(self, n_in: int, n: int) -> None:
        super().__init__()
        self.conv = Conv(n_in, 192, 1)
        self.tower = Tower(Conv(n_in, n, 1), _row(n, n), _column(n, 192))
        self.tower_1 = Tower(Conv(n_in, n, 1), _column(n, n), _row(n, n), _column(n, n), _row(n, 192))
        self.tower_2 = Tower(Conv(n_in, 192, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.conv(x), self.tower(x), self.tower_1(x), self.tower_2(_average(x))), dim=1)


class MixedD(nn.Module):
    """Block mixed_8, which halves the image again."""

    def __init__(self, n_in: int) -> None:
        super().__init__()
        self.tower = Tower(Conv(n_in, 192, 1), Conv(192, 320, 3, stride=2))
        self.tower_1 = Tower(Conv(n_in, 192, 1), _row(192, 192), _column(192, 192), Conv(192, 192, 3, stride=2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.tower(x), self.tower_1(x), F.max_pool2d(x, 3, stride=2)), dim=1)


class MixedE(nn.Module):
    """Blocks mixed_9 and mixed_10, whose towers end in two branches, a row and a column."""

    def __init__(self, n_in: int, *, pool: Literal["average", "maximum"]) -> None:
        super().__init__()
        self.pool = pool
        self.conv = Conv(n_in, 320, 1)
        self.tower_conv = Conv(n_in, 384, 1)
        self.tower_mixed_conv = _row(384, 384, 3)
        self.tower_mixed_conv_1 = _column(384, 384, 3)
        self.tower_1_conv = Conv(n_in, 448, 1)
        self.tower_1_conv_1 = Conv(448, 384, 3, padding=1)
        self.tower_1_mixed_conv = _row(384, 384, 3)
        self.tower_1_mixed_conv_1 = _column(384, 384, 3)
        self.tower_2_conv = Conv(n_in, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.tower_conv(x), self.tower_1_conv_1(self.tower_1_conv(x))
        pooled = _average(x) if self.pool == "average" else F.max_pool2d(x, 3, stride=1, padding=1)
        parts = (
            self.conv(x),
            *(self.tower_mixed_conv(a), self.tower_mixed_conv_1(a)),
            *(self.tower_1_mixed_conv(b), self.tower_1_mixed_conv_1(b)),
            self.tower_2_conv(pooled),
        )
        return torch.cat(parts, dim=1)


def _row(n_in: int, n_out: int, size: int = 7) -> Conv:
    return Conv(n_in, n_out, (1, size), padding=(0, size // 2))


def _column(n_in: int, n_out: int, size: int = 7) -> Conv:
    return Conv(n_in, n_out, (size, 1), padding=(size // 2, 0))


def _average(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)


# The names of the PyTorch port, and those of the graph.

_STEM = {"1a_3x3": "conv", "2a_3x3": "conv_1", "2b_3x3": "conv_2", "3b_1x1": "conv_3", "4a_3x3": "conv_4"}
_BLOCKS = {
    f"Mixed_{name}": "mixed" + (f"_{i}" if i else "")
    for i, name in enumerate(("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c"))
}
_HEADS = {f"{layer}.{part}": f"head.{part}" for layer in ("fc", "output") for part in ("weight", "bias")}
_PARTS = {"conv.weight": "weight", "bn.bias": "beta", "bn.running_mean": "mean", "bn.running_var": "var"}


def _towers(**branches: tuple[str, int]) -> dict[str, str]:
    """Map branch7x7_2, the second convolution of its tower, to conv_1 in the graph."""
    return {
        f"branch{branch.removeprefix('b')}_{i + 1}": f"{tower}.conv" + (f"_{i}" if i else "")
        for branch, (tower, n) in branches.items()
        for i in range(n)
    }


_A = {
    **{"branch1x1": "conv", "branch_pool": "tower_2.conv"},
    **_towers(b5x5=("tower", 2), b3x3dbl=("tower_1", 3)),
}
_B = {"branch3x3": "conv", **_towers(b3x3dbl=("tower", 3))}
_C = {
    **{"branch1x1": "conv", "branch_pool": "tower_2.conv"},
    **_towers(b7x7=("tower", 3), b7x7dbl=("tower_1", 5)),
}
_D = _towers(b3x3=("tower", 2), b7x7x3=("tower_1", 4))
_E = {
    **{"branch1x1": "conv", "branch_pool": "tower_2_conv", "branch3x3_1": "tower_conv"},
    **{"branch3x3_2a": "tower_mixed_conv", "branch3x3_2b": "tower_mixed_conv_1"},
    **{"branch3x3dbl_1": "tower_1_conv", "branch3x3dbl_2": "tower_1_conv_1"},
    **{"branch3x3dbl_3a": "tower_1_mixed_conv", "branch3x3dbl_3b": "tower_1_mixed_conv_1"},
}
_LAYERS = {f"Conv2d_{theirs}": ours for theirs, ours in _STEM.items()} | {
    f"{theirs}.{branch}": f"{block}.{layer}"
    for (theirs, block), inside in zip(_BLOCKS.items(), (_A, _A, _A, _B, _C, _C, _C, _C, _D, _E, _E), strict=True)
    for branch, layer in inside.items()
}
NAMES_OF_PORT = _HEADS | {
    f"{theirs}.{part}": f"{ours}.{own}" for theirs, ours in _LAYERS.items() for part, own in _PARTS.items()
}
"""Names of the tensors in the PyTorch port, mapped to those in the graph; `output` is the last layer in TorchScript."""


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors to the names of the graph; unknown names stay."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("num_batches_tracked"):
            continue
        if name.endswith("bn.weight"):
            if not bool((tensor == 1).all()):
                raise InputError(f"{name} is not 1 as in Inception: use the published weights of 2015-12-05")
            continue
        bare = name.rpartition("layers.")[2]
        found[NAMES_OF_PORT.get(bare, bare)] = tensor
    return found

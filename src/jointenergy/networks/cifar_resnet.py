"""networks: the residual networks for CIFAR of He et al. (2016), whose published weights extract features of images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.inputs import check_count

# The statistics by which the published weights were fed, of the three colors in [0, 1].
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class CifarResNet(nn.Module):
    """Images of 3 colors in, `n_classes` logits out; the depth is 6n + 2 (20, 32, 44, 56, 110).

    Shortcuts have no weights (option A): where a stage begins they take every second place and add empty channels.
    Layers are called as in the published weights. Batch statistics make it no density while it trains; with its running
    ones, in eval mode, each row is by itself.
    """

    def __init__(self, depth: int = 20, *, n_classes: int = 10) -> None:
        super().__init__()
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 8 or depth % 6 != 2:
            raise InputError(f"the depth of a CifarResNet must be 6n + 2 (8, 20, 32, 44, 56, ...), got {depth!r}")
        check_count("n_classes", n_classes)
        n_blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, n_blocks, stride=1)
        self.layer2 = _stage(16, 32, n_blocks, stride=2)
        self.layer3 = _stage(32, 64, n_blocks, stride=2)
        self.linear = nn.Linear(64, n_classes)

    def features(self, x: Tensor) -> Tensor:
        """The 64 numbers of each image that the last layer sees."""
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.layer3(self.layer2(self.layer1(h)))
        features: Tensor = h.mean((2, 3))
        return features

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.features(x))
        return logits

    @classmethod
    def of_weights(cls, tensors: Mapping[str, Tensor]) -> CifarResNet:
        """The network, in eval mode, that these weights belong to; its depth and classes are read from them."""
        # Trained in several processes, every name has a prefix.
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
        n_blocks = len({name.split(".")[1] for name in tensors if name.startswith("layer1.")})
        head = tensors.get("linear.weight")
        if n_blocks == 0 or head is None:
            raise InputError("the weights are of no CIFAR ResNet: these have layers called layer1.0.conv1 and linear")
        with torch.device("meta"):  # no draws of starting weights: the global random state is not touched
            network = cls(6 * n_blocks + 2, n_classes=len(head))
        try:
            network.load_state_dict(tensors, assign=True)
        except RuntimeError:
            raise InputError(
                f"the weights do not fit a ResNet-{6 * n_blocks + 2} for CIFAR with shortcuts that have none"
            ) from None
        return network.requires_grad_(False).eval()


class CifarBlock(nn.Module):
    """Two 3 x 3 convolutions added to their input."""

    def __init__(self, n_in: int, n_out: int, *, stride: int) -> None:
        super().__init__()
        self.stride, self.n_more = stride, n_out - n_in
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        # Half of the new channels before and half behind the old ones.
        half = self.n_more // 2
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.n_more - half))
        return F.relu(h + shortcut)


def _stage(n_in: int, n_out: int, n_blocks: int, *, stride: int) -> nn.Sequential:
    first = CifarBlock(n_in, n_out, stride=stride)
    return nn.Sequential(first, *(CifarBlock(n_out, n_out, stride=1) for _ in range(n_blocks - 1)))

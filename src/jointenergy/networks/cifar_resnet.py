"""networks: the CIFAR ResNets of He et al. (2016); their published weights serve as feature extractors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.inputs import check_count

# The statistics that inputs of the published weights are normalized with, for colors in [0, 1].
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class CifarResNet(nn.Module):
    """The ResNet for CIFAR of He et al. (2016), with parameter-free shortcuts (option A).

    Layers are named as in the published weights. It has batch norm: use it as a density in eval mode only, where rows
    are independent, or fold it with `fold_batch_norm`.

    Parameters
    ----------
    depth
        6n + 2: 20, 32, 44, 56, 110.
    n_classes
        The number of logits.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> network = je.networks.CifarResNet(8).eval()
    >>> network(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
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
        """Return the 64 features before the last layer."""
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.layer3(self.layer2(self.layer1(h)))
        features: Tensor = h.mean((2, 3))
        return features

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.features(x))
        return logits

    @classmethod
    def of_weights(cls, tensors: Mapping[str, Tensor]) -> CifarResNet:
        """Create the network in eval mode from published weights; depth and classes are inferred."""
        # Weights saved from DataParallel have a prefix.
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
        n_blocks = len({name.split(".")[1] for name in tensors if name.startswith("layer1.")})
        head = tensors.get("linear.weight")
        if n_blocks == 0 or head is None:
            raise InputError(
                "the weights do not belong to a CIFAR ResNet, which has layers called layer1.0.conv1 and linear: give "
                "others"
            )
        with torch.device("meta"):  # no initialization, which would use the global random state
            network = cls(6 * n_blocks + 2, n_classes=len(head))
        try:
            network.load_state_dict(tensors, assign=True)
        except RuntimeError:
            raise InputError(
                f"the weights do not fit a CIFAR ResNet-{6 * n_blocks + 2} with parameter-free shortcuts: give others"
            ) from None
        return network.requires_grad_(False).eval()


class CifarBlock(nn.Module):
    """A residual block of two 3 x 3 convolutions."""

    def __init__(self, n_in: int, n_out: int, *, stride: int) -> None:
        super().__init__()
        self.stride, self.n_more = stride, n_out - n_in
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        # New channels are padded half before and half after the old ones.
        half = self.n_more // 2
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.n_more - half))
        return F.relu(h + shortcut)


def _stage(n_in: int, n_out: int, n_blocks: int, *, stride: int) -> nn.Sequential:
    first = CifarBlock(n_in, n_out, stride=stride)
    return nn.Sequential(first, *(CifarBlock(n_out, n_out, stride=1) for _ in range(n_blocks - 1)))

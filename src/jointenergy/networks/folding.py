"""networks: convolutions with reparametrized weights, and how to compute these weights once for many passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FoldedConv2d(nn.Module, ABC):
    """Base class of convolutions whose weights are functions of the parameters; subclasses implement `folded`."""

    def __init__(self, side: int, *, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.padding = stride, side // 2
        self.fixed: tuple[Tensor, Tensor] | None = None
        self.n_holds = 0  # open `fixed` contexts in all threads: the last one to close clears `fixed`

    @abstractmethod
    def folded(self) -> tuple[Tensor, Tensor]:
        """Compute the weights and biases of the convolution from the parameters."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.folded() if self.fixed is None else self.fixed
        return F.conv2d(x, weight.to(x.dtype), bias.to(x.dtype), stride=self.stride, padding=self.padding)


def fixed(
    module: nn.Module, dtype: torch.dtype | None = None, memory_format: torch.memory_format = torch.preserve_format
) -> AbstractContextManager[None]:
    """Compute reparametrized weights once instead of at every pass of a `with` block: for chains, not for training.

    Values are the same. No gradient reaches the parameters of these convolutions, and changes to them inside the block
    have no effect. A module without such convolutions is unchanged.

    Parameters
    ----------
    module
        Any module.
    dtype
        The dtype of x, if the parameters have another.
    memory_format
        The memory format of x, if the parameters have another.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> network = je.networks.NFWideResNet(10, 1)
    >>> with je.networks.fixed(network):
    ...     logits = network(torch.zeros(2, 3, 8, 8))
    >>> logits.shape
    torch.Size([2, 10])
    """
    convolutions = [m for m in module.modules() if isinstance(m, FoldedConv2d)]
    return _fixed(convolutions, dtype, memory_format) if convolutions else nullcontext()


@contextmanager
def _fixed(
    convolutions: list[FoldedConv2d], dtype: torch.dtype | None, memory_format: torch.memory_format
) -> Iterator[None]:
    before = [c.fixed for c in convolutions]
    for c in convolutions:
        c.n_holds += 1
    try:
        # A caller may be in inference mode; chains still need gradients with respect to x through these weights.
        with torch.inference_mode(False), torch.no_grad():
            for c in convolutions:
                weight, bias = c.folded()
                kind = weight.dtype if dtype is None else dtype
                c.fixed = weight.to(kind, memory_format=memory_format), bias.to(kind)
        yield
    finally:
        for c, kept in zip(convolutions, before, strict=True):
            c.n_holds -= 1
            c.fixed = kept if c.n_holds else None

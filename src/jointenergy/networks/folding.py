"""networks: convolutions whose weights are made of their parameters, and how chains make them once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FoldedConv2d(nn.Module, ABC):
    """A convolution by the weights and biases that `folded` makes of the parameters; a class of it writes `folded`."""

    def __init__(self, side: int, *, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.padding = stride, side // 2
        self.fixed: tuple[Tensor, Tensor] | None = None
        self.n_holds = 0  # of `fixed` that are open, in all threads: the last one to end leaves nothing fixed

    @abstractmethod
    def folded(self) -> tuple[Tensor, Tensor]:
        """The weights and the biases that the convolution is computed with: functions of what the module holds."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.folded() if self.fixed is None else self.fixed
        return F.conv2d(x, weight.to(x.dtype), bias.to(x.dtype), stride=self.stride, padding=self.padding)


def fixed(
    module: nn.Module, dtype: torch.dtype | None = None, memory_format: torch.memory_format = torch.preserve_format
) -> AbstractContextManager[None]:
    """Inside, all weights in `module` are folded once, now, and not at every pass: for chains, not for learning.

    Values are the same. No gradient reaches the parameters of the convolutions, and changes of them, also by
    `torch.func.functional_call`, are not seen. `dtype` and `memory_format` are those of x where the parameters have
    others: the folded weights are then turned once. A module without such convolutions is left as it is.
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
        # A caller may be in inference mode; chains still need gradients by x through these weights.
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

"""networks: run a network in half precision, channels last and compiled, with float32 inputs and outputs.

The accelerated network shares its parameters with the original and equals it up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from jointenergy.fusing import make_room
from jointenergy.networks.folding import FoldedConv2d, fixed


class Accelerated(nn.Module):
    """Run `network` with its convolutions in `dtype` and its result in float32; with `compiled`, by `torch.compile`.

    A network without convolutions gains little from half precision and stays in its own. A compiled network can be
    differentiated once only.
    """

    def __init__(self, network: nn.Module, dtype: torch.dtype = torch.float32, *, compiled: bool = False) -> None:
        super().__init__()
        self.network = network
        convolves = any(p.ndim > 2 for p in network.parameters())
        self.dtype = dtype if convolves else torch.float32
        self.held: dict[str, Tensor] | None = None
        self.known: list[tuple[Tensor, Tensor]] = []
        self.call: Any = self._call
        if compiled:
            make_room()
            self.call = torch.compile(self._call, dynamic=False)

    def forward(self, *inputs: Tensor) -> Tensor:
        for x, known in self.known:
            if len(inputs) == 1 and x.data_ptr() == inputs[0].data_ptr() and x.shape == inputs[0].shape:
                return known
        weights = dict(self.network.named_parameters()) if self.held is None else self.held
        value: Tensor = self.call(weights, *inputs)
        return value

    def _call(self, weights: dict[str, Tensor], *inputs: Tensor) -> Tensor:
        low = self.dtype != torch.float32
        # No cache of casts: that of a recorded step would outlive it.
        cast = torch.autocast(inputs[0].device.type, self.dtype, cache_enabled=False) if low else nullcontext()
        with cast:
            value: Tensor = functional_call(self.network, weights, tuple(_channels_last(x) for x in inputs))
        return value.to(torch.promote_types(value.dtype, torch.float32))

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Convert weights once, not at every pass, and treat them as constants: for chains, not for training."""
        before = self.held
        with torch.inference_mode(False):
            held = {name: p.detach() for name, p in self.network.named_parameters()}
            for name, module in self.network.named_modules():
                if isinstance(module, nn.Conv2d):
                    for key, parameter in module.named_parameters():
                        held[f"{name}.{key}" if name else key] = _channels_last(parameter.detach()).to(self.dtype)
        low = None if self.dtype == torch.float32 else self.dtype
        with fixed(self.network, low):
            self.held = held
            try:
                yield
            finally:
                self.held = before

    @contextmanager
    def together(self, points: Sequence[Tensor]) -> Iterator[None]:
        """Compute the outputs at these points in one pass and reuse them inside; the points must not change."""
        values = self(torch.cat(tuple(points))).split([len(x) for x in points])
        self.known = list(zip(points, values, strict=True))
        try:
            yield
        finally:
            self.known = []


def together(module: nn.Module, points: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Apply `Accelerated.together` if a module is one accelerated network of x alone; otherwise do nothing."""
    parts = list(module.children())
    if len(parts) == 1 and isinstance(parts[0], Accelerated) and len(points) > 1:
        return parts[0].together(points)
    return nullcontext()


def can_hold(module: nn.Module) -> bool:
    """Tell whether `hold` has an effect on a module."""
    return any(isinstance(part, Accelerated | FoldedConv2d) for part in module.modules())


def hold(module: nn.Module) -> AbstractContextManager[object]:
    """Apply `Accelerated.hold` to all accelerated parts of a module, or `fixed` if it has none."""
    parts = [part for part in module.modules() if isinstance(part, Accelerated)]
    if not parts:
        return fixed(module)
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part.hold())
        return stack.pop_all()


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x

"""input_gradients: the vector-Jacobian product of a plain sequence of layers by its input, without a graph.

Chains ask for a gradient by x alone, thousands of times, of networks that are often small: there a graph costs a sixth
of the step. The operations are those of torch's own graph, so the numbers are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VJP = Callable[[Tensor], Tensor]
"""The vector-Jacobian product: from the gradient by a network's output to that by its input. Call it once."""


class Offering(Protocol):
    """A network that is no plain sequence and knows its own vector-Jacobian product."""

    def with_vjp(self, x: Tensor) -> tuple[Tensor, VJP] | None: ...


class Rule(NamedTuple):
    """The way back through a layer: what of its pass is kept, and the gradient by its input from that by its output."""

    kept: Literal["input", "output", "weight"]
    back: Callable[[Any, Tensor, Any], Tensor]


_aten = torch.ops.aten

RULES: dict[type[nn.Module], Rule] = {
    nn.Flatten: Rule("input", lambda layer, g, x: g.view_as(x)),
    nn.Linear: Rule("weight", lambda layer, g, weight: g.matmul(weight)),
    nn.SiLU: Rule("input", lambda layer, g, x: _aten.silu_backward(g, x)),
    nn.ELU: Rule("input", lambda layer, g, x: _aten.elu_backward(g, layer.alpha, 1, 1, False, x)),
    nn.ReLU: Rule("output", lambda layer, g, value: _aten.threshold_backward(g, value, 0)),
    nn.LeakyReLU: Rule("input", lambda layer, g, x: _aten.leaky_relu_backward(g, x, layer.negative_slope, False)),
    nn.GELU: Rule("input", lambda layer, g, x: _aten.gelu_backward(g, x, approximate=layer.approximate)),
    nn.Softplus: Rule("input", lambda layer, g, x: _aten.softplus_backward(g, x, layer.beta, layer.threshold)),
    nn.Tanh: Rule("output", lambda layer, g, value: _aten.tanh_backward(g, value)),
}
"""By the exact class: what a class derived from one of these computes is its own affair."""


def with_vjp(network: nn.Module, x: Tensor) -> tuple[Tensor, VJP] | None:
    """The network's value at rows x and its vector-Jacobian product; None where a layer is unknown or has hooks.

    On a CPU alone: elsewhere a step is compiled or recorded, and pays nothing for its graph.
    """
    if x.device.type != "cpu" or x.ndim < 2 or torch.is_autocast_enabled("cpu"):
        return None
    if hasattr(type(network), "with_vjp"):  # not isinstance, which costs a small chain a thirtieth of its step
        return cast(Offering, network).with_vjp(x)
    layers: list[nn.Module] = []
    if not _is_plain(network, layers):
        return None
    passed: list[tuple[nn.Module, Rule, Tensor]] = []
    with torch.no_grad():
        for layer in layers:
            rule = RULES[type(layer)]
            if rule.kept == "weight":  # looked up once, and not by the layer's own forward: small chains feel it
                kept = cast(Tensor, layer._parameters["weight"])
                if kept.dtype != x.dtype:
                    return None
                value = F.linear(x, kept, layer._parameters["bias"])
            else:
                value = layer.forward(x)
                kept = x if rule.kept == "input" else value
            passed.append((layer, rule, kept))
            x = value

    def vjp(gradient: Tensor) -> Tensor:
        with torch.no_grad():
            while passed:  # what was kept is let go at once, so that its memory serves the next layer while it is near
                layer, rule, kept = passed.pop()
                gradient = rule.back(layer, gradient, kept)
        return gradient

    return x, vjp


def _is_plain(module: nn.Module, layers: list[nn.Module]) -> bool:
    """Whether a module is made of known layers in sequence, without hooks; they are added to `layers`."""
    if "forward" in vars(module):  # replaced on this one alone, as some tools do
        return False
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    if type(module).forward is nn.Sequential.forward:
        return all(_is_plain(cast(nn.Module, part), layers) for part in module._modules.values())
    layers.append(module)
    return type(module) in RULES and not module.__dict__.get("inplace")

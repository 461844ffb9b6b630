"""input_gradients: the vector-Jacobian product of a plain sequence of layers by its input, without a graph.

Chains ask for a gradient by x alone, thousands of times, of networks that are often small: there a graph costs a sixth
of the step. The operations are those of torch's own graph, so the numbers are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VJP = Callable[[Tensor], Tensor]
"""The vector-Jacobian product: from the gradient by a network's output to that by its input. Call it once."""


class Offering(Protocol):
    """A network that is no plain sequence and knows its own vector-Jacobian product."""

    def with_vjp(self, x: Tensor) -> tuple[Tensor, VJP] | None: ...


class Rule(NamedTuple):
    """The derivative of a layer: what of its pass is kept, and the gradient by its input from (gradient by its output,
    what was kept, the layer where `of_layer`)."""

    kept: Literal["input", "output", "weight"]
    back: Callable[..., Tensor]
    of_layer: bool = False


_aten = torch.ops.aten

RULES: dict[type[nn.Module], Rule] = {
    nn.Flatten: Rule("input", Tensor.view_as),
    nn.Linear: Rule("weight", torch.matmul),
    nn.SiLU: Rule("input", _aten.silu_backward.default),
    nn.ELU: Rule("input", lambda g, x, layer: _aten.elu_backward(g, layer.alpha, 1, 1, False, x), True),
    nn.ReLU: Rule("output", lambda g, value: _aten.threshold_backward(g, value, 0)),
    nn.LeakyReLU: Rule("input", lambda g, x, layer: _aten.leaky_relu_backward(g, x, layer.negative_slope, False), True),
    nn.GELU: Rule("input", lambda g, x, layer: _aten.gelu_backward(g, x, approximate=layer.approximate), True),
    nn.Softplus: Rule("input", lambda g, x, layer: _aten.softplus_backward(g, x, layer.beta, layer.threshold), True),
    nn.Tanh: Rule("output", _aten.tanh_backward.default),
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
    modules: list[nn.Module] = [network]
    passed: list[tuple[nn.Module, Rule, Tensor]] = []
    with torch.no_grad():
        while modules:
            layer = modules.pop()
            if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
                return None
            if "forward" in layer.__dict__ or layer.__dict__.get("inplace"):  # `forward` replaced on this one alone
                return None
            if type(layer).forward is nn.Sequential.forward:
                modules.extend(reversed(cast(dict[str, nn.Module], layer._modules).values()))
                continue
            rule = RULES.get(type(layer))
            if rule is None:
                return None
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
                gradient = rule.back(gradient, kept, layer) if rule.of_layer else rule.back(gradient, kept)
        return gradient

    return x, vjp

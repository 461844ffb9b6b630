"""input_gradients: the vector-Jacobian product of a sequence of layers with respect to its input, without autograd.

Chains need gradients with respect to x alone, thousands of times, often of small networks: there autograd takes a sixth
of a step. The operations are those of autograd, so the results are bitwise equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VJP = Callable[[Tensor], Tensor]
"""Maps the gradient with respect to a network's output to that with respect to its input. Call it once."""


class Offering(Protocol):
    """A network that is not a plain sequence and computes its own vector-Jacobian product."""

    def with_vjp(self, x: Tensor) -> tuple[Tensor, VJP] | None: ...


class Rule(NamedTuple):
    """The derivative of a layer.

    `kept` tells what of the forward pass is stored. `back` computes the gradient with respect to the input from
    (gradient with respect to the output, what was stored, and the layer if `of_layer`).
    """

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
"""By exact class: a subclass may compute something else."""


def with_vjp(network: nn.Module, x: Tensor) -> tuple[Tensor, VJP] | None:
    """Return the network's output at x and its vector-Jacobian product; None if a layer is unknown or has hooks.

    For the CPU only: elsewhere steps are compiled or recorded, so that autograd costs nothing.
    """
    if x.device.type != "cpu" or x.ndim < 2 or torch.is_autocast_enabled("cpu"):
        return None
    if hasattr(type(network), "with_vjp"):  # isinstance would take 3 % of a step of a small chain
        return cast(Offering, network).with_vjp(x)
    modules: list[nn.Module] = [network]
    passed: list[tuple[nn.Module, Rule, Tensor]] = []
    with torch.no_grad():
        while modules:
            layer = modules.pop()
            if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
                return None
            if "forward" in layer.__dict__ or layer.__dict__.get("inplace"):  # `forward` replaced on the instance
                return None
            if type(layer).forward is nn.Sequential.forward:
                modules.extend(reversed(cast(dict[str, nn.Module], layer._modules).values()))
                continue
            rule = RULES.get(type(layer))
            if rule is None:
                return None
            if rule.kept == "weight":  # faster than the layer's own forward
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
            while passed:  # frees what was stored at once, so that the next layer reuses cached memory
                layer, rule, kept = passed.pop()
                gradient = rule.back(gradient, kept, layer) if rule.of_layer else rule.back(gradient, kept)
        return gradient

    return x, vjp

"""Gradients without a graph: those of torch's graph to the last bit, and none where a network is not known through."""

import itertools
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import nn

from jointenergy.input_gradients import RULES, with_vjp
from jointenergy.kernels import MALA, Langevin, Target, last
from jointenergy.kernels.base import State, evaluate_x, known_of
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Box, EnergyModel, JointModel, LogitModel, Reals
from jointenergy.networks import MLP
from jointenergy.networks.activations import ACTIVATIONS
from jointenergy.networks.layers import Linear

D = 6
Network = TypeVar("Network", bound=nn.Module)


def rows(n: int = 9, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, *(shape or (D,)), generator=torch.Generator().manual_seed(0), dtype=dtype)


def seeded(make: Callable[[], Network]) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def mlp(n_out: int = 4, activation: str = "silu") -> MLP:
    return seeded(lambda: MLP((D, 8, 7, n_out), activation=activation))


def assert_same_as_graph(network: nn.Module, x: torch.Tensor) -> None:
    offered = with_vjp(network, x)
    assert offered is not None
    value, vjp = offered
    at = x.clone().requires_grad_()
    expected = network(at)
    weight = rows(*expected.shape, dtype=x.dtype)
    (gradient,) = torch.autograd.grad(expected, at, weight)
    found = vjp(weight)
    assert torch.equal(value, expected)
    assert torch.equal(found, gradient)
    assert not value.requires_grad
    assert not found.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_goes_back(name, dtype):
    # Values on both sides of every bend: a derivative of the wrong side is off in half of the entries.
    assert_same_as_graph(mlp(activation=name).to(dtype), 2 * rows(50, dtype=dtype))


def test_every_rule_is_tried():
    tried = {type(make()) for make in ACTIVATIONS.values()} | {nn.Flatten, nn.Linear, Linear}
    assert set(RULES) == tried


def test_sequences_in_sequences_and_images():
    network = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(D, 5), nn.GELU("tanh")), mlp_of(5)))
    assert_same_as_graph(network, rows(4, 2, 3))
    # A linear layer of each of several vectors.
    assert_same_as_graph(seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten())), rows(4, 2, 3))
    assert_same_as_graph(seeded(lambda: nn.Sequential(nn.Linear(D, 4, bias=False), nn.Softplus(2.0, 1.0))), rows())


def mlp_of(n_in: int) -> MLP:
    return MLP((n_in, 6, 3), activation="leaky_relu")


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = 2 * super().forward(x)
        return value


class Skipping(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = x + super().forward(x)
        return value


def hooked(kind: str) -> nn.Module:
    network = mlp()
    if kind == "whole":
        network.register_forward_hook(lambda module, args, value: 2 * value)
    elif kind == "before":
        network[0].register_forward_pre_hook(lambda module, args: (2 * args[0],))
    elif kind == "instead":
        network.forward = lambda x: 2 * nn.Sequential.forward(network, x)  # type: ignore[method-assign]
    elif kind == "after":
        network[1].register_forward_hook(lambda module, args, value: 2 * value)
    else:
        network[1].register_full_backward_hook(lambda module, before, after: None)
    return network


UNKNOWN = {
    "derived layer": lambda: nn.Sequential(Doubled(D, 4)),
    "derived sequence": lambda: Skipping(nn.Linear(D, D)),
    "no rule": lambda: nn.Sequential(nn.Linear(D, 4), nn.Dropout()),
    "in place": lambda: nn.Sequential(nn.Linear(D, 4), nn.ReLU(inplace=True)),
    "two precisions": lambda: nn.Sequential(nn.Linear(D, 4), nn.Linear(4, 4).double()),
    "made weights": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(D, 4))),
    **{f"hook {kind}": lambda kind=kind: hooked(kind) for kind in ("whole", "before", "instead", "after", "backward")},
}


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_left_to_the_graph(make):
    assert with_vjp(make(), rows()) is None


def test_autocast_is_left_to_the_graph():
    with torch.autocast("cpu", torch.bfloat16):
        assert with_vjp(mlp(), rows()) is None


# Models and chains.

ONE, EQUAL, UNEQUAL = LabelSpace({"a": 4}), LabelSpace.binary(["a", "b"]), LabelSpace({"a": 3, "b": 2, "c": 2})
MODELS = {
    "one label": lambda: LogitModel(mlp(4), ONE, domain=Box(-3, 3)),
    "equal labels": lambda: LogitModel(mlp(4), EQUAL),
    "unequal labels": lambda: LogitModel(mlp(7), UNEQUAL),
    "no labels": lambda: EnergyModel(mlp(1)),
    "tempered": lambda: LogitModel(mlp(4), ONE, domain=Box(-3, 3)).tempered(0.5),
    "reference": lambda: LogitModel(mlp(4), ONE, domain=Reals(1.7)),
    "several labels and reference": lambda: LogitModel(mlp(7), UNEQUAL, domain=Reals(0.3, 0.5)),
    "energy and reference": lambda: EnergyModel(mlp(1), domain=Reals(2.1, tuple(0.1 * i for i in range(D)))),
    "energy and covariance": lambda: EnergyModel(mlp(1), domain=correlated()),
}


def correlated() -> Reals:
    rooted = rows(2 * D, dtype=torch.float64)
    return Reals.gaussian(rooted.mean(0), rooted.T @ rooted / D)


each_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def without(monkeypatch, model: JointModel) -> None:
    monkeypatch.setattr(type(model), "with_gradient", lambda self, x, y: None)


@each_model
def test_models_offer_the_gradient_of_their_graph(make, monkeypatch):
    model, x = make(), rows()
    sizes = model.labels.cardinalities
    complete = torch.stack([torch.arange(len(x)) % c for c in sizes], 1) if sizes else torch.zeros(9, 0).long()
    states = [
        State(x, y, torch.zeros(9).long(), known=known_of(y)) for y in (complete, torch.full_like(complete, MISSING))
    ]
    assert model.with_gradient(x, complete) is not None
    found = [evaluate_x(Target(model), s) for s in states]
    without(monkeypatch, model)
    for a, b in zip(found, (evaluate_x(Target(model), s) for s in states), strict=True):
        # Sums over several labels are added in another order.
        torch.testing.assert_close(a.log_density, b.log_density, rtol=1e-6, atol=1e-6)
        assert torch.equal(a.gradient, b.gradient)


@pytest.mark.parametrize("kernel", [Langevin(0.1, 0.2, bounds=(-3.0, 3.0)), MALA(0.1)], ids=["langevin", "mala"])
def test_chains_walk_the_same_path(kernel, monkeypatch):
    model = MODELS["one label"]()
    x = rows().clamp(-3, 3)
    # Some entries are held, and some labels: what is given stays as it is on this way too.
    mask = torch.arange(D) < 2
    for y in (None, torch.zeros(9, 1, dtype=torch.int64)):
        paths = []
        for offered in (True, False):
            with monkeypatch.context() as patch:
                if not offered:
                    without(patch, model)
                target = Target(model, given_x=x, mask=mask)
                state = kernel.init(target, x, y, generator=torch.Generator().manual_seed(1))
                paths.append(last(kernel, target, state, 20).x)
        assert torch.equal(*paths)
        assert torch.equal(paths[0][:, :2], x[:, :2])
        assert not torch.equal(paths[0][:, 2:], x[:, 2:])


def test_no_weight_gets_a_gradient_and_inference_mode_is_no_matter():
    model = MODELS["one label"]()
    with torch.inference_mode():
        x = rows()
        state = Langevin(0.1, 0.2).init(Target(model), x, generator=torch.Generator().manual_seed(1))
        seen = evaluate_x(Target(model), state)
    assert not seen.gradient.is_inference()
    assert all(p.grad is None for p in model.parameters())


class Shifted(LogitModel):
    def label_logits(self, x):
        closed = super().label_logits(x)
        return type(closed)(closed.bias - x.square().sum(1), closed.logits)


class Steeper(EnergyModel):
    def log_density_of_complete(self, x, y):
        return 2 * super().log_density_of_complete(x, y)


OTHERS = {
    "derived logits": lambda: Shifted(mlp(4), ONE),
    "derived energy": lambda: Steeper(mlp(1)),
    "single logits": lambda: LogitModel(mlp(2), EQUAL),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_models_with_more_to_their_density_offer_none(make):
    model = make()
    n = len(model.labels)
    for y in (None, torch.zeros(9, n, dtype=torch.int64)):
        assert model.with_gradient(rows(), y) is None


def test_rules_of_all_sizes():
    for n, hidden in itertools.product((1, 3), (1, 5)):
        assert_same_as_graph(MLP((D, hidden, 1)), rows(n))

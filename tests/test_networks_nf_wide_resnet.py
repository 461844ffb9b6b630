"""The normalizer-free network: its variance at the start, the papers' formulas unfolded, weights fixed for chains."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace
from jointenergy.networks import MLP, NFWideResNet, WideResNet, fixed, nf_wide_resnet
from jointenergy.networks.activations import activation
from jointenergy.networks.nf_wide_resnet import NFWideBlock, ScaledConv2d, activation_scale, standardized
from jointenergy.networks.wide_resnet import GainConv2d
from jointenergy.recipes import schema
from jointenergy.recipes.networks import model_of
from jointenergy.recipes.settings import NFWideResNetNetwork


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def shaken(module: nn.Module) -> nn.Module:
    """With gains and biases that are all different, as after training: at the start many are 0 or 1."""
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim < 2:
                p.add_(torch.randn_like(p), alpha=0.3)
    return module


# The activations' scale.


def test_the_scale_of_piecewise_linear_activations_is_the_closed_form() -> None:
    """E a(z) = (1 - s) / sqrt(2 pi) and E a(z)^2 = (1 + s^2) / 2 for a slope s below 0."""
    for name, slope in (("relu", 0.0), ("leaky_relu", 0.2)):
        variance = (1 + slope**2) / 2 - (1 - slope) ** 2 / (2 * math.pi)
        assert activation_scale(name) == pytest.approx(variance**-0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "published"),
    [("silu", 1.7881), ("elu", 1.2716), ("relu", 1.7140), ("gelu", 1.7015), ("softplus", 1.9203), ("tanh", 1.5939)],
)
def test_the_scale_is_the_published_one(name: str, published: float) -> None:
    """The papers drew theirs at random: right to three digits."""
    assert activation_scale(name) == pytest.approx(published, rel=1e-3)


# Weights.


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_standardized_weights_have_mean_zero_and_the_norm_that_is_asked_for(
    side: int, order: torch.memory_format
) -> None:
    weight = (3 * torch.randn(6, 5, side, side) + 1).to(memory_format=order)
    scale = torch.randn(6)
    found = standardized(weight, scale)
    assert found.is_contiguous(memory_format=order)
    rows = weight.flatten(1)
    centered = rows - rows.mean(1, keepdim=True)
    wanted = scale[:, None] * centered / centered.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found.flatten(1), wanted, rtol=1e-4, atol=1e-5)


def test_weights_in_half_precision_are_standardized_in_float32() -> None:
    weight, scale = torch.randn(6, 5, 3, 3).bfloat16(), torch.ones(6).bfloat16()
    found = standardized(weight, scale)
    assert found.dtype == torch.float32
    assert torch.equal(found, standardized(weight.float(), scale.float()))
    assert standardized(weight.double(), scale.double()).dtype == torch.float64


# The start of training: the variance of h is the expected one.


@torch.no_grad()
def variances(network: NFWideResNet) -> list[float]:
    """The variance of h / beta after the stem and each block, over rows and places, averaged over channels."""
    h = network.stem(torch.randn(16, 3, 32, 32))
    found = [h]
    for block in chain(*network.stages):
        found.append(block(found[-1]))
    return [float(f.var((0, 2, 3)).mean()) for f in found]


def preserved(network: NFWideResNet) -> bool:
    """Zeros around the images take variance, up to a third by the end; the mutants are below .2 or above 3."""
    return all(0.6 < v < 1.1 for v in variances(network))


@pytest.mark.parametrize("alpha", [0.2, 1.0])
@pytest.mark.parametrize("name", ["silu", "relu", "leaky_relu", "tanh"])
def test_the_variance_is_the_expected_one(name: str, alpha: float) -> None:
    network = NFWideResNet(16, 3, activation=name, alpha=alpha)
    assert preserved(network), variances(network)
    # What was expected: 1 after a block that widens, alpha^2 more with each.
    expected = [block.variance for block in chain(*network.stages)]
    assert expected == pytest.approx([1 + alpha**2, 1 + 2 * alpha**2] * 3)


def without_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nf_wide_resnet, "activation_scale", lambda _: 1.0)


def without_fan_in(monkeypatch: pytest.MonkeyPatch) -> None:
    right = standardized
    monkeypatch.setattr(nf_wide_resnet, "standardized", lambda w, s: right(w, s) * math.sqrt(w[0].numel()))


def without_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block takes what enters for standard normal."""

    class Mutant(NFWideBlock):
        def __init__(self, *args: int, **kwargs: float) -> None:
            super().__init__(*args, **kwargs)
            beta, self.kept = math.sqrt(self.variance), 1.0
            for conv in (self.residual[2], self.shortcut):
                if isinstance(conv, ScaledConv2d):
                    conv.out_scale *= beta

    monkeypatch.setattr(nf_wide_resnet, "NFWideBlock", Mutant)


@pytest.mark.parametrize("mutant", [without_scale, without_fan_in, without_beta])
def test_mutants_lose_the_variance(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    for name in ("silu", "tanh"):
        network = NFWideResNet(16, 3, activation=name, alpha=1.0)
        assert not preserved(network), variances(network)


# The papers' formulas, nothing folded.


def convolution(conv: ScaledConv2d, x: Tensor) -> Tensor:
    rows = conv.weight.flatten(1)
    centered = rows - rows.mean(1, keepdim=True)
    fan_in = rows.shape[1]
    scaled = conv.gain[:, None] * centered / (rows.var(1, correction=0, keepdim=True) * fan_in + 1e-4).sqrt()
    return F.conv2d(x, scaled.view_as(conv.weight), conv.bias, stride=conv.stride, padding=conv.padding)


@pytest.mark.parametrize(("n_out", "stride"), [(4, 1), (6, 1), (4, 2)], ids=["same", "wider", "strided"])
def test_block_by_hand(n_out: int, stride: int) -> None:
    """h <- shortcut + alpha gain residual(gamma activation(h / beta)), in which h itself is what is added."""
    alpha, start, entering = 0.7, 0.5, 1.3
    block = NFWideBlock(4, n_out, stride=stride, variance=entering, alpha=alpha, residual_gain=start)
    shaken(block).double()
    h = torch.randn(2, 4, 7, 7, dtype=torch.float64)
    gamma = activation_scale("silu")
    active = gamma * F.silu(h / math.sqrt(entering))
    residual = convolution(block.residual[2], gamma * F.silu(convolution(block.residual[0], active)))
    gain = block.residual[2].residual_gain
    assert isinstance(gain, Tensor)
    assert (block.shortcut is None) == ((n_out, stride) == (4, 1))
    through = h if block.shortcut is None else convolution(block.shortcut, active)
    leaving = (entering if block.shortcut is None else 1.0) + (alpha * start) ** 2
    assert block.variance == pytest.approx(leaving)
    found = block(h / math.sqrt(entering)) * math.sqrt(leaving)
    torch.testing.assert_close(found, through + alpha * gain * residual)


def test_network_by_hand() -> None:
    network, x = NFWideResNet(10, 2, n_classes=3), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    shaken(network).double()
    h = convolution(network.stem, x)
    for block in chain(*network.stages):
        h = block(h)
    pooled = (activation_scale("silu") * F.silu(h)).mean((2, 3))
    torch.testing.assert_close(network(x), pooled @ network.head.weight.T + network.head.bias)


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_gains_learn_and_zero_starts_each_block_as_its_shortcut(start: float) -> None:
    network = NFWideResNet(16, 1, residual_gain=start)
    x = torch.randn(2, 16, 8, 8)
    block = list(chain(*network.stages))[1]
    assert torch.equal(block(x), x) == (start == 0)
    network(torch.randn(4, 3, 8, 8)).square().sum().backward()
    for name, p in network.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        if name.endswith("gain") and (start or name.endswith("residual_gain")):
            assert (p.grad != 0).all(), name
    assert sum(n.endswith("residual_gain") for n, _ in network.named_parameters()) == 6


def test_the_gradient_by_x_is_there_and_finite() -> None:
    network, x = NFWideResNet(16, 2), torch.randn(3, 3, 16, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(network(x).logsumexp(1).sum(), x)
    assert gradient.isfinite().all()
    assert (gradient.flatten(1).norm(dim=1) > 1e-3).all()


def test_channels_last_gives_the_same() -> None:
    network, x = NFWideResNet(10, 2), torch.randn(2, 3, 8, 8)
    wanted = shaken(network)(x)
    turned: Callable[..., nn.Module] = network.to  # torch's types do not know of the order of memory
    turned(memory_format=torch.channels_last)
    found = network.stages(network.stem(x.to(memory_format=torch.channels_last)))
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(network(x.to(memory_format=torch.channels_last)), wanted, rtol=1e-4, atol=1e-5)


# Weights fixed for chains.


@pytest.fixture
def network() -> NFWideResNet:
    network = NFWideResNet(10, 2)
    shaken(network)
    return network


def values(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = network(x)
    return value.detach(), torch.autograd.grad(value.sum(), x)[0]


@pytest.mark.parametrize("how", [lambda n: n.fixed(), fixed, lambda n: fixed(nn.Sequential(n))])
def test_fixed_weights_give_the_very_same(
    network: NFWideResNet, how: Callable[[nn.Module], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 3, 8, 8)
    before, state = values(network, x), copy.deepcopy(network.state_dict())
    with how(network):
        monkeypatch.setattr(nf_wide_resnet, "standardized", None)  # what is fixed needs it no more
        for _ in range(2):
            inside = values(network, x)
            assert torch.equal(inside[0], before[0])
            assert torch.equal(inside[1], before[1])
        network(x).sum().backward()
        reached = [n for n, p in network.named_parameters() if p.grad is not None]
        assert sorted(reached) == ["head.bias", "head.weight"]
        monkeypatch.undo()
    assert all(m.fixed is None for m in network.modules() if isinstance(m, ScaledConv2d))
    assert network.state_dict().keys() == state.keys()
    assert all(torch.equal(t, state[n]) for n, t in network.state_dict().items())
    # Outside, weights count again.
    with torch.no_grad():
        network.stem.gain.mul_(2)
    assert not torch.equal(values(network, x)[0], before[0])


def test_fixed_weights_are_let_go_after_an_error_and_may_be_nested(network: NFWideResNet) -> None:
    with network.fixed():
        outer = network.stem.fixed
        with network.fixed():
            assert network.stem.fixed is not outer
        assert network.stem.fixed is outer
    with pytest.raises(RuntimeError), network.fixed():
        network(torch.randn(2, 5, 8, 8))  # too many channels
    assert network.stem.fixed is None


def test_fixing_what_has_no_such_weights_does_nothing() -> None:
    mlp, x = MLP((3, 4, 2)), torch.randn(2, 3)
    with fixed(mlp):
        mlp(x).sum().backward()
    assert all(p.grad is not None for p in mlp.parameters())


def test_half_precision_by_cast_weights(network: NFWideResNet) -> None:
    """Weights cast for one call, as chains do: standardized in float32, then cast; fixed ones are cast once."""
    x, seen = torch.randn(4, 3, 8, 8), []
    network.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    at_stem: list[torch.dtype] = []
    network.stem.register_forward_hook(lambda _, inputs, value: at_stem.append(value.dtype))
    cast = {name: p.to(torch.bfloat16) for name, p in network.named_parameters()}
    exact = network(x)
    open_ = torch.func.functional_call(network, cast, x.bfloat16())
    with network.fixed(torch.bfloat16, torch.channels_last):
        assert network.stem.fixed is not None
        assert network.stem.fixed[0].dtype == torch.bfloat16
        assert network.stem.fixed[0].is_contiguous(memory_format=torch.channels_last)
        closed = torch.func.functional_call(network, cast, x.bfloat16())
    assert seen == [torch.float32] * 3  # the mean over places is never rounded to half precision
    assert at_stem == [torch.float32, torch.bfloat16, torch.bfloat16]
    for found in (open_, closed):
        assert (found - exact).abs().max() < 0.03 * exact.abs().max()


@pytest.mark.parametrize("make", [NFWideResNet, functools.partial(WideResNet, norm="group")], ids=["nf", "group"])
def test_autocast_keeps_images_in_half_precision(make: Callable[..., NFWideResNet | WideResNet]) -> None:
    """From the first convolution to the last, though statistics and standardization are in float32."""
    network, x, seen = make(10, 1), torch.randn(4, 3, 8, 8), []
    exact = network(x)
    for block in chain(*network.stages):
        block.register_forward_hook(lambda _, inputs, value: seen.append((inputs[0].dtype, value.dtype)))
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        found = network(x)
    assert seen == [(torch.bfloat16, torch.bfloat16)] * 3
    assert (found - exact).abs().max() < 0.03 * exact.abs().max()


# What a trainer does with a network.


def test_copies_and_saved_states(network: NFWideResNet) -> None:
    x = torch.randn(2, 3, 8, 8)
    other = NFWideResNet(10, 2)
    assert not torch.equal(other(x), network(x))
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(x), network(x))
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for p in copied.parameters():
            p.add_(0.1)
    assert torch.equal(other(x), network(x))
    assert not torch.equal(copied(x), network(x))


def test_the_activation_reaches_the_formula() -> None:
    x = torch.randn(2, 3, 8, 8)
    block = NFWideBlock(3, 3, activation="tanh")
    assert isinstance(block.activation, type(activation("tanh")))
    assert block.residual[0].in_scale == pytest.approx(activation_scale("tanh"))
    assert block(x).shape == x.shape


# From a recipe.


def made(network: dict[str, object], event: tuple[int, ...] = (1, 8, 8)) -> nn.Module:
    read = schema.parse({"name": "small", "model": {"network": network}}, "small.toml")
    assert schema.parse(tomllib.loads(schema.write(read)), "again") == read
    x, y = torch.zeros(4, *event), torch.zeros(4, 1, dtype=torch.int64)
    model = model_of(read, TrainingData(x, y, x, y, LabelSpace({"class": 10})), 0)
    return next(m for m in model.modules() if isinstance(m, NFWideResNet | WideResNet))


def test_a_recipe_chooses_the_network_and_all_that_it_takes() -> None:
    table = {"kind": "nf-wide-resnet", "depth": 16, "width": 2, "activation": "gelu", "alpha": 0.5}
    network = made({**table, "residual_gain": 0.25})
    assert isinstance(network, NFWideResNet)
    assert network.stem.weight.shape == (16, 1, 3, 3)
    assert network.head.out_features == 10
    blocks = list(chain(*network.stages))
    assert len(blocks) == 6
    assert blocks[0].variance == pytest.approx(1 + 0.125**2)
    assert float(blocks[0].residual[2].residual_gain.detach()) == 0.25
    assert isinstance(network.activation, nn.GELU)


def test_the_defaults_of_recipe_and_network_are_the_same() -> None:
    parameters = inspect.signature(NFWideResNet).parameters
    settings = NFWideResNetNetwork()
    for name in ("depth", "width", "activation", "alpha", "residual_gain"):
        assert getattr(settings, name) == parameters[name].default


@pytest.mark.parametrize(("norm", "kind"), [("none", nn.Identity), ("group", nn.GroupNorm)])
def test_a_recipe_chooses_the_norm_and_the_gain(norm: str, kind: type[nn.Module]) -> None:
    network = made({"kind": "wide-resnet", "depth": 10, "width": 1, "norm": norm, "residual_gain": 0.2})
    assert isinstance(network, WideResNet)
    assert isinstance(network.norm, kind)
    assert sum(isinstance(m, GainConv2d) for m in network.modules()) == 3


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": {"network": {"kind": "nf-wide-resnet", "norm": "group"}}}, "no key 'model.network.norm'"),
        ({"model": {"network": {"kind": "nf-wide-resnet", "alpha": 0.0}}}, "'model.network.alpha' got 0.0"),
        ({"model": {"network": {"kind": "wide-resnet", "norm": "batch"}}}, "norm = 'none' or 'group'"),
        ({"model": {"network": {"kind": "wide-resnet", "norm": "layer"}}}, "'none', 'group' or 'batch'"),
        ({"optimizer": {"clip_adaptive": 0.0}}, "'optimizer.clip_adaptive' got 0.0"),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        schema.parse({"name": "small", **values}, "small.toml")
    assert "\n" not in str(caught.value)


def test_rows_that_are_no_images_are_refused() -> None:
    with pytest.raises(InputError, match="the nf-wide-resnet needs images, but rows of 'digits' have shape"):
        made({"kind": "nf-wide-resnet"}, (64,))

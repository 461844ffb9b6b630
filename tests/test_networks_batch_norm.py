"""Batch norm with fixed statistics: the folded network equals the network in eval mode, its rows are independent."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import jointenergy as je
from jointenergy import InputError
from jointenergy.networks import ChannelAffine, batch_norm, fold_batch_norm


class PreActivation(nn.Module):
    """A residual block that normalizes first: no convolution stands before its batch norms in a Sequential."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2(self.relu(self.bn2(self.conv1(self.relu(self.bn1(x))))))
        return x + y


class Reversed(nn.Sequential):
    """A Sequential with an order of its own."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(list(self)):
            x = layer(x)
        return x


class Standardized(nn.Conv2d):
    """A convolution that makes its weights of its parameters: to scale these changes nothing."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight / self.weight.square().sum().sqrt()
        return nn.functional.conv2d(x, weight, self.bias)


class Tied(nn.Module):
    """Two layers of one weight, the second held by the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
        self.weight = self.first[0].weight

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(self.first(x), self.weight)


def shared_batch_norm() -> nn.Module:
    bn = nn.BatchNorm2d(3)
    return nn.Sequential(nn.Conv2d(3, 3, 1), bn, nn.Conv2d(3, 3, 1), bn)


def shared_convolution() -> nn.Module:
    conv = nn.Conv2d(3, 3, 1)
    return nn.Sequential(conv, nn.BatchNorm2d(3), conv, nn.BatchNorm2d(3))


def shared_activation() -> nn.Module:
    """The activation before the batch norm stood earlier too: the layer before is it, not the convolution."""
    tanh = nn.Tanh()
    return nn.Sequential(nn.Conv2d(3, 3, 1), tanh, nn.Conv2d(3, 3, 1), tanh, nn.BatchNorm2d(3))


def shared_block() -> nn.Module:
    block = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Tanh())
    return nn.Sequential(block, block)


IMAGES = (6, 3, 5, 5)
CASES = {
    "conv": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), IMAGES),
    "conv without bias": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)), IMAGES),
    "grouped conv": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)), (6, 4, 5, 5)),
    "transposed conv": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)), IMAGES),
    "conv 1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)), (6, 3, 5)),
    "conv 3d": (lambda: nn.Sequential(nn.Conv3d(3, 4, 2), nn.BatchNorm3d(4)), (6, 3, 3, 3, 3)),
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)), (6, 3)),
    "linear of sequences": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), (6, 4, 3)),
    "not affine": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)), IMAGES),
    "large eps": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=0.5)), IMAGES),
    "alone": (lambda: nn.BatchNorm2d(3), IMAGES),
    "first": (lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)), IMAGES),
    "two in a row": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)), IMAGES),
    "pre-activation": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), PreActivation(4), nn.BatchNorm2d(4)), IMAGES),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Sequential(nn.BatchNorm2d(4))), IMAGES),
    "shared batch norm": (shared_batch_norm, IMAGES),
    "shared convolution": (shared_convolution, IMAGES),
    "shared activation": (shared_activation, IMAGES),
    "shared block": (shared_block, IMAGES),
    "tied weight": (Tied, IMAGES),
    "own order": (lambda: Reversed(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)), IMAGES),
    "own convolution": (lambda: nn.Sequential(Standardized(3, 4, 3), nn.BatchNorm2d(4)), IMAGES),
    "weight norm": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4)),
        IMAGES,
    ),
}


def seen(network: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, Tensor]:
    """A network in float64 whose statistics, scales and shifts are none of the defaults, with rows for it."""
    torch.manual_seed(0)
    network = network.double().train()
    for m in network.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.affine:
            nn.init.uniform_(m.weight, 0.5, 2.0)
            nn.init.normal_(m.bias)
    for _ in range(3):
        network(1 + 2 * torch.randn(shape, dtype=torch.float64))
    return network.eval(), torch.randn(shape, dtype=torch.float64)


@torch.no_grad()
def difference(network: nn.Module, x: Tensor) -> float:
    """How far the folded network is from the network in eval mode."""
    return float((fold_batch_norm(network).train()(x) - network.eval()(x)).abs().max())


@pytest.mark.parametrize("case", CASES)
def test_the_folded_network_equals_the_network_in_eval_mode(case):
    """Fails for a shift, scale or eps left out, and for a scale put on weights that serve in other places too."""
    make, shape = CASES[case]
    network, x = seen(make(), shape)
    folded = fold_batch_norm(network)
    assert not batch_norm.has_batch_norm(folded)
    assert difference(network, x) < 1e-12


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_rows_are_independent_in_train_mode(case):
    make, shape = CASES[case]
    network, x = seen(make(), shape)
    folded = fold_batch_norm(network).train()
    assert float((folded(x)[:1] - folded(x[:1])).abs().max()) < 1e-12
    assert float((network.train()(x)[:1] - network.eval()(x)[:1]).abs().max()) > 1e-3


@pytest.mark.parametrize("mutant", ["no eps", "no mean", "bias not scaled", "shift left out"])
def test_mutants_do_not_pass(mutant, monkeypatch):
    network, x = seen(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)), IMAGES)
    affine, scale = batch_norm._affine, batch_norm._scale

    def changed(layer):
        layer.eps = 0.0 if mutant == "no eps" else layer.eps
        if mutant == "no mean":
            layer.running_mean.zero_()
        return affine(layer)

    def wrongly(layer, by):
        before = layer.bias.detach()
        if mutant == "shift left out":
            by.bias.data.zero_()
        scale(layer, by)
        if mutant == "bias not scaled":
            layer.bias.data.copy_(before + by.bias)

    monkeypatch.setattr(batch_norm, "_affine", changed)
    monkeypatch.setattr(batch_norm, "_scale", wrongly)
    assert difference(network, x) > 1e-9


def test_a_convolution_of_a_sequential_takes_the_batch_norm_in():
    """Fails if chains would pay for a layer that could be part of the one before it."""
    network, _ = seen(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)), IMAGES)
    folded = fold_batch_norm(network)
    assert [type(m) for m in folded.children()] == [nn.Conv2d, nn.Identity]


def test_a_shared_batch_norm_stays_shared():
    _, first, _, second = fold_batch_norm(shared_batch_norm())._modules.values()
    assert isinstance(first, ChannelAffine)
    assert first is second


@pytest.mark.parametrize("case", ["conv without bias", "not affine", "pre-activation", "shared convolution"])
def test_gradients_reach_all_weights(case):
    make, shape = CASES[case]
    network, x = seen(make(), shape)
    folded = fold_batch_norm(network)
    folded(x).square().sum().backward()
    for name, p in folded.named_parameters():
        assert p.grad is not None, name
        assert float(p.grad.abs().sum()) > 0, name


def test_frozen_layers_stay_frozen():
    """Fails if folding lets a frozen backbone learn its new biases and scales."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4))
    folded = fold_batch_norm(network.requires_grad_(False))
    assert [n for n, p in folded.named_parameters() if p.requires_grad] == []
    network[1].requires_grad_(True)
    folded = fold_batch_norm(network)
    assert [n for n, p in folded.named_parameters() if p.requires_grad] == ["1.weight", "1.bias"]


def test_the_network_of_the_caller_stays_as_it_is():
    network, _ = seen(CASES["pre-activation"][0](), IMAGES)
    before, kinds = copy.deepcopy(network.state_dict()), [type(m) for m in network.modules()]
    with torch.no_grad():
        for p in fold_batch_norm(network).parameters():
            p.add_(1.0)
    assert [type(m) for m in network.modules()] == kinds
    assert all(torch.equal(t, before[name]) for name, t in network.state_dict().items())


class NormAndActivation(nn.BatchNorm2d):
    """Two layers in one, as some libraries have: the scale and shift alone would lose the activation."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)), "'0' has no running statistics"),
        (nn.Sequential(nn.Linear(2, 3), nn.LazyBatchNorm1d()), "'1' has no channels yet: pass a batch through"),
        (nn.Sequential(NormAndActivation(3)), "'0' is a NormAndActivation, whose forward does more than normalize"),
        ([nn.BatchNorm2d(3)], "takes a torch module, got list"),
    ],
)
def test_what_cannot_be_folded_is_refused_in_a_sentence(network, sentence):
    with pytest.raises(InputError, match=sentence) as refused:
        fold_batch_norm(network)
    assert "\n" not in str(refused.value)


def test_fit_refuses_batch_norm_with_the_remedy_and_starts_from_the_folded_weights():
    """Fails if `fit` draws new weights, so that a trained classifier would be lost."""
    torch.manual_seed(0)
    x, y = torch.rand(40, 4), torch.arange(40) % 3
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 3))
    for _ in range(20):
        network(2 * x - 1)
    settings = {"iterations": 1, "steps": 1, "sampling_steps": 1, "verbose": False}
    with pytest.raises(InputError, match=r"jointenergy\.networks\.fold_batch_norm\(net\)"):
        je.fit(network, (x, y), **settings)
    rate = je.OptimizerSettings(learning_rate=1e-7, ema=0.0)
    run = je.fit(fold_batch_norm(network), (x, y), optimizer=rate, guard=False, **settings)
    expected = network.eval()(x).softmax(1).detach()
    assert float((run.predict_proba(x)["class"] - expected).abs().max()) < 1e-4

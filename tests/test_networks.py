"""Networks against the layers printed in their papers, parameter counts by hand, and what chains ask of a network."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace
from jointenergy.models import Concat, LogitModel, PairModel
from jointenergy.networks import (
    ACTIVATIONS,
    MLP,
    DSpritesFeatures,
    GibbsJemCNN,
    IgebmResNet,
    ImageCNN,
    NFWideResNet,
    WideResNet,
    activation,
    dsprites_head,
)
from jointenergy.networks.group_norm import GroupNorm
from jointenergy.networks.wide_resnet import WideBlock
from jointenergy.recipes.settings import MLPNetwork

# The papers' own words, line breaks as printed (`layers` joins them), the page break in the dSprites CNN taken out.

TOY = """
Sequential(
  (0): Linear(in_features=8, out_features=256, bias=True)
  (1): ELU(alpha=1.0)
  (2): Linear(in_features=256, out_features=256, bias=True)
  (3): ELU(alpha=1.0)
  (4): Linear(in_features=256, out_features=256, bias=True)
  (5): ELU(alpha=1.0)
  (6): Linear(in_features=256, out_features=1, bias=True)
)
"""

MNIST = """
Sequential(
  (0): Linear(in_features=794, out_features=1000, bias=True)
  (1): ELU(alpha=1.0)
  (2): Linear(in_features=1000, out_features=500, bias=True)
  (3): ELU(alpha=1.0)
  (4): Linear(in_features=500, out_features=500, bias=True)
  (5): ELU(alpha=1.0)
  (6): Linear(in_features=500, out_features=250, bias=True)
  (7): ELU(alpha=1.0)
  (8): Linear(in_features=250, out_features=250, bias=True)
  (9): ELU(alpha=1.0)
  (10): Linear(in_features=250, out_features=250, bias=True)
  (11): ELU(alpha=1.0)
  (12): Linear(in_features=250, out_features=1, bias=True)
)
"""

DSPRITES_CNN = """
(cnn): Sequential(
    (0): Conv2d(1, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
    (1): SiLU(inplace=True)
    (2): Conv2d(16, 32, kernel_size=(4, 4), stride=(2, 2), padding=(1, 1))
    (3): SiLU(inplace=True)
    (4): Conv2d(32, 64, kernel_size=(4, 4), stride=(2, 2), padding=(1, 1))
    (5): SiLU(inplace=True)
    (6): Conv2d(64, 128, kernel_size=(4, 4), stride=(2, 2), padding=(1, 1))
    (7): SiLU(inplace=True)
    (8): Conv2d(128, 16, kernel_size=(1, 1), stride=(1, 1))
    (9): Flatten(start_dim=1, end_dim=-1)
)
"""

DSPRITES_MLP = """
(mlp): Sequential(
    (0): Linear(in_features=288, out_features=256, bias=True)
    (1): SiLU(inplace=True)
    (2): Linear(in_features=256, out_features=256, bias=True)
    (3): SiLU(inplace=True)
    (4): Linear(in_features=256, out_features=1, bias=True)
)
"""

GIBBS_JEM_CNN = """
(cnn): Sequential(
  (0): Conv2d(3, 64,
    kernel_size=(3, 3),
    stride=(1, 1),
    padding=(1, 1))
  (1): SiLU(inplace=True)
  (2): Conv2d(64, 128,
    kernel_size=(4, 4),
    stride=(2, 2),
    padding=(1, 1))
  (3): SiLU(inplace=True)
  (4): Conv2d(128, 256,
    kernel_size=(4, 4),
    stride=(2, 2),
    padding=(1, 1))
  (5): SiLU(inplace=True)
  (6): Conv2d(256, 512,
    kernel_size=(4, 4),
    stride=(2, 2),
    padding=(1, 1))
  (7): SiLU(inplace=True)
  (8): Conv2d(512, 512,
    kernel_size=(4, 4),
    stride=(2, 2),
    padding=(1, 1))
  (9): SiLU(inplace=True)
  (10): Conv2d(512, 64,
    kernel_size=(1, 1),
    stride=(1, 1))
  (11): Flatten(start_dim=1,
    end_dim=-1)
)
"""

GIBBS_JEM_MLP = """
(mlp): Sequential(
  (0): Linear(in_features=1024,
    out_features=128,
    bias=True)
  (1): SiLU(inplace=True)
  (2): Linear(in_features=128,
    out_features=128,
    bias=True)
  (3): SiLU(inplace=True)
  (4): Linear(in_features=128,
    out_features=46,
    bias=True)
)
"""


def layers(text: str) -> list[str]:
    """The numbered layers of a printed network, one a line, without `inplace=True`, which ours must not have."""
    flat = " ".join(text.split())
    body = flat[flat.index("(0):") : flat.rindex(")")]
    return [part.strip().replace("inplace=True", "") for part in re.split(r"(?=\(\d+\):)", body) if part.strip()]


def mlp_of(name: str, n_in: int) -> MLP:
    """The MLP that a recipe trains, of x and one-hot labels side by side."""
    network = recipes.load(name).model.network
    assert isinstance(network, MLPNetwork)
    return MLP((n_in, *network.hidden, 1), activation=network.activation)


def test_the_reader_of_printed_layers_sees_every_number() -> None:
    assert layers(TOY)[1] == "(1): ELU(alpha=1.0)"
    assert layers(GIBBS_JEM_CNN)[10] == "(10): Conv2d(512, 64, kernel_size=(1, 1), stride=(1, 1))"
    printed = (TOY, MNIST, DSPRITES_CNN, DSPRITES_MLP, GIBBS_JEM_CNN, GIBBS_JEM_MLP)
    assert [len(layers(text)) for text in printed] == [7, 13, 10, 5, 12, 5]


@pytest.mark.parametrize(
    ("network", "printed"),
    [
        pytest.param(lambda: mlp_of("toy-mixed", 8), TOY, id="toy"),
        pytest.param(lambda: mlp_of("mnist-mixed", 794), MNIST, id="mnist"),
        pytest.param(DSpritesFeatures, DSPRITES_CNN, id="dsprites-cnn"),
        pytest.param(dsprites_head, DSPRITES_MLP, id="dsprites-mlp"),
        pytest.param(lambda: GibbsJemCNN().cnn, GIBBS_JEM_CNN, id="gibbs-jem-cnn"),
        pytest.param(lambda: GibbsJemCNN().mlp, GIBBS_JEM_MLP, id="gibbs-jem-mlp"),
    ],
)
def test_layers_are_as_printed(network: Callable[[], nn.Module], printed: str) -> None:
    with torch.device("meta"):
        ours = repr(network())
    assert "inplace=True" not in ours
    assert layers(ours) == layers(printed)


# Parameter counts, by arithmetic that knows nothing of the code.


def linear(*sizes: int) -> int:
    return sum((a + 1) * b for a, b in pairwise(sizes))


def conv(n_in: int, n_out: int, side: int, bias: bool = True) -> int:
    return n_in * n_out * side**2 + bias * n_out


def wide_resnet(depth: int, k: int, n_classes: int, norm: bool) -> int:
    n, bias = (depth - 4) // 6, not norm
    total = conv(3, 16, 3, bias) + linear(64 * k, n_classes)
    for n_in, n_out in ((16, 16 * k), (16 * k, 32 * k), (32 * k, 64 * k)):
        total += conv(n_in, n_out, 3, bias) + (2 * n - 1) * conv(n_out, n_out, 3, bias)
        # At width 1 the first stage neither widens nor strides: it has no shortcut.
        total += conv(n_in, n_out, 1, bias) if n_in != n_out else 0
        total += norm * 2 * (n_in + (2 * n - 1) * n_out)
    return total + norm * 2 * 64 * k


def nf_wide_resnet(depth: int, k: int, n_classes: int) -> int:
    """The plain network, a gain for each channel of each convolution, and one for each residual branch."""
    n = (depth - 4) // 6
    channels = 16 + 2 * n * (16 + 32 + 64) * k + (16 * (k > 1) + 32 + 64) * k
    return wide_resnet(depth, k, n_classes, False) + channels + 3 * n


GIBBS_JEM_CONVOLUTIONS = (
    conv(3, 64, 3) + conv(64, 128, 4) + conv(128, 256, 4) + conv(256, 512, 4) + conv(512, 512, 4) + conv(512, 64, 1)
)
DSPRITES_CONVOLUTIONS = conv(1, 16, 3) + conv(16, 32, 4) + conv(32, 64, 4) + conv(64, 128, 4) + conv(128, 16, 1)


@pytest.mark.parametrize(
    ("network", "count"),
    [
        pytest.param(lambda: MLP((8, 256, 256, 256, 1)), 134_145, id="toy"),
        pytest.param(DSpritesFeatures, DSPRITES_CONVOLUTIONS, id="dsprites-cnn"),
        pytest.param(dsprites_head, linear(288, 256, 256, 1), id="dsprites-mlp"),
        pytest.param(lambda: dsprites_head(41), linear(256 + 41, 256, 256, 1), id="dsprites-mlp-other"),
        pytest.param(GibbsJemCNN, GIBBS_JEM_CONVOLUTIONS + linear(1024, 128, 128, 46), id="gibbs-jem"),
        pytest.param(lambda: WideResNet(28, 10), wide_resnet(28, 10, 10, False), id="wrn-28-10"),
        # An oracle that is not ours: the count that public implementations (imgclsmob among them) state.
        pytest.param(lambda: WideResNet(28, 10, norm="batch"), 36_479_194, id="wrn-28-10-batch"),
        pytest.param(lambda: WideResNet(16, 4, n_classes=100), wide_resnet(16, 4, 100, False), id="wrn-16-4"),
        pytest.param(lambda: WideResNet(10, 1), wide_resnet(10, 1, 10, False), id="wrn-10-1"),
        pytest.param(lambda: WideResNet(10, 1, norm="batch"), wide_resnet(10, 1, 10, True), id="wrn-10-1-batch"),
        pytest.param(lambda: WideResNet(16, 4, norm="group"), wide_resnet(16, 4, 10, True), id="wrn-16-4-group"),
        pytest.param(lambda: WideResNet(16, 4, residual_gain=0.2), wide_resnet(16, 4, 10, False) + 6, id="wrn-gains"),
        pytest.param(lambda: NFWideResNet(16, 4), nf_wide_resnet(16, 4, 10), id="nf-wrn-16-4"),
        pytest.param(lambda: NFWideResNet(10, 1, n_classes=3), nf_wide_resnet(10, 1, 3), id="nf-wrn-10-1"),
    ],
)
def test_parameter_counts(network: Callable[[], nn.Module], count: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in network().parameters()) == count


def test_counts_by_hand_are_those_of_the_papers() -> None:
    assert linear(8, 256, 256, 256, 1) == 134_145
    assert round((GIBBS_JEM_CONVOLUTIONS + linear(1024, 128, 128, 46)) / 1e6, 1) == 7.1
    assert wide_resnet(28, 10, 10, True) == 36_479_194
    assert round(wide_resnet(28, 10, 10, False) / 1e6, 1) == 36.5


# One table of networks: what chains and densities ask of each.


@dataclass(frozen=True)
class Case:
    make: Callable[[str], nn.Module]
    event: tuple[int, ...]
    n_out: int
    batch_statistics: bool = False


CASES = {
    "mlp": Case(lambda a: MLP((5, 16, 16, 3), activation=a), (5,), 3),
    "linear": Case(lambda a: MLP((5, 3), activation=a), (5,), 3),
    "dsprites-cnn": Case(lambda a: DSpritesFeatures(activation=a), (1, 32, 32), 256),
    "dsprites-mlp": Case(lambda a: dsprites_head(activation=a), (288,), 1),
    "gibbs-jem": Case(lambda a: GibbsJemCNN(activation=a), (3, 64, 64), 46),
    "igebm": Case(lambda a: IgebmResNet("a", width=1 / 16, activation=a), (3, 9, 12), 1),
    "igebm-odd": Case(lambda a: IgebmResNet("d", n_outputs=3, in_channels=1, width=1 / 16, activation=a), (1, 7, 5), 3),
    "image": Case(lambda a: ImageCNN((1, 28, 28), (16,), 3, activation=a), (1, 28, 28), 3),
    "image-odd": Case(lambda a: ImageCNN((2, 3, 9), (), 2, activation=a), (2, 3, 9), 2),
    "wrn": Case(lambda a: WideResNet(10, 1, activation=a), (3, 32, 32), 10),
    "wrn-odd": Case(lambda a: WideResNet(10, 2, n_classes=3, in_channels=1, activation=a), (1, 17, 9), 3),
    "wrn-group": Case(lambda a: WideResNet(10, 1, norm="group", activation=a), (3, 8, 8), 10),
    "wrn-gains": Case(lambda a: WideResNet(10, 1, residual_gain=0.2, activation=a), (3, 8, 8), 10),
    "nf-wrn": Case(lambda a: NFWideResNet(10, 1, activation=a), (3, 8, 8), 10),
    "nf-wrn-odd": Case(lambda a: NFWideResNet(10, 2, n_classes=3, in_channels=1, activation=a), (1, 17, 9), 3),
    "wrn-batch": Case(lambda a: WideResNet(10, 1, norm="batch", activation=a), (3, 8, 8), 10, batch_statistics=True),
}

cases = pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in CASES.items()])


def built(case: Case, name: str = "silu", seed: int = 0) -> tuple[nn.Module, Tensor]:
    """The network and five rows for it, both from one seed, the global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return case.make(name), torch.randn(5, *case.event)


@cases
def test_output_shape_and_untouched_input(case: Case) -> None:
    network, x = built(case)
    before = x.clone()
    assert network.eval()(x).shape == (5, case.n_out)
    assert torch.equal(x, before)


wide = pytest.mark.parametrize(
    "make",
    [WideResNet, functools.partial(WideResNet, norm="group"), NFWideResNet],
    ids=["wrn", "wrn-group", "nf-wrn"],
)


@wide
@pytest.mark.parametrize("size", [(32, 32), (64, 64), (28, 28), (8, 24), (1, 1)])
def test_wide_resnets_take_any_image_size(make: Callable[..., nn.Module], size: tuple[int, int]) -> None:
    assert make(10, 1)(torch.randn(2, 3, *size)).shape == (2, 10)


@wide
def test_wide_resnets_stride_by_four_in_all(make: Callable[..., WideResNet | NFWideResNet]) -> None:
    network = make(16, 2)
    assert network.stages(network.stem(torch.randn(1, 3, 32, 32))).shape == (1, 128, 8, 8)


@pytest.mark.parametrize(("n_out", "stride"), [(4, 1), (6, 1), (4, 2)], ids=["same", "wider", "strided"])
def test_wide_block_by_hand(n_out: int, stride: int) -> None:
    """Activation before each convolution, and the raw input added: as it is, or through a 1 x 1 convolution."""
    block, x = WideBlock(4, n_out, stride=stride, activation="leaky_relu"), torch.randn(2, 4, 7, 7)
    start, value = x, block(x)
    first, second = (m for m in block.residual if isinstance(m, nn.Conv2d))
    h = F.conv2d(F.leaky_relu(x, 0.2), first.weight, first.bias, stride=stride, padding=1)
    h = F.conv2d(F.leaky_relu(h, 0.2), second.weight, second.bias, padding=1)
    through = block.shortcut
    if isinstance(through, nn.Conv2d):
        x = F.conv2d(x, through.weight, through.bias, stride=stride)
    assert isinstance(through, nn.Conv2d) == ((n_out, stride) != (4, 1))
    torch.testing.assert_close(value, h + x)
    # A gain counts the branch, biases and all, and nothing else.
    scaled = WideBlock(4, n_out, stride=stride, activation="leaky_relu", residual_gain=0.2)
    assert not scaled.load_state_dict(block.state_dict(), strict=False).unexpected_keys
    torch.testing.assert_close(scaled(start), 0.2 * h + x)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_group_norm_is_that_of_torch(shift: float, order: torch.memory_format) -> None:
    """Values in float32, gradients in float64, the order of memory; half precision to its own rounding."""
    generator = torch.Generator().manual_seed(0)
    ours, torchs = GroupNorm(3, 48), nn.GroupNorm(3, 48)
    with torch.no_grad():
        ours.weight.normal_(generator=generator)
        ours.bias.normal_(generator=generator)
    torchs.load_state_dict(ours.state_dict())
    x = (torch.randn(4, 48, 6, 5, generator=generator) + shift).to(memory_format=order)
    assert ours(x).is_contiguous(memory_format=order)
    torch.testing.assert_close(ours(x), torchs(x), rtol=1e-5, atol=1e-5)
    v = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    gradients = []
    for norm in (ours.double(), torchs.double()):
        at = x.double().requires_grad_()
        gradients.append(torch.autograd.grad((norm(at) * v).sum(), [at, norm.weight, norm.bias]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        half = ours.bfloat16()(x.bfloat16())
        exact = torchs.bfloat16().float()(x.bfloat16().float())
    assert half.dtype == torch.bfloat16
    # Seven bits and a sign: half a unit of 2^-7 for the factor, the summand (which grows with the mean) and the sum.
    assert float((half - exact).abs().max()) < 3 * 2**-8 * (float(exact.abs().max()) + 5 * shift)


def test_group_norm_has_second_derivatives() -> None:
    norm, x = GroupNorm(2, 4).double(), torch.randn(2, 4, 2, 3, dtype=torch.float64, requires_grad=True)
    torch.nn.init.normal_(norm.weight)
    assert torch.autograd.gradcheck(norm, x)
    assert torch.autograd.gradgradcheck(norm, x)


def test_groups_have_sixteen_channels() -> None:
    norms = [m for m in WideResNet(10, 2, norm="group").modules() if isinstance(m, nn.GroupNorm)]
    assert {m.num_channels // m.num_groups for m in norms} == {16}
    assert len(norms) == 7


def test_residual_gains_learn() -> None:
    network = WideResNet(10, 1, residual_gain=0.2)
    network(torch.randn(2, 3, 8, 8)).square().sum().backward()
    gains = {n: p for n, p in network.named_parameters() if n.endswith("residual_gain")}
    assert len(gains) == 3
    assert all(
        float(p.detach()) == pytest.approx(0.2) and p.grad is not None and float(p.grad) != 0 for p in gains.values()
    )


def largest_effect_of_neighbors(network: nn.Module, x: Tensor) -> float:
    """How much the output of row 0 changes when the rows beside it are others, or none."""
    with torch.no_grad():
        beside, others, few = network(x)[0], network(torch.cat((x[:1], 3 * x[1:] + 1)))[0], network(x[:2])[0]
    return max(float((beside - others).abs().max()), float((beside - few).abs().max()))


@cases
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_rows_are_independent(case: Case, training: bool) -> None:
    network, x = built(case)
    effect = largest_effect_of_neighbors(network.train(training), x)
    if case.batch_statistics and training:
        # Teeth: batch statistics in train mode are what this test is there to find.
        assert effect > 1e-2
    else:
        assert effect < 1e-5


SMOOTH = ("silu", "elu", "gelu", "softplus", "tanh")

CURVED = [
    pytest.param(case, name, id=f"{key}-{name}")
    for key, case in CASES.items()
    for name in SMOOTH
    # A linear map is not curved, and one activation is enough for the largest network.
    if key != "linear" and (name == "silu" or not key.startswith("gibbs-jem"))
]


@pytest.mark.parametrize(("case", "name"), CURVED)
def test_second_derivatives_by_input(case: Case, name: str) -> None:
    """v^T H v by two backward passes, as the KL term takes it, against a second difference of values."""
    network, x = built(case, name)
    network, x = network.double().eval(), x[:1].double()
    generator = torch.Generator().manual_seed(1)
    v = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    weights = torch.randn(case.n_out, generator=generator, dtype=x.dtype)

    def value(at: Tensor) -> Tensor:
        total: Tensor = (network(at) @ weights).sum()
        return total

    start = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(start), start, create_graph=True)
    (product,) = torch.autograd.grad((gradient * v).sum(), start, create_graph=True)
    assert product.isfinite().all()
    curvature = float((product.detach() * v).sum())
    # The KL term goes on to the weights.
    by_weights = torch.autograd.grad(product.square().sum(), list(network.parameters()), allow_unused=True)
    assert any(g is not None and bool((g != 0).any()) for g in by_weights)
    assert all(g is None or bool(g.isfinite().all()) for g in by_weights)
    if name == "elu":
        return  # its second derivative jumps at 0: it exists and is finite, but a difference across the jump is another
    with torch.no_grad():
        h = 1e-4
        second_difference = float((value(x + h * v) - 2 * value(x) + value(x - h * v)) / h**2)
    assert abs(curvature) > 1e-7
    assert second_difference == pytest.approx(curvature, rel=1e-2, abs=1e-5)


# Activations.


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_is_new_and_works_on_a_copy(name: str) -> None:
    module, x = activation(name), torch.linspace(-2, 2, 9)
    before = x.clone()
    assert module is not activation(name)
    assert not getattr(module, "inplace", False)
    assert module(x).shape == x.shape
    assert torch.equal(x, before)


def test_leaky_relu_has_the_slope_of_jem() -> None:
    assert activation("leaky_relu")(torch.tensor([-1.0, 2.0])).tolist() == pytest.approx([-0.2, 2.0])


@cases
def test_silu_is_the_default_and_the_choice_reaches_every_layer(case: Case) -> None:
    def kinds(name: str) -> list[type[nn.Module]]:
        known = tuple(type(activation(n)) for n in ACTIVATIONS)
        with torch.device("meta"):
            return [type(m) for m in case.make(name).modules() if isinstance(m, known)]

    assert set(kinds("silu")) <= {nn.SiLU}
    assert set(kinds("tanh")) <= {nn.Tanh}
    assert len(kinds("tanh")) == len(kinds("silu"))
    assert bool(kinds("tanh")) == (case is not CASES["linear"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: MLP((2, 3, 1)),
        DSpritesFeatures,
        dsprites_head,
        GibbsJemCNN,
        IgebmResNet,
        WideResNet,
        NFWideResNet,
    ],
)
def test_silu_unless_told(make: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        found = {type(m) for m in make().modules()}
    assert found & {type(activation(n)) for n in ACTIVATIONS} == {nn.SiLU}


def test_an_unknown_activation_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no activation called 'leakyrelu': did you mean 'leaky_relu'"):
        activation("leakyrelu")
    with pytest.raises(InputError, match="'swish': the known ones are 'silu', 'elu'"):
        WideResNet(10, 1, activation="swish")


# Bad counts: one sentence each.


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: MLP(()), r"sizes \(in, hidden..., out\), at least two of them, got \(\)"),
        (lambda: MLP((3,)), r"at least two of them, got \(3,\)"),
        (lambda: MLP(7), "at least two of them, got 7"),
        (lambda: MLP((3, 0, 1)), "size 1 of an MLP must be an integer of at least 1, got 0"),
        (lambda: MLP((3, 2.5, 1)), "size 1 of an MLP must be an integer of at least 1, got 2.5"),
        (lambda: MLP((True, 1)), "size 0 of an MLP must be an integer of at least 1, got True"),
        (lambda: MLP((3, -1)), "size 1 of an MLP"),
        (lambda: dsprites_head(-1), "n_codes must be an integer of at least 0, got -1"),
        (lambda: GibbsJemCNN(0), "n_outputs must be an integer of at least 1, got 0"),
        (lambda: WideResNet(27, 10), r"depth of a WideResNet must be 6n \+ 4 \(10, 16, 22, 28, ...\), got 27"),
        (lambda: WideResNet(4, 10), r"must be 6n \+ 4 .* got 4"),
        (lambda: WideResNet(-2, 10), r"must be 6n \+ 4 .* got -2"),
        (lambda: WideResNet(10, 0), "width of a WideResNet must be an integer of at least 1, got 0"),
        (lambda: WideResNet(10, 1, n_classes=0), "n_classes must be an integer of at least 1, got 0"),
        (lambda: WideResNet(10, 1, in_channels=0), "in_channels must be an integer of at least 1, got 0"),
        (lambda: WideResNet(10, 1, norm="layer"), "norm must be None, 'group' or 'batch', got 'layer'"),
        (lambda: WideResNet(10, 1, residual_gain=-1.0), "needs a finite zero or positive residual_gain, got -1.0"),
        (lambda: NFWideResNet(27, 10), r"depth of an NFWideResNet must be 6n \+ 4 \(10, 16, 22, 28, ...\), got 27"),
        (lambda: NFWideResNet(10, 0), "width of an NFWideResNet must be an integer of at least 1, got 0"),
        (lambda: NFWideResNet(10, 1, n_classes=0), "n_classes must be an integer of at least 1, got 0"),
        (lambda: NFWideResNet(10, 1, in_channels=0), "in_channels must be an integer of at least 1, got 0"),
        (lambda: NFWideResNet(10, 1, alpha=0.0), "NFWideResNet needs a finite positive alpha, got 0.0"),
        (lambda: NFWideResNet(10, 1, residual_gain=-1.0), "finite zero or positive residual_gain, got -1.0"),
    ],
)
def test_bad_counts_are_refused_in_one_sentence(make: Callable[[], nn.Module], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        make()
    assert "\n" not in str(caught.value)


# Their places in a model.


def test_a_slice_of_an_mlp_is_a_plain_sequence_of_the_same_layers() -> None:
    network = MLP((5, 16, 3))
    cut = network[:-1]
    assert type(cut) is nn.Sequential
    assert cut[0] is network[0]
    assert cut(torch.randn(2, 5)).shape == (2, 16)


def test_networks_fit_the_model_families() -> None:
    labels = LabelSpace.binary(["a", "b", "c"])
    mnist = PairModel(Concat(MLP((794, 16, 1))), LabelSpace({"digit": 10}))
    assert mnist.log_density(torch.randn(2, 1, 28, 28), torch.tensor([3, -1])).shape == (2,)
    coordinates = LabelSpace({"horizontal": 16, "vertical": 16})
    dsprites = PairModel(Concat(dsprites_head(coordinates.n_codes)), coordinates, features=DSpritesFeatures())
    assert dsprites.log_density(torch.randn(2, 1, 32, 32)).shape == (2,)
    shoes = LogitModel(GibbsJemCNN(2 * len(labels)), labels)
    assert shoes.log_density(torch.randn(2, 3, 64, 64)).shape == (2,)
    jem = LogitModel(WideResNet(10, 1, activation="leaky_relu"), LabelSpace({"class": 10}))
    assert jem.log_density(torch.randn(2, 3, 32, 32)).shape == (2,)

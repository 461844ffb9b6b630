"""IGEBM's residual networks against the paper's figure 12, their spectral norms, and what codes of labels do."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy import inference
from jointenergy.errors import InputError
from jointenergy.kernels import Langevin
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Box, EnergyModel, PairModel
from jointenergy.networks import IgebmResNet, fixed
from jointenergy.networks.accelerated import Accelerated
from jointenergy.networks.igebm_resnet import IgebmBlock
from jointenergy.networks.spectral import SpectralBound, SpectralConv2d, SpectralLinear, refresh
from jointenergy.starts import UniformStart

# Figure 12, line by line.
FIGURE = {
    "a": """3x3 conv2d, 128
ResBlock down 128
ResBlock 128
ResBlock down 256
ResBlock 256
ResBlock down 256
ResBlock 256""",
    "b": """3x3 conv2d, 128
ResBlock down 128
ResBlock 128
ResBlock 128
ResBlock down 256
ResBlock 256
ResBlock 256
ResBlock down 256
ResBlock 256
ResBlock 256""",
    "c": """3x3 conv2d, 128
ResBlock down 256
ResBlock 256
ResBlock down 512
ResBlock 512
ResBlock down 1024
ResBlock 1024""",
    "d": """3x3 conv2d, 64
ResBlock down 64
ResBlock down 128
ResBlock down 256
ResBlock down 512
ResBlock down 1024
ResBlock 1024""",
}


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def small(plan: str = "a", **options: int) -> IgebmResNet:
    network = seeded(lambda: IgebmResNet(plan, width=1 / 16, in_channels=1, **options))
    assert isinstance(network, IgebmResNet)
    return network


def rows(n: int = 5, seed: int = 1) -> Tensor:
    return torch.rand(n, 1, 9, 9, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("plan", FIGURE)
def test_layers_are_those_of_the_figure(plan: str) -> None:
    with torch.device("meta"):
        network = IgebmResNet(plan)
    lines = [f"3x3 conv2d, {network.stem.weight.shape[0]}"]
    for block in network.blocks:
        assert isinstance(block, IgebmBlock)
        lines.append(f"ResBlock {'down ' if block.down else ''}{block.second.convolution.weight.shape[0]}")
    assert lines == FIGURE[plan].splitlines()
    assert network.head.weight.shape == (1, int(FIGURE[plan].rpartition(" ")[2]))


def count(plan: str, n_codes: int) -> int:
    """By arithmetic on the figure's words: two convolutions with biases and a multiplier, a shortcut that widens."""
    words = FIGURE[plan].splitlines()
    n = int(words[0].split()[-1])
    total = 3 * n * 9 + n + 1
    for line in words[1:]:
        n_out = int(line.split()[-1])
        total += 9 * (n * n_out + n_out**2) + 2 * n_out + 2 + 2 * 2 * n_codes * n_out
        total += (n * n_out + n_out + 1) if n != n_out else 0
        n = n_out
    return total + n + 1


@pytest.mark.parametrize("plan", FIGURE)
@pytest.mark.parametrize("n_codes", [0, 10])
def test_parameters_by_arithmetic(plan: str, n_codes: int) -> None:
    with torch.device("meta"):
        found = sum(p.numel() for p in IgebmResNet(plan, n_codes=n_codes).parameters())
    assert found == count(plan, n_codes)


def test_the_paper_says_five_million() -> None:
    assert round(count("a", 10) / 1e6) == 5


def matrices(network: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Weights as they are used and as they are stored, seen as matrices."""
    parts = [m for m in network.modules() if isinstance(m, SpectralConv2d | SpectralLinear)]
    return [(m.bound(m.weight).detach().flatten(1), m.weight.detach().flatten(1)) for m in parts]


def test_spectral_norms_are_at_most_one_and_small_weights_stay_small() -> None:
    network = small()
    with torch.no_grad():
        for i, part in enumerate(m for m in network.modules() if isinstance(m, SpectralConv2d | SpectralLinear)):
            part.weight.mul_(10.0 ** (i % 4 - 1))
    for _ in range(100):
        refresh(network)
    sizes = []
    for used, stored in matrices(network):
        norm = float(torch.linalg.matrix_norm(stored, 2))
        sizes.append(norm)
        assert float(torch.linalg.matrix_norm(used, 2)) == pytest.approx(min(norm, 1.0), rel=1e-3)
    assert min(sizes) < 1e-8  # what began at zero
    assert max(sizes) > 10


def test_a_pass_changes_nothing_and_refreshing_follows_the_weights() -> None:
    """Teeth: a power iteration in each pass, as torch's own has in train mode, would change the function."""
    network = small().train()
    x = rows().requires_grad_()
    before = copy.deepcopy(network.state_dict())
    first = network(x)
    first.sum().backward()
    assert torch.equal(network(x), first)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), network.state_dict().values(), strict=True))
    with torch.random.fork_rng():
        torch.manual_seed(0)  # its power iteration may have converged to the last bit
        theirs = nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 8, 3))
    theirs.get_buffer("parametrizations.weight.0._u").copy_(nn.functional.normalize(torch.arange(1.0, 9.0), dim=0))
    assert not torch.equal(theirs(x), theirs(x))
    bound = SpectralBound(torch.eye(6))
    other = torch.randn(6, 6, generator=torch.Generator().manual_seed(3)) * 5
    for _ in range(300):
        bound.refresh(other)
    assert float(torch.linalg.matrix_norm(bound(other), 2)) == pytest.approx(1.0, rel=1e-4)


def test_weights_of_zero_and_of_no_number_leave_the_bound_as_it_was() -> None:
    bound = SpectralBound(torch.eye(4))
    before = bound.u.clone(), bound.v.clone()
    for bad in (torch.zeros(4, 4), torch.full((4, 4), torch.nan)):
        bound.refresh(bad)
        assert torch.equal(bound.u, before[0])
        assert torch.equal(bound.v, before[1])
    assert bound(torch.zeros(4, 4)).abs().sum() == 0


def test_gradients_go_through_the_bound() -> None:
    """d (W / s) for the true s has no part along W itself: a longer W is the same function."""
    weight = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    bound = SpectralBound(weight).double()
    for _ in range(2000):
        bound.refresh(weight)
    weight.requires_grad_()
    direction = torch.randn(5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((bound(weight) * direction).sum(), weight)
    assert float((gradient * weight.detach()).sum()) == pytest.approx(0.0, abs=1e-9)
    assert float(gradient.norm()) > 0.01


def test_a_block_by_hand() -> None:
    """Activation, convolution, gain and bias by class, twice; the raw input added; the mean of each four places."""
    block = seeded(lambda: IgebmBlock(4, 6, down=True, n_codes=3, activation="leaky_relu"))
    assert isinstance(block, IgebmBlock)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in block.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    x, code = torch.randn(2, 4, 6, 6, generator=generator), torch.eye(3)[[2, 0]]
    h = x
    for layer in (block.first, block.second):
        assert layer.by_code is not None
        gain, bias = (code @ layer.by_code.weight.T)[:, :, None, None].chunk(2, dim=1)
        weight, plain = layer.convolution.folded()
        h = F.conv2d(F.leaky_relu(h, 0.2), weight, plain, padding=1) * (1 + gain) + bias
    assert isinstance(block.shortcut, SpectralConv2d)
    weight, plain = block.shortcut.folded()
    whole = F.conv2d(x, weight, plain) + h
    wanted = whole.view(2, 6, 3, 2, 3, 2).mean((3, 5))
    torch.testing.assert_close(block(x, code), wanted)


def test_blocks_begin_as_their_shortcuts() -> None:
    network = small()
    h = network.stem(rows())
    for block in network.blocks:
        assert isinstance(block, IgebmBlock)
        through = block.shortcut(h)
        wanted = F.avg_pool2d(through, 2, ceil_mode=True) if block.down else through
        h = block(h, None)
        torch.testing.assert_close(h, wanted, atol=1e-6, rtol=0)


def test_places_are_summed_and_not_averaged() -> None:
    """Where nothing reaches from one place to another, four images side by side have four times the value."""
    network = small()
    with torch.no_grad():
        network.head.bias.zero_()
        for part in network.modules():
            if isinstance(part, SpectralConv2d) and part.weight.shape[-1] == 3:
                part.weight[:, :, [0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 2, 0, 2, 0, 1, 2]] = 0.0
    x = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(x.repeat(1, 1, 2, 2)), 4 * network(x))


def trained_a_little(network: IgebmResNet) -> IgebmResNet:
    """Every parameter moved, so that codes and second convolutions matter."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.1)
    for _ in range(50):
        refresh(network)
    return network


def test_codes_are_real_valued_and_agree_with_labels_at_the_corners() -> None:
    labels = LabelSpace({"digit": 4, "bold": 2})
    network = trained_a_little(small(n_codes=labels.n_codes)).double()
    model = PairModel(network, labels, features=nn.Identity(), event_shape=(1, 9, 9))
    x = rows().double()
    y = torch.tensor([[0, 1], [3, 0], [2, 1], [1, 1], [0, 0]])
    code = labels.code_of(y, x.dtype)
    torch.testing.assert_close(model.log_density(x, y), model.log_density_of_codes(x, code))
    between = torch.full_like(code, 0.5).requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_density_of_codes(x, between).sum(), between)
    assert bool((gradient != 0).all())
    by_hand = torch.stack([model.log_density(x, s.expand(5, 2)) for s in labels.enumerate()]).logsumexp(0)
    torch.testing.assert_close(model.log_density(x, torch.full_like(y, MISSING)), by_hand)


def test_fixed_and_accelerated_are_the_same_function() -> None:
    network, x = trained_a_little(small()), rows()
    wanted = network(x)
    with fixed(network):
        torch.testing.assert_close(network(x), wanted)
    fast = Accelerated(network, torch.bfloat16)
    with fast.hold():
        found = fast(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)
    model = EnergyModel(network, event_shape=(1, 9, 9))
    assert model.log_density(x).shape == (5,)


def test_wrong_words_are_one_sentence() -> None:
    with pytest.raises(InputError, match="no network 'e' in the IGEBM paper"):
        IgebmResNet("e")
    with pytest.raises(InputError, match="n_codes must be an integer of at least 0, got -1"):
        IgebmResNet(n_codes=-1)
    with pytest.raises(InputError, match="needs a finite positive width, got 0"):
        IgebmResNet(width=0)
    with pytest.raises(InputError, match="takes x and a label code of 3 entries"):
        small(n_codes=3)(rows())
    with pytest.raises(InputError, match="takes no label code"):
        small()(rows(), torch.zeros(5, 3))


def test_chains_of_a_task_make_their_weights_once(monkeypatch):
    """However many steps: what a step costs is the pass alone."""
    model = EnergyModel(IgebmResNet("a", in_channels=1, width=1 / 64), domain=Box(0, 1), event_shape=(1, 8, 8))
    made = []
    folded = SpectralConv2d.folded

    def counted(self):
        made.append(self)
        return folded(self)

    monkeypatch.setattr(SpectralConv2d, "folded", counted)
    drawn, counts = [], []
    for steps in (2, 6):
        made.clear()
        start = UniformStart(0.0, 1.0, (1, 8, 8))
        generator = torch.Generator().manual_seed(0)
        kernel = Langevin(1.0, 0.1)
        drawn.append(inference.sample(model, 3, x_kernel=kernel, steps=steps, start=start, generator=generator).x)
        counts.append(len(made))
    assert counts[0] == counts[1]
    assert not torch.equal(*drawn)
    assert all(m.fixed is None for m in model.modules() if isinstance(m, SpectralConv2d))


def test_inference_samples_folded_networks_in_inference_mode():
    model = EnergyModel(IgebmResNet("a", in_channels=1, width=1 / 64), domain=Box(0, 1), event_shape=(1, 8, 8))
    begin, kernel = UniformStart(0.0, 1.0, (1, 8, 8)), Langevin(1.0, 0.1)
    drawn = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            generator = torch.Generator().manual_seed(0)
            drawn.append(
                inference.sample(model, 3, x_kernel=kernel, steps=2, start=begin, generator=generator).x.clone()
            )
    assert torch.equal(*drawn)


def test_holds_that_overlap_leave_nothing_fixed():
    """As two threads may: the first ends while the second is still open."""
    network = IgebmResNet("a", in_channels=1, width=1 / 64)
    convolutions = [m for m in network.modules() if isinstance(m, SpectralConv2d)]
    first, second = fixed(network), fixed(network)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert all(c.fixed is None for c in convolutions)

"""One table of models and one of kernels: every test that must hold for all of them reads it here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from jointenergy.kernels import (
    HMC,
    MALA,
    BlockGibbs,
    Cycle,
    DiagonalMetric,
    DiscreteMALA,
    ExactGibbs,
    GibbsWithGradients,
    GroupGibbs,
    Kernel,
    LabelJump,
    Langevin,
    MixedHMC,
    PathAuxiliary,
    PolynomialDecay,
    PreconditionedMALA,
    Preconditioner,
    SingleSiteGibbs,
    UnderdampedLangevin,
)
from jointenergy.labels import LabelSpace
from jointenergy.models import (
    Box,
    Concat,
    ConditionalModel,
    EnergyModel,
    InnerProduct,
    JointModel,
    LogitModel,
    PairModel,
    Product,
    Reals,
    TiltedGaussianModel,
)
from jointenergy.networks import MLP, WideResNet

D = 3
MIXED = LabelSpace({"color": ["red", "green", "blue"], "round": 2, "size": 2})
BINARY = LabelSpace.binary(["a", "b", "c"])


class Heads(nn.Module):
    """A classifier with a head per label, as a mapping or a tuple."""

    def __init__(self, labels: LabelSpace, mapping: bool) -> None:
        super().__init__()
        self.body = nn.Linear(D, 8)
        self.heads = nn.ModuleList(nn.Linear(8, c) for c in labels.cardinalities)
        self.names, self.mapping = labels.names, mapping

    def forward(self, x: Tensor) -> dict[str, Tensor] | tuple[Tensor, ...]:
        outputs = tuple(head(torch.tanh(self.body(x))) for head in self.heads)
        return dict(zip(self.names, outputs, strict=True)) if self.mapping else outputs


class DeepSetHead(nn.Module):
    """y as a set: the value does not change when the (equal) label variables are permuted."""

    def __init__(self, n_labels: int, cardinality: int, n_features: int) -> None:
        super().__init__()
        self.shape = (n_labels, cardinality)
        self.each, self.whole = MLP((cardinality, 8, 8)), MLP((8 + n_features, 16, 1))

    def forward(self, features: Tensor, code: Tensor) -> Tensor:
        pooled = self.each(code.unflatten(1, self.shape)).sum(1)
        value: Tensor = self.whole(torch.cat((pooled, features), dim=1))
        return value


class GraphHead(nn.Module):
    """y on the nodes of a graph: a Potts coupling along each edge and a field at each node that depends on x."""

    def __init__(self, edges: list[tuple[int, int]], n_nodes: int, cardinality: int, n_features: int) -> None:
        super().__init__()
        self.shape, self.edges = (n_nodes, cardinality), edges
        self.coupling = nn.Parameter(torch.randn(len(edges)))
        self.field = nn.Linear(n_features, n_nodes * cardinality)

    def forward(self, features: Tensor, code: Tensor) -> Tensor:
        nodes = code.unflatten(1, self.shape)
        first, second = (nodes[:, [e[i] for e in self.edges]] for i in (0, 1))
        pairs = ((first * second).sum(2) * self.coupling).sum(1)
        value: Tensor = pairs + (self.field(features) * code).sum(1)
        return value


class MaskHead(nn.Module):
    """y is a 28 x 28 binary mask: a convolution over it against features of x, 784 label variables."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Linear(8, 1)

    def forward(self, features: Tensor, code: Tensor) -> Tensor:
        on = code.unflatten(1, (28, 28, 2)).permute(0, 3, 1, 2)
        planes = torch.cat((on, features.unflatten(1, (1, 28, 28))), dim=1)
        value: Tensor = self.last(torch.tanh(self.conv(planes)).mean((2, 3)))
        return value * 3000.0  # strong enough that a pixel matters among 784


class ByLabel(nn.Module):
    """A class-conditional energy in the manner of IGEBM: label indices choose an embedding."""

    def __init__(self, labels: LabelSpace) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(c, 8) for c in labels.cardinalities)
        self.body, self.last = nn.Linear(D, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        gain = sum(e(y[:, k]) for k, e in enumerate(self.embeddings))
        value: Tensor = self.last(torch.tanh(self.body(x) * gain))
        return value


def logit(labels: LabelSpace = MIXED, **kwargs: object) -> LogitModel:
    return LogitModel(MLP((D, 16, labels.n_codes)), labels, event_shape=(D,), **kwargs)


def pair(labels: LabelSpace = MIXED, **kwargs: object) -> PairModel:
    head = Concat(MLP((D + labels.n_codes, 16, 16, 1)))
    return PairModel(head, labels, event_shape=(D,), **kwargs)


def conditional(**kwargs: object) -> ConditionalModel:
    return ConditionalModel(ByLabel(MIXED), MIXED, event_shape=(D,), **kwargs)


def tilted(labels: LabelSpace = MIXED, n_targets: int = 1, trust: float = 1.0) -> TiltedGaussianModel:
    n_outputs = max(sum(labels.cardinalities[:n_targets]), 1)
    n_in = D + sum(labels.cardinalities[n_targets:])
    return TiltedGaussianModel(
        MLP((n_in, 16, n_outputs)),
        labels,
        n_targets=n_targets,
        center=torch.randn(D),
        whitening=torch.eye(D) + 0.3 * torch.randn(D, D),
        slope=torch.randn(n_outputs, n_in),
        offset=torch.randn(n_outputs),
        event_shape=(D,),
        trust=trust,
    )


MODELS: dict[str, Callable[[], JointModel]] = {
    "logits": logit,
    "logits, one class": lambda: logit(LabelSpace({"class": 5})),
    "logits, mapping of heads": lambda: LogitModel(Heads(MIXED, True), MIXED),
    "logits, tuple of heads": lambda: LogitModel(Heads(MIXED, False), MIXED),
    "logits, [n, L, K]": lambda: LogitModel(nn.Sequential(nn.Linear(D, 6), nn.Unflatten(1, (3, 2))), BINARY),
    "logits, one per attribute": lambda: LogitModel(nn.Linear(D, 3), BINARY),
    "logits, symmetric": lambda: LogitModel(nn.Linear(D, 3), BINARY, single_logit="symmetric"),
    "logits, wide resnet": lambda: LogitModel(
        nn.Sequential(nn.Unflatten(1, (3, 1, 1)), WideResNet(10, 1, n_classes=4)), LabelSpace({"class": 4})
    ),
    "pair": pair,
    "pair, bilinear": lambda: PairModel(InnerProduct(MLP((7, 8, 4))), MIXED, features=nn.Linear(D, 4)),
    "pair, deep set": lambda: PairModel(DeepSetHead(4, 3, D), LabelSpace({f"item{i}": 3 for i in range(4)})),
    "pair, graph": lambda: PairModel(
        GraphHead([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], 4, 3, D), LabelSpace({f"node{i}": 3 for i in range(4)})
    ),
    "pair, reference": lambda: pair(domain=Reals(scale=1.5, mean=0.3)),
    "tilted": lambda: tilted(LabelSpace({"class": 5})),
    "tilted, several targets": lambda: tilted(n_targets=3),
    "tilted, mixed": tilted,
    "tilted, trusted by half": lambda: tilted(LabelSpace({"class": 5}), trust=0.5),
    "tilted, mixed, trusted by half": lambda: tilted(trust=0.5),
    "tilted, no target": lambda: tilted(n_targets=0),
    "tilted, unlabeled": lambda: tilted(LabelSpace.none(), 0),
    "conditional, offsets": lambda: conditional().with_offsets(torch.randn(3, 2, 2)),
    "conditional, equal constants": lambda: conditional().with_offsets(assume_equal_constants=True),
    "unconditional": lambda: EnergyModel(MLP((D, 16, 1)), event_shape=(D,), domain=Box(-5.0, 5.0)),
    "product, closed": lambda: Product(
        [logit(domain=Reals(2.0)), logit(MIXED.subspace(["size", "color"])), EnergyModel(nn.Linear(D, 1))]
    ),
    "product, shared labels": lambda: Product(
        [pair(), logit(LabelSpace({"size": 2, "weight": 3})), pair(MIXED.subspace(["size"]))]
    ),
    "product, blocks": lambda: Product([pair(), EnergyModel(nn.Linear(D, 1)), logit(LabelSpace({"weight": 3}))]),
    "product, without codes": lambda: Product([conditional().with_offsets(assume_equal_constants=True), logit()]),
    "tempered pair": lambda: pair(domain=Reals(1.0)).tempered(2.5),
    "tempered product": lambda: Product([logit(), pair()]).tempered(0.5),
}


def make(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> JointModel:
    """A model of the table with seeded weights; the global random state is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MODELS[name]().to(dtype)


def mask_model(dtype: torch.dtype = torch.float64) -> PairModel:
    """The pair model whose y has 784 variables: beyond all enumeration."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        labels = LabelSpace.binary([f"pixel{i}" for i in range(784)])
        return PairModel(MaskHead(), labels, event_shape=(1, 28, 28)).to(dtype)


# The precision of features that depend strongly on each other.
METRIC = Preconditioner(torch.tensor([[4.0, -1.5, 0.3], [-1.5, 2.0, 0.5], [0.3, 0.5, 1.0]]))
SCALES = DiagonalMetric(torch.tensor([0.5, 1.0, 2.0]))
X_KERNELS: dict[str, Kernel] = {
    "langevin": Langevin(0.05, 0.1),
    "langevin, clamps": Langevin(0.5, 0.01, gradient_clamp=0.1, bounds=(-1.0, 1.0)),
    "langevin, decay": Langevin(0.05, 0.2, schedule=PolynomialDecay(0.7, 10.0)),
    "langevin, no noise": Langevin(0.05, 0.0),
    "mala": MALA(0.1),
    "mala, clamp, warm": MALA(0.3, temperature=2.0, gradient_clamp=0.5),
    "mala, scales": MALA(0.1, metric=SCALES),
    "hmc": HMC(0.2, 4),
    "hmc, scales, warm": HMC(0.2, 3, temperature=2.0, jitter=False, walls="reject", metric=SCALES),
    "underdamped langevin": UnderdampedLangevin(0.2, temperature=1.5),
    "mala, preconditioned": PreconditionedMALA(0.1, METRIC, temperature=1.5),
}
Y_KERNELS: dict[str, Kernel] = {
    "exact gibbs": ExactGibbs(),
    "single-site gibbs": SingleSiteGibbs(),
    "gibbs with gradients": GibbsWithGradients(),
    "gibbs with gradients, barker": GibbsWithGradients("barker"),
    "gibbs with gradients, min": GibbsWithGradients("min"),
    "gibbs with gradients, max": GibbsWithGradients("max"),
    "discrete mala": DiscreteMALA(2.0),
    "path auxiliary": PathAuxiliary(2),
    "group gibbs": GroupGibbs(),
}
JOINT_KERNELS: dict[str, Kernel] = {
    "langevin within gibbs": BlockGibbs(ExactGibbs(), Langevin(0.05, 0.1), x_steps=2),
    "metropolis within gibbs": BlockGibbs(GibbsWithGradients(), Langevin(0.05, 0.1)),
    "hmc within gibbs": BlockGibbs(ExactGibbs(), HMC(0.2, 3)),
    "underdamped within gibbs": BlockGibbs(ExactGibbs(), UnderdampedLangevin(0.2), x_steps=2),
    "label jump": LabelJump(0.1),
    "label jump, three steps": LabelJump(0.1, 3, temperature=1.5),
    "mixed hmc": MixedHMC(0.2, visits=2, leapfrog_steps=2),
    "mixed hmc, scales, warm": MixedHMC(0.2, 4, 1, temperature=2.0, walls="reject", metric=SCALES),
    "cycle": Cycle((BlockGibbs(ExactGibbs(), MALA(0.1)), LabelJump(0.1, 2))),
    "mala within gibbs": BlockGibbs(SingleSiteGibbs(), MALA(0.1), x_steps=3),
}
KERNELS: dict[str, Kernel] = {**X_KERNELS, **Y_KERNELS, **JOINT_KERNELS}


def needs_codes(kernel: Kernel) -> bool:
    """Whether the kernel, or the part of it that moves labels, goes by the gradient by codes."""
    return isinstance(getattr(kernel, "y_kernel", kernel), GibbsWithGradients | DiscreteMALA | PathAuxiliary)

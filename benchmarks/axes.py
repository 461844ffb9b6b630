"""benchmarks: the axes of `growth`: one recipe for images and two for labels, of which one number varies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from jointenergy.data.training import TrainingData
from jointenergy.labels import LabelSpace
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.schema import Recipe, parse
from jointenergy.training.distributed import World
from jointenergy.training.trainer import Trainer

HELD, FEATURES, CLASSES, BUFFER = 64, 64, 10, 2048
LABELS = (4, 8, 16, 32, 64, 128, 256, 512, 784)


@dataclass(frozen=True)
class Plan:
    """Hold the sizes along each axis, the fixed values of the others, and the length of a measurement."""

    sizes: Mapping[str, tuple[int, ...]]
    network: tuple[int, int] = (10, 1)  # depth and width of the wide residual network
    batch: int = 32
    side: int = 16
    steps: int = 5
    n_rows: int = 2000
    hidden: int = 128  # twice, in the networks of the label axes
    label_batch: int = 64
    label_steps: int = 10
    block_seconds: float = 0.1
    repeats: int = 11
    engine: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def says(self) -> str:
        """Describe the fixed values."""
        depth, width = self.network
        return (
            f"Images: JEM, WideResNet-{depth}-{width}, 3 x {self.side} x {self.side}, batch {self.batch}, "
            f"{self.steps} chain steps, {self.n_rows:,} rows. Labels: MLP {FEATURES}-{self.hidden}-{self.hidden}, "
            f"batch {self.label_batch}, {self.label_steps} chain steps."
        )


ROWS = (1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
CPU = Plan(
    {
        "batch": (16, 32, 64, 96, 128, 192, 256, 384, 512),
        "image-side": (8, 12, 16, 20, 24, 28, 32),
        "chain-steps": (2, 4, 6, 10, 14, 20, 28, 40),
        "labels-exact": LABELS,
        "labels-gradients": LABELS,
        "data-rows": ROWS,
    }
)
# A GPU takes larger sizes. Not compiled: fifty compilations would take most of an hour.
CUDA = Plan(
    {**CPU.sizes, "batch": (16, 32, 64, 128, 256, 384, 512, 768, 1024), "image-side": (16, 24, 32, 40, 48, 56, 64)},
    network=(16, 4),
    batch=128,
    side=32,
    steps=10,
    hidden=1024,
    label_batch=1024,
    engine=MappingProxyType({"compile": "off"}),
)
QUICK = Plan(
    {
        "batch": (4, 8, 16, 24, 32),
        "image-side": (4, 8, 12, 16, 20),
        "chain-steps": (2, 4, 8, 12, 16),
        "labels-exact": (4, 64, 256, 512, 784),
        "labels-gradients": (4, 64, 256, 512, 784),
        "data-rows": (64, 128, 256, 512, 1024),
    },
    batch=4,
    side=8,
    steps=2,
    n_rows=64,
    hidden=16,
    label_batch=8,
    label_steps=2,
    block_seconds=0.01,
    repeats=3,
)


def plan_of(device: torch.device, *, quick: bool) -> Plan:
    if quick:
        return replace(QUICK, engine=CUDA.engine) if device.type == "cuda" else QUICK
    return CUDA if device.type == "cuda" else CPU


@dataclass(frozen=True)
class Axis:
    """Describe a varied number, and the power by which the arithmetic of a step grows with it."""

    says: str
    power: float
    trainer: Callable[[Plan, int, torch.device], Trainer]


def image_recipe(plan: Plan, **changes: int) -> Recipe:
    """Return a JEM recipe of images; `batch` and `steps` replace the plan's."""
    depth, width = plan.network
    values: dict[str, Any] = {
        "name": "growth",
        "batch_size": changes.get("batch", plan.batch),
        "model": {"network": {"kind": "wide-resnet", "depth": depth, "width": width}},
        "chain": {"steps": changes.get("steps", plan.steps), "clamp": True},
        "buffer": {"size": BUFFER},
        "engine": dict(plan.engine),
    }
    return parse(values, "growth")


def label_recipe(plan: Plan, *, exact: bool) -> Recipe:
    """Return a recipe of Gibbs-JEM with exact label draws, or of a network of x and y with Gibbs-With-Gradients."""
    network = {"kind": "mlp", "hidden": [plan.hidden, plan.hidden]}
    values: dict[str, Any] = {
        "name": "growth",
        "batch_size": plan.label_batch,
        "objective": "gibbs-jem" if exact else "mixed",
        "model": {"family": "logits" if exact else "pair", "network": network},
        "chain": {
            "steps": plan.label_steps,
            "clamp": True,
            "label_kernel": "exact" if exact else "gibbs-with-gradients",
        },
        "buffer": {"size": BUFFER},
        "engine": dict(plan.engine),
    }
    return parse(values, "growth")


@cache
def _noise(n: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    return (torch.rand(n, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1).to(device)


def data_of(n: int, shape: tuple[int, ...], labels: LabelSpace, device: torch.device) -> TrainingData:
    """Return rows of noise: their values do not change the cost."""
    x, g = _noise(n, shape, device), torch.Generator().manual_seed(1)
    y = torch.stack([torch.randint(c, (n,), generator=g) for c in labels.cardinalities], 1).to(device)
    return TrainingData(x, y, x[:HELD], y[:HELD], labels)


def images(
    plan: Plan, device: torch.device, *, side: int = 0, n: int = 0, world: World | None = None, **changes: int
) -> Trainer:
    side = side or plan.side
    data = data_of(n or plan.n_rows, (3, side, side), LabelSpace({"class": CLASSES}), device)
    return trainer_of(image_recipe(plan, **changes), data, 0, world=world or World())


def labeled(plan: Plan, n_labels: int, device: torch.device, *, exact: bool) -> Trainer:
    labels = LabelSpace.binary([f"label-{k}" for k in range(n_labels)])
    data = data_of(plan.n_rows, (FEATURES,), labels, device)
    return trainer_of(label_recipe(plan, exact=exact), data, 0)


AXES: dict[str, Axis] = {
    "batch": Axis("rows of a batch", 1, lambda p, n, d: images(p, d, batch=n)),
    "image-side": Axis("side of an image", 2, lambda p, n, d: images(p, d, side=n)),
    "chain-steps": Axis("chain steps", 1, lambda p, n, d: images(p, d, steps=n)),
    "labels-exact": Axis("binary labels, exact Gibbs", 1, lambda p, n, d: labeled(p, n, d, exact=True)),
    "labels-gradients": Axis("binary labels, Gibbs-With-Gradients", 1, lambda p, n, d: labeled(p, n, d, exact=False)),
    "data-rows": Axis("rows of data", 0, lambda p, n, d: images(p, d, n=n)),
}

"""Draw the figures of docs/concepts: one function in four roles, chains at three temperatures, a gradient of training.

    python scripts/draw_concepts.py

Everything is computed from one exact model, a mixture of three Gaussians in the plane; nothing is trained.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import jointenergy as je
from jointenergy import inference
from jointenergy.report import gallery
from jointenergy.report.drawings import COLORS, drawing, picture

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "concepts"
SIDE = 2.2
TINTS = ("Blues", "Oranges", "Greens")


class Mixture(nn.Module):
    """Logits log p(x, y) of three Gaussians."""

    def __init__(self, centers: list[list[float]], width: float) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.tensor(centers))
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        squares = (x[:, None] - self.centers).square().sum(2)
        return -squares / (2 * self.width**2) - math.log(2 * math.pi * self.width**2 * len(self.centers))


def model_of(centers: list[list[float]], width: float) -> je.LogitModel:
    return je.LogitModel(
        Mixture(centers, width), je.LabelSpace({"class": len(centers)}), domain=je.Box(-SIDE, SIDE), event_shape=(2,)
    )


MODEL = model_of([[-0.9, -0.6], [0.9, -0.7], [0.0, 0.95]], 0.38)
LINE = np.linspace(-SIDE, SIDE, 160)
PLANE = torch.tensor(np.stack(np.meshgrid(LINE, LINE), axis=-1).reshape(-1, 2), dtype=torch.float32)


def bare(axes: Axes, title: str) -> None:
    axes.set(xlim=(-SIDE, SIDE), ylim=(-SIDE, SIDE), xticks=[], yticks=[], aspect="equal")
    axes.set_title(title)
    axes.grid(False)


def drawn(n: int, kernel: je.kernels.Kernel, steps: int, given: dict[str, int] | None = None) -> Tensor:
    start = je.starts.UniformStart(-SIDE, SIDE, (2,))
    found = inference.sample(
        MODEL, n, given=given, x_kernel=kernel, steps=steps, start=start, generator=torch.Generator().manual_seed(0)
    )
    return found.x


@torch.no_grad()
def one_function(axes: list[Axes]) -> None:
    """log p(x, y) of each class, and what follows from it."""
    logits = MODEL.network(PLANE).reshape(160, 160, 3)
    joint, marginal, conditional = axes[:3]
    for k, tint in enumerate(TINTS):
        joint.contour(LINE, LINE, logits[..., k].exp(), levels=5, cmap=tint, vmin=-0.2)
    bare(joint, "p(x, y): one for each y")
    marginal.contourf(LINE, LINE, logits.logsumexp(2).exp(), levels=12, cmap="Greys")
    bare(marginal, "p(x): summed over y")
    shares = logits.softmax(2).numpy()
    colors = np.array([mpl.colors.to_rgb(c) for c in COLORS[:3]])
    conditional.imshow(shares @ colors, extent=(-SIDE, SIDE, -SIDE, SIDE), origin="lower", alpha=0.8)
    bare(conditional, "p(y | x): normalized over y")


def one_function_samples(axes: Axes) -> None:
    for k in range(3):
        points = drawn(120, je.kernels.MALA(step_size=0.05), 150, {"class": k})
        axes.plot(*points.T, ".", ms=3, color=COLORS[k])
    bare(axes, "x | y: drawn by chains")


def temperatures(axes: list[Axes]) -> None:
    """The same chain with less and less noise."""
    for panel, temperature in zip(axes, (1.0, 0.3, 0.03), strict=True):
        step = 0.02
        kernel = je.kernels.Langevin(step_size=step, noise_scale=math.sqrt(2 * step * temperature))
        panel.contour(LINE, LINE, MODEL.log_density(PLANE).detach().reshape(160, 160).exp(), levels=5, cmap="Greys")
        panel.plot(*drawn(400, kernel, 300).T, ".", ms=2.5, color=COLORS[0])
        bare(panel, f"T = {temperature:g}")


def training(axes: list[Axes]) -> None:
    """Where the gradient lifts log p(x) and where it lowers it, early in training and at its end."""
    random = torch.Generator().manual_seed(1)
    centers = MODEL.network.centers.detach()
    data = centers[torch.randint(3, (150,), generator=random)] + 0.38 * torch.randn(150, 2, generator=random)
    early = torch.randn(150, 2, generator=random) * torch.tensor([0.5, 0.9]) + torch.tensor([0.5, 0.2])
    late = drawn(150, je.kernels.MALA(step_size=0.05), 200)
    for panel, chains, title in zip(axes, (early, late), ("early: push apart", "late: in balance"), strict=True):
        panel.plot(*data.T, ".", ms=4, color=COLORS[0], label="data: raise log p(x)")
        panel.plot(*chains.T, "x", ms=4, color=COLORS[1], label="chains: lower log p(x)")
        bare(panel, title)
    axes[0].legend(loc="lower left", fontsize=8, frameon=True, framealpha=1.0)


def draw(name: str, panels: int) -> None:
    with drawing(2.5 * panels, 2.8) as figure:
        axes = list(np.ravel(figure.subplots(1, panels)))
        if name == "one-function":
            one_function(axes)
            one_function_samples(axes[3])
        else:
            {"temperatures": temperatures, "training": training}[name](axes)
        png = gallery.small(picture(name, "", figure).png)
    (FOLDER / f"{name}.png").write_bytes(png)
    sys.stdout.write(f"{name}.png: {len(png):,} bytes\n")


if __name__ == "__main__":
    for name, panels in (("one-function", 4), ("temperatures", 3), ("training", 2)):
        draw(name, panels)

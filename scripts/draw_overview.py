"""Draw docs/figures/overview.png, the picture of the README, from a run that `jointenergy demo` trained.

    python scripts/draw_overview.py runs/demo data/kmnist/t10k-images-idx3-ubyte.gz

The second argument is a file of KMNIST's test images (`jointenergy data get kmnist --to data`). Samples and inpaintings
are those of seed 0, unselected; the test digits are the first of their classes. The histogram cuts off the lowest
2 % of KMNIST; the AUROC is of all images.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import jointenergy
from jointenergy.data import load
from jointenergy.metrics.detection import separation
from jointenergy.report import gallery
from jointenergy.report.drawings import COLORS, drawing, picture
from jointenergy.report.ood_sets import read_ood_set

FILE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "overview.png"
SIDE = 8  # pixels of a digit
KNOWN = torch.arange(SIDE * SIDE) < SIDE * SIDE // 2  # the upper half
ROWS, CELL = 5, 0.44  # rows of digits in a panel; inches of a digit
WIDTH, HEIGHT = 11.6, 3.1
TITLE = 10  # points between a panel and its title
BATCH = 1000


def show(axes: Axes, images: Tensor, columns: int, bounds: tuple[float, float], title: str) -> None:
    """Show rows of digits, dark on white; NaN is shown in pale blue."""
    low, high = bounds
    cells = np.ones((len(images) // columns, columns, SIDE + 2, SIDE + 2, 3))
    gray = 1 - (images.reshape(-1, columns, SIDE, SIDE, 1) - low) / (high - low)
    colored = torch.where(gray.isnan(), torch.tensor([0.80, 0.88, 0.95]), gray.clamp(0, 1))
    cells[:, :, 1:-1, 1:-1] = colored.numpy()
    page = cells.transpose(0, 2, 1, 3, 4).reshape(cells.shape[0] * (SIDE + 2), columns * (SIDE + 2), 3)
    axes.imshow(page, interpolation="nearest")
    axes.set_title(title, pad=TITLE)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set(xticks=[], yticks=[])


def centers(n: int) -> list[float]:
    return [(SIDE + 2) * (i + 0.5) - 0.5 for i in range(n)]


def panels(figure: Figure) -> list[Axes]:
    """Three panels of one height, side by side: 10 and 6 columns of digits, and a histogram."""
    bottom, high = 0.55 / HEIGHT, ROWS * CELL / HEIGHT
    places = ((0.1, 10 * CELL), (5.35, 6 * CELL), (8.5, 3.0))
    return [figure.add_axes((left / WIDTH, bottom, width / WIDTH, high)) for left, width in places]


def draw(figure: Figure, run: jointenergy.Run, images: Path) -> None:
    test = load("digits", split="test")
    samples, completed, detected = panels(figure)

    classes = torch.arange(10).repeat(ROWS)
    drawn = run.sample(len(classes), given=classes[:, None])
    show(samples, drawn.x, 10, run.bounds, "Sample given a class")
    samples.set_xticks(centers(10), [str(k) for k in range(10)])

    shown = torch.stack([test.x[test.y[:, 0] == k][0] for k in (0, 2, 3, 5, 6, 8)])
    filled = run.inpaint(shown, KNOWN, n_draws=3)
    half = torch.where(KNOWN, shown, torch.nan)
    show(completed, torch.cat((half, *filled.draws, shown)), len(shown), run.bounds, "Fill in what is missing")
    completed.set_yticks(centers(ROWS), ["known", "draw", "draw", "draw", "truth"])

    inside = run.score(test.x).numpy()
    others = read_ood_set("kmnist", images, run)
    outside = torch.cat([run.score(x) for x in others.batches(BATCH)]).numpy()
    low, high = np.quantile(outside, 0.02), inside.max()
    edges = np.linspace(low, high, 45)
    for scores, color, label in ((inside, COLORS[0], "test digits"), (outside, COLORS[1], "KMNIST")):
        shares = np.histogram(scores, edges)[0] / len(scores)
        detected.stairs(shares, edges, fill=True, color=color, alpha=0.65, label=label)
    detected.set_title("Detect what is not a digit", pad=TITLE)
    detected.set(xlabel="log p(x), up to a constant", yticks=[], xlim=(low, high))
    detected.legend(title=f"AUROC {separation(inside, outside).auroc:.3f}", loc="upper left", alignment="left")
    detected.grid(False)
    detected.spines["left"].set_visible(False)


def main(folder: Path, images: Path) -> None:
    with drawing(WIDTH, HEIGHT) as figure, mpl.rc_context({"font.size": 12}):
        figure.set_layout_engine("none")  # panels have places of their own
        draw(figure, jointenergy.load(folder), images)
        png = gallery.small(picture("overview", "", figure).png)
    FILE.write_bytes(png)
    sys.stdout.write(f"{FILE.name}: {len(png):,} bytes\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

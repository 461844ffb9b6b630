"""report: the style of all drawings, and grids of rows as images or points."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from jointenergy.data import image_grid
from jointenergy.report.sections import Picture
from jointenergy.runs.film import as_images

# Okabe and Ito's colors, safe for color-blind readers; the run is always the first.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
STYLE: Any = {
    "figure.dpi": 100,
    "savefig.dpi": 144,
    "savefig.bbox": "tight",  # long names of rows stay whole
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": f"cycler(color={list(COLORS)})",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
GAP, NARROW = 2, 16  # pixels between images of a grid; between images less wide than this one is enough
INCH = 96  # pixels of an image that are an inch of the page
LARGEST = 12.0  # inches that a picture is high


@contextmanager
def drawing(width: float = 6.0, height: float = 3.6) -> Iterator[Figure]:
    """A figure in the style of the report; the global settings of matplotlib stay as they are."""
    with mpl.rc_context(STYLE):
        yield Figure(figsize=(width, height))


def picture(name: str, caption: str, figure: Figure) -> Picture:
    """The figure as a PNG file; call it inside `drawing`, whose style saves it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Picture(name, caption, buffer.getvalue())


def grids(
    name: str,
    caption: str,
    panels: Mapping[str, Tensor],
    columns: int,
    bounds: tuple[float, float],
    rows: Sequence[str] = (),
    apart: bool = False,
) -> Picture | None:
    """Rows of x side by side, a panel for each set: images in `columns`, points of a plane; None for others.

    `rows` are the words beside the rows of images; `apart` sets the first column apart from the others.
    """
    images = {title: as_images(x) for title, x in panels.items()}
    points = next(iter(panels.values()))[0].numel() == 2
    if not points and any(i is None for i in images.values()):
        return None
    if points:
        with drawing(4.0 * len(panels), 4.0) as figure:
            for k, (title, x) in enumerate(panels.items()):
                axes = figure.add_subplot(1, len(panels), k + 1, title=title, xlim=bounds, ylim=bounds, aspect="equal")
                across, up = x.flatten(1).cpu().T.numpy()
                axes.scatter(across, up, s=4, alpha=0.5)
            return picture(name, caption, figure)
    first = next(i for i in images.values() if i is not None)
    n_rows = max(math.ceil(len(x) / columns) for x in panels.values())
    side = max(0.45, first.shape[3] / INCH)
    gap = 1 if first.shape[3] < NARROW else GAP
    high = min(LARGEST, side * first.shape[2] / first.shape[3] * n_rows)
    with drawing(side * columns * len(panels) + (0.3 + 0.06 * max(map(len, rows), default=0)), high + 0.4) as figure:
        for k, (title, some) in enumerate(images.items()):
            assert some is not None
            axes = figure.add_subplot(1, len(panels), k + 1, title=title)
            grid = np.asarray(image_grid(some, columns, bounds, gap=gap))
            axes.imshow(grid, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.grid(False)
            axes.set_xticks([])
            if apart:
                axes.axvline(some.shape[3] + 1.5 * gap - 0.5, color=COLORS[1], lw=3)
            _name_rows(axes, rows if k == 0 else (), some.shape[2], gap)
        return picture(name, caption, figure)


def _name_rows(axes: Axes, rows: Sequence[str], high: int, gap: int) -> None:
    axes.spines[:].set_visible(False)
    axes.set_yticks(
        [gap + (high + gap) * i + (high - 1) / 2 for i in range(len(rows))], [r[:32] for r in rows], fontsize=8
    )
    axes.tick_params(length=0)

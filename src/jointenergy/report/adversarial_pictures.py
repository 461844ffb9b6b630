"""report: pictures of robustness: how many rows stay right within a radius, and what makes them wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from jointenergy.data import View
from jointenergy.report.attacked import Attacked
from jointenergy.report.defended import Norm
from jointenergy.report.drawings import COLORS, drawing, picture
from jointenergy.report.sections import Picture
from jointenergy.runs import Run
from jointenergy.runs.film import as_images

IMAGES = 8  # columns of the picture of changed images


def steps_of(radius: Tensor, last: float) -> tuple[list[float], list[float]]:
    """Corners of the curve "share of rows whose radius exceeds r", for r from 0 to `last`."""
    falls = radius[radius <= last].sort().values
    at = torch.cat((torch.zeros(1, dtype=radius.dtype), falls, torch.full((1,), last, dtype=radius.dtype)))
    share = torch.stack([(radius > r).double().mean() for r in at])
    return at.tolist(), share.tolist()


def curves(radii: Mapping[str, Tensor], norm: Norm, last: float) -> Picture:
    """One curve for each classifier, over radii up to the largest that was tried, or that any row withstood."""
    reached = max(float(r[r <= last].max()) if bool((r <= last).any()) else last for r in radii.values())
    end = last if any(bool((r > last).any()) for r in radii.values()) else min(last, 1.05 * reached)
    scale = 255 if norm == "linf" else 1
    with drawing() as figure:
        axes = figure.add_subplot()
        for i, (name, radius) in enumerate(radii.items()):
            at, share = steps_of(radius, end)
            dashes = "-" if name.startswith("run") else "--"
            axes.step([a * scale for a in at], share, dashes, where="post", color=COLORS[i % len(COLORS)], label=name)
        axes.set_xlim(0, end * scale)
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylabel("rows still right")
        axes.set_xlabel(
            "largest change of any entry, in 255ths of its range (L-inf)"
            if norm == "linf"
            else "length of the change, in units of the range of x (L2)"
        )
        axes.legend()
        caption = (
            "How many rows are still right when an adversary may change "
            + ("every entry of x by so much" if norm == "linf" else "x as a whole by so much")
            + ". A curve further to the right is more robust; each falls where the strongest attack found a wrong x."
        )
        return picture(f"robustness_{norm}", caption, figure)


def adversarial_images(run: Run, x: Tensor, y: Tensor, attacked: Sequence[Attacked]) -> Picture | None:
    """Rows that the first classifier gets right, and what makes each classifier wrong; None where none can be shown."""
    if as_images(x) is None or not attacked:
        return None
    first = attacked[0].smallest("linf")
    rows = (first.isfinite() & (first > 0)).nonzero()[:IMAGES, 0]
    if len(rows) == 0:
        return None
    lines = [("test row", x[rows], _names(run, y[rows]))]
    for each in attacked:
        wrong = each.closest("linf")[rows]
        read, radius = _names(run, each.predict(wrong)), each.smallest("linf")[rows].tolist()
        lines.append((each.name, wrong, [_title(name, r) for name, r in zip(read, radius, strict=True)]))
    with drawing(0.95 * len(rows) + 1.0, 1.15 * len(lines)) as figure:
        all_axes = figure.subplots(len(lines), len(rows), squeeze=False)
        for line, (name, shown, titles) in zip(all_axes, lines, strict=True):
            for axes, image, title in zip(line, _unit(shown, run.bounds), titles, strict=True):
                axes.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1)
                axes.set_title(title, fontsize=8, pad=2)
                axes.set(xticks=[], yticks=[])
                axes.grid(False)
            line[0].set_ylabel(name, fontsize=9)
        caption = (
            "Test rows, and below each the nearest image found that the classifier gets wrong: what it takes it for, "
            "and the largest change of any pixel. The less it can be told from the row above, the worse."
        )
        return picture("adversarial_images", caption, figure)


def _title(name: str, radius: float) -> str:
    if radius == math.inf:
        return "none found"
    return ", ".join(part for part in (name, f"{255 * radius:.0f}/255" if radius else "unchanged") if part)


def _names(run: Run, y: Tensor) -> list[str]:
    """What the labels are called; nothing where there are several, for want of room."""
    if len(run.labels) != 1:
        return [""] * len(y)
    return [next(iter(names.values()), "") for names in run.labels.decode(y.cpu())]


def _unit(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Images as matplotlib takes them, `[n, height, width]` or with colors last."""
    images = as_images(x)
    assert images is not None
    return View.of(bounds).unit(images).clamp(0, 1).movedim(1, -1).squeeze(-1)

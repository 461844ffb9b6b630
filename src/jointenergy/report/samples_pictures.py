"""report: pictures of samples: grids, neighbors, energies, and what becomes of chains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from jointenergy.data import image_grid
from jointenergy.report.drift import AgeGroup, Course, kept, shares
from jointenergy.report.sections import COLORS, Picture, drawing, picture
from jointenergy.runs.film import as_images

GAP, NARROW = 2, 16  # pixels between images of a grid; between images less wide than this one is enough
INCH = 96  # pixels of an image that are an inch of the page
LARGEST = 12.0  # inches that a picture is high
BINS = 40


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


def energies(sets: Mapping[str, Tensor], caption: str) -> Picture:
    """Histograms of the energies of sets on one axis; what lies far outside is counted at the edges."""
    values = {name: e.double().cpu().numpy() for name, e in sets.items() if bool(e.isfinite().any())}
    ends = [np.quantile(v[np.isfinite(v)], (0.002, 0.998)) for v in values.values()]
    low, high = min(e[0] for e in ends), max(e[1] for e in ends)
    bins = np.linspace(low, high + 1e-6 * (1 + abs(high)), BINS + 1)
    with drawing(7.0, 3.6) as figure:
        axes = figure.add_subplot(xlabel="energy, minus log p(x) up to a constant (nats)", ylabel="share of rows")
        for k, (name, v) in enumerate(values.items()):
            color = COLORS[k % len(COLORS)]
            counts, _ = np.histogram(np.clip(v[np.isfinite(v)], low, high), bins=bins)
            share = counts / max(1, len(v))
            filled = k < 2
            axes.stairs(share, bins, label=name, color=color, fill=filled, alpha=0.45 if filled else 1)
            if filled:
                axes.stairs(share, bins, color=color)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return picture("energies", caption, figure)


def drift(course: Course, data: Tensor, data_at_bounds: float, length: int, caption: str) -> Picture:
    """Energy and values at the bounds of chains against their age, beside those of data; `length` is a sample's."""
    ages = [max(a, 0.7) for a in course.ages]  # a logarithm has no 0
    with drawing(9.0, 3.4) as figure:
        left = figure.add_subplot(1, 2, 1, xlabel="age of the chains (steps)", ylabel="energy (nats)")
        low, middle, high = (torch.quantile(data.double().cpu(), q).item() for q in (0.05, 0.5, 0.95))
        left.axhspan(low, high, color=COLORS[1], alpha=0.25, label="5 to 95 % of test rows")
        left.axhline(middle, color=COLORS[1])
        quantiles = torch.tensor((0.05, 0.5, 0.95), dtype=torch.float64)
        band = torch.quantile(course.energy.double(), quantiles, dim=1).numpy()
        left.fill_between(ages, band[0], band[2], color=COLORS[0], alpha=0.25, label="5 to 95 % of chains")
        left.plot(ages, band[1], color=COLORS[0])
        right = figure.add_subplot(1, 2, 2, xlabel="age of the chains (steps)", ylabel="values at the bounds")
        right.axhline(data_at_bounds, color=COLORS[1], label="test rows")
        right.plot(ages, course.at_bounds, color=COLORS[0], label="chains")
        right.yaxis.set_major_formatter(PercentFormatter(1.0))
        right.set_ylim(bottom=0.0)
        for axes in (left, right):
            _by_age(axes, course, length)
            axes.legend()
        return picture("chains-grow-old", caption, figure)


def classes_by_age(
    course: Course, names: Sequence[str], groups: Sequence[AgeGroup], length: int, caption: str
) -> Picture:
    """How often each class is among fresh chains by age and among persistent ones by age, and who keeps its class."""
    assert course.labels is not None
    wide = 3 if groups else 2
    with drawing(4.2 * wide, 3.8) as figure:
        axes = figure.add_subplot(1, wide, 1, xlabel="age of the chains (steps)", ylabel="chains still in their class")
        ages = [max(a, 0.7) for a in course.ages]
        axes.plot(ages, kept(course.labels), color=COLORS[0], label="since the start")
        since = course.ages.index(length)
        if since < len(ages) - 1:
            label = f"since step {length}, where samples are taken"
            axes.plot(ages[since:], kept(course.labels, since), color=COLORS[3], ls="--", label=label)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(0.0, 1.03)
        _by_age(axes, course, length)
        axes.legend(fontsize=8)
        fresh = shares(course.labels[:, :, 0], len(names))
        looks = sorted({round(i * (len(ages) - 1) / 5) for i in range(6)})
        most = max(float(fresh[looks].max()), *(float(g.shares.max()) for g in groups), 1e-6)
        _heat(figure.add_subplot(1, wide, 2), fresh[looks], [str(course.ages[i]) for i in looks], names, most)
        figure.axes[-1].set(title="fresh chains", xlabel="age (steps)")
        if groups:
            axes = figure.add_subplot(1, wide, 3)
            spans = [_span(g) for g in groups]
            _heat(axes, torch.stack([g.shares for g in groups]), spans, names, most)
            axes.set(title="chains of training", xlabel="age (steps), four equal groups")
        return picture("classes-by-age", caption, figure)


def _heat(axes: Axes, share: Tensor, columns: Sequence[str], names: Sequence[str], most: float) -> None:
    axes.imshow(share.T.double().cpu().numpy(), aspect="auto", cmap="Blues", vmin=0.0, vmax=most)
    axes.grid(False)
    axes.set_xticks(range(len(columns)), columns, fontsize=8)
    axes.set_yticks(range(len(names)), [n[:14] for n in names], fontsize=8)
    for i, row in enumerate(share.tolist()):
        for j, value in enumerate(row):
            dark = value > 0.6 * most
            axes.text(i, j, f"{value:.0%}", ha="center", va="center", fontsize=7, color="white" if dark else "black")


def _span(group: AgeGroup) -> str:
    return f"{_short(group.youngest)}\nto {_short(group.oldest)}"


def _short(n: int) -> str:
    return f"{n:,}" if n < 10_000 else f"{n / 1000:.0f}k" if n < 1_000_000 else f"{n / 1_000_000:.1f}M"


def _by_age(axes: Axes, course: Course, length: int) -> None:
    axes.set_xscale("log")
    marks = [(0.7, "0"), *((10**k, f"{10**k:,}") for k in range(1 + int(math.log10(max(course.ages[-1], 1)))))]
    axes.set_xticks([m[0] for m in marks], [m[1] for m in marks])
    axes.minorticks_off()
    axes.axvline(length, color="0.6", lw=0.8, ls=":")

"""report: drawings of prediction and calibration: reliability, risk, confusion, and curves of each attribute."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from textwrap import fill

import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor

from jointenergy.metrics.calibration import BINS, bins_of, reliability, risk_coverage
from jointenergy.metrics.classification import Answers, Decisions, auprc, auroc, precision_recall_curve, roc_curve
from jointenergy.report.drawings import COLORS, drawing, picture
from jointenergy.report.sections import Picture

COLUMNS = 4  # panels side by side
POINTS = 500  # of a curve, so that large sets draw as fast as small ones
COUNTED = 20  # classes up to which a confusion matrix shows its counts
GREY = "#777777"

Sure = tuple[Tensor, Tensor]
"""Confidences, and whether each was right."""


def reliability_diagrams(answers: Mapping[str, Answers], errors: Mapping[str, float]) -> Picture:
    """Accuracy against confidence with the counts below, a column for each that predicts."""
    columns = min(COLUMNS, len(answers))
    lines = math.ceil(len(answers) / columns)
    with drawing(2.7 * columns + 0.4, 3.9 * lines) as figure:
        heights = [3, 1] * lines
        axes = figure.subplots(2 * lines, columns, squeeze=False, sharex=True, height_ratios=heights)
        most = max(int(torch.bincount(bins_of(a.confidence)).max()) for a in answers.values())
        for i, (name, a) in enumerate(answers.items()):
            line, column = divmod(i, columns)
            above, below = axes[2 * line, column], axes[2 * line + 1, column]
            _reliability(above, a.confidence, a.right, COLORS[0])
            above.set_title(f"{fill(name, 30)}\nECE {errors[name]:.4f}", fontsize=10)
            _counts(below, a.confidence, most)
            above.tick_params(labelbottom=False)
            below.tick_params(labelbottom=True)
            below.set_xlabel("confidence")
            if column == 0:
                above.set_ylabel("accuracy")
                below.set_ylabel("rows" if len(a.labels) == 1 else "labels")
        for spare in range(len(answers), lines * columns):
            for ax in axes[2 * (spare // columns) :, spare % columns]:
                ax.set_visible(False)
        return picture(
            "reliability",
            "Reliability: each point is a bin of predictions, at its mean confidence and accuracy, with 95 % "
            "intervals. Points below the dashed line are overconfident, above it underconfident. The bars count "
            "predictions (logarithmic scale): bins with few predictions say little.",
            figure,
        )


def _reliability(ax: Axes, confidence: Tensor, right: Tensor, color: str) -> None:
    bins = reliability(confidence, right)
    below, above = (bins.accuracy - bins.low).clamp(min=0), (bins.high - bins.accuracy).clamp(min=0)
    ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, zorder=1)
    ax.errorbar(
        bins.confidence.numpy(),
        bins.accuracy.numpy(),
        yerr=torch.stack((below, above)).numpy(),
        fmt="o",
        markersize=4.5,
        elinewidth=1,
        color=color,
        ecolor=color + "80",
    )
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.03, 1.03)


def _counts(ax: Axes, confidence: Tensor, most: int) -> None:
    bins = reliability(confidence, torch.ones_like(confidence, dtype=torch.bool))
    places = (bins_of(bins.confidence) + 0.5) / BINS
    ax.bar(places.numpy(), bins.count.numpy(), width=0.9 / BINS, color=GREY)
    _log_counts(ax, most)


def _log_counts(ax: Axes, most: int) -> None:
    """A logarithmic scale of counts up to `most`, in plain numbers."""
    ax.set_yscale("log")
    ax.set_ylim(0.7, 2 * most)
    powers = [10**i for i in range(len(str(most)))]
    kept = powers[:: math.ceil(len(powers) / 4)]
    ax.set_yticks(kept, [f"{p:,}" for p in kept])
    ax.yaxis.set_minor_locator(NullLocator())


def risk_against_coverage(answers: Mapping[str, Answers]) -> Picture:
    """The share of wrong answers when only the surest are given."""
    with drawing(6.4, 3.6) as figure:
        ax = figure.subplots()
        for (name, a), color in zip(answers.items(), COLORS, strict=False):
            curve = risk_coverage(a.log_odds, a.right)
            keep = _few(len(curve.risk))
            ax.plot(curve.coverage[keep], 100 * curve.risk[keep], color=color, label=f"{name}: area {curve.area:.4f}")
        ax.set_xlabel("coverage: share of predictions kept, most confident first")
        ax.set_ylabel("risk: error rate (%)")
        ax.set_xlim(0, 1)
        ax.set_ylim(bottom=0)
        ax.legend(loc="upper left")
        return picture(
            "risk_coverage",
            "Risk against coverage: the error rate if the model answers only its most confident predictions. A curve "
            "that stays at 0 for long has its errors at low confidence; a smaller area is better.",
            figure,
        )


def confidence_histograms(answers: Mapping[str, Answers]) -> Picture:
    """How sure the predictions are, right and wrong ones apart."""
    names = list(answers)
    most = max(int(torch.bincount(bins_of(a.confidence)).max()) for a in answers.values())
    with drawing(3.3 * min(len(names), COLUMNS) + 0.3, 3.0 * math.ceil(len(names) / COLUMNS)) as figure:
        axes = _panels(figure, len(names), min(COLUMNS, len(names)))
        for i, (ax, name) in enumerate(zip(axes, names, strict=True)):
            a = answers[name]
            edges = [j / BINS for j in range(BINS + 1)]
            ax.hist(
                [a.confidence[a.right].numpy(), a.confidence[~a.right].numpy()],
                bins=edges,
                label=["right", "wrong"],
                color=[COLORS[0], COLORS[3]],
            )
            _log_counts(ax, most)
            ax.set_xlim(0, 1.01)
            ax.set_title(fill(name, 36), fontsize=10)
            if i + COLUMNS >= len(names):
                ax.set_xlabel("largest probability")
            if i == 0:
                ax.set_ylabel("predictions")
                ax.legend(loc="upper left")
        return picture(
            "confidence",
            "Confidence of right and wrong predictions (logarithmic scale). Wrong ones at the right end were made with "
            "full confidence.",
            figure,
        )


def confusion_matrix(counts: Tensor, names: Sequence[str], who: str) -> Picture:
    """True classes in rows, predicted ones in columns; colors are shares of the true class."""
    n = len(names)
    size = min(9.0, max(3.6, 0.42 * n + 1.6))
    with drawing(size + 0.6, size) as figure:
        ax = figure.subplots()
        shares = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
        # The root makes small shares, which are the errors, visible.
        image = ax.imshow(shares.numpy(), cmap="Blues", norm=PowerNorm(0.5, vmin=0.0, vmax=1.0))
        ax.grid(False)
        if n <= COUNTED:
            for i in range(n):
                for j in range(n):
                    if counts[i, j]:
                        ink = "white" if shares[i, j] > 0.5 else "black"
                        ax.text(j, i, f"{int(counts[i, j])}", ha="center", va="center", fontsize=8, color=ink)
        ticks = list(range(0, n, max(1, math.ceil(n / 30))))
        long = max(len(name) for name in names) > 3
        ax.set_xticks(ticks, [names[t] for t in ticks], rotation=90 if long else 0, fontsize=9)
        ax.set_yticks(ticks, [names[t] for t in ticks], fontsize=9)
        ax.set_xlabel("predicted")
        ax.set_ylabel("true")
        figure.colorbar(image, ax=ax, label="share of the true class", shrink=0.8)
        return picture(
            "confusion",
            f"Confusion matrix of {who}: predicted class for each true class. The diagonal is right"
            + ("; numbers count rows." if n <= COUNTED else "."),
            figure,
        )


def attribute_reliability(panels: Mapping[str, Mapping[str, Sure]], more: str) -> Picture:
    """Accuracy against confidence, a small plot for each attribute."""

    def draw(ax: Axes, name: str) -> None:
        for (confidence, right), color in zip(panels[name].values(), COLORS, strict=False):
            _reliability(ax, confidence, right, color)
        ax.set_xlim(0.48, 1.02)

    caption = (
        "Reliability of each label: accuracy against confidence, which is at least 0.5, with 95 % intervals. Points "
        "below the dashed line are overconfident."
    )
    first = next(iter(panels.values()))
    return _grid("attribute_reliability", caption + more, list(panels), list(first), draw, "confidence", "right")


def attribute_roc(panels: Mapping[str, Mapping[str, Decisions]], more: str) -> Picture:
    """True against false positive rates, a small plot for each attribute."""

    def draw(ax: Axes, name: str) -> None:
        ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
        for i, (asked, color) in enumerate(zip(panels[name].values(), COLORS, strict=False)):
            _curve(ax, asked, roc_curve, color)
            _value(ax, i, auroc(asked), color)

    caption = (
        "ROC curve of each label, by log-odds: true positive rate against false positive rate. Numbers are areas "
        "(AUROC); the dashed line is chance."
    )
    first = next(iter(panels.values()))
    return _grid("attribute_roc", caption + more, list(panels), list(first), draw, "false positives", "true positives")


def attribute_precision_recall(panels: Mapping[str, Mapping[str, Decisions]], more: str) -> Picture:
    """Precision against recall, a small plot for each attribute."""

    def draw(ax: Axes, name: str) -> None:
        first = next(iter(panels[name].values()))
        share = float(first.truth.double().mean())
        ax.plot([0, 1], [share, share], color=GREY, linestyle="--", linewidth=1)
        for i, (asked, color) in enumerate(zip(panels[name].values(), COLORS, strict=False)):
            _curve(ax, asked, precision_recall_curve, color)
            _value(ax, i, auprc(asked), color)

    caption = (
        "Precision against recall of each label, by log-odds. Numbers are areas (AUPRC); the dashed line is chance."
    )
    first = next(iter(panels.values()))
    return _grid("attribute_precision_recall", caption + more, list(panels), list(first), draw, "recall", "precision")


def _curve(ax: Axes, asked: Decisions, of: Callable[[Decisions], tuple[Tensor, Tensor]], color: str) -> None:
    """Nothing where all or no rows have the label: there is no curve then."""
    if bool(asked.truth.any()) and not bool(asked.truth.all()):
        x, y = of(asked)
        keep = _few(len(x))
        ax.plot(x[keep].numpy(), y[keep].numpy(), color=color, linewidth=1.3)


def _value(ax: Axes, line: int, value: float, color: str) -> None:
    if not math.isnan(value):
        height = 0.06 + 0.11 * line
        ax.text(0.97, height, f"{value:.3f}", color=color, fontsize=8, ha="right", transform=ax.transAxes)


def _grid(
    name: str,
    caption: str,
    titles: Sequence[str],
    lines: Sequence[str],
    draw: Callable[[Axes, str], None],
    xlabel: str,
    ylabel: str,
) -> Picture:
    """Small plots of the same kind; one legend for all."""
    columns = min(COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    with drawing(max(4.2, 2.5 * columns + 0.4), 2.4 * rows + 0.7) as figure:
        for i, (ax, title) in enumerate(zip(_panels(figure, len(titles), columns), titles, strict=True)):
            draw(ax, title)
            ax.set_title(title if len(title) <= 24 else title[:23] + "…", fontsize=9)
            ax.set_ylim(-0.03, 1.03)
            ax.tick_params(labelsize=8)
            if i % columns == 0:
                ax.set_ylabel(ylabel, fontsize=9)
            if i >= len(titles) - columns:
                ax.set_xlabel(xlabel, fontsize=9)
        if len(lines) > 1:
            handles = [ax.plot([], [], color=c)[0] for _, c in zip(lines, COLORS, strict=False)]
            figure.legend(handles, lines, loc="outside upper center", ncols=len(lines), fontsize=9)
        return picture(name, caption, figure)


def _panels(figure: Figure, n: int, columns: int) -> list[Axes]:
    axes = figure.subplots(math.ceil(n / columns), columns, squeeze=False, sharex=True, sharey=True)
    flat: list[Axes] = list(axes.flat)
    for i, ax in enumerate(flat):
        ax.set_visible(i < n)
        ax.tick_params(labelbottom=i + columns >= n)
    return flat[:n]


def _few(n: int) -> Tensor:
    """The places of at most POINTS of n, ends included."""
    return torch.linspace(0, n - 1, min(n, POINTS)).round().long()

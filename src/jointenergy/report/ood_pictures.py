"""report: pictures of rows unlike the data: their scores beside those of the data, and the rows themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from jointenergy.data import View
from jointenergy.data.fitting import Form, image_form
from jointenergy.metrics.detection import Values
from jointenergy.report.drawings import COLORS, drawing, picture
from jointenergy.report.sections import Picture
from jointenergy.runs import Run

COLUMNS = 3
BINS = 40


def histograms(data: Values, panels: Mapping[str, tuple[Values, float]], *, who: str, noise: float) -> Picture:
    """One panel for each set: log p(x) of the test rows and of the set, with the AUROC between them."""
    n_rows = -(-len(panels) // COLUMNS)
    with drawing(9.0, 0.5 + 2.1 * n_rows) as figure:
        axes = figure.subplots(n_rows, COLUMNS, squeeze=False).ravel()
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for axis, (name, (values, auroc)) in zip(axes, panels.items(), strict=False):
            finite = [v[np.isfinite(v)] for v in (data, values)]
            edges = np.histogram_bin_edges(np.concatenate(finite), BINS)
            for part, color, label in zip(finite, COLORS, ("test rows", "the set"), strict=False):
                # Shares, so that sets of different sizes have histograms of one height.
                shares = np.histogram(part, edges)[0] / max(1, len(part))
                axis.stairs(shares, edges, fill=True, color=color, alpha=0.6, label=label)
            shown = "no AUROC" if math.isnan(auroc) else f"AUROC {auroc:.3f}"
            axis.set_title(f"{name.replace('_', ' ')}: {shown}", fontsize=10)
            axis.set_yticks([])
        figure.supxlabel("log p(x), up to a constant", fontsize=10)
        first = figure.axes[0].get_legend_handles_labels()
        figure.legend(*first, loc="outside upper center", ncols=2)
        noised = f", data noise of {noise:g} added" if noise else ""
        owner = "" if who == "run" else f" by the {who}, whose logsumexp is no density"
        caption = (
            f"log p(x) of the test rows and of each set{owner}{noised}: the share of rows at each value. The less they "
            "overlap, with the set on the left, the better the set is told from the data."
        )
        name = "_".join(["ood_histograms", *([] if who == "run" else [who]), *(["noised"] if noise else [])])
        return picture(name, caption, figure)


def examples(rows: Mapping[str, Tensor], run: Run) -> Picture | None:
    """The first rows of each set as the run sees them; None where rows are no images."""
    form = image_form(run.event_shape)
    if form is None:
        return None
    most, view = max(len(x) for x in rows.values()), View.of(run.bounds)
    height, width = form[1] + _gap(form), form[2] + _gap(form)
    # One large image: an axis for each small one would take seconds to draw.
    page = np.ones((len(rows) * height, most * width, form[0]))
    for line, x in enumerate(rows.values()):
        images = view.unit(x.detach().cpu().double()).reshape(-1, *form).permute(0, 2, 3, 1)
        for place, image in enumerate(images.clamp(0, 1).numpy()):
            top, left = line * height, place * width
            page[top : top + form[1], left : left + form[2]] = image
    with drawing(0.75 * most + 2.0, 0.75 * len(rows) * height / width + 0.2) as figure:
        axis = figure.subplots()
        axis.imshow(page if form[0] == 3 else page[..., 0], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_anchor("E")  # what is left over goes to the names
        axis.set_xticks([])
        axis.set_yticks(
            [line * height + (form[1] - 1) / 2 for line in range(len(rows))], [name.replace("_", " ") for name in rows]
        )
        axis.tick_params(length=0)
        axis.grid(False)
        axis.spines[:].set_visible(False)
        caption = "The first rows of each set, made to fit, as the run sees them; black is the lower bound of x."
        return picture("ood_examples", caption, figure)


def _gap(form: Form) -> int:
    """Pixels between images."""
    return max(1, form[2] // 8)

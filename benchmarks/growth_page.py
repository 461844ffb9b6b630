"""benchmarks: the tables, the figures and the page of `growth`.

python benchmarks/growth_page.py draws docs/figures/growth.png and fills docs/growth.md from results/growth.json, and
from results/growth-cuda.json where there is one.
"""

from __future__ import annotations

import math
import re
import statistics
import textwrap
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from axes import AXES
from fits import fixed_and_growing, upper_half
from rounds import table

from jointenergy.report import results

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

ROOT = Path(__file__).resolve().parents[1]
NAMES = {"growth": "One thread of a CPU", "growth-cuda": "A GPU"}
WORDS = {
    **{name: axis.says for name, axis in AXES.items()},
    "ranks-same-batch": "processes, the same batch",
    "ranks-same-share": "processes, the same share each",
}
POWERS = {**{name: axis.power for name, axis in AXES.items()}, "ranks-same-batch": -1.0, "ranks-same-share": 0.0}
POINTS, FIT, AWAY = "#0072b2", "#d55e00", "#999999"  # distinct to the color-blind
HEAD = (
    "what grows",
    "from, to",
    "ms",
    "exponent",
    "fitted to",
    "by arithmetic",
    "fixed ms",
    "exponent of the rest",
    "off by at most",
)


def points(figures: Mapping[str, float], name: str) -> tuple[list[int], list[float]]:
    """Return sizes along an axis, and milliseconds."""
    start = f"iteration_ms.{name}."
    found = {int(key.removeprefix(start)): ms for key, ms in figures.items() if key.startswith(start)}
    return sorted(found), [found[n] for n in sorted(found)]


def with_error(value: float, error: float, digits: int = 2) -> str:
    """Write a value with its error, with as many digits as the error needs."""
    digits += error < 0.01
    return f"{round(value, digits) + 0.0:.{digits}f} ± {error:.{digits}f}"


def cells(figures: Mapping[str, float]) -> list[list[str]]:
    """Return a row for each measured axis."""
    rows = []
    for name, says in WORDS.items():
        sizes, times = points(figures, name)
        if not sizes:
            continue
        fitted = sizes[upper_half(sizes)] if len(sizes) > 2 else sizes
        row = [says, f"{sizes[0]:,} to {sizes[-1]:,}", f"{times[0]:.1f} to {times[-1]:.1f}"]
        row.append(with_error(figures[f"exponent.{name}"], figures[f"exponent_error.{name}"]))
        row += [f"{fitted[0]:,} to {fitted[-1]:,}", f"{POWERS[name]:g}"]
        if f"fixed_ms.{name}" in figures:
            row.append(with_error(figures[f"fixed_ms.{name}"], figures[f"fixed_error_ms.{name}"], 1))
            row.append(with_error(figures[f"exponent_growing.{name}"], figures[f"exponent_growing_error.{name}"]))
            row.append(f"{fixed_and_growing(sizes, times).worst:.0%}".replace("%", " %"))
        else:
            row += [""] * 3
        rows.append(row)
    return rows


def told(figures: Mapping[str, float]) -> str:
    return table(HEAD, cells(figures))


def panel(axis: Axes, figures: Mapping[str, float], name: str) -> None:
    """Draw the points of one axis and the fitted law, both scales logarithmic."""
    sizes, times = points(figures, name)
    fitted = upper_half(sizes) if len(sizes) > 2 else slice(None)
    exponent, error = figures[f"exponent.{name}"], figures[f"exponent_error.{name}"]
    ns, ts = sizes[fitted], times[fitted]
    middle_n, middle_t = statistics.geometric_mean(ns), statistics.geometric_mean(ts)
    ends = (ns[0] * 0.9, ns[-1] * 1.1)
    axis.plot(ends, [middle_t * (n / middle_n) ** exponent for n in ends], color=FIT, linewidth=2.5, zorder=1)
    said = f"exponent {with_error(exponent, error)}"
    if f"fixed_ms.{name}" in figures:
        parts = fixed_and_growing(sizes, times)
        between = [sizes[0] * (sizes[-1] / sizes[0]) ** (i / 50) for i in range(51)]
        curve = [parts.fixed + parts.scale * n**parts.exponent for n in between]
        axis.plot(between, curve, color=AWAY, linewidth=1, linestyle="--", zorder=1)
        said += f"\n{parts.fixed:.0f} ms fixed, the rest {with_error(parts.exponent, parts.error)}"
    rest = [(n, t) for n, t in zip(sizes, times, strict=True) if n not in ns]
    axis.plot([n for n, _ in rest], [t for _, t in rest], "o", color=AWAY, markersize=5)
    axis.plot(ns, ts, "o", color=POINTS, markersize=5)
    axis.set(xscale="log", yscale="log")
    # At least a decade, so that noise on a flat cost looks flat.
    low, high = min(times), max(times)
    stretch = max(1.0, math.sqrt(10 / (high / low)))
    axis.set_ylim(low / stretch / 1.3, high * stretch * 1.3)
    axis.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axis.set_title(f"{WORDS[name]}\n{said}", fontsize=10)
    shown = sizes if len(sizes) < 4 else sizes[:: max(1, (len(sizes) - 1) // 3)]
    axis.set_xticks(shown, [f"{n:,}" for n in shown])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def figure_of(figures: Mapping[str, float], path: Path) -> None:
    names = [name for name in WORDS if points(figures, name)[0]]
    n_rows = math.ceil(len(names) / 4)
    figure, axes = plt.subplots(n_rows, 4, figsize=(13, 3.3 * n_rows), layout="constrained", squeeze=False)
    for axis, name in zip(axes.flat, names, strict=False):
        panel(axis, figures, name)
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for row in axes:
        row[0].set_ylabel("ms an iteration")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def section(result: results.Result) -> str:
    """Write the part of the page for one result: the table, the figure, and how it was measured."""
    figures = {name: metric.values[0] or 0.0 for name, metric in result.metrics.items()}
    rows = "\n".join("| " + " | ".join(row) + " |" for row in [["---"] * len(HEAD), *cells(figures)])
    return f"""## {NAMES[result.name]}

| {" | ".join(HEAD)} |
{rows}

![cost of an iteration along each axis, both scales logarithmic](figures/{result.name}.png)

Points that the exponent is fitted to are blue, its power law orange; dashed is a fixed cost plus a power law.

{result.hardware}; {result.minutes:.1f} minutes; [results/{result.name}.json](../results/{result.name}.json).

{textwrap.fill(result.notes, 120)}"""


def draw(root: Path = ROOT) -> Path:
    """Draw the figures, and replace the measured part of the page."""
    page, sections = root / "docs" / "growth.md", []
    for name in NAMES:
        path = root / "results" / f"{name}.json"
        if path.exists():
            result = results.read(path)
            figures = {key: metric.values[0] or 0.0 for key, metric in result.metrics.items()}
            figure_of(figures, root / "docs" / "figures" / f"{name}.png")
            sections.append(section(result))
    text = "\n\n".join(sections) or "Not published yet."
    marked = re.compile(r"(<!-- measured -->\n).*(\n<!-- end -->)", flags=re.S)
    page.write_text(marked.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page.read_text()))
    return page


if __name__ == "__main__":
    print(f"drawn in {draw()}")

"""benchmarks: the tables, the verdict, the figure and the page of `tabular`.

python benchmarks/tabular_page.py draws docs/figures/tabular.png and fills docs/tabular.md from results/tabular.json.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from rounds import table
from tabular_methods import LEVEL, METHODS, OURS, TRUTH
from tabular_sets import SETS

from jointenergy.metrics.registry import Metric
from jointenergy.report import results

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

ROOT = Path(__file__).resolve().parents[1]
NOT_PEERS = (OURS, TRUTH)
COVERAGE_OFF, FIT_SECONDS = 0.03, 10.0  # the goals
OWN, BEST, OTHER, KNOWN = "#0072b2", "#d55e00", "#b0b0b0", "#000000"  # distinct to the color-blind

Values = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Panel:
    """Describe a metric: its title, whether more or less is better (0: neither), and its digits."""

    says: str
    better: int
    digits: int = 3
    goal: bool = False  # to be best, or within one standard error of the best


PANELS = {
    "accuracy": Panel("Accuracy, all labels", +1),
    "nll": Panel("Negative log-likelihood, all labels", -1, goal=True),
    "ece": Panel("Calibration error (ECE), all labels", -1),
    "ood_auroc_noise": Panel("AUROC against uniform noise", +1, goal=True),
    "ood_auroc_held_out": Panel("AUROC against classes left out", +1, goal=True),
    "accuracy_few_5": Panel("Accuracy, 5 labels for each class", +1, goal=True),
    "accuracy_few_10": Panel("Accuracy, 10 labels for each class", +1, goal=True),
    "accuracy_missing": Panel("Accuracy, 30 % of the entries missing", +1),
    "nll_missing": Panel("Negative log-likelihood, 30 % of the entries missing", -1),
    "interval_coverage": Panel("Coverage of 90 % intervals", 0),
    "interval_width_times": Panel("Width of those intervals, relative to the true distribution", 0, 2),
    "fit_seconds": Panel("Seconds to fit, all labels", -1, 2),
    "predict_ms": Panel("Milliseconds to predict 1,000 rows", -1, 1),
}
DRAWN = ("nll", "ood_auroc_noise", "ood_auroc_held_out", "accuracy_few_5", "accuracy_few_10", "nll_missing")


@dataclass(frozen=True)
class Figure:
    """Summarize seeds: mean, standard deviation, standard error of the mean, and largest value."""

    mean: float
    std: float
    error: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        found = Metric(values)
        mean, std = found.mean or 0.0, found.std or 0.0
        return cls(mean, std, std / math.sqrt(len(values)), max(values))


def measured_of(values: Values, key: str, name: str) -> dict[str, Figure]:
    """Return the figures of all methods on a set, including the truth."""
    found = {method: Metric(values.get(f"{key}.{name}.{method}", ())).present for method in METHODS}
    return {method: Figure.of(there) for method, there in found.items() if there}


def best_of(found: Mapping[str, Figure], better: int) -> str | None:
    """Return the method with the best mean, without the truth."""
    able = [method for method in found if method != TRUTH]
    return max(able, key=lambda method: better * found[method].mean) if able and better else None


def near_best(found: Mapping[str, Figure], better: int) -> set[str]:
    """Return the best method and those within its standard error."""
    first = best_of(found, better)
    if first is None:
        return set()
    limit = better * found[first].mean - found[first].error
    return {method for method, f in found.items() if method != TRUTH and better * f.mean >= limit}


def cells(values: Values, key: str, *, mark: str = "*") -> tuple[list[str], list[list[str]]]:
    """Return the head and a row for each method; `mark` surrounds the best and those within its standard error."""
    panel = PANELS[key]
    by_set = {name: measured_of(values, key, name) for name in SETS}
    by_set = {name: found for name, found in by_set.items() if found}
    marked = {name: near_best(found, panel.better) for name, found in by_set.items()}
    rows = []
    for method in METHODS:
        if any(method in found for found in by_set.values()):
            row = [method]
            for name, found in by_set.items():
                text = "" if method not in found else written(found[method], panel.digits)
                row.append(f"{mark}{text}{mark}" if method in marked[name] else text)
            rows.append(row)
    return ["", *by_set], rows


def written(found: Figure, digits: int) -> str:
    return f"{found.mean:.{digits}f} ± {found.std:.{digits}f}"


def tables(values: Values) -> str:
    """Return all tables as text."""
    parts = []
    for key, panel in PANELS.items():
        head, rows = cells(values, key)
        if rows:
            parts.append(f"{panel.says}\n{table(head, rows)}\n")
    return "\n".join(parts)


def verdict(values: Values) -> list[str]:
    """Say which goals are met and which are not, a sentence each."""
    said = []
    for key, panel in PANELS.items():
        if not panel.goal:
            continue
        met, lost = [], []
        for name in SETS:
            found = measured_of(values, key, name)
            if OURS not in found or not set(found) - set(NOT_PEERS):
                continue
            if OURS in near_best(found, panel.better):
                met.append(name)
            else:
                lost.append(f"{name} ({best_of(found, panel.better)} is best)")
        if met or lost:
            where = f" Behind on {', '.join(lost)}." if lost else ""
            n = len(met) + len(lost)
            good = f"best or within one standard error of the best on {len(met)} of {n} sets"
            said.append(f"{panel.says}: {good}.{where}")
    return [*said, *_covered(values), *_fast(values)]


def _covered(values: Values) -> list[str]:
    found = {name: measured_of(values, "interval_coverage", name) for name in SETS}
    shares = {name: f[OURS].mean for name, f in found.items() if OURS in f}
    if not shares:
        return []
    n_right = sum(abs(share - LEVEL) <= COVERAGE_OFF for share in shares.values())
    level, off = f"{100 * LEVEL:.0f} %", f"{100 * COVERAGE_OFF:.0f} points"
    return [f"Intervals of {level} have a coverage within {off} of it on {n_right} of {len(shares)} sets."]


def _fast(values: Values) -> list[str]:
    found = {name: measured_of(values, "fit_seconds", name) for name in SETS}
    slowest = {name: f[OURS].most for name, f in found.items() if OURS in f}
    if not slowest:
        return []
    n_fast = sum(seconds < FIT_SECONDS for seconds in slowest.values())
    worst = max(slowest, key=lambda name: slowest[name])
    return [f"Every fit takes less than {FIT_SECONDS:g} s on {n_fast} of {len(slowest)} sets; {worst} is the slowest."]


# The figure and the page.


def panel_of(axis: Axes, values: Values, key: str) -> None:
    """Draw a line for each set: all methods, the best of the others, this library, the truth."""
    panel = PANELS[key]
    names = [name for name in SETS if OURS in measured_of(values, key, name)]
    for i, name in enumerate(names):
        found = measured_of(values, key, name)
        peers = {m: v for m, v in found.items() if m not in NOT_PEERS}
        axis.plot([v.mean for v in peers.values()], [i] * len(peers), "o", color=OTHER, markersize=5, zorder=1)
        first = best_of(peers, panel.better)
        if first is not None:
            axis.errorbar(peers[first].mean, i, xerr=peers[first].error, fmt="o", color=BEST, zorder=2)
        axis.errorbar(found[OURS].mean, i, xerr=found[OURS].error, fmt="D", color=OWN, zorder=3)
        if TRUTH in found:
            axis.plot(found[TRUTH].mean, i, "|", color=KNOWN, markersize=14, markeredgewidth=2, zorder=2)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    if panel.better < 0:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    better = f"{'more' if panel.better > 0 else 'less'} is better"
    axis.set_title(f"{textwrap.fill(panel.says, 40)}\n{better}", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def figure_of(values: Values, path: Path) -> None:
    figure, axes = plt.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
    for axis, key in zip(axes.flat, DRAWN, strict=True):
        panel_of(axis, values, key)
    marks = (("D", OWN, OURS), ("o", BEST, "the best of the others"), ("o", OTHER, "the others"), ("|", KNOWN, TRUTH))
    handles = [Line2D([], [], marker=m, color=c, linestyle="", label=says) for m, c, says in marks]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def section(result: results.Result) -> str:
    """Write the measured part of the page: the verdict, the figure, all tables, and where they come from."""
    values = {name: m.values for name, m in result.metrics.items()}
    points = "\n".join(textwrap.fill(f"- {said}", 120, subsequent_indent="  ") for said in verdict(values))
    parts = [
        points,
        "![each set and method, mean over seeds](figures/tabular.png)",
        f"Bars are one standard error over {len(result.seeds)} seeds.",
    ]
    for key, panel in PANELS.items():
        head, rows = cells(values, key, mark="**")
        if rows:
            lines = [head, ["---"] * len(head), *rows]
            parts += [f"### {panel.says}", "\n".join("| " + " | ".join(line) + " |" for line in lines)]
    where = f"{result.hardware}; {result.minutes:.1f} minutes; [results/tabular.json](../results/tabular.json)."
    return "\n\n".join([*parts, where, textwrap.fill(result.notes, 120)])


def draw(root: Path = ROOT) -> Path:
    """Draw the figure, and replace the measured part of the page."""
    page, path = root / "docs" / "tabular.md", root / "results" / "tabular.json"
    text = "Not published yet."
    if path.exists():
        result = results.read(path)
        figure_of({name: m.values for name, m in result.metrics.items()}, root / "docs" / "figures" / "tabular.png")
        text = section(result)
    marked = re.compile(r"(<!-- measured -->\n).*(\n<!-- end -->)", flags=re.S)
    page.write_text(marked.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page.read_text()))
    return page


if __name__ == "__main__":
    print(f"drawn in {draw()}")

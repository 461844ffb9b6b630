"""benchmarks: the tables, the ranks, the verdict, the figure and the page of `tabular`.

python benchmarks/tabular_page.py draws the figure and fills docs/tabular.md from results/tabular.json.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from rounds import table
from scipy.stats import rankdata, studentized_range
from tabular_methods import BOOSTED, LEVEL, METHODS, OURS, TRUTH
from tabular_sets import KEEL, LARGE, SETS

from jointenergy.metrics.registry import Metric
from jointenergy.report import results

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
COVERAGE_OFF, FIT_SECONDS, LOSS_OFF = 0.03, 10.0, 0.05  # the goals
ALPHA = 0.05  # of the Nemenyi test
OWN, OTHER = "#0072b2", "#909090"

Values = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Panel:
    """Describe a metric: its title, whether more or less is better (0: neither), and its digits."""

    says: str
    better: int
    digits: int = 3
    short: str = ""  # its head in the table of ranks, where it is in it
    goal: bool = False  # to have the first average rank


PANELS = {
    "accuracy": Panel("Accuracy, all labels", +1, short="accuracy"),
    "nll": Panel("Negative log-likelihood, all labels", -1, short="NLL", goal=True),
    "ece": Panel("Calibration error (ECE), all labels", -1, short="ECE"),
    "accuracy_missing": Panel("Accuracy, 30 % of the entries missing", +1),
    "nll_missing": Panel("Negative log-likelihood, 30 % of the entries missing", -1, short="NLL, missing"),
    "accuracy_few_5": Panel("Accuracy, 5 labels for each class", +1, short="accuracy, 5 labels"),
    "nll_few_5": Panel("Negative log-likelihood, 5 labels for each class", -1, short="NLL, 5 labels"),
    "ood_auroc_held_out": Panel("AUROC against classes left out", +1, short="left-out class", goal=True),
    "ood_auroc_noise": Panel("AUROC against uniform noise", +1, short="noise"),
    "imputation_rmse": Panel("RMSE of imputed numbers, in standard deviations", -1, short="RMSE"),
    "imputation_crps": Panel("CRPS of imputed numbers, in standard deviations", -1, short="CRPS", goal=True),
    "interval_coverage": Panel("Coverage of 90 % intervals", 0),
    "interval_width_times": Panel("Width of those intervals, relative to the true distribution", 0, 2),
    "fit_seconds": Panel("Seconds to fit, all labels", -1, 2),
    "fit_outliers_seconds": Panel("Seconds to fit a detector", -1, 2),
    "impute_seconds": Panel("Seconds to fit and to impute 200 rows", -1, 2),
    "predict_ms": Panel("Milliseconds to predict 1,000 rows", -1, 1),
}
RANKED = (
    ("nll", "accuracy", "ece", "nll_missing", "accuracy_few_5", "nll_few_5"),
    ("ood_auroc_held_out", "ood_auroc_noise"),
    ("imputation_rmse", "imputation_crps"),
)
"""A table of ranks for each group of metrics that the same methods have."""


def means(values: Values, key: str, name: str) -> dict[str, float]:
    """Return the mean over seeds of all methods on a set, including the truth."""
    found = {method: Metric(values.get(f"{key}.{name}.{method}", ())).mean for method in METHODS}
    return {method: mean for method, mean in found.items() if mean is not None}


def best_of(found: Mapping[str, float], better: int) -> set[str]:
    """Return the methods with the best mean, without the truth."""
    able = {method: better * mean for method, mean in found.items() if method != TRUTH}
    return {method for method in able if better and able[method] == max(able.values())}


def cells(values: Values, key: str, *, mark: str = "*") -> tuple[list[str], list[list[str]]]:
    """Return the head and a row for each set; `mark` surrounds the best."""
    panel = PANELS[key]
    by_set = {name: found for name in SETS if (found := means(values, key, name))}
    methods = [method for method in METHODS if any(method in found for found in by_set.values())]
    rows = []
    for name, found in by_set.items():
        best, row = best_of(found, panel.better), [name]
        for method in methods:
            text = f"{found[method]:.{panel.digits}f}" if method in found else ""
            row.append(f"{mark}{text}{mark}" if method in best else text)
        rows.append(row)
    return ["", *methods], rows


def tables(values: Values) -> str:
    """Return all tables as text."""
    parts = []
    for key, panel in PANELS.items():
        head, rows = cells(values, key)
        if rows:
            parts.append(f"{panel.says}\n{table(head, rows)}\n")
    return "\n".join(parts)


# Ranks.


@dataclass(frozen=True)
class Ranks:
    """Hold ranks, 1 for the best, over the sets of KEEL, of the methods that all of these sets have.

    Settings of this library were chosen on the other small sets.
    """

    each: Mapping[str, list[float]]

    @classmethod
    def of(cls, values: Values, key: str) -> Ranks:
        found = [means(values, key, name) for name in KEEL]
        found = [on_set for on_set in found if OURS in on_set]
        methods = [m for m in METHODS if found and m != TRUTH and all(m in on_set for on_set in found)]
        rows = [rankdata([-PANELS[key].better * on_set[m] for m in methods]) for on_set in found]
        return cls({m: [float(row[i]) for row in rows] for i, m in enumerate(methods)})

    @property
    def n_sets(self) -> int:
        return len(self.each[OURS]) if OURS in self.each else 0

    @property
    def averages(self) -> dict[str, float]:
        """Return the average rank of each method, the best first."""
        found = {method: float(np.mean(ranks)) for method, ranks in self.each.items()}
        return dict(sorted(found.items(), key=lambda pair: pair[1]))

    @property
    def distance(self) -> float:
        """Return the critical distance of average ranks (Nemenyi)."""
        n = len(self.each)
        quantile = studentized_range.ppf(1 - ALPHA, n, np.inf) / math.sqrt(2)
        return float(quantile * math.sqrt(n * (n + 1) / (6 * self.n_sets)))

    def against(self, peer: str) -> tuple[int, int]:
        """Return on how many sets this library is better, and on how many it is worse."""
        pairs = list(zip(self.each[OURS], self.each[peer], strict=True))
        return sum(ours < theirs for ours, theirs in pairs), sum(ours > theirs for ours, theirs in pairs)


def rank_rows(values: Values, keys: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return average ranks, and beside them this library's wins and losses against the method."""
    ranks = {key: found for key in keys if (found := Ranks.of(values, key)).n_sets}
    rows = []
    for method in METHODS:
        if any(method in found.each for found in ranks.values()):
            row = [method]
            for found in ranks.values():
                rank = f"{found.averages[method]:.1f}" if method in found.each else ""
                wins = "-".join(map(str, found.against(method))) if rank and method != OURS else ""
                row.append(f"{rank} ({wins})" if wins else rank)
            rows.append(row)
    return ["", *(PANELS[key].short for key in ranks)], rows


# The verdict.


def verdict(values: Values) -> list[str]:
    """Say which goals are met and which are not, a sentence each."""
    said = []
    for key, panel in PANELS.items():
        ranks = Ranks.of(values, key)
        if panel.goal and len(ranks.each) > 1:
            averages = ranks.averages
            place = list(averages).index(OURS) + 1
            first = next(name for name in averages if name != OURS)
            said.append(
                f"{panel.says}: average rank {averages[OURS]:.1f} of {len(averages)} methods on {ranks.n_sets} KEEL "
                f"sets, place {place}; the {'next' if place == 1 else 'best'} is {first} with {averages[first]:.1f}. "
                f"Ranks differ significantly from a distance of {ranks.distance:.1f} on."
            )
    return [*said, *_boosted(values), *_covered(values), *_fast(values)]


def _boosted(values: Values) -> list[str]:
    found = {name: means(values, "nll", name) for name in LARGE}
    times = {
        name: f[OURS] / min(f[m] for m in BOOSTED if m in f)
        for name, f in found.items()
        if OURS in f and set(BOOSTED) & set(f)
    }
    if not times:
        return []
    n_near = sum(ratio <= 1 + LOSS_OFF for ratio in times.values())
    each = ", ".join(f"{name} {ratio:.2f}" for name, ratio in times.items())
    return [
        f"Large sets: the log-loss is within {100 * LOSS_OFF:.0f} % of the best boosting on {n_near} of {len(times)}. "
        f"As a multiple of it: {each}."
    ]


def _covered(values: Values) -> list[str]:
    found = {name: means(values, "interval_coverage", name) for name in SETS}
    shares = {name: f[OURS] for name, f in found.items() if OURS in f}
    if not shares:
        return []
    n_right = sum(abs(share - LEVEL) <= COVERAGE_OFF for share in shares.values())
    level, off = f"{100 * LEVEL:.0f} %", f"{100 * COVERAGE_OFF:.0f} points"
    return [
        f"Intervals of {level} have a coverage within {off} of it on {n_right} of {len(shares)} sets; "
        f"the mean is {np.mean(list(shares.values())):.3f}."
    ]


def _fast(values: Values) -> list[str]:
    found = {name: Metric(values.get(f"fit_seconds.{name}.{OURS}", ())).present for name in SETS}
    slowest = {name: max(seconds) for name, seconds in found.items() if seconds}
    if not slowest:
        return []
    n_fast = sum(seconds < FIT_SECONDS for seconds in slowest.values())
    worst = max(slowest, key=lambda name: slowest[name])
    return [f"Every fit takes less than {FIT_SECONDS:g} s on {n_fast} of {len(slowest)} sets; {worst} is the slowest."]


# The figure and the page.


def figure_of(values: Values, path: Path) -> None:
    """Draw average ranks with bars of half the critical distance to each side."""
    keys = [key for key, panel in PANELS.items() if panel.goal and len(Ranks.of(values, key).each) > 1]
    figure, axes = plt.subplots(1, max(1, len(keys)), figsize=(13, 4.2), layout="constrained", squeeze=False)
    for axis, key in zip(axes.flat, keys, strict=False):
        ranks = Ranks.of(values, key)
        for i, (method, rank) in enumerate(ranks.averages.items()):
            how = {"fmt": "D", "color": OWN} if method == OURS else {"fmt": "o", "color": OTHER}
            axis.errorbar(rank, i, xerr=ranks.distance / 2, capsize=3, **how)
        axis.set_yticks(range(len(ranks.each)), list(ranks.averages))
        axis.invert_yaxis()
        axis.set_xlabel(f"average rank on {ranks.n_sets} KEEL sets, 1 is best")
        axis.set_title(textwrap.fill(PANELS[key].says, 40), fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, axis="x")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table for the page."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows))


def section(result: results.Result) -> str:
    """Write the measured part of the page: the verdict, ranks, the figure, all tables, and where they come from."""
    values = {name: m.values for name, m in result.metrics.items()}
    points = "\n".join(textwrap.fill(f"- {said}", 120, subsequent_indent="  ") for said in verdict(values))
    parts = [
        points,
        "![average ranks and critical distances](figures/tabular-ranks.png)",
        "Two methods whose bars do not overlap differ significantly (Nemenyi test, 5 %).",
        "## Average ranks",
        "On the KEEL sets, 1 is best. In brackets: on how many of them jointenergy is better, and on how many worse.",
        *(lines_of(*found) for keys in RANKED if (found := rank_rows(values, keys))[1]),
        "## Each set",
        f"Means over {len(result.seeds)} seeds; the best is bold.",
    ]
    for key, panel in PANELS.items():
        head, rows = cells(values, key, mark="**")
        if rows:
            parts += [f"### {panel.says}", lines_of(head, rows)]
    where = f"{result.hardware}; {result.minutes:.1f} minutes; [results/tabular.json](../results/tabular.json)."
    return "\n\n".join([*parts, where, textwrap.fill(result.notes, 120)])


def draw(root: Path = ROOT) -> Path:
    """Draw the figure, and replace the measured part of the page."""
    page, path = root / "docs" / "tabular.md", root / "results" / "tabular.json"
    text = "Not published yet."
    if path.exists():
        result = results.read(path)
        values = {name: m.values for name, m in result.metrics.items()}
        figure_of(values, root / "docs" / "figures" / "tabular-ranks.png")
        text = section(result)
    marked = re.compile(r"(<!-- measured -->\n).*(\n<!-- end -->)", flags=re.S)
    page.write_text(marked.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page.read_text()))
    return page


if __name__ == "__main__":
    print(f"drawn in {draw()}")

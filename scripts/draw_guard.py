"""Draw docs/figures/guard.png from the curves and events in results/curves: one recipe with and without the guard."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
RUNS = {"without the guard": "cifar10-few-steps-unguarded", "with the guard": "cifar10-few-steps"}
COLORS = {"without the guard": "#d55e00", "with the guard": "#0072b2"}  # distinct to the color-blind
SMOOTH = 8  # rows of metrics averaged for a point of a curve
LIMIT = 0.05  # of the health check


def rows(name: str) -> list[dict[str, float]]:
    with (ROOT / "results" / "curves" / f"{name}-metrics.csv").open(newline="") as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def events(name: str) -> list[dict[str, str]]:
    lines = (ROOT / "results" / "curves" / f"{name}-events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def smoothed(values: list[float]) -> list[float]:
    return [sum(values[max(0, i - SMOOTH + 1) : i + 1]) / min(i + 1, SMOOTH) for i in range(len(values))]


def main() -> None:
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.4), layout="constrained")
    for label, name in RUNS.items():
        run, color = rows(name), COLORS[label]
        at = [row["iteration"] for row in run]
        axes[0].plot(at, smoothed([-row["log_p_y_given_x"] for row in run]), color=color, label=label)
        axes[1].plot(at, smoothed([row["gap"] for row in run]), color=color)
        axes[3].plot(at, [row["steps"] for row in run], color=color, drawstyle="steps-post")
        unhealthy = [e for e in events(name) if e["event"] == "unhealthy"]
        found = [float(re.findall(r"AUROC ([\d.]+)", e["says"])[0]) for e in unhealthy]
        axes[2].plot([int(e["iteration"]) for e in unhealthy], found, "o", color=color, markersize=4)
    axes[0].legend(frameon=False)
    axes[2].axhspan(LIMIT, 0.08, color="#009e73", alpha=0.15)
    axes[2].text(1200, 0.062, "healthy", color="#00694d", ha="center")
    axes[2].set(ylim=(0, 0.08), xlim=axes[0].get_xlim())
    titles = (
        "cross-entropy",
        "gap of f(data) and f(chains), in sd",
        "unhealthy checks: AUROC, long chains",
        "chain steps",
    )
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("iteration")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "figures" / "guard.png", dpi=110)


if __name__ == "__main__":
    main()

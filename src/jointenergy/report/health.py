"""report: the health of the run's chains, in words and numbers, and how training went, with the guard's events."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from jointenergy.errors import InputError, plural
from jointenergy.files.reading import told
from jointenergy.metrics.looks import TAILS
from jointenergy.report.drawings import COLORS, drawing, picture
from jointenergy.report.sections import Cell, Picture, Section, Subject, Suite, Table
from jointenergy.training import health as limits
from jointenergy.training.health import Health, Sign
from jointenergy.training.journal import EVENTS, read_events, read_rows
from jointenergy.training.loop import INTERVENTIONS

SHOWN = 3  # findings that are not folded
WORST: tuple[Sign, ...] = (  # what is wrong with samples comes first
    "finite",
    "fresh",
    "looks",
    "conditions",
    "coverage",
    "movement",
    "persistent",
    "long",
    "bounds",
)
COLUMNS = ("check", "found", "healthy")
MARKS = {"rollback": COLORS[3], "purge": COLORS[4], "skip": COLORS[4], "steps": COLORS[2], "rate": COLORS[2]}


def health(subject: Subject, suite: Suite) -> Section:
    """What the guard of training asks, asked of the loaded function once more."""
    del suite  # it costs seconds
    title = "Health"
    try:
        found = subject.run.health()
    except InputError as error:
        return Section("health", title, (f"Not checked: {error}.",))
    verdict = "Healthy: all checks pass." if found.healthy else "Not healthy."
    said = [f"{c[0].upper()}{c[1:]}." for c in (*_worst_first(found), *(f"warning: {w}" for w in found.warnings))]
    says = (verdict, *said, *subject.run.notes)
    rest = len(said) - SHOWN
    more = [f"{plural(rest, 'more finding')} in the details."] if rest > 0 else []
    notes = [note for note in subject.run.notes if not any(c in note for c in found.complaints)]  # else told twice
    lead = (verdict, *said[:SHOWN], *more, *notes)
    metrics: dict[str, float | None] = {"healthy": float(found.healthy)}
    tables = (_energies(found), *_looks(found))
    return Section("health", title, says, metrics, tables, lead=lead)


def _worst_first(found: Health) -> list[str]:
    """The complaints: the first of each kind, in the order of `WORST`, then the second of each, and so on."""
    seen: Counter[Sign] = Counter()
    ranked: list[tuple[int, int, str]] = []
    for sign, sentence in found.signs:
        ranked.append((seen[sign], WORST.index(sign), sentence))
        seen[sign] += 1
    return [sentence for _, _, sentence in sorted(ranked, key=lambda one: one[:2])]


def _energies(found: Health) -> Table:
    low, high = limits.AUROC_PERSISTENT
    fresh = limits.AUROC_FRESH
    rows: tuple[tuple[Cell, ...], ...] = (
        ("all values are finite", "yes" if found.finite else "no", "yes"),
        ("f(data) against persistent chains (AUROC)", found.auroc_persistent, f"{low} to {high}"),
        ("gap between data and persistent chains (standard deviations)", found.gap, f"below {limits.GAP:g} either way"),
        ("f(data) against fresh chains (AUROC)", found.auroc_fresh, f"{fresh[0]} to {fresh[1]}"),
        ("the same at ten times the length", found.auroc_fresh_long, f"{fresh[0]} to {fresh[1]}"),
        ("f(data) against uniform noise (AUROC)", found.auroc_noise, f"a warning up to {limits.AUROC_NOISE}"),
        ("excess of values at the bounds", found.at_bounds, f"at most {limits.AT_BOUNDS}"),
        ("recovery of noised data", found.recovery, f"at least {limits.RECOVERY}"),
        ("label agreement of conditional samples", found.agreement, f"at least {limits.AGREEMENT}"),
    )
    return Table("Energies and movement on held-out rows", COLUMNS, rows)


def _looks(found: Health) -> list[Table]:
    """What samples look like, a column for each set of them."""
    sets = {name: getattr(found, name) for name in limits.SETS}
    sets = {name: looks for name, looks in sets.items() if looks is not None}
    if not sets:
        return []
    rows: list[tuple[Cell, ...]] = []
    for name, what, limit in (
        ("distance", "distance from data (MMD)", f"at most {limits.DISTANCE}, more with few rows"),
        ("coverage", "share of data covered (data: 0.97)", f"at least {limits.COVERAGE}"),
        ("unlike", "share unlike all data rows", f"at most {limits.UNLIKE}"),
        ("copies", "share that are copies of training rows", f"at most {limits.COPIES}"),
        ("shift", "shift of a column beyond chance (standard deviations)", f"at most {limits.SHIFT}"),
    ):
        if all(math.isnan(getattr(looks, name)) for looks in sets.values()):
            continue  # not measured, such as columns of images
        rows.append((what, *(getattr(looks, name) for looks in sets.values()), limit))
    for tail in next(iter(sets.values())).tails:
        words = TAILS[tail][2]
        rows.append(
            (f"share that {words}", *(looks.tails[tail] for looks in sets.values()), f"at most {limits.TAILED}")
        )
    columns = ("check", *(limits.SETS[name] for name in sets), "healthy")
    return [Table("Looks of samples; shares in excess of the data's own", columns, tuple(rows))]


def training(subject: Subject, suite: Suite) -> Section | None:
    """Curves of the run folder, the guard's events marked."""
    del suite
    checkpoint = subject.run.origin.checkpoint
    if checkpoint is None:
        return None
    folder = checkpoint.parent.parent
    with told(f"the training log in {folder} is damaged: `jointenergy resume` repairs it"):
        return _told_training(folder)


def _told_training(folder: Path) -> Section | None:
    metrics, checks, events = (
        read_rows(folder / "metrics.csv"),
        read_rows(folder / "checks.csv"),
        read_events(folder / EVENTS),
    )
    if not metrics:
        return None
    said = [f"Iteration {e['iteration']}: {e['says']}." for e in events]
    says = said or ["The guard did not intervene."] if checks and "healthy" in checks[0] else said
    seconds = float(metrics[-1]["seconds"])
    n = float(sum(e["event"] in INTERVENTIONS for e in events))
    figures: dict[str, float | None] = {"training_seconds": seconds, "interventions": n}
    return Section("training", "Training", tuple(says), figures, (), (_curves(metrics, checks, events),))


def _curves(metrics: list[dict[str, str]], checks: list[dict[str, str]], events: list[dict[str, Any]]) -> Picture:
    chains = "f_samples" in metrics[0]
    with drawing(9, 2.8) as figure:
        axes = figure.subplots(1, 3 if chains else 2, squeeze=False)[0]
        _line(axes[0], metrics, "loss", "loss")
        axes[0].set_title("loss")
        _line(axes[1], checks, "accuracy", "held-out accuracy")
        axes[1].set_title("held-out accuracy")
        axes[1].set_ylim(top=1.005)
        if chains:
            _line(axes[2], metrics, "f_data", "data")
            _line(axes[2], metrics, "f_samples", "chains")
            axes[2].set_title("log-density, unnormalized")
            axes[2].legend()
        for axis in axes:
            axis.set_xlabel("iteration")
            for event in events:
                axis.axvline(int(event["iteration"]), color=MARKS.get(event["event"], "#777777"), lw=0.8, ls=":")
        marked = " Dotted lines are events of the guard, listed above." if events else ""
        return picture("training", f"Learning curves.{marked}", figure)


def _line(axis: Axes, rows: list[dict[str, str]], column: str, label: str) -> None:
    points = [(int(r["iteration"]), float(r[column])) for r in rows if r.get(column)]
    axis.plot([p[0] for p in points], [p[1] for p in points], label=label, lw=1.2)

"""report: distal images: where a classifier is led from noise until it is sure of a class (JEM, figure 6)."""

from __future__ import annotations

import torch
from torch import Tensor

from jointenergy.report.drawings import grids
from jointenergy.report.predictors import predictors, prefix
from jointenergy.report.sections import Cell, Section, Subject, Suite, Table

ABOVE = 0.9  # the probability at which a row stops
PER, CLASSES = 8, 10  # images of each class, and classes at the most
MOST_STEPS = 1000


def distal(subject: Subject, suite: Suite) -> Section | None:
    """From noise up the gradient of log p(class | x), for the run and what it is held against; not in the quick suite.

    A model of the data is led to images of the class; a classifier alone is sure of what is still noise.
    """
    if suite == "quick" or not len(subject.run.labels):
        return None
    able, said = predictors(subject)
    able = {name: run for name, run in able.items() if run.model.can_sum()}
    if not able:
        return Section("distal", "Distal images", tuple(said))
    label, values = subject.run.labels.names[0], subject.run.labels.values[0][:CLASSES]
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float | None] = {}
    panels: dict[str, Tensor] = {}
    for name, run in able.items():
        found = [
            run.distal(PER, {label: v}, above=ABOVE, max_steps=MOST_STEPS, seed=subject.seed + k)
            for k, v in enumerate(values)
        ]
        reached, steps = torch.cat([f.reached for f in found]), torch.cat([f.steps for f in found])
        panels[name] = torch.cat([f.x for f in found])
        share, middle = float(reached.double().mean()), float(steps.double().median())
        metrics |= {f"{prefix(name)}distal_reached": share, f"{prefix(name)}distal_steps": middle}
        rows.append((name, share, middle))
    caption = (
        f"Noise moved along the gradient of log p({label} | x) until it exceeds {ABOVE:g}, {PER} per value. Images "
        "that still look like noise are confident mistakes of the classifier."
    )
    drawn = grids("distal", caption, panels, PER, subject.run.bounds, rows=values)
    how = (
        f"Steps are 0.01 of the range of x on average over its entries, at most {MOST_STEPS:,} of them; x is clamped "
        "to its range, and a row stops when its probability passes."
    )
    columns = ("classifier", f"reached {ABOVE:g}", "median steps")
    tables = (Table("From noise to a confident prediction", columns, tuple(rows)),)
    pictures = () if drawn is None else (drawn,)
    return Section("distal", "Distal images", (how, *said), metrics, tables, pictures)

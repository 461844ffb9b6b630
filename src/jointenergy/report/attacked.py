"""report: a classifier after all attacks: which radii it stood, as figures and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.report.defended import NORMS, Norm
from jointenergy.report.sections import Table

SHOWN: Mapping[Norm, str] = {"linf": "L-inf", "l2": "L2"}
ATTACKS = {
    "gradient": "gradient",
    "identity": "gradient, refinement taken for the identity",
    "boundary": "boundary, without gradients",
    "pointwise": "pointwise, without gradients",
}


@dataclass(frozen=True, eq=False)
class Attacked:
    """A classifier after all attacks: for each attack the radii in [0, 1] units by norm, `[n]`, and the wrong rows."""

    name: str
    prefix: str
    steps: int
    radii: Mapping[str, Mapping[Norm, Tensor]]
    x: Mapping[str, Mapping[Norm, Tensor]]
    predict: Callable[[Tensor], Tensor]
    """Labels `[n, L]` without refinement."""

    def smallest(self, norm: Norm, attacks: Sequence[str] = ()) -> Tensor:
        """The minimum over all attacks, or over those named."""
        return torch.stack([self.radii[a][norm] for a in attacks or self.radii]).amin(0)

    def closest(self, norm: Norm) -> Tensor:
        """The x of that minimum; of a row that stood, or was wrong before, its own."""
        best = torch.stack([self.radii[a][norm] for a in self.radii]).argmin(0)
        return torch.stack([self.x[a][norm] for a in self.radii])[best, torch.arange(len(best))]


def robust_accuracy(radius: Tensor, within: float) -> float:
    """The share of rows that no attack made wrong by a change of at most this radius."""
    return float((radius > within).double().mean())


def median_radius(radius: Tensor) -> float | None:
    """The radius within which half of the rows fall; None where more than half stood everything."""
    middle = float(radius.sort().values[(len(radius) - 1) // 2])
    return middle if math.isfinite(middle) else None


def metrics_of(found: Sequence[Attacked], radii: Mapping[Norm, Sequence[int]]) -> dict[str, float | None]:
    """Robust accuracies at radii in 255ths, and the median radius, of each classifier under all attacks together."""
    metrics: dict[str, float | None] = {}
    for each in found:
        for norm in NORMS:
            radius = each.smallest(norm)
            for r in (0, *radii[norm]):
                at = f"{r}-255" if r else "0"
                metrics[f"{each.prefix}robust_accuracy.{norm}.{each.steps}.{at}"] = robust_accuracy(radius, r / 255)
            metrics[f"{each.prefix}robust_radius.{norm}.{each.steps}"] = median_radius(radius)
    return metrics


def tables_of(found: Sequence[Attacked], radii: Mapping[Norm, Sequence[int]]) -> tuple[Table, ...]:
    """A table for each norm, and one of what each attack found alone."""
    tables = [
        Table(
            f"Share of rows still right within {SHOWN[norm]} distance r, under all attacks together",
            ("classifier", "r = 0", *(f"{r}/255" for r in radii[norm]), "median radius"),
            tuple(
                (
                    each.name,
                    *(robust_accuracy(each.smallest(norm), r / 255) for r in (0, *radii[norm])),
                    median_radius(each.smallest(norm)),
                )
                for each in found
            ),
        )
        for norm in NORMS
    ]
    alone = Table(
        "Median radius that each attack found by itself: the smaller, the stronger the attack",
        ("classifier", "attack", *SHOWN.values()),
        tuple(
            (each.name, ATTACKS[attack], *(median_radius(each.radii[attack][norm]) for norm in NORMS))
            for each in found
            for attack in each.radii
        ),
    )
    return (*tables, alone)

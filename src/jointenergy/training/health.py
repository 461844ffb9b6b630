"""training: the health verdict on samples: energies, movement, looks, coverage, and the same for given labels."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from jointenergy.files.schema import STRICT, Measured, of_json
from jointenergy.metrics.looks import TAILS, Looks

# Limits of health, in one place and not part of recipes; docs/guard.md describes how they were set.
AUROC_PERSISTENT = (0.1, 0.9)
AUROC_FRESH = (0.05, 0.95)
AUROC_NOISE = 0.99  # a warning below
GAP = 3.0
LOST = 30.0  # a gap too large to be chance
AT_BOUNDS = 0.10
RECOVERY = 0.5
DISTANCE = 0.03
DISTANCE_ROWS = 0.5  # plus this divided by the number of compared rows
SHIFT = 0.1
COVERAGE = 0.5
UNLIKE = 0.25
COPIES = 0.2
TAILED = 0.07  # maximum share of samples outside one percentile limit of the data
TAILED_GROUP = 0.4  # the same within one class
AGREEMENT = 0.65
AGREEMENT_ONE = 0.25  # for a single label

PROTOCOL = "by energies, movement, looks, coverage and conditions of samples"
"""The protocol of a published `healthy`."""

Sign = Literal["finite", "persistent", "fresh", "long", "bounds", "movement", "looks", "coverage", "conditions"]
SETS = {"fresh": "samples", "given": "samples given a label", "persistent": "persistent chains"}


@dataclass(frozen=True)
class Health:
    """The measurements of a health check; `complaints` is empty if healthy.

    An AUROC is the probability that f(data) exceeds f of the other set. The gap is the difference of mean f between
    data and persistent chains, in standard deviations of f(data). `recovery` is the share of the distance from noised
    data to data that chains remove, relative to the same chains without a gradient. `agreement` is how often the
    nearest training rows of samples have the given label: 1 for data, 0 for chance. NaN: not measured.
    """

    finite: bool
    auroc_persistent: Measured = math.nan
    gap: Measured = math.nan
    auroc_noise: Measured = math.nan
    auroc_fresh: Measured = math.nan
    auroc_fresh_long: Measured = math.nan
    at_bounds: Measured = math.nan
    recovery: Measured = math.nan
    agreement: Measured = math.nan
    agreement_of: dict[str, Measured] = field(default_factory=dict)
    """The agreement per label, if there are enough samples."""
    fresh: Looks | None = None
    given: Looks | None = None
    persistent: Looks | None = None
    uncompared: str = ""
    """Why samples could not be compared with data, if so."""
    notes: tuple[str, ...] = ()
    """Parts of the check that were skipped, and why."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @property
    def signs(self) -> list[tuple[Sign, str]]:
        """List what is wrong, by kind and as a sentence."""
        if not self.finite:
            return [("finite", "some log-densities or chains are not finite")]
        said: list[tuple[Sign, str]] = []

        def wrong(sign: Sign, bad: bool, sentence: str) -> None:
            if bad:
                said.append((sign, sentence))

        # NaN was not measured, so it is not wrong.
        persistent, fresh, long = self.auroc_persistent, self.auroc_fresh, self.auroc_fresh_long
        apart = not _within(persistent, AUROC_PERSISTENT)
        wrong("persistent", apart, f"persistent chains are distinguishable from data (AUROC {persistent:.2f})")
        gap = f"the gap between data and persistent chains is {self.gap:.1f} standard deviations"
        wrong("persistent", abs(self.gap) >= GAP, gap)
        unlike = not _within(fresh, AUROC_FRESH)
        wrong("fresh", unlike, f"fresh chains are distinguishable from data by energy (AUROC {fresh:.2f})")
        drift = f"fresh chains of ten times the length drift away from data (AUROC {long:.2f})"
        wrong("long", not _within(long, AUROC_FRESH), drift)
        bounds = f"{self.at_bounds:.0%} more values at the bounds than in the data"
        wrong("bounds", self.at_bounds > AT_BOUNDS, bounds)
        moved = f"chains do not denoise data: they remove {max(self.recovery, 0.0):.0%} of the distance"
        wrong("movement", self.recovery < RECOVERY, moved)
        for name, samples in SETS.items():
            looks: Looks | None = getattr(self, name)
            if looks is not None:
                said += _wrong_looks(looks, samples)
        labels = "samples given a label look like other labels"
        wrong("conditions", self.agreement < AGREEMENT, f"{labels} (agreement {self.agreement:.2f}; data: 1)")
        worst = min(self.agreement_of, key=lambda name: self.agreement_of[name], default="")
        if worst and not self.agreement < AGREEMENT and self.agreement_of[worst] < AGREEMENT_ONE:
            said.append(("conditions", f"samples given {worst} look like other labels"))
        wrong("looks", bool(self.uncompared), self.uncompared)
        return said

    @property
    def complaints(self) -> list[str]:
        """List what is wrong, one sentence each."""
        return [sentence for _, sentence in self.signs]

    @property
    def warnings(self) -> list[str]:
        """List warnings that do not make a run unhealthy."""
        said = list(self.notes)
        if self.auroc_noise <= AUROC_NOISE:
            said.append(
                f"uniform noise is not clearly separated from data (AUROC {self.auroc_noise:.3f}; expected: 0.99)"
            )
        return said

    @property
    def drifting(self) -> bool:
        """Whether training chains are too short: fresh ones are wrong in energy, perhaps movement, in nothing else."""
        signs = {sign for sign, _ in self.signs}
        return bool(signs & {"fresh", "long"}) and signs <= {"fresh", "long", "movement"}

    @property
    def lost(self) -> bool:
        """Whether no second check is needed: values are not finite, or chains are far from all data."""
        return not self.finite or abs(self.gap) > LOST

    @property
    def healthy(self) -> bool:
        return not self.signs

    @property
    def distance(self) -> float:
        """Distance of samples from data, the larger of unconditional and conditional samples; 0 if not compared."""
        return max([0.0, *(looks.distance for looks in (self.fresh, self.given) if looks is not None)])

    def values(self) -> dict[str, float | bool]:
        """Return numbers by name; those of looks are called `given.coverage` and so on."""
        plain = {k: v for k, v in asdict(self).items() if not isinstance(v, dict | tuple | str) and v is not None}
        looks = {name: getattr(self, name) for name in SETS}
        named = {f"{name}.{k}": v for name, found in looks.items() if found for k, v in found.values().items()}
        return {"healthy": self.healthy, **plain, **named}

    def state(self) -> dict[str, Any]:
        """Return plain values, from which `from_state` recreates the health."""
        plain: dict[str, Any] = _without_nan(asdict(self))
        return plain

    @classmethod
    def from_state(cls, state: object) -> Health:
        return of_json(_HEALTH, json.dumps(state), "the health of the checkpoint is damaged")


_HEALTH = TypeAdapter(Health)


def _wrong_looks(looks: Looks, samples: str) -> list[tuple[Sign, str]]:
    said: list[tuple[Sign, str]] = []
    for name, share in sorted(looks.tails.items(), key=lambda item: -item[1]):
        if share > TAILED:
            said.append(("looks", f"{share:.0%} of {samples} {TAILS[name][2]}"))
    worst = max(looks.groups, key=lambda name: looks.groups[name], default=None)
    if not said and worst is not None and looks.groups[worst] > TAILED_GROUP:
        said.append(("conditions", f"{looks.groups[worst]:.0%} of samples given {worst} do not look like data"))
    if looks.unlike > UNLIKE:
        said.append(("looks", f"{looks.unlike:.0%} of {samples} are unlike all data rows"))
    limit = DISTANCE + DISTANCE_ROWS / max(looks.rows, 1)
    if looks.distance > limit:
        said.append(("looks", f"{samples} are not distributed like data (MMD {looks.distance:.3f}, limit {limit:.3f})"))
    if looks.shift > SHIFT:
        said.append(("looks", f"the mean of a column of {samples} is off by {looks.shift:.2f} standard deviations"))
    if looks.coverage < COVERAGE:
        said.append(("coverage", f"{samples} cover {looks.coverage:.0%} of the data (real data: 97 %)"))
    if looks.copies > COPIES:
        said.append(("coverage", f"{looks.copies:.0%} of {samples} are copies of training rows"))
    return said


def auroc(above: Tensor, below: Tensor) -> float:
    """Return the probability that a value of the first set exceeds one of the second; ties count half."""
    scores = torch.cat((above, below)).double()
    # Rank first: torchmetrics applies a sigmoid to scores outside [0, 1], which ties large ones.
    ranks = scores.unique(return_inverse=True)[1].double()
    target = torch.cat((torch.ones(len(above)), torch.zeros(len(below)))).long().to(scores.device)
    return float(binary_auroc(ranks / ranks.max().clamp(min=1.0), target))


def diversity(x: Tensor) -> float:
    """Return the mean distance between pairs of rows."""
    return float(torch.pdist(x.flatten(1).float()).mean())


def at_bounds(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Return the share of values within 0.1 % of the range from either bound, or beyond it."""
    margin = 1e-3 * (bounds[1] - bounds[0])
    return ((x <= bounds[0] + margin) | (x >= bounds[1] - margin)).float().mean()


def _without_nan(value: Any) -> Any:  # noqa: ANN401 (JSON)
    """Replace NaN, which JSON does not have, by None."""
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _within(value: float, limits: tuple[float, float]) -> bool:
    return math.isnan(value) or limits[0] <= value <= limits[1]

"""training: healthy or not, by what users draw: energies, movement, looks, coverage, and the same with labels given."""

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

# The numbers of health, in one place and no fields of a recipe; docs/guard.md says how they were set.
AUROC_PERSISTENT = (0.1, 0.9)
AUROC_FRESH = (0.05, 0.95)
AUROC_NOISE = 0.99  # below it: a warning
GAP = 3.0
LOST = 30.0  # a gap that is no chance
AT_BOUNDS = 0.10
RECOVERY = 0.5
DISTANCE = 0.03
DISTANCE_ROWS = 0.5  # more where few rows are compared: this over their number
COVERAGE = 0.5
UNLIKE = 0.25
COPIES = 0.2
TAILED = 0.07  # the share of samples with one fault of single images
TAILED_GROUP = 0.4  # with one fault within one class
AGREEMENT = 0.65
AGREEMENT_ONE = 0.25  # of one label

PROTOCOL = "by energies, movement, looks, coverage and conditions of samples"
"""What a published `healthy` was judged by."""

Sign = Literal["finite", "persistent", "fresh", "long", "bounds", "movement", "looks", "coverage", "conditions"]
SETS = {"fresh": "samples", "given": "samples given a label", "persistent": "persistent chains"}


@dataclass(frozen=True)
class Health:
    """What was measured, and the sentences for what is wrong: none when healthy.

    AUROCs say how often f(data) lies above f of the other set. The gap is the difference of the means of f(data) and
    f(persistent chains) in standard deviations of f(data). `recovery` is the share of the distance between noised data
    and data that chains remove, against the same chains without a gradient. `agreement` says how often the nearest
    training rows of samples have the label that was given: 1 for data, 0 by chance. NaN where something is not judged.
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
    """The same of each label by itself, where there are samples enough."""
    fresh: Looks | None = None
    given: Looks | None = None
    persistent: Looks | None = None
    uncompared: str = ""
    """Why samples could not be compared with data, if they could not."""
    notes: tuple[str, ...] = ()
    """What could not be judged, and why."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @property
    def signs(self) -> list[tuple[Sign, str]]:
        """What is wrong, by kind and in a sentence."""
        if not self.finite:
            return [("finite", "some log-densities or chains are not finite")]
        said: list[tuple[Sign, str]] = []

        def wrong(sign: Sign, bad: bool, sentence: str) -> None:
            if bad:
                said.append((sign, sentence))

        # NaN was not judged, and is not wrong.
        persistent, fresh, long = self.auroc_persistent, self.auroc_fresh, self.auroc_fresh_long
        apart = not _within(persistent, AUROC_PERSISTENT)
        wrong("persistent", apart, f"persistent chains are distinguishable from data (AUROC {persistent:.2f})")
        gap = f"the gap between data and persistent chains is {self.gap:.1f} standard deviations"
        wrong("persistent", abs(self.gap) >= GAP, gap)
        unlike = not _within(fresh, AUROC_FRESH)
        wrong("fresh", unlike, f"the energies of fresh chains are not those of data (AUROC {fresh:.2f})")
        drift = f"fresh chains of ten times the length drift away from data (AUROC {long:.2f})"
        wrong("long", not _within(long, AUROC_FRESH), drift)
        bounds = f"{self.at_bounds:.0%} more values lie at the bounds than in the data"
        wrong("bounds", self.at_bounds > AT_BOUNDS, bounds)
        moved = f"chains do not bring noised data back: they remove {max(self.recovery, 0.0):.0%} of the distance"
        wrong("movement", self.recovery < RECOVERY, moved)
        for name, samples in SETS.items():
            looks: Looks | None = getattr(self, name)
            if looks is not None:
                said += _wrong_looks(looks, samples)
        labels = "samples given a label look like other labels"
        wrong("conditions", self.agreement < AGREEMENT, f"{labels} (agreement {self.agreement:.2f}, data have 1)")
        worst = min(self.agreement_of, key=lambda name: self.agreement_of[name], default="")
        if worst and not self.agreement < AGREEMENT and self.agreement_of[worst] < AGREEMENT_ONE:
            said.append(("conditions", f"samples given {worst} look like other labels"))
        wrong("looks", bool(self.uncompared), self.uncompared)
        return said

    @property
    def complaints(self) -> list[str]:
        """What is wrong, a sentence each."""
        return [sentence for _, sentence in self.signs]

    @property
    def warnings(self) -> list[str]:
        """What a user should know and no reason to call a run unhealthy."""
        said = list(self.notes)
        if self.auroc_noise <= AUROC_NOISE:
            said.append(
                f"uniform noise scores close to data, or above it (AUROC {self.auroc_noise:.3f}, usual is 0.99)"
            )
        return said

    @property
    def drifting(self) -> bool:
        """Whether all that is wrong is the energy of fresh chains: what they are trained with is too short."""
        return not self.healthy and all(sign in ("fresh", "long") for sign, _ in self.signs)

    @property
    def lost(self) -> bool:
        """Whether a second check need not be waited for: values are not finite, or chains far from all data."""
        return not self.finite or abs(self.gap) > LOST

    @property
    def healthy(self) -> bool:
        return not self.signs

    @property
    def distance(self) -> float:
        """Of samples from data, the larger of those with and without a label given; 0 where nothing was compared."""
        return max([0.0, *(looks.distance for looks in (self.fresh, self.given) if looks is not None)])

    def values(self) -> dict[str, float | bool]:
        """Numbers by name: those of looks are called `given.coverage` and so on."""
        plain = {k: v for k, v in asdict(self).items() if not isinstance(v, dict | tuple | str) and v is not None}
        looks = {name: getattr(self, name) for name in SETS}
        named = {f"{name}.{k}": v for name, found in looks.items() if found for k, v in found.values().items()}
        return {"healthy": self.healthy, **plain, **named}

    def state(self) -> dict[str, Any]:
        """Plain values, of which `from_state` makes the same again."""
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
        said.append(("looks", f"{looks.unlike:.0%} of {samples} are unlike any row of data"))
    limit = DISTANCE + DISTANCE_ROWS / max(looks.rows, 1)
    if looks.distance > limit:
        said.append(("looks", f"{samples} are not distributed like data (MMD {looks.distance:.3f}, limit {limit:.3f})"))
    if looks.coverage < COVERAGE:
        said.append(("coverage", f"{samples} cover {looks.coverage:.0%} of the data, which cover 97 % of themselves"))
    if looks.copies > COPIES:
        said.append(("coverage", f"{looks.copies:.0%} of {samples} are copies of training rows"))
    return said


def auroc(above: Tensor, below: Tensor) -> float:
    """How often a value of the first set lies above one of the second; ties count half."""
    scores = torch.cat((above, below)).double()
    # torchmetrics puts scores outside [0, 1] through a sigmoid, which ties large ones: ranks have the same order.
    ranks = scores.unique(return_inverse=True)[1].double()
    target = torch.cat((torch.ones(len(above)), torch.zeros(len(below)))).long().to(scores.device)
    return float(binary_auroc(ranks / ranks.max().clamp(min=1.0), target))


def diversity(x: Tensor) -> float:
    """The mean distance between pairs of rows."""
    return float(torch.pdist(x.flatten(1).float()).mean())


def at_bounds(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The share of values within a thousandth of the range from either bound, or beyond."""
    margin = 1e-3 * (bounds[1] - bounds[0])
    return ((x <= bounds[0] + margin) | (x >= bounds[1] - margin)).float().mean()


def _without_nan(value: Any) -> Any:  # noqa: ANN401 (JSON)
    """JSON has no NaN: None stands for it."""
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _within(value: float, limits: tuple[float, float]) -> bool:
    return math.isnan(value) or limits[0] <= value <= limits[1]

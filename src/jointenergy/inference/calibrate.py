"""inference: calibration with labeled validation rows: a temperature, and prediction sets.

Prediction sets are conformal and adaptive (APS; Romano, Sesia and Candes, 2020): values are added in order of
probability up to a threshold, which is a quantile over validation rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inference.density import label_log_probs
from jointenergy.inference.predict import check_numbers, predict_proba
from jointenergy.inference.rows import pieces
from jointenergy.inputs import is_integer, is_number
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.metrics.calibration import TEMPERATURES, fit_temperature
from jointenergy.models import JointModel


@dataclass(frozen=True)
class Temperature:
    """The T for which p(label | x)^(1/T), normalized, maximizes the likelihood of `n_rows` validation rows."""

    value: float
    n_rows: int

    def __post_init__(self) -> None:
        if not (is_number(self.value) and 0 < self.value < math.inf):
            raise InputError(f"a temperature must be a positive number, got {self.value!r}")
        if not is_integer(self.n_rows) or self.n_rows < 1:
            raise InputError(f"a temperature needs at least 1 validation row, got n_rows={self.n_rows!r}")


def calibrate(model: JointModel, x: Tensor, y: Tensor) -> Temperature:
    """Fit one temperature for all labels to validation rows; MISSING labels are ignored."""
    log_probs, truths = _observed(model, x, y)
    found = fit_temperature(log_probs, truths)
    n = int((y != MISSING).any(1).sum())
    low, high = TEMPERATURES
    if found <= low * 1.01:
        # If all rows are right there is no optimum, and the end of the search interval would be arbitrary.
        raise InputError(
            f"all {n} rows are predicted right, so no temperature above {low:g} is the best: give more rows"
        )
    if found >= high / 1.01:
        raise InputError(
            f"the probabilities of {n} rows are no better than chance, so no temperature below {high:g} is the best: "
            "check that the labels belong to the rows, or train longer"
        )
    return Temperature(found, n)


def at_temperature(probs: Mapping[str, Tensor], temperature: float) -> dict[str, Tensor]:
    """Raise the probabilities of each label to the power 1/T and normalize."""
    scaled = {name: p.double().pow(1.0 / temperature) for name, p in probs.items()}
    return {name: (s / s.sum(1, keepdim=True)).to(probs[name].dtype) for name, s in scaled.items()}


@dataclass(frozen=True)
class Conformal:
    """The probability mass that may precede a value of `label` in a prediction set.

    For a number: what its central interval is widened by on each side, in its own unit; negative narrows it.
    `randomized` also counts a random share of the value's own probability: sets then have exactly the stated coverage
    and may be empty. Otherwise every set contains the most probable value and the coverage is at least the stated one.
    """

    label: str
    coverage: float
    randomized: bool
    value: float
    n_rows: int

    def __post_init__(self) -> None:
        check_coverage(self.coverage)
        if not (is_number(self.value) and math.isfinite(self.value)):
            raise InputError(f"the value of a prediction set must be a finite number, got {self.value!r}")
        if not is_integer(self.n_rows) or self.n_rows < 1:
            raise InputError(f"a prediction set needs at least 1 validation row, got n_rows={self.n_rows!r}")


def conform(
    model: JointModel, x: Tensor, y: Tensor, coverage: float, *, randomized: bool, generator: torch.Generator
) -> tuple[Conformal, ...]:
    """Fit the prediction sets of each label to validation rows; MISSING labels are ignored."""
    found = []
    for name, z, truth in zip(model.labels, *_observed(model, x, y), strict=True):
        chance = torch.rand(len(truth), generator=generator, dtype=torch.float64) if randomized else None
        found.append(conformal_of(name, z.exp(), truth, coverage, chance))
    return tuple(found)


def conformal_of(label: str, probs: Tensor, truth: Tensor, coverage: float, chance: Tensor | None = None) -> Conformal:
    """Fit the prediction sets of one label to its probabilities `[n, c]` and true values on validation rows."""
    own = _scores(probs, chance).gather(1, truth[:, None])[:, 0]
    return Conformal(label, float(coverage), chance is not None, conformal_score(label, own, coverage), len(truth))


def conformal_score(label: str, scores: Tensor, coverage: float) -> float:
    """Return the score that a new row does not exceed with probability `coverage`, from those of validation rows."""
    check_coverage(coverage)
    n = len(scores)
    # The conformal rank, which accounts for the new row; the summand corrects rounding of (n + 1) * 0.9.
    rank = math.ceil((n + 1) * coverage - 1e-9)
    if rank > n:
        least = math.ceil(coverage / (1.0 - coverage) - 1e-9)
        raise InputError(f"coverage {coverage:g} needs at least {least} validation rows with {label!r}, got {n}")
    return float(scores.sort().values[rank - 1])


def members_of(fitted: Conformal, probs: Tensor, chance: Tensor | None = None) -> Tensor:
    """Tell which values are in the set of each row, bool `[n, c]`."""
    return _scores(probs, chance) <= fitted.value


@dataclass(frozen=True, eq=False)
class PredictionSet:
    """The values in the set of each label and each x: bool `[n, cardinality]` by label name.

    The coverage holds per label; all labels of a row are jointly covered less often.
    """

    members: Mapping[str, Tensor]
    labels: LabelSpace
    coverage: float

    def names(self) -> list[dict[str, tuple[str, ...]]]:
        """List the values in the sets of each row by name."""
        n = len(next(iter(self.members.values())))
        return [
            {
                label: tuple(v for v, held in zip(values, self.members[label][i].tolist(), strict=True) if held)
                for label, values in zip(self.labels.names, self.labels.values, strict=True)
            }
            for i in range(n)
        ]


def prediction_set(
    model: JointModel, x: Tensor, fitted: Mapping[str, Conformal], *, generator: torch.Generator
) -> PredictionSet:
    """Return the prediction set of each label, with quantiles fitted by `conform`."""
    probs = predict_proba(model, x)
    if not probs:
        raise InputError("there is nothing to predict: the model has no labels")
    members = {}
    for name, p in probs.items():
        chance = torch.rand(len(p), generator=generator, dtype=torch.float64) if fitted[name].randomized else None
        members[name] = members_of(fitted[name], p.double().cpu(), chance).to(p.device)
    return PredictionSet(members, model.labels, next(iter(fitted.values())).coverage)


def _scores(probs: Tensor, chance: Tensor | None) -> Tensor:
    """Return the probability of all more probable values plus the share `chance` of its own, `[n, c]`."""
    ordered, order = probs.sort(dim=1, descending=True, stable=True)
    before = (ordered.cumsum(1) - ordered).clamp(min=0.0)
    if chance is not None:
        before = before + chance[:, None] * ordered
    return torch.empty_like(before).scatter_(1, order, before)


@torch.no_grad()
def _observed(model: JointModel, x: Tensor, y: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return log p(value | x) of each label on labeled rows, `[m, cardinality]` in float64, and the true values."""
    x, y = model.check_x(x), model.labels.given(y, len(x), x.device)
    if not len(model.labels) or not bool((y != MISSING).any()):
        raise InputError("validation rows need labels, but these have none")
    tables: list[list[Tensor]] = [[] for _ in model.labels]
    for piece in pieces(model, torch.full_like(y, MISSING)):
        for k, z in enumerate(label_log_probs(model, x[piece])):
            tables[k].append(z[y[piece, k] != MISSING].cpu())
    truths = [y[y[:, k] != MISSING, k].cpu() for k in range(len(model.labels))]
    found = [torch.cat(t) for t in tables]
    for z in found:
        check_numbers(z.exp().sum(1))
    return found, truths


def check_coverage(coverage: float) -> None:
    if not (is_number(coverage) and 0 < coverage < 1):
        raise InputError(f"coverage must be more than 0 and less than 1, got {coverage!r}")

"""metrics: the names of published metrics, their ranges, and mean and standard deviation over seeds."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jointenergy.errors import InputError
from jointenergy.labels import nearest

Figures = dict[str, float | None]
Taken = tuple[Figures, str]
"""Figures and a remark."""


def finite_or_none(value: float) -> float | None:
    """Return None for a value that is not finite: JSON has no NaN."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Range:
    """The values a metric may take, ends included."""

    low: float
    high: float
    says: str
    whole: bool = False

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high and (not self.whole or value == int(value))


FRACTION = Range(0.0, 1.0, "a fraction between 0 and 1")
YES_OR_NO = Range(0.0, 1.0, "0 or 1 for each seed", whole=True)
COUNT = Range(0.0, math.inf, "a count", whole=True)
DISTANCE = Range(0.0, math.inf, "not negative")
REAL = Range(-math.inf, math.inf, "a number")

NAMES: dict[str, Range] = {
    "accuracy": FRACTION,
    "accuracy_equal_constants": FRACTION,
    "accuracy_by_sampling": FRACTION,
    "accuracy_by_one_sample": FRACTION,
    "accuracy_by_sampling_of.<label>": FRACTION,
    "exact_match_by_sampling": FRACTION,
    "exact_match_by_one_sample": FRACTION,
    "mode_share.<which>": FRACTION,
    "accuracy_so_far.<task>": FRACTION,
    "accuracy_of_task.<task>": FRACTION,
    "accuracy_of_class.<class>": FRACTION,
    "exact_match": FRACTION,
    "nll": DISTANCE,
    "brier": FRACTION,
    "ece": FRACTION,
    **{f"ece_{end}": FRACTION for end in ("low", "high", "by_chance", "by_chance_low", "by_chance_high")},
    **{f"ece_{kind}": FRACTION for kind in ("equal_mass", "classwise", "scaled")},
    "nll_scaled": DISTANCE,
    "logit_temperature": DISTANCE,
    "aurc": FRACTION,
    "set_coverage.<coverage>": FRACTION,
    "set_coverage_randomized.<coverage>": FRACTION,
    "set_size.<coverage>": DISTANCE,
    **{f"{what}_{over}": FRACTION for what in ("f1", "auprc", "auroc", "ece") for over in ("micro", "macro")},
    **{f"{what}_of.<label>": FRACTION for what in ("accuracy", "f1", "auprc", "auroc", "ece")},
    **{
        f"ood_{what}.<score>": FRACTION
        for what in ("auroc.<set>", "aupr.<set>", "fpr95.<set>", "auroc_noised.<set>", "auroc_control")
    },
    "robust_accuracy.<norm>.<refinement>.<radius>": FRACTION,
    "robust_radius.<norm>.<refinement>": DISTANCE,
    "distal_reached": FRACTION,
    "agreement_by_sampling": FRACTION,
    "consistency_class.<judge>": FRACTION,
    "diversity_class.<over>": DISTANCE,
    "consistency_composed.<judge>.<when>": FRACTION,
    "diversity_composed.<over>.<when>": DISTANCE,
    "inpainting_mse.<fill>": DISTANCE,
    "inpainting_coverage.<fill>": FRACTION,
    "consistency_pairs": FRACTION,
    "consistency_pairs_baseline": FRACTION,
    "consistency_present": FRACTION,
    "consistency_present_baseline": FRACTION,
    "consistency_pairs_rows": FRACTION,
    "consistency_novel_rows": FRACTION,
    "consistency_novel": FRACTION,
    "consistency_novel_baseline": FRACTION,
    "consistency_single.<judge>": FRACTION,
    **{f"consistency_{k}.<judge>.<start>.<method>": FRACTION for k in ("class", "single", "pairs", "novel")},
    "novel_share.<set>": FRACTION,
    **{f"novel_share{judge}.<set>.<pair>": FRACTION for judge in ("", "_baseline")},
    "fid.<extractor>.<which>": DISTANCE,
    "kid.<extractor>.<which>": REAL,  # unbiased, so it may be negative
    **{f"inception_score{k}.<extractor>": DISTANCE for k in ("", "_test")},
    **{f"{what}.<extractor>.<which>": FRACTION for what in ("precision", "recall", "coverage")},
    "density.<extractor>.<which>": DISTANCE,
    "diversity": DISTANCE,
    "nearest_train.<space>": DISTANCE,
    "class_kept.<since>": FRACTION,
    "class_by_age": FRACTION,
    "at_bounds.<set>": FRACTION,
    "parameters": COUNT,
    "log_likelihood_lower_nats": REAL,
    "log_likelihood_upper_nats": REAL,
    "bits_per_dimension_at_least": REAL,
    "bits_per_dimension_at_most": REAL,
    "likelihood_temperature": DISTANCE,
    "likelihood_effective_share": FRACTION,
    "healthy": YES_OR_NO,
    "labels_changed.<kernel>": FRACTION,
    "health.<sign>": REAL,
    "health.<set>.<sign>": REAL,
    **{f"clinic_{what}.<way>.<strength>": COUNT for what in ("runs", "healthy", "undecided")},
    "clinic_eye.<label>.<count>": COUNT,
    "clinic_error.<kind>": FRACTION,
    "clinic_power.<way>.<percent>": FRACTION,
    "clinic_samples.<set>": YES_OR_NO,
    "accuracy_held.<network>.<when>": FRACTION,
    "healthy_held.<network>.<when>": YES_OR_NO,
    "ece_held.<network>": FRACTION,
    "interventions.<network>": COUNT,
    "epochs.<network>": DISTANCE,
    **{
        f"{what}.<table>.<method>": FRACTION
        for what in (
            *("accuracy", "ece", "accuracy_few_5", "accuracy_missing"),
            *("ood_auroc_noise", "ood_auroc_held_out", "interval_coverage"),
        )
    },
    **{
        f"{what}.<table>.<method>": DISTANCE
        for what in ("nll", "nll_few_5", "nll_missing", "imputation_rmse", "imputation_crps", "crps")
    },
    "tests.<outcome>": COUNT,
    **{f"fuzz_{what}": COUNT for what in ("files", "taken", "findings", "targets")},
    **{f"{what}.<command>": COUNT for what in ("kills", "kills_resumed_alike")},
    "interventions": COUNT,
    "exponent.<axis>": REAL,
    "exponent_error.<axis>": DISTANCE,
    "exponent_growing.<axis>": REAL,
    "exponent_growing_error.<axis>": DISTANCE,
}
# Names of the main metrics on pages, in their order; {} stands for what the star matches.
WORDS: dict[str, str] = {
    "accuracy": "accuracy",
    "nll": "negative log-likelihood of the labels (nats)",
    "ece": "expected calibration error (ECE)",
    "f1_micro": "F1, all labels pooled",
    "auroc_micro": "AUROC, all labels pooled",
    "ood_auroc.*.log_density": "AUROC of log p(x) against {}",
    "robust_accuracy.linf.0.8-255": "accuracy under attack, L-inf 8/255",
    "fid.*.fresh": "FID of samples ({})",
    "kid.*.fresh": "KID of samples ({})",
    "consistency_class.model": "samples of the class asked for, by the model",
    "consistency_class.baseline": "samples of the class asked for, by the baseline",
    "log_likelihood_lower_nats": "log-likelihood, at least (nats)",
    "log_likelihood_upper_nats": "log-likelihood, at most (nats)",
}

# Any name that ends in one of these units is accepted. Qualifiers may follow after a dot.
UNITS = ("nats", "ms", "seconds", "minutes", "per_second", "images", "steps", "mib", "times")

_PART = r"[A-Za-z0-9_-]+"
_WITH_UNIT = re.compile(rf"[a-z][a-z0-9_]*_(?:{'|'.join(UNITS)})(?:\.{_PART})*")
_OF_ANOTHER = re.compile(rf"^(?:baseline|others\.{_PART})\.")  # the same metric of a baseline or another method
_PATTERNS = [
    (re.compile(re.sub(r"<(\w+)>", rf"(?P<\1>{_PART})", re.sub(r"\.", r"\\.", name))), r) for name, r in NAMES.items()
]


def range_of(name: str, parts: Mapping[str, Collection[str]] = MappingProxyType({})) -> Range:
    """Return the range of the metric called `name`; an unknown name raises with the nearest known one.

    `parts` lists the accepted words for a part of a name, such as the scores for `<score>`; other parts are free.
    """
    bare = _OF_ANOTHER.sub("", name)
    for pattern, values in _PATTERNS:
        if found := pattern.fullmatch(bare):
            for part, word in found.groupdict().items():
                if part in parts and word not in parts[part]:
                    raise InputError(
                        f"the metric {name!r} has the unknown {part} {word!r}: {nearest(word, tuple(parts[part]))}"
                    )
            return values
    if _WITH_UNIT.fullmatch(bare):
        return REAL
    raise InputError(
        f"there is no metric called {name!r}: {nearest(name, list(NAMES))}; a name that ends in a unit "
        f"({', '.join('_' + u for u in UNITS)}) is accepted too"
    )


def check_value(name: str, value: float, where: str = "") -> None:
    """Refuse a value outside the metric's range."""
    values = range_of(name)
    if not math.isfinite(value):
        raise InputError(f"{name}{where} is {value}: give None where a seed has no value")
    if not values.holds(value):
        raise InputError(f"{name}{where} must be {values.says}, got {value:g}")


@dataclass(frozen=True)
class Metric:
    """One value for every seed that was started; None (or NaN) for a seed without one.

    Mean and standard deviation are over the present values. The standard deviation has the divisor n - 1, and is 0 for
    a single value.
    """

    values: tuple[float | None, ...]
    protocol: str = ""
    """How it was measured; values of different protocols cannot be compared."""

    def __init__(self, values: Iterable[float | None], protocol: str = "") -> None:
        kept = tuple(None if v is None or math.isnan(v) else float(v) for v in values)
        object.__setattr__(self, "values", kept)
        object.__setattr__(self, "protocol", protocol)

    @property
    def present(self) -> list[float]:
        return [v for v in self.values if v is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.present) if self.present else None

    @property
    def std(self) -> float | None:
        if not self.present:
            return None
        return statistics.stdev(self.present) if len(self.present) > 1 else 0.0

"""inference: out-of-distribution scores and thresholds, compatibility of labels with x, and abstention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inference.density import label_log_prob, log_table
from jointenergy.inference.features import Reference, features_of, mahalanobis, nearest_neighbor
from jointenergy.inference.predict import predict_joint, predict_proba
from jointenergy.inference.rows import pieces
from jointenergy.inputs import is_integer, is_number
from jointenergy.kernels import State, Target
from jointenergy.kernels.base import evaluate_x, gradient_of
from jointenergy.labels import ENUMERATION_LIMIT, MISSING, Given, nearest
from jointenergy.models import Box, JointModel

CONFIDENCE = "confidence"


@dataclass(frozen=True)
class Compatibility:
    """How probable labels are given x. All exact.

    `log_prob` is log p(labels | x, given), `[n]`. `rank` is the rank among all labelings of the same variables, 1 for
    the most probable; ties share the best rank, and 0 means too many to enumerate. `variable_probs` is p(y_k | x,
    given) of each named label, `[n, L]`, NaN for the others.
    """

    log_prob: Tensor
    rank: Tensor
    variable_probs: Tensor


@torch.no_grad()
def compatibility(model: JointModel, x: Tensor, y: Given, given: Given = None) -> Compatibility:
    """Compute how probable labels `y` are given x; labels that are neither in `y` nor given are summed out."""
    x = model.check_x(x)
    asked = model.labels.given(y, len(x), x.device)
    known = model.labels.given(given, len(x), x.device)
    log_prob = label_log_prob(model, x, asked, known)
    probs = predict_proba(model, x, known)
    shown = [
        torch.where(asked[:, k] == MISSING, torch.nan, p.gather(1, asked[:, k, None].clamp(min=0))[:, 0])
        for k, p in enumerate(probs.values())
    ]
    each = torch.stack(shown, dim=1) if shown else x.new_zeros(len(x), 0)
    return Compatibility(log_prob, _ranks(model, x, asked, known), each)


def _ranks(model: JointModel, x: Tensor, asked: Tensor, known: Tensor) -> Tensor:
    """Return 1 + the number of more probable labelings of the free named variables; 0 if there are too many."""
    ranks = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    if len(model.labels) == 0:
        return ranks + 1
    patterns, which = ((asked != MISSING) & (known == MISSING)).unique(dim=0, return_inverse=True)
    for i, pattern in enumerate(patterns):
        columns = pattern.nonzero()[:, 0].tolist()
        sizes = [model.labels.cardinalities[k] for k in columns]
        if math.prod(sizes) > ENUMERATION_LIMIT:
            continue
        rows = (which == i).nonzero()[:, 0]
        for piece in pieces(model, known[rows]):
            part = rows[piece]
            table = log_table(model, x[part], known[part], columns).reshape(len(part), -1)
            place = torch.zeros_like(part)
            for k, size in zip(columns, sizes, strict=True):
                place = place * size + asked[part, k]
            ranks[part] = 1 + (table > table.gather(1, place[:, None])).sum(1)
    return ranks


# Scores for out-of-distribution detection. To add one, write a function and add a line to the table below.


def _log_density(model: JointModel, x: Tensor, given: Tensor) -> Tensor:
    return model.log_density_unchecked(x, given)


def _max_probability(model: JointModel, x: Tensor, given: Tensor) -> Tensor:
    if len(model.labels) == 0:
        raise InputError("max_probability needs labels, but the model has none: use log_density")
    return predict_joint(model, x, given).log_prob.exp()


def _minus_gradient_norm(model: JointModel, x: Tensor, given: Tensor) -> Tensor:
    state = State(x, given, torch.zeros(len(x), dtype=torch.int64, device=x.device))
    norm: Tensor = evaluate_x(Target(model), state).gradient.flatten(1).norm(dim=1)
    return -norm


def _odin(model: JointModel, x: Tensor, given: Tensor) -> Tensor:
    """Liang et al. (2018): the softmax at temperature 1000, after a small step of x that raises it.

    As 1000 log(K max p): it has the order of max p, whose differences are too small for float32.
    """
    if not model.factorized or not len(model.labels):
        raise InputError("ODIN needs the logits of a classifier, but the model has none: use log_density")
    allowed = model.labels.allowed(given)

    def value(x: Tensor) -> Tensor:
        logits = model.label_logits(x).logits.masked_fill(~allowed, -torch.inf)
        blocks = logits.split(model.labels.cardinalities, dim=1)
        counts = allowed.split(model.labels.cardinalities, dim=1)
        each = [
            ODIN_TEMPERATURE * ((b / ODIN_TEMPERATURE).log_softmax(1).amax(1) + c.sum(1).log())
            for b, c in zip((b.double() for b in blocks), counts, strict=True)
        ]
        return torch.stack(each, dim=1).sum(1)

    with torch.inference_mode(False), torch.enable_grad():
        at = x.detach().clone().requires_grad_()
        gradient = gradient_of(value(at), at)
    domain = model.domain
    width = domain.high - domain.low if isinstance(domain, Box) else 2.0 * domain.width
    with torch.no_grad():
        return value(x + ODIN_STEP * width * gradient.sign())


ODIN_TEMPERATURE, ODIN_STEP = 1000.0, 0.0014  # the step as a share of the range of x


@dataclass(frozen=True)
class Score:
    """A score for out-of-distribution detection: `function(model, x, given)` returns `[n]`, higher for typical x.

    `given` is int64 `[n, L]`; MISSING labels are summed out. x and given are already checked, and come in batches.
    Reports show `symbol` and `description`. A feature-based score has `by_features` instead of a function, which
    compares features `[n, d]` with those of training rows.
    """

    function: Callable[[JointModel, Tensor, Tensor], Tensor] | None
    symbol: str
    description: str
    by_features: Callable[[Tensor, Reference], Tensor] | None = None


SCORES: dict[str, Score] = {
    "log_density": Score(_log_density, "log p(x)", "up to a constant of the model"),
    "max_probability": Score(_max_probability, "max p(y | x)", "the probability of the most probable labels"),
    "gradient_norm": Score(_minus_gradient_norm, "gradient norm", "minus the norm of the gradient of log p(x) by x"),
    "odin": Score(_odin, "ODIN", "the largest softmax at temperature 1000, after a step of x that raises it"),
    "mahalanobis": Score(
        None, "Mahalanobis", "minus the distance of features to the nearest class mean", by_features=mahalanobis
    ),
    "knn": Score(None, "kNN", "minus the distance of features to a near training row", by_features=nearest_neighbor),
}
"""All scores by name: `Run.score`, thresholds, evaluation and the shell read this table."""


@torch.no_grad()
def score(
    model: JointModel, x: Tensor, name: str, given: Given = None, *, reference: Reference | None = None
) -> Tensor:
    """Score x for out-of-distribution detection, `[n]`; higher is more like the data. Names: `SCORES`.

    Free labels are summed out. Feature-based scores ignore labels and need a `reference`.
    """
    if name not in tuple(SCORES):  # a list has no hash
        raise InputError(f"there is no score called {name!r}: {nearest(str(name), tuple(SCORES))}")
    x = model.check_x(x)
    y = model.labels.given(given, len(x), x.device)
    function, by_features = SCORES[name].function, SCORES[name].by_features
    if by_features is not None:
        if reference is None:
            raise InputError("feature-based scores need a reference: fit one to training rows")
        return torch.cat([by_features(features_of(model, x[p]), reference) for p in pieces(model, y)])
    assert function is not None  # either function or by_features is set
    model.check_summable(y)
    return torch.cat([function(model, x[p], y[p]) for p in pieces(model, y)])


@dataclass(frozen=True)
class Threshold:
    """The smallest accepted value of a score, with its origin; plain values, ready for JSON."""

    score: str
    quantile: float
    value: float
    n_rows: int

    def __post_init__(self) -> None:
        known = (*SCORES, CONFIDENCE)
        if self.score not in known:
            raise InputError(f"there is no score called {self.score!r}: {nearest(str(self.score), known)}")
        if not (is_number(self.quantile) and 0 <= self.quantile < 1):
            raise InputError(f"the quantile of a threshold must be at least 0 and less than 1, got {self.quantile!r}")
        if not (is_number(self.value) and math.isfinite(self.value)):
            raise InputError(f"the value of a threshold must be a finite number, got {self.value!r}")
        if not is_integer(self.n_rows) or self.n_rows < 1:
            raise InputError(f"a threshold needs at least 1 validation row, got n_rows={self.n_rows!r}")

    @classmethod
    def fit(cls, score: str, scores: Tensor, quantile: float) -> Threshold:
        """Fit to scores of validation rows: at most the share `quantile` of them lies below."""
        if not isinstance(scores, Tensor) or scores.numel() == 0 or not bool(scores.isfinite().all()):
            raise InputError("a threshold is fitted to a tensor of finite scores of validation rows, at least one")
        values, n = scores.detach().flatten().sort().values, scores.numel()
        if not (is_number(quantile) and 0 <= quantile < 1):
            raise InputError(f"the quantile of a threshold must be at least 0 and less than 1, got {quantile!r}")
        # An order statistic without interpolation, so that the share holds; the summand corrects rounding of 1 - 0.9.
        return cls(score, float(quantile), float(values[min(int(quantile * n + 1e-9), n - 1)]), len(scores))

    def accepts(self, scores: Tensor) -> Tensor:
        """Return which scores reach the threshold; NaN does not."""
        return scores >= self.value

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Threshold:
        wanted = {f.name for f in fields(cls)}
        if not isinstance(plain, Mapping) or set(plain) != wanted:
            got = sorted(map(str, plain)) if isinstance(plain, Mapping) else type(plain).__name__
            raise InputError(f"a threshold has the entries {sorted(wanted)}, got {got}")
        return cls(**plain)


@dataclass(frozen=True, eq=False)
class Detected:
    """The score of each x, `[n]`, and whether x is in the domain and reaches the threshold."""

    score: Tensor
    inside: Tensor
    threshold: Threshold


def detect(
    model: JointModel, x: Tensor, threshold: Threshold, given: Given = None, *, reference: Reference | None = None
) -> Detected:
    """Detect out-of-distribution x: outside the model's domain, or with a score below the threshold."""
    if threshold.score not in SCORES:
        raise InputError(f"a threshold on {threshold.score!r} says nothing of x: fit it to one of {', '.join(SCORES)}")
    scores = score(model, x, threshold.score, given, reference=reference)
    return Detected(scores, threshold.accepts(scores) & model.domain.contains(x), threshold)


def confidence(model: JointModel, x: Tensor, given: Given = None) -> Tensor:
    """Compute the largest p(y_k | x, given) of each variable k, `[n, L]`, exactly."""
    probs = predict_proba(model, x, given)
    return torch.stack([p.max(1).values for p in probs.values()], dim=1) if probs else x.new_zeros(len(x), 0)


def confidence_threshold(model: JointModel, x: Tensor, coverage: float, given: Given = None) -> Threshold:
    """Fit the confidence that a share `coverage` of predictions on validation rows reaches."""
    if not (is_number(coverage) and 0 < coverage <= 1):
        raise InputError(f"coverage must be more than 0 and at most 1, got {coverage!r}")
    values = confidence(model, x, given)
    free = model.labels.given(given, len(x), x.device) == MISSING
    if not bool(free.any()):
        raise InputError("there is nothing to predict: the model has no labels, or all are given")
    fitted = Threshold.fit(CONFIDENCE, values[free], 1.0 - coverage)
    return Threshold(CONFIDENCE, fitted.quantile, fitted.value, len(x))


@dataclass(frozen=True)
class Abstention:
    """Predictions `[n, L]`, MISSING where the model abstains, the confidence of each label, and the coverage.

    Given labels are in `labels`, but do not count in `coverage`.
    """

    labels: Tensor
    confidence: Tensor
    coverage: float


def abstain(model: JointModel, x: Tensor, threshold: Threshold, given: Given = None) -> Abstention:
    """Predict the most probable value of each variable where the confidence reaches the threshold. Exact."""
    if threshold.score != CONFIDENCE:
        raise InputError(f"abstain needs a threshold on {CONFIDENCE!r}, got one on {threshold.score!r}")
    probs = predict_proba(model, x, given)
    known = model.labels.given(given, len(x), x.device)
    if not probs:
        raise InputError("there is nothing to predict: the model has no labels")
    largest, labels = (torch.stack(parts, dim=1) for parts in zip(*(p.max(1) for p in probs.values()), strict=True))
    free = known == MISSING
    answered = threshold.accepts(largest)
    coverage = float(answered[free].double().mean()) if bool(free.any()) else 1.0
    return Abstention(torch.where(answered | ~free, labels, MISSING), largest, coverage)

"""benchmarks: what `tabular` measures: one fit with all labels, with 5 or 10 for each class, and without some classes.

`figures(task, method, split)` is one cell; names are those of published metrics without the set and the method.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss, roc_auc_score
from tabular_methods import (
    EVERY,
    FEW,
    FULL,
    HELD_OUT,
    IMPUTER,
    METHODS,
    TRUTH,
    Method,
    Model,
    Preparation,
    Truth,
    interval_of,
)
from tabular_sets import UNLABELED, Split, few_labels, hidden, left_out, noise, without
from tabular_truth import Floats, Ints

from jointenergy.metrics.calibration import expected_calibration_error

Figures = dict[str, float]
TASKS = EVERY
N_IMPUTED = 400  # test rows whose hidden numbers get intervals


def applies(task: str, name: str, split: Split) -> bool:
    """Return whether a cell exists: the truth must be known, and there must be two classes."""
    method = METHODS[name]
    if task not in method.tasks or (name in (TRUTH, IMPUTER) and split.truth is None):
        return False
    return task != HELD_OUT or split.n_classes > 2 or method.detector is not None


class Rows:
    """Provide a set unchanged or prepared, made once for all methods that share it."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self._preparation: Preparation | None = None

    def __call__(self, x: Floats, method: Method) -> Floats:
        """Return rows in the form that the method takes."""
        if method.native:
            return x
        if self._preparation is None:
            self._preparation = Preparation(self.split)
        return self._preparation.filled(x) if np.isnan(x).any() else self._preparation(x)


def fitted(method: Method, rows: Rows) -> tuple[Model, float]:
    """Fit a model; return it with the seconds it took."""
    split = rows.split
    one_class = len(np.unique(split.y)) == 1
    model = (method.detector if one_class and method.detector is not None else method.make)(split)
    used = np.ones(len(split.y), bool) if method.unlabeled else split.y != UNLABELED
    x, y = rows(split.x, method)[used], split.y[used]
    with warnings.catch_warnings():
        # Warnings of other libraries: their results are measured in any case.
        warnings.simplefilter("ignore", ConvergenceWarning)
        began = time.perf_counter()
        model.fit(x, y)
        return model, time.perf_counter() - began


def probabilities(model: Model, x: Floats) -> Floats:
    """Return probabilities that sum to 1; uniform where a method has none (labels that reach no neighbor)."""
    with np.errstate(invalid="ignore"):
        p = np.asarray(model.predict_proba(x), dtype=np.float64)
    p = np.where(np.isnan(p).any(1, keepdims=True), 1.0, p)
    return np.asarray(p / p.sum(1, keepdims=True))


def scores(model: Model, x: Floats) -> Floats:
    """Score rows for out-of-distribution detection: the model's own score, else the largest probability."""
    own = getattr(model, "score_samples", None)
    return np.asarray(own(x) if own is not None else probabilities(model, x).max(1))


def auroc(inside: Floats, outside: Floats) -> float:
    """Return the AUROC of data rows against outliers."""
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    return float(roc_auc_score(truth, np.concatenate([inside, outside])))


def right(p: Floats, y: Ints) -> float:
    return float((p.argmax(1) == y).mean())


def nll(p: Floats, y: Ints) -> float:
    return float(log_loss(y, p, labels=np.arange(p.shape[1])))


def full(method: Method, rows: Rows) -> Figures:
    """Fit once with all labels and evaluate everything that the model can do."""
    split, found = rows.split, {}
    model, found["fit_seconds"] = fitted(method, rows)
    x = rows(split.x_test, method)
    seen = np.where(hidden(split), np.nan, split.x_test)
    if hasattr(model, "predict_proba"):
        began = time.perf_counter()
        p = probabilities(model, x)
        found["predict_ms"] = 1e6 * (time.perf_counter() - began) / len(x)
        found |= {"accuracy": right(p, split.y_test), "nll": nll(p, split.y_test)}
        found["ece"] = expected_calibration_error(torch.from_numpy(p), torch.from_numpy(split.y_test))
        p = probabilities(model, rows(seen, method))
        found |= {"accuracy_missing": right(p, split.y_test), "nll_missing": nll(p, split.y_test)}
    if hasattr(model, "predict_proba") or hasattr(model, "score_samples"):
        found["ood_auroc_noise"] = auroc(scores(model, x), scores(model, rows(noise(split), method)))
    if split.truth is not None:
        ends = interval_of(model, seen[:N_IMPUTED], split.numbers)
        found |= {} if ends is None else coverage(*ends, split)
    return found


def coverage(low: Floats, high: Floats, split: Split) -> Figures:
    """Return the coverage of hidden numbers by intervals, and the width relative to the true distribution."""
    rows, columns = split.x_test[: len(low)], split.numbers
    unknown = hidden(split)[: len(low)]
    gone, x = unknown[:, columns], rows[:, columns]
    inside = (low <= x) & (x <= high)
    true_low, true_high = Truth(split).interval(np.where(unknown, np.nan, rows))
    return {
        "interval_coverage": float(inside[gone].mean()),
        "interval_width_times": float((high - low)[gone].mean() / (true_high - true_low)[gone].mean()),
    }


def few(method: Method, rows: Rows) -> Figures:
    model, seconds = fitted(method, rows)
    p = probabilities(model, rows(rows.split.x_test, method))
    y = rows.split.y_test
    return {"accuracy_few": right(p, y), "nll_few": nll(p, y), "fit_few_seconds": seconds}


def held_out(method: Method, split: Split) -> Figures:
    """Return the mean AUROC against classes that were left out of training."""
    found = []
    for classes in left_out(split):
        rest, strange = without(split, classes)
        rows = Rows(rest)
        model, _ = fitted(method, rows)
        inside, outside = (scores(model, rows(x, method)) for x in (rest.x_test, strange))
        found.append(auroc(inside, outside))
    return {"ood_auroc_held_out": float(np.mean(found))}


class Cells:
    """Measure the cells of one task on one split; shared preparation is done once."""

    def __init__(self, task: str, split: Split) -> None:
        self._task, self._split = task, split
        shown = few_labels(split, int(task.removeprefix("few-"))) if task in FEW else split
        self._rows = Rows(shown)

    def __call__(self, name: str) -> Mapping[str, float]:
        method = METHODS[name]
        if self._task == HELD_OUT:
            return held_out(method, self._split)
        if self._task == FULL:
            return full(method, self._rows)
        of = self._task.removeprefix("few-")
        return {key.replace("few", f"few_{of}"): value for key, value in few(method, self._rows).items()}

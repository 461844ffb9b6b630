"""benchmarks: what `tabular` measures: all labels, few labels, outliers, and missing entries, one fit each.

`Cells(task, split)(method)` is one cell; names are those of published metrics without the set and the method.
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
    CLASSIFIERS,
    CUT,
    FEW,
    FULL,
    IMPUTE,
    LEVEL,
    METHODS,
    OUTLIERS,
    PREPARED,
    RAW,
    TRUTH,
    Method,
    Model,
    Preparation,
)
from tabular_sets import LARGE, UNLABELED, Split, few_labels, hidden, left_out, noise, without
from tabular_truth import Floats, Ints

from jointenergy.metrics.calibration import expected_calibration_error

Figures = dict[str, float]
N_FEW = 5  # labels of each class
N_IMPUTED = 200  # test rows whose hidden numbers are drawn
CLASSES_LEFT = 2  # at least, for a classifier


def applies(task: str, name: str, split: Split) -> bool:
    """Return whether a cell exists."""
    method = METHODS[name]
    if task not in method.make or (name == TRUTH and split.truth is None):
        return False
    if split.name in LARGE and (task != FULL or not method.large):
        return False
    if task == IMPUTE and len(split.numbers) == 0:
        return False
    # Classifiers among the detectors need two classes that are left.
    return task != OUTLIERS or name not in CLASSIFIERS or split.n_classes > CLASSES_LEFT


class Rows:
    """Provide a set unchanged or prepared, made once for all methods that share it."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self._preparation: Preparation | None = None

    @property
    def preparation(self) -> Preparation:
        if self._preparation is None:
            self._preparation = Preparation(self.split)
        return self._preparation

    def __call__(self, x: Floats, method: Method) -> Floats:
        """Return rows in the form that the method takes."""
        if method.form == RAW:
            return x
        if method.form == PREPARED or not np.isnan(x).any():
            return self.preparation(x)
        return self.preparation.filled(x)


def fitted(task: str, method: Method, rows: Rows) -> tuple[Model, float]:
    """Fit a model; return it with the seconds it took."""
    split = rows.split
    model = method.make[task](split)
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
    """Fit with all labels; predict complete test rows and rows with hidden entries."""
    split, found = rows.split, {}
    model, found["fit_seconds"] = fitted(FULL, method, rows)
    x, y = rows(split.x_test, method), split.y_test
    began = time.perf_counter()
    p = probabilities(model, x)
    found["predict_ms"] = 1e6 * (time.perf_counter() - began) / len(x)
    found |= {"accuracy": right(p, y), "nll": nll(p, y)}
    found["ece"] = expected_calibration_error(torch.from_numpy(p), torch.from_numpy(y))
    if split.name not in LARGE:
        p = probabilities(model, rows(np.where(hidden(split), np.nan, split.x_test), method))
        found |= {"accuracy_missing": right(p, y), "nll_missing": nll(p, y)}
    return found


def few(method: Method, rows: Rows) -> Figures:
    """Fit with few labels."""
    model, seconds = fitted(FEW, method, rows)
    p = probabilities(model, rows(rows.split.x_test, method))
    y = rows.split.y_test
    return {"accuracy_few_5": right(p, y), "nll_few_5": nll(p, y), "fit_few_5_seconds": seconds}


def outliers(method: Method, split: Split) -> Figures:
    """Fit without some classes; tell the other test rows from those of these classes, and from noise."""
    rest, strange = without(split, left_out(split))
    rows = Rows(rest)
    model, seconds = fitted(OUTLIERS, method, rows)
    inside, other, noisy = (scores(model, rows(x, method)) for x in (rest.x_test, strange, noise(rest)))
    return {
        "ood_auroc_held_out": auroc(inside, other),
        "ood_auroc_noise": auroc(inside, noisy),
        "fit_outliers_seconds": seconds,
    }


def impute(method: Method, rows: Rows) -> Figures:
    """Fit to complete rows; draw the hidden numbers of test rows."""
    split = rows.split
    unknown, x = hidden(split)[:N_IMPUTED], split.x_test[:N_IMPUTED]
    seen = np.where(unknown, np.nan, x)
    model, seconds = fitted(IMPUTE, method, rows)
    began = time.perf_counter()
    draws = model.draws(rows(seen, method))
    seconds += time.perf_counter() - began
    if method.form != RAW:
        draws = np.stack([rows.preparation.numbers_of(drawn) for drawn in draws])
    found = {"impute_seconds": seconds} | errors(draws[:, :, : len(split.numbers)], split)
    if split.truth is not None:
        ordered, gone = np.sort(draws, axis=0), unknown[:, split.numbers]
        low, high = split.truth.interval(seen, LEVEL)
        width = (ordered[-1 - CUT] - ordered[CUT])[:, : gone.shape[1]]
        found["interval_width_times"] = float(width[gone].mean() / (high - low)[gone].mean())
    return found


def errors(draws: Floats, split: Split) -> Figures:
    """Return the errors of draws of hidden numbers, `[draws, n, numbers]`, in standard deviations of the training rows.

    The RMSE is of the mean of the draws, and the CRPS is that of a sample, without its bias. Columns that are constant
    in training count nothing.
    """
    n, columns = len(draws), split.numbers
    scale = split.x[:, columns].std(0)
    gone = hidden(split)[: draws.shape[1], columns] & (scale > 0)
    scale = np.where(scale > 0, scale, 1.0)
    x = (split.x_test[: draws.shape[1], columns] / scale)[gone]
    drawn = np.sort((draws / scale)[:, gone], axis=0)
    weights = 2 * np.arange(n) - n + 1
    apart = (weights[:, None] * drawn).sum(0) / (n * (n - 1))  # half the mean distance of two draws
    inside = (drawn[CUT] <= x) & (x <= drawn[-1 - CUT])
    return {
        "imputation_rmse": float(np.sqrt(((drawn.mean(0) - x) ** 2).mean())),
        "imputation_crps": float((np.abs(drawn - x).mean(0) - apart).mean()),
        "interval_coverage": float(inside.mean()),
    }


class Cells:
    """Measure the cells of one task on one split; shared preparation is done once."""

    def __init__(self, task: str, split: Split) -> None:
        self._task, self._split = task, split
        self._rows = Rows(few_labels(split, N_FEW) if task == FEW else split)

    def __call__(self, name: str) -> Mapping[str, float]:
        method = METHODS[name]
        if self._task == OUTLIERS:
            return outliers(method, self._split)
        return {FULL: full, FEW: few, IMPUTE: impute}[self._task](method, self._rows)

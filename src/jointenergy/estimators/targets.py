"""estimators: what y may be: one class, several binary labels or several outputs, each entry possibly missing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING

Kind = Literal["one", "multilabel", "several"]
AnyArray = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Targets:
    """The classes of each output, and the form in which answers are given."""

    kind: Kind
    classes: list[AnyArray]
    missing_label: object

    @classmethod
    def fit(cls, y: object, missing_label: object, classes: object = None) -> Targets:
        """From the labels that are learned from; `classes` names them where not all need be there."""
        columns, one = _columns(y), np.asarray(y).ndim == 1
        if classes is not None:
            several = isinstance(classes, list | tuple) and len(classes) > 0 and np.ndim(classes[0]) > 0
            listed: list[Any] = list(classes) if several else [classes]  # type: ignore[call-overload]
            if len(listed) != columns.shape[1]:
                raise InputError(f"classes are given for {len(listed)} outputs, and y has {columns.shape[1]}")
            found = [np.unique(np.asarray(c)) for c in listed]
        else:
            missing_label = _meant(columns, missing_label)
            found = [_known(column, missing_label, k, columns.shape[1]) for k, column in enumerate(columns.T)]
        binary = all(set(c.tolist()) <= {0, 1} for c in found if c.dtype.kind in "biuf")
        binary = binary and all(c.dtype.kind in "biuf" for c in found)
        kind: Kind = "one" if one or columns.shape[1] == 1 else "multilabel" if binary else "several"
        if kind == "multilabel":
            found = [np.array([0, 1]) for _ in found]
        return cls(kind, found, missing_label)

    @property
    def space(self) -> dict[str, list[str]]:
        """The outputs as label variables; the names are places, so that any value may be a class."""
        return {f"output {k}": [f"{i}: {v}" for i, v in enumerate(c)] for k, c in enumerate(self.classes)}

    def encode(self, y: object) -> Tensor:
        """Labels `[n, L]`, MISSING where an entry is the missing label."""
        columns = _columns(y)
        if columns.shape[1] != len(self.classes):
            raise InputError(f"y has {columns.shape[1]} output(s), the estimator was fitted with {len(self.classes)}")
        codes = np.empty(columns.shape, dtype=np.int64)
        for k, (column, classes) in enumerate(zip(columns.T, self.classes, strict=True)):
            missing = _is_missing(column, self.missing_label)
            codes[:, k] = MISSING
            known = column[~missing]
            if len(known):
                place = np.searchsorted(classes, known).clip(max=len(classes) - 1)
                strange = classes[place] != known
                if np.any(strange):
                    raise InputError(f"y has the class {known[strange][0]!r}, which is none of {list(classes)}")
                codes[~missing, k] = place
        return torch.from_numpy(codes)

    def decode(self, labels: Tensor) -> AnyArray:
        """Labels `[..., L]` as y: one column for one output."""
        columns = [c[labels[..., k].numpy()] for k, c in enumerate(self.classes)]
        return columns[0] if self.kind == "one" else np.stack(columns, axis=-1)

    def public(self) -> Any:  # noqa: ANN401 (an array or a list of them)
        """`classes_`: of one output its classes, of binary labels their numbers, of several outputs a list."""
        if self.kind == "one":
            return self.classes[0]
        return np.arange(len(self.classes)) if self.kind == "multilabel" else self.classes

    def shaped(self, values: Sequence[AnyArray]) -> Any:  # noqa: ANN401 (an array or a list of them)
        """One array `[n, classes]` for each output in the form of `predict_proba`."""
        if self.kind == "one":
            return values[0]
        return np.stack([v[:, 1] for v in values], axis=1) if self.kind == "multilabel" else list(values)


def _columns(y: object) -> AnyArray:
    """y as `[n, L]`, refused where it is no classification target."""
    if y is None:
        raise InputError("requires y to be passed, but the target y is None")
    array = np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,), "
            "for example using ravel().",
            DataConversionWarning,
            stacklevel=4,
        )
    if array.ndim < 2 or array.shape[1] == 1:
        array = column_or_1d(array)[:, None]
    elif array.ndim > 2:
        raise InputError(f"y must have one row per sample and one column per output, got shape {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError("Input y contains NaN or infinity: mark missing labels by missing_label, -1 unless told")
    for column in array.T:
        check_classification_targets(column)
    return array


def _is_missing(column: AnyArray, missing_label: object) -> npt.NDArray[np.bool_]:
    if missing_label is None:
        return np.zeros(len(column), dtype=bool)
    # One by one: numpy compares no strings with numbers.
    if column.dtype.kind in "USO" or isinstance(missing_label, str):
        text = isinstance(missing_label, str)
        return np.array([isinstance(v, str) == text and bool(v == missing_label) for v in column], dtype=bool)
    return np.asarray(column == missing_label)


def _meant(columns: AnyArray, missing_label: object) -> object:
    """The missing label, or None where all of y is -1 and +1: two classes in their customary dress."""
    if missing_label != -1 or columns.dtype.kind not in "if" or columns.shape[1] > 1:
        return missing_label
    return None if set(np.unique(columns).tolist()) == {-1, 1} else missing_label


def _known(column: AnyArray, missing_label: object, k: int, n_outputs: int) -> AnyArray:
    missing = _is_missing(column, missing_label)
    classes = np.unique(column[~missing])
    if len(classes) >= 2:
        return classes
    if n_outputs > 1 and set(classes.tolist()) <= {0, 1}:  # a label that no row has, or all: one of several
        return np.array([0, 1])
    output = f"output {k} of y" if n_outputs > 1 else "y"
    if missing.any() and len(classes) == 1:
        raise InputError(
            f"{output} has one class, {classes[0]!r}, beside {missing_label!r}, which marks unlabeled rows: if "
            f"{missing_label!r} is a class too, pass missing_label=None"
        )
    if missing.any():
        raise InputError(f"{output} has no labeled row, so no class to learn: a density alone is JointEnergyDetector's")
    raise InputError(f"{output} has one class, {classes[0]!r}, and a classifier needs at least 2 classes")

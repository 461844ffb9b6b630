"""tables: the labels y: one output, several binary labels or several outputs, entries possibly missing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import issparse
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING
from jointenergy.runs.arrays import unmasked
from jointenergy.tables.frames import array_of, is_frame, is_series, plain, series_of

Kind = Literal["one", "multilabel", "several"]
AnyArray = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Targets:
    """Hold the classes of each output and the form of predictions."""

    kind: Kind
    classes: list[AnyArray]
    missing_label: object

    @classmethod
    def fit(cls, y: object, missing_label: object, classes: object = None) -> Targets:
        """Fit to the training labels; `classes` lists all classes when the labels may not show every one."""
        columns = _columns(y, missing_label)
        if classes is not None:
            several = isinstance(classes, list | tuple) and len(classes) > 0 and np.ndim(classes[0]) > 0
            listed: list[Any] = list(classes) if several else [classes]  # type: ignore[call-overload]
            if len(listed) != len(columns):
                raise InputError(f"classes are given for {len(listed)} outputs, but y has {len(columns)}")
            found = [np.unique(_uniform(np.asarray(c), "classes")) for c in listed]
        else:
            if len(columns) == 1 and plain(missing_label) == -1 and {plain(v) for v in columns[0]} == {-1, 1}:
                missing_label = None  # y of -1 and +1 alone: two classes
            found = [_known(column, missing_label, k, len(columns)) for k, column in enumerate(columns)]
        binary = all(c.dtype.kind in "biuf" and set(c.tolist()) <= {0, 1} for c in found)
        kind: Kind = "one" if len(columns) == 1 else "multilabel" if binary else "several"
        if kind == "multilabel":
            found = [np.array([0, 1]) for _ in found]
        return cls(kind, found, missing_label)

    @property
    def space(self) -> dict[str, list[str]]:
        """Return the outputs as label variables; names start with a position, so that any value may be a class."""
        return {f"output {k}": [f"{i}: {v}" for i, v in enumerate(c)] for k, c in enumerate(self.classes)}

    def encode(self, y: object, n_rows: int) -> Tensor:
        """Encode y as labels `[n_rows, L]`, MISSING where an entry is the missing label and not a class."""
        columns = self.columns(y, n_rows)
        codes = np.full((n_rows, len(columns)), MISSING, dtype=np.int64)
        for k, ((column, labeled), classes) in enumerate(zip(columns, self.classes, strict=True)):
            where = {plain(c): i for i, c in enumerate(classes)}
            known = [plain(v) for v in column[labeled]]
            strange = [v for v in known if v not in where]
            if strange:
                raise InputError(f"y has the class {strange[0]!r}, which is none of {list(where)}")
            codes[labeled, k] = [where[v] for v in known]
        return torch.from_numpy(codes)

    def columns(self, y: object, n_rows: int) -> list[tuple[AnyArray, npt.NDArray[np.bool_]]]:
        """Return y by output, and which of its entries are labels."""
        columns = _columns(y, self.missing_label)
        if len(columns) != len(self.classes):
            raise InputError(f"y has {len(columns)} output(s), but the estimator was fitted with {len(self.classes)}")
        if len(columns[0]) != n_rows:
            raise InputError(f"X has {n_rows} rows and y has {len(columns[0])}: give one label for each row")
        mark = self.missing_label
        return [
            (column, ~(_is_missing(column, mark) & ~_is_missing(classes, mark).any()))
            for column, classes in zip(columns, self.classes, strict=True)
        ]

    def right(self, said: AnyArray, y: object) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which rows have a label, and which of those are predicted with all their labels."""
        pairs = zip(self.columns(y, len(said)), said.reshape(len(said), -1).T, strict=True)
        right, labeled = np.ones(len(said), dtype=bool), np.zeros(len(said), dtype=bool)
        for (truth, known), guessed in pairs:
            labeled |= known
            same = [plain(a) == plain(b) for a, b in zip(truth[known], guessed[known], strict=True)]
            right[known] &= np.array(same, dtype=bool)
        if not labeled.any():
            raise InputError("y has no labeled row, so nothing can be scored: pass labels")
        return labeled, right[labeled]

    def decode(self, labels: Tensor) -> AnyArray:
        """Decode labels `[..., L]` to y: one column per output."""
        columns: list[AnyArray] = [c[labels[..., k].numpy()] for k, c in enumerate(self.classes)]
        if self.kind == "one":
            return columns[0]
        # Stacked, numpy would turn numbers into strings.
        mixed = len({c.dtype.kind in "USO" for c in columns}) > 1
        stacked: AnyArray = np.stack([c.astype(object) if mixed else c for c in columns], axis=-1)
        return stacked

    def public(self) -> Any:
        """Return `classes_`: classes of one output, indices of binary labels, a list for several outputs."""
        if self.kind == "one":
            return self.classes[0]
        return np.arange(len(self.classes)) if self.kind == "multilabel" else self.classes

    def shaped(self, values: Sequence[AnyArray]) -> Any:
        """Convert one array `[n, classes]` per output to the form of `predict_proba`."""
        if self.kind == "one":
            return values[0]
        return np.stack([v[:, 1] for v in values], axis=1) if self.kind == "multilabel" else list(values)


def rows_of(y: Any, chosen: npt.NDArray[np.bool_]) -> Any:
    """Select rows of y; a data frame stays one, since its columns have their own types."""
    return y if y is None or issparse(y) or bool(chosen.all()) else (y if is_frame(y) else _array(y))[chosen]


def _array(y: Any) -> AnyArray:
    """Return y as an array; a list of strings and numbers keeps both, which numpy would turn into strings."""
    if is_series(y):
        return array_of(y)
    array = unmasked(y)
    if array.dtype.kind != "U" or not isinstance(y, list | tuple):
        return array
    cells = np.asarray(y, dtype=object)
    return array if all(isinstance(v, str) for v in cells.flat) else cells


def _columns(y: Any, missing_label: object) -> list[AnyArray]:
    """Return y by column; raise InputError if it is not a classification target."""
    if y is None:
        raise InputError("requires y to be passed, but the target y is None")
    if issparse(y):
        raise InputError("y is a sparse matrix: pass the dense array, y.toarray()")
    array = _array(y)
    if array.ndim == 2 and array.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,), "
            "for example using ravel().",
            DataConversionWarning,
            stacklevel=4,
        )
    if array.ndim > 2:
        raise InputError(f"y must have one row per sample and one column per output, got shape {array.shape}")
    if array.ndim < 2 or array.shape[1] == 1:
        columns = [column_or_1d(array)]
    elif is_frame(y):
        columns = [array_of(s.to_native()) for s in series_of(y)]
    else:
        columns = list(array.T)
    for column in columns:
        known = column[~_is_missing(column, missing_label)]
        if len(known):
            check_classification_targets(_uniform(known, "y"))
    return columns


def _uniform(values: AnyArray, called: str) -> AnyArray:
    """Convert objects that are all numbers to numbers; refuse mixed types."""
    if values.dtype.kind == "O":
        cells = [plain(v) for v in values]
        texts = sum(isinstance(v, str) for v in cells)
        if None in cells:
            values = np.array([np.nan])
        elif texts == 0:
            values = np.array(cells)
        elif texts < len(cells):
            raise InputError(f"{called} mixes strings with other values: make all classes strings")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError("Input y contains NaN or infinity: NaN marks a missing label unless missing_label=None")
    return values


def _is_missing(column: AnyArray, missing_label: object) -> npt.NDArray[np.bool_]:
    mark = plain(missing_label)
    if missing_label is None:
        return np.zeros(len(column), dtype=bool)
    # One by one, since numpy does not compare strings with numbers. NaN and None are missing in any case.
    if column.dtype.kind in "USO" or isinstance(mark, str):
        cells = [plain(v) for v in column]
        return np.array([v is None or v == mark for v in cells], dtype=bool)
    unknown = np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), dtype=bool)
    return unknown if mark is None else unknown | np.asarray(column == mark)


def _known(column: AnyArray, missing_label: object, k: int, n_outputs: int) -> AnyArray:
    missing = _is_missing(column, missing_label)
    known = column[~missing]
    classes: AnyArray = np.unique(_uniform(known, "y")) if len(known) else known
    if len(classes) >= 2:
        return classes
    # One of several binary labels may be constant. But 1 with unlabeled rows may mean the classes 1 and -1.
    if n_outputs > 1 and set(classes.tolist()) <= ({0} if missing.any() else {0, 1}):
        return np.array([0, 1])
    mark = missing_label if plain(missing_label) is None else plain(missing_label)
    output = f"output {k} of y" if n_outputs > 1 else "y"
    if missing.any() and len(classes) == 1:
        raise InputError(
            f"{output} has one class, {plain(classes[0])!r}, beside {mark!r}, which marks unlabeled rows: if {mark!r} "
            "is a class too, pass missing_label=None"
        )
    if missing.any():
        raise InputError(f"{output} has no labeled row: use JointEnergyDetector to fit a density without labels")
    raise InputError(f"{output} has one class, {plain(classes[0])!r}, but a classifier needs at least 2 classes")

"""tables: the columns of a table, arrays or frames: read and checked, numbers standardized, categories coded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import _check_feature_names, _check_n_features, validate_data
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Columns:
    """Which columns are numbers and which categories, how the numbers are scaled and what the categories are called.

    A table without numbers has one column of zeros in their place, so that there is an x. A category column with one
    value is left out of the model, and comes back as that value.
    """

    n_columns: int
    numbers: tuple[int, ...]
    categories: dict[int, list[Any]]
    """The values of each category column, in order."""
    mean: Floats
    scale: Floats
    n_rows: int
    """Of the table that was learned from."""
    names: tuple[str, ...] | None = None

    @classmethod
    def fit(cls, table: InputTable, weight: Floats, *, shared: bool = False) -> Columns:
        """From the table that is learned from: means and scales by weight, NaN left out; `shared` by all columns."""
        n_columns = len(table.columns)
        numbers = tuple(k for k in range(n_columns) if k not in table.categorical)
        values = table.numbers(numbers)
        known = ~np.isnan(values)
        found = {k: table.values(k) for k in table.categorical}
        for k, some in (*zip(numbers, (c.any() for c in known.T), strict=True), *found.items()):
            if not some:
                raise InputError(f"column {table.called(k)} has no value at all: leave it out")
        count = (known * weight[:, None]).sum(0)
        mean = np.where(known, values * weight[:, None], 0.0).sum(0) / count
        with np.errstate(over="ignore", invalid="ignore"):
            variance = np.where(known, (values - mean) ** 2 * weight[:, None], 0.0).sum(0) / count
        for k, spread in zip(numbers, variance, strict=True):
            if not np.isfinite(spread):
                raise InputError(
                    f"column {table.called(k)} holds numbers too large to be squared: give it another unit"
                )
        if shared:  # the mean and the spread of all pixels together
            variance = np.full_like(mean, (variance + mean**2).mean() - mean.mean() ** 2)
            mean = np.full_like(mean, mean.mean())
        scale = np.sqrt(variance)
        # A constant column stays as wide as it is; rounding makes it a little wide.
        scale = np.where(scale > 10 * np.finfo(float).eps * np.maximum(np.abs(mean), 1e-300), scale, 1.0)
        return cls(n_columns, numbers, found, mean, scale, table.n_rows, table.names)

    @property
    def discrete(self) -> tuple[int, ...]:
        """The category columns that are a part of the model."""
        return tuple(k for k, values in self.categories.items() if len(values) > 1)

    @property
    def n_features(self) -> int:
        return max(len(self.numbers), 1)

    def label_space(self, targets: dict[str, list[str]]) -> LabelSpace:
        """The targets first, then the discrete columns, as label variables."""
        own = {f"column {k}": [f"{i}: {v}" for i, v in enumerate(self.categories[k])] for k in self.discrete}
        return LabelSpace({**targets, **own})

    def encode(self, table: InputTable) -> tuple[Tensor, Tensor]:
        """Standardized numbers `[n, D]`, NaN where not known, and the categories as labels `[n, C]`, or MISSING."""
        scaled = (table.numbers(self.numbers) - self.mean) / self.scale
        x = scaled if self.numbers else np.zeros((table.n_rows, 1))
        labels = np.full((table.n_rows, len(self.discrete)), MISSING, dtype=np.int64)
        for place, k in enumerate(self.discrete):
            where = {value: i for i, value in enumerate(self.categories[k])}
            labels[:, place] = [where.get(value, MISSING) for value in table.cells(k)]
        return torch.from_numpy(x), torch.from_numpy(labels)

    def unseen(self, table: InputTable) -> Floats:
        """How many categories of each row none of the rows learned from had."""
        found = np.zeros(table.n_rows)
        for k, values in self.categories.items():
            seen = {None, *values}
            found += [value not in seen for value in table.cells(k)]
        return found

    def numbers_of(self, x: Tensor) -> Floats:
        """Standardized numbers in their own units again, `[..., D]`."""
        if not self.numbers:
            return np.zeros((*x.shape[:-1], 0))
        return x.numpy() * self.scale + self.mean

    def decode(self, x: Tensor, labels: Tensor) -> npt.NDArray[Any]:
        """Rows `[..., n_columns]` of the table: floats, or objects where there are categories."""
        kind: type = object if self.categories else np.float64
        rows = np.empty((*x.shape[:-1], self.n_columns), dtype=kind)
        rows[..., list(self.numbers)] = self.numbers_of(x)
        for k, values in self.categories.items():
            if k in self.discrete:
                called = np.empty(len(values), dtype=object)
                called[:] = values
                rows[..., k] = called[labels[..., self.discrete.index(k)].numpy()]
            else:
                rows[..., k] = values[0]
        return rows


def plain(value: object) -> object:
    """A category as a plain Python value, None where it is not known."""
    value = value.item() if isinstance(value, np.generic) else value
    missing = value is None or (isinstance(value, float) and np.isnan(value)) or type(value).__name__ == "NAType"
    return None if missing else value


@dataclass(frozen=True, eq=False)
class InputTable:
    """Checked input, column by column."""

    columns: Sequence[npt.NDArray[Any]]
    categorical: tuple[int, ...]
    n_rows: int
    names: tuple[str, ...] | None = None

    def called(self, k: int) -> str:
        return f"{k}" if self.names is None else f"{self.names[k]!r}"

    def numbers(self, which: Sequence[int]) -> Floats:
        if not which:
            return np.zeros((self.n_rows, 0))
        return np.stack([self.columns[k] for k in which], axis=1).astype(np.float64)

    def rows(self, chosen: npt.NDArray[np.bool_]) -> InputTable:
        return InputTable([c[chosen] for c in self.columns], self.categorical, int(chosen.sum()), self.names)

    def cells(self, k: int) -> list[object]:
        return [plain(v) for v in self.columns[k]]

    def values(self, k: int) -> list[Any]:
        """The values of a category column in order: by size where they can be compared, else by their text."""
        found = {v for v in self.cells(k) if v is not None}
        try:
            return sorted(found)
        except TypeError:
            return sorted(found, key=lambda v: (type(v).__name__, str(v)))


def read(estimator: Any, X: Any, *, reset: bool) -> InputTable:
    """Check X: a frame column by column, anything else as an array of floats, NaN allowed."""
    if not is_frame(X):
        array = validate_data(estimator, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
        names = getattr(estimator, "feature_names_in_", None)
        called = None if names is None else tuple(map(str, names))
        return InputTable(list(array.T), _categorical(estimator, array, called, reset=reset), len(array), called)
    twice = [name for k, name in enumerate(X.columns) if name in list(X.columns[:k])]
    if twice:
        raise InputError(f"X has two columns of the name {twice[0]!r}: rename one")
    _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, X, reset=reset)
    if len(X) == 0:
        raise InputError(f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
    called = tuple(map(str, X.columns))
    which = _categorical(estimator, X, called, reset=reset)
    columns = []
    for k in range(X.shape[1]):
        series = X.iloc[:, k]
        if k in which:
            columns.append(series.astype(object).to_numpy())
            continue
        try:
            values = np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
        except (TypeError, ValueError):
            raise InputError(
                f"column {called[k]!r} holds {series.dtype} values that are no numbers: make it a category column"
            ) from None
        if np.isinf(values).any():
            raise InputError(f"Input X contains infinity in column {called[k]!r}: numbers must be finite, or NaN")
        columns.append(values)
    return InputTable(columns, which, len(X), called)


def _categorical(estimator: Any, X: Any, names: tuple[str, ...] | None, *, reset: bool) -> tuple[int, ...]:
    """The numbers of the category columns: those named, or those that a frame's types say are none of numbers."""
    if not reset:
        return tuple(estimator._columns.categories)
    n, asked = X.shape[1], estimator.categorical_features
    if asked is None:
        return ()
    if isinstance(asked, str):
        if asked != "from_dtype":
            raise InputError(f"categorical_features must be 'from_dtype', None or a list of columns, got {asked!r}")
        return tuple(k for k in range(n) if _is_category(X.dtypes.iloc[k])) if is_frame(X) else ()
    listed = np.asarray(asked)
    if listed.dtype == bool:
        if listed.shape != (n,):
            raise InputError(f"categorical_features as a mask needs {n} entries, got {len(listed)}")
        return tuple(np.flatnonzero(listed).tolist())
    return tuple(sorted({_place(v, names, n) for v in listed.tolist()}))


def is_frame(X: object) -> bool:
    return hasattr(X, "iloc") and hasattr(X, "dtypes") and hasattr(X, "columns")


def _is_category(dtype: object) -> bool:
    """Whether a frame's column is none of numbers: category, object, string or bool."""
    kind = getattr(dtype, "kind", "O")
    return str(dtype) in ("category", "object", "string", "str", "boolean") or kind in "OSUb"


def _place(named: object, names: tuple[str, ...] | None, n: int) -> int:
    if isinstance(named, str):
        if names is None or named not in names:
            raise InputError(f"categorical_features names the column {named!r}, which X has not")
        return names.index(named)
    if not isinstance(named, int) or not 0 <= named < n:
        raise InputError(f"categorical_features names column {named!r} of {n}")
    return named

"""tables: reading and checking input by column: arrays and data frames; ids are left out, free text is refused."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import _check_feature_names, _check_n_features, validate_data

from jointenergy.errors import InputError
from jointenergy.inputs import is_integer
from jointenergy.runs.arrays import unmasked
from jointenergy.tables import frames
from jointenergy.tables.frames import Kind, is_frame

Floats = npt.NDArray[np.float64]

ENOUGH = 20  # from this many values on, a column with a different value in each row is an id
NEARLY_ALL = 0.9  # share of distinct values above which strings are names
WORDS = 4  # words per value above which a column is free text
DIFFERENT = 0.5  # share of distinct values above which a column is free text
DENSE = 9.0  # pairs of rows for each integer of the range, above which different integers in all rows are no chance
ID_NAME = re.compile(
    r"(?i:(^|[_\s.-])(id|uuid|guid|key|index|row)([_\s.-]?(nr|no|num|number))?$)"
    r"|(?i:[_\s.-](nr|no|num|number)$|^unnamed: ?\d+$)|[a-z](Id|ID|No|Nr)$",
    re.ASCII,
)
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T]\d{1,2}:\d.*)?", re.ASCII)


@dataclass(frozen=True, eq=False)
class InputTable:
    """Hold checked input by column: floats with NaN, or objects with None."""

    columns: Sequence[npt.NDArray[Any]]
    kinds: tuple[Kind, ...]
    n_rows: int
    names: tuple[str, ...] | None = None
    left_out: tuple[int, ...] = ()
    like: Any = field(default=None, compare=False)

    def called(self, k: int) -> str:
        return f"{k}" if self.names is None else f"{self.names[k]!r}"

    def numbers(self, which: Sequence[int]) -> Floats:
        if not which:
            return np.zeros((self.n_rows, 0))
        return np.stack([self.columns[k] for k in which], axis=1)

    def rows(self, chosen: npt.NDArray[Any]) -> InputTable:
        """Select rows by mask or index."""
        n_rows = int(chosen.sum()) if chosen.dtype == bool else len(chosen)
        return replace(self, columns=[c[chosen] for c in self.columns], n_rows=n_rows)

    def cells(self) -> Floats:
        """Return all columns of the model as numbers, equal for equal cells, `[n, columns]`."""
        found = []
        for k, column in enumerate(self.columns):
            if k not in self.left_out and column.dtype == object:
                where = {value: i for i, value in enumerate(self.values(k))}
                found.append(np.array([where.get(v, -1.0) for v in column], dtype=np.float64))
            elif k not in self.left_out:
                found.append(column + 0.0)
        return np.stack(found, axis=1)

    def values(self, k: int) -> list[Any]:
        """Return the sorted values of a column: by size if comparable, else by their text."""
        column = self.columns[k]
        if column.dtype != object:
            return list(np.unique(column[~np.isnan(column)]).tolist())
        try:
            found = {v for v in column if v is not None}
        except TypeError:
            kind = next(type(v).__name__ for v in column if v is not None)
            raise InputError(
                f"column {self.called(k)} holds {kind} values, which are not categories: convert it to "
                "columns of numbers or categories, or drop it"
            ) from None
        try:
            return sorted(found)
        except TypeError:
            return sorted(found, key=lambda v: (type(v).__name__, str(v)))


def read(estimator: Any, X: Any, *, reset: bool, in_pieces: bool = False) -> InputTable:
    """Read X: a data frame by column, anything else as an array of floats, NaN allowed.

    Of a table that comes `in_pieces` the first rows do not tell which integers are categories.
    """
    if isinstance(X, np.ma.MaskedArray):
        return read(estimator, unmasked(X), reset=reset, in_pieces=in_pieces)
    if hasattr(X, "collect") and hasattr(X, "lazy"):
        raise InputError("X is a lazy frame: pass X.collect()")
    if is_frame(X):
        return _read_frame(estimator, X, reset=reset, in_pieces=in_pieces)
    known = None if reset else estimator._columns
    cells = _named_cells(estimator, X, known)
    array = _floats(estimator, X, cells, reset=reset)
    names = getattr(estimator, "feature_names_in_", None)
    called = None if names is None else tuple(map(str, names))
    columns = list(array.T)
    if known is not None:
        kinds = known.kinds[: len(columns)]  # without the target, which comes last
        for k, kind in enumerate(kinds):
            if kind == "category":
                columns[k] = cells.get(k, _cells(columns[k]))
        return InputTable(columns, kinds, len(array), called, known.left_out)
    which = _named(estimator.categorical_features, array.shape[1], called) or ()
    found: list[Kind] = ["whole" if getattr(X, "dtype", np.dtype(float)).kind in "iu" else "number"] * len(columns)
    for k in which:
        found[k], columns[k] = "category", cells.get(k, _cells(columns[k]))
    return InputTable(columns, tuple(found), len(array), called)


def _named_cells(estimator: Any, X: Any, known: Any) -> dict[int, npt.NDArray[Any]]:
    """Return the cells of the category columns, by position, of an array or list that may hold strings."""
    array = np.asarray(X, dtype=object) if isinstance(X, list | tuple) else X
    if getattr(getattr(array, "dtype", None), "kind", "") not in ("O", "U", "S") or np.ndim(array) != 2:
        return {}
    n = array.shape[1]
    if known is None:
        which = _named(estimator.categorical_features, n, None) or ()
    else:
        which = tuple(k for k, kind in enumerate(known.kinds[:n]) if kind == "category")
    found = {k: np.empty(len(array), dtype=object) for k in which}
    for k, cells in found.items():
        cells[:] = [frames.plain(v) for v in array[:, k]]
    return found


def _floats(estimator: Any, X: Any, cells: dict[int, npt.NDArray[Any]], *, reset: bool) -> Floats:
    """Check an array and return its numbers, 0 in the category columns among `cells`."""
    rows = X
    if cells:
        rows = np.array(X, dtype=object)
        rows[:, list(cells)] = 0.0
    try:
        array: Floats = validate_data(estimator, rows, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
        return array
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
        value = str(error).rpartition(": ")[2].removeprefix("np.str_(").removesuffix(")")
        raise InputError(
            f"X holds the string {value}, which is not a number: name its column in categorical_features, or pass a "
            "data frame"
        ) from None


def _cells(column: Floats) -> npt.NDArray[Any]:
    cells = column.astype(object)
    cells[np.isnan(column)] = None
    return cells


def _read_frame(estimator: Any, X: Any, *, reset: bool, in_pieces: bool) -> InputTable:
    series = frames.series_of(X)
    _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, X, reset=reset)
    if len(X) == 0:
        raise InputError(f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
    called = tuple(str(s.name) for s in series)
    if not reset:
        known = estimator._columns
        kinds = list(known.kinds[: len(series)])
        columns = [_column(s, kind) for s, kind in zip(series, kinds, strict=True)]
        for k, column in enumerate(columns):
            _warn_of_unseen(known, k, column, called[k])
        return InputTable(columns, tuple(kinds), len(X), called, known.left_out)
    named = _named(estimator.categorical_features, len(series), called)
    kinds = [frames.kind_of(s) for s in series]
    if named is not None:
        kinds = ["category" if k in named else _number_kind(kind) for k, kind in enumerate(kinds)]
    columns = [_column(s, kind) for s, kind in zip(series, kinds, strict=True)]
    for k, (kind, column) in enumerate(zip(kinds, columns, strict=True)):
        if kind == "number" and series[k].dtype.is_float() and _whole(column):
            kinds[k] = "whole"  # pandas turns integers with missing values into floats
        free = named is None and estimator.image_shape is None and not in_pieces
        if kinds[k] == "whole" and free and _two_values(column):
            kinds[k], columns[k] = "category", frames.cells_of(series[k])
    table = InputTable(columns, tuple(kinds), len(X), called, (), X[:0])
    asked = () if named is None else named
    reasons = {k: why for k in range(len(kinds)) if k not in asked and (why := _id_or_text(table, k, series[k]))}
    for k, name in enumerate(called):
        if kinds[k] == "category" and k not in asked and (held := _stored(table, k)):
            done = "is left out of the model" if k in reasons else "is read as a category"
            said = f"holds {held[0]} as text and {done}: convert it with {held[1]}, or name it in categorical_features"
            warnings.warn(f"column {name!r} {said}", UserWarning, stacklevel=5)
        elif k in reasons:
            warnings.warn(f"column {name!r} {reasons[k]}: it is left out of the model", UserWarning, stacklevel=5)
    if len(reasons) == len(kinds):
        raise InputError("X has no column to learn from: all were left out")
    return replace(table, left_out=tuple(reasons))


def _column(series: Any, kind: Kind) -> npt.NDArray[Any]:
    if kind == "category":
        return frames.cells_of(series)
    try:
        values = frames.numbers_of(series, kind)
    except (TypeError, ValueError):
        held = {"date": "dates", "span": "spans of time"}.get(kind, "numbers")
        remedy = f"convert it to {held}" if held != "numbers" else "make it a category column"
        raise InputError(f"column {series.name!r} holds {series.dtype} values that are not {held}: {remedy}") from None
    if np.isinf(values).any():
        raise InputError(f"Input X contains infinity in column {series.name!r}: numbers must be finite, or NaN")
    return values


def _number_kind(kind: Kind) -> Kind:
    """Return how to read a column that is not among the named categories."""
    return "number" if kind == "category" else kind


def _whole(column: Floats) -> bool:
    known = column[~np.isnan(column)]
    return len(known) > 0 and bool((known == np.rint(known)).all()) and bool((np.abs(known) < 2**53).all())


def _warn_of_unseen(known: Any, k: int, column: npt.NDArray[Any], name: str) -> None:
    """Warn of other integers in a column that had two in training and so was read as a category."""
    seen = known.categories.get(k, ())
    if k in known.left_out or len(seen) != 2 or not all(is_integer(v) for v in seen):
        return
    other = next((v for v in column if is_integer(v) and v not in seen), None)
    if other is not None:
        warnings.warn(
            f"column {name!r} holds {other}, but only {seen[0]} and {seen[1]} in training, so that it is a category "
            f"and {other} counts as missing: fit with categorical_features=None to read integers as numbers",
            UserWarning,
            stacklevel=6,
        )


def _two_values(column: Floats) -> bool:
    return len(np.unique(column[~np.isnan(column)])) == 2


def _id_or_text(table: InputTable, k: int, series: Any) -> str:
    """Return why a column is an id, or nothing; refuse free text."""
    kind, column, name = table.kinds[k], table.columns[k], (table.names or ())[k]
    if kind not in ("category", "whole"):
        return ""
    if kind == "whole":
        whole = frames.whole_of(series)
        each_differs = len(whole) >= ENOUGH and len(np.unique(whole)) == len(whole)
        is_id = each_differs and (ID_NAME.search(name) or _counts(whole))
        return "has another value in each row, as ids have" if is_id else ""
    known = [v for v in column if v is not None]
    n, n_different = len(known), len(table.values(k))
    if n < ENOUGH:
        return ""
    each = f"has another value in {'each row' if n_different == n else f'{n_different} of {n} rows'}, as ids have"
    if n_different > DIFFERENT * n and all(isinstance(v, str) for v in known):
        words = float(np.mean([len(v.split()) for v in known]))
        if words >= WORDS:
            raise InputError(
                f"column {name!r} holds text ({words:.0f} words a row, most rows different), which is not a category: "
                "convert it to numbers, for example with TfidfVectorizer and TruncatedSVD, or drop it"
            )
    return each if n_different >= NEARLY_ALL * n else ""


def _counts(known: npt.NDArray[Any]) -> bool:
    """Return whether different integers lie so densely, as numbers of rows do, that two would be equal by chance."""
    ordered = np.sort(known)
    span, step = int(ordered[-1]) - int(ordered[0]), int(np.gcd.reduce(np.diff(ordered)))
    return len(known) * (len(known) - 1) / 2 >= DENSE * (span // step + 1)


def _stored(table: InputTable, k: int) -> tuple[str, str] | None:
    """Return whether a column of many different strings holds numbers or dates, and the remedy."""
    known = table.values(k)
    if len(known) < ENOUGH or not all(isinstance(v, str) for v in known):
        return None
    if all(DATE.fullmatch(v.strip()) for v in known):
        return "dates", "pd.to_datetime"
    # Digits alone may be codes, such as those of towns.
    numbers = all(_is_number(v) for v in known) and not all(v.strip().isdigit() for v in known)
    return ("numbers", "pd.to_numeric") if numbers else None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _named(asked: Any, n: int, names: tuple[str, ...] | None) -> tuple[int, ...] | None:
    """Return the positions of the named category columns; None if the types decide."""
    if asked is None:
        return ()
    if isinstance(asked, str):
        if asked != "from_dtype":
            raise InputError(f"categorical_features must be 'from_dtype', None or a list of columns, got {asked!r}")
        return None
    listed = np.asarray(asked)
    if listed.dtype == bool:
        if listed.shape != (n,):
            raise InputError(f"categorical_features as a mask needs {n} entries, got {len(listed)}")
        return tuple(np.flatnonzero(listed).tolist())
    return tuple(sorted({_place(v, names, n) for v in listed.tolist()}))


def _place(named: object, names: tuple[str, ...] | None, n: int) -> int:
    if isinstance(named, str):
        if names is None or named not in names:
            raise InputError(f"categorical_features names the column {named!r}, which X has not")
        return names.index(named)
    if not isinstance(named, int) or not 0 <= named < n:
        raise InputError(f"categorical_features names column {named!r} of {n}")
    return named

"""tables: input as scikit-learn's users give it, arrays or frames, checked and taken column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import _check_feature_names, _check_n_features, validate_data

from jointenergy.errors import InputError
from jointenergy.tables.columns import InputTable


def read(estimator: Any, X: Any, *, reset: bool) -> InputTable:  # noqa: N803, ANN401 (as scikit-learn calls tables)
    """Checked input: a frame column by column, anything else as an array of floats, NaN allowed."""
    if not is_frame(X):
        checked = validate_data(
            estimator, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=1
        )
        names = getattr(estimator, "feature_names_in_", None)
        called = None if names is None else tuple(map(str, names))
        columns = list(checked.T)
        which = _categorical(estimator, columns, called, frame=None, reset=reset)
        return InputTable(columns, which, len(checked), called)
    twice = [name for k, name in enumerate(X.columns) if name in list(X.columns[:k])]
    if twice:
        raise InputError(f"X has two columns of the name {twice[0]!r}: rename one")
    _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, X, reset=reset)
    if len(X) == 0:
        raise InputError(f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
    called = tuple(map(str, X.columns))
    which = _categorical(estimator, [], called, frame=X, reset=reset)
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


def _categorical(
    estimator: Any,  # noqa: ANN401 (one of the two)
    columns: Sequence[npt.NDArray[Any]],
    names: tuple[str, ...] | None,
    frame: Any,  # noqa: ANN401 (of whichever library)
    *,
    reset: bool,
) -> tuple[int, ...]:
    """The numbers of the category columns: those named, and those that a frame says are none of numbers."""
    if not reset:
        return tuple(estimator._columns.categories)
    n, asked = (len(columns) if frame is None else frame.shape[1]), estimator.categorical_features
    found: set[int] = set()
    if isinstance(asked, str) and asked not in ("from_dtype",):
        raise InputError(f"categorical_features must be 'from_dtype', None or a list of columns, got {asked!r}")
    if frame is not None and asked is not None and isinstance(asked, str):
        found = {k for k in range(n) if _is_category(frame.dtypes.iloc[k])}
    if asked is not None and not isinstance(asked, str):
        listed = np.asarray(asked)
        if listed.dtype == bool:
            if listed.shape != (n,):
                raise InputError(f"categorical_features as a mask needs {n} entries, got {len(listed)}")
            found = set(np.flatnonzero(listed).tolist())
        else:
            found = {_place(v, names, n) for v in listed.tolist()}
    return tuple(sorted(found))


def is_frame(X: object) -> bool:  # noqa: N803
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

"""tables: data frames of pandas, polars and others: read by column, and written with the same types."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import narwhals as nw
import numpy as np
import numpy.typing as npt

from jointenergy.errors import InputError

Kind = Literal["number", "whole", "date", "span", "category"]
"""What a column holds: numbers, integers, dates, durations, or categories."""
MICRO = 1e6  # microseconds in a second, the unit in which dates are numbers
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def is_frame(X: object) -> bool:
    return bool(nw.dependencies.is_into_dataframe(X))


def is_series(y: object) -> bool:
    return bool(nw.dependencies.is_into_series(y))


def array_of(y: Any) -> npt.NDArray[Any]:
    """Return a series as an array; integers with missing ones stay integers, beside None."""
    series = nw.from_native(y, series_only=True)
    return cells_of(series) if series.dtype.is_integer() and series.null_count() else np.asarray(y)


def series_of(X: Any) -> list[nw.Series[Any]]:
    """Return the columns of a data frame; their names must be unique."""
    names = list(X.columns)
    twice = [name for k, name in enumerate(names) if name in names[:k]]
    if twice:
        raise InputError(f"X has two columns of the name {twice[0]!r}: rename one")
    return list(nw.from_native(X, eager_only=True).iter_columns())


def kind_of(series: nw.Series[Any]) -> Kind:
    """Return what a column holds, by its type; for objects, by their values."""
    dtype = series.dtype
    if dtype.is_integer():
        return "whole"
    if dtype.is_float() or dtype.is_decimal():
        return "number"
    if dtype in (nw.Datetime, nw.Date):
        return "date"
    if dtype == nw.Duration:
        return "span"
    if dtype == nw.Object:
        found = {type(v) for v in cells_of(series) if v is not None}
        if found and all(issubclass(t, int | float | np.number | decimal.Decimal) and t is not bool for t in found):
            return "whole" if all(issubclass(t, int | np.integer) for t in found) else "number"
        if found and all(issubclass(t, datetime.date) for t in found):
            return "date"
    return "category"


def cells_of(series: nw.Series[Any]) -> npt.NDArray[Any]:
    """Return the cells as plain Python values, None where missing."""
    values = series.to_list()
    cells = np.empty(len(values), dtype=object)
    cells[:] = [plain(v) for v in values]
    return cells


def plain(value: object) -> object:
    """Return a cell as a plain Python value, None where missing."""
    value = value.item() if isinstance(value, np.generic) else value
    missing = value is None or type(value).__name__ in ("NAType", "NaTType")
    return None if missing or (isinstance(value, float) and math.isnan(value)) else value


def numbers_of(series: nw.Series[Any], kind: Kind) -> npt.NDArray[np.float64]:
    """Return a column as floats, NaN where missing: dates as seconds since 1970, durations as seconds."""
    dtype = series.dtype
    if series.null_count() == len(series):
        return np.full(len(series), np.nan)  # an empty column has no type of its own
    if kind in ("date", "span") and dtype in (nw.Datetime, nw.Date, nw.Duration):
        if dtype == nw.Date:
            series = series.cast(nw.Datetime("us"))
        ticks = series.dt.timestamp("us") if kind == "date" else series.dt.total_microseconds()
        return np.asarray(ticks.cast(nw.Float64).to_numpy(), dtype=np.float64) / MICRO
    wanted = (nw.Datetime, nw.Date, nw.Duration, nw.String, nw.Categorical, nw.Enum, nw.Boolean)
    if dtype in wanted and not (dtype == nw.Boolean and kind == "number"):
        raise TypeError
    if dtype == nw.Object or kind == "date":
        return np.array([_as_float(v, kind) for v in cells_of(series)], dtype=np.float64)
    return np.asarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)


def whole_of(series: nw.Series[Any]) -> npt.NDArray[Any]:
    """Return the known cells of a column of integers exactly, which floats do not do above 2^53."""
    if series.dtype.is_integer():
        return np.asarray(series.drop_nulls().to_numpy())
    if series.dtype.is_float():
        values = np.asarray(series.to_numpy())
        return np.asarray(values[~np.isnan(values)].astype(np.int64))
    return np.array([v for v in cells_of(series) if v is not None], dtype=object)


def seconds_of(value: Any) -> float:
    """Return a date or duration of Python, numpy or pandas, or a date as ISO text, in seconds."""
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return _as_float(value, "date")


def _as_float(value: Any, kind: Kind) -> float:
    if value is None:
        return math.nan
    if kind != "date":
        return float(value)
    if not isinstance(value, datetime.date):
        raise TypeError
    moment = value if isinstance(value, datetime.datetime) else datetime.datetime(value.year, value.month, value.day)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return (moment - EPOCH).total_seconds()


def written(like: Any, kinds: Sequence[Kind], columns: Sequence[npt.NDArray[Any]], index: Any = None) -> Any:
    """Write columns as a data frame of the library, names and types of `like`."""
    space = nw.get_native_namespace(like)
    if space.__name__ == "pandas":
        made = {
            name: _pandas(space, like[name].dtype, kind, values, index)
            for name, kind, values in zip(like.columns, kinds, columns, strict=True)
        }
        return space.DataFrame(made, index=index)
    schema = nw.from_native(like, eager_only=True).schema
    series = [
        _series(name, dtype, kind, values, space)
        for (name, dtype), kind, values in zip(schema.items(), kinds, columns, strict=True)
    ]
    return nw.DataFrame.from_dict({s.name: s for s in series}, backend=space).to_native()


def copied(made: Any, given: Any, known: Mapping[int, npt.NDArray[np.bool_]]) -> Any:
    """Copy known cells of the data frame `given` to `made`, in columns of the same type of both.

    Numbers of the model are floats, which do not hold every integer and every nanosecond.
    """
    space = nw.get_native_namespace(made)
    if nw.get_native_namespace(given) is not space:
        return made
    if space.__name__ != "pandas":
        table, source = nw.from_native(made, eager_only=True), nw.from_native(given, eager_only=True)
        for k, mask in known.items():
            column, own = table[:, k], source[:, k]
            if column.dtype == own.dtype:
                kept = nw.new_series("known", mask.tolist(), nw.Boolean, backend=space)
                table = table.with_columns(own.zip_with(kept, column).alias(column.name))
        return table.to_native()
    for k, mask in known.items():
        column, own = made.iloc[:, k], given.iloc[:, k]
        if all(getattr(c.dtype, "kind", "") in ("i", "u") for c in (column, own)):
            own = own.where(mask, 0).astype(column.dtype)
        if own.dtype == column.dtype:
            made[made.columns[k]] = own.where(mask, column)
    return made


def _moments(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Convert seconds to microseconds, the smallest integer where missing: numpy's not-a-time."""
    seconds = values.astype(np.float64)
    missing = np.isnan(seconds)
    ticks = np.rint(np.where(missing, 0.0, seconds) * MICRO).astype(np.int64)
    return np.where(missing, np.iinfo(np.int64).min, ticks)


def _pandas(pd: Any, dtype: Any, kind: Kind, values: npt.NDArray[Any], index: Any) -> Any:
    """Return a column of a pandas type; of a nullable one where the type cannot hold missing values."""
    if kind in ("date", "span"):
        ticks = _moments(values).view("datetime64[us]" if kind == "date" else "timedelta64[us]")
        made = pd.Series(ticks, index=index)
        if getattr(dtype, "tz", None) is not None:
            made = made.dt.tz_localize("UTC").dt.tz_convert(dtype.tz)
        return made.map(lambda v: v.date()) if str(dtype) == "object" else made.astype(dtype)
    if hasattr(dtype, "categories"):
        known = list(dtype.categories)
        more = [v for v in dict.fromkeys(values.tolist()) if v is not None and v not in known]
        dtype = type(dtype)([*known, *more], ordered=dtype.ordered)
        return pd.Series(values, index=index, dtype=object).astype(dtype)
    if kind == "category":
        made = pd.Series(values, index=index, dtype=object)
        none_fits = str(dtype) == "bool" and made.isna().any()
        return made if none_fits else made.astype(dtype)
    made = pd.Series(values.astype(np.float64), index=index)
    if kind == "whole" and str(dtype) == "object":
        return made.map(lambda v: None if math.isnan(v) else int(v)).astype(object)
    if getattr(dtype, "kind", "f") in "iu" and made.isna().any() and not hasattr(dtype, "numpy_dtype"):
        dtype = "Int64"
    return made.astype(dtype)


def _series(name: str, dtype: Any, kind: Kind, values: npt.NDArray[Any], space: Any) -> nw.Series[Any]:
    if kind in ("date", "span"):
        ticks = _moments(values).view("datetime64[us]" if kind == "date" else "timedelta64[us]")
        plain_type = nw.Datetime("us") if kind == "date" else nw.Duration("us")
        made = nw.new_series(name, ticks.tolist(), plain_type, backend=space)
        zone = getattr(dtype, "time_zone", None)
        if zone is not None:
            made = made.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
        return made.cast(dtype)
    if kind == "category":
        made = nw.new_series(name, values.tolist(), backend=space)
        if dtype == nw.Enum and not {v for v in values.tolist() if v is not None} <= set(dtype.categories):
            return made
        return made if dtype in (nw.Object, nw.Unknown) else made.cast(dtype)
    cells = [None if math.isnan(v) else v for v in values.astype(np.float64).tolist()]
    return nw.new_series(name, cells, nw.Float64, backend=space).cast(dtype)


# An empty data frame as plain values, for saved files.


def described(like: Any) -> dict[str, Any]:
    """Describe a data frame: its library, and each column's name, type and categories."""
    space = nw.get_native_namespace(like).__name__
    if space == "pandas":
        types: list[list[Any]] = []
        for k, name in enumerate(like.columns):
            dtype = like.dtypes.iloc[k]
            listed = list(dtype.categories) if hasattr(dtype, "categories") else None
            types.append([name, str(dtype), listed, bool(getattr(dtype, "ordered", False))])
        return {"library": space, "types": types}
    schema = nw.from_native(like, eager_only=True).schema
    types = []
    for name, dtype in schema.items():
        details = [getattr(dtype, a, None) for a in ("time_unit", "time_zone")]
        listed = list(dtype.categories) if dtype == nw.Enum else None
        types.append([name, type(dtype).__name__, listed, details])
    return {"library": space, "types": types}


LIBRARIES = ("pandas", "polars", "pyarrow")


def empty(form: dict[str, Any]) -> Any:
    """Build the empty data frame of a description."""
    library, types = form["library"], form["types"]
    if library not in LIBRARIES:
        raise ValueError("frames of another library")
    import importlib

    try:
        space = importlib.import_module(library)
    except ModuleNotFoundError:
        raise InputError(f"the estimator was fitted to a {library} data frame: install {library} to load it") from None
    if library == "pandas":
        columns = {}
        for name, dtype, listed, ordered in types:
            kind = dtype if listed is None else space.CategoricalDtype(listed, ordered=ordered)
            columns[name] = space.Series([], dtype=kind)
        return space.DataFrame(columns)
    schema = {}
    for name, dtype, listed, details in types:
        made = getattr(nw, str(dtype))
        if listed is not None:
            schema[name] = made(listed)
        else:
            schema[name] = made(*details[: {"Datetime": 2, "Duration": 1}.get(dtype, 0)])
    empties = {name: nw.new_series(name, [], dtype, backend=space) for name, dtype in schema.items()}
    return nw.DataFrame.from_dict(empties, backend=space).to_native()

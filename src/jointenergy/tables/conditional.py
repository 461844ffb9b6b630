"""tables: conditional distributions of some columns given others: samples and densities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.inputs import check_count
from jointenergy.tables import frames
from jointenergy.tables.columns import Columns, Floats
from jointenergy.tables.reading import InputTable

if TYPE_CHECKING:
    from jointenergy.tables.base import TableEstimator

STEPS = 100  # chain steps of a sample


def asked_table(columns: Columns, cells: Mapping[int, Sequence[Any]], n: int) -> InputTable:
    """Make a table of n rows in which only these columns are known."""
    made: list[npt.NDArray[Any]] = []
    for k, kind in enumerate(columns.kinds):
        category = kind == "category"
        column = np.full(n, None if category else np.nan, dtype=object if category else np.float64)
        if k in cells:
            column[:] = [_cell(columns, k, value) for value in cells[k]]
        made.append(column)
    return InputTable(made, columns.kinds, n, columns.names, columns.left_out)


def _cell(columns: Columns, k: int, value: Any) -> Any:
    """Convert one value to the column's type, or raise InputError."""
    kind, name, value = columns.kinds[k], columns.called(k), frames.plain(value)
    if k in columns.left_out:
        raise InputError(f"column {name} is not part of the model: it can be neither asked for nor given")
    if kind == "category":
        known = [*columns.categories[k], *columns.rare.get(k, {})]
        if value is not None and value not in known:
            shown = ", ".join(repr(v) for v in known[:8]) + (", ..." if len(known) > 8 else "")
            raise InputError(f"column {name} has no value {value!r}: it has {shown}")
        return value
    if value is None:
        return np.nan
    try:
        found = frames.seconds_of(value) if kind in ("date", "span") else float(value)
    except (TypeError, ValueError):
        held = {"date": "date", "span": "span of time"}.get(kind, "number")
        raise InputError(f"column {name} takes a {held}, got {value!r}") from None
    if not np.isfinite(found):
        raise InputError(f"column {name} takes finite numbers, got {value!r}")
    return found


@dataclass(frozen=True, eq=False)
class Conditional:
    """Represent p(columns | given, y) of a fitted estimator, all other columns and labels summed out."""

    estimator: TableEstimator
    columns: tuple[int, ...]
    given: Mapping[int, Any]
    targets: Tensor
    """One row of labels, MISSING where summed out."""

    @classmethod
    def of(
        cls, estimator: TableEstimator, columns: Any, given: Mapping[Any, Any] | None, targets: Tensor
    ) -> Conditional:
        known = estimator._columns
        names = [columns] if isinstance(columns, str | int | np.integer) else list(columns)
        asked = tuple(known.place(c) for c in names)
        held = {known.place(c): v for c, v in (given or {}).items()}
        if not asked:
            raise InputError("conditional needs at least one column to ask for")
        both = [known.called(k) for k in asked if k in held]
        if both or len(set(asked)) < len(asked):
            raise InputError(f"column {both[0] if both else known.called(asked[0])} is asked for twice, or given too")
        for k in asked:
            if k in known.left_out:
                raise InputError(
                    f"column {known.called(k)} is not part of the model: it can be neither asked for nor given"
                )
        asked_table(known, {k: [v] for k, v in held.items()}, 1)  # raises InputError for values that cannot be given
        return cls(estimator, asked, held, targets)

    def sample(self, n: int = 1, random_state: Any = None) -> Any:
        """Draw the columns `n` times: a data frame like the training data, or an array."""
        check_count("n, the number of samples,", n)
        own, columns = self.estimator, self.estimator._columns
        generator = own._generator(random_state)
        x, y = own._encoded(self._table({}, n), self.targets.expand(n, -1))
        keys = streams.chain_keys(n, generator=generator)
        (x,), (y,) = own._density.complete_rows(x, y, keys, n_draws=1, steps=STEPS, n_jobs=own.n_jobs)
        rng = np.random.default_rng(generator.initial_seed())
        rows = columns.decode(x, y[:, own._density.n_targets :], rng)
        table = columns.table(rows)
        return (
            table[:, list(self.columns)]
            if columns.like is None
            else table[[columns.like.columns[k] for k in self.columns]]
        )

    def log_density(self, values: Any) -> Floats:
        """Return log p(values | given) of each row of values, normalized, in the columns' own units.

        It is estimated with the same reference draws for all rows, so that curves are smooth.

        Parameters
        ----------
        values : data frame, mapping, array or list
            Rows with one entry for each column; a plain list for a single column.
        """
        cells = self._cells(values)
        n = len(cells[self.columns[0]])
        own = self.estimator
        above = own._log_density(self._table(cells, n), self.targets.expand(n, -1))
        below = own._log_density(self._table({}, 1), self.targets)
        return np.asarray(above - below)

    def density(self, values: Any) -> Floats:
        """Return p(values | given), the exponential of `log_density`."""
        return np.exp(self.log_density(values))

    def _cells(self, values: Any) -> dict[int, Sequence[Any]]:
        columns = self.estimator._columns
        if frames.is_frame(values):
            named = {str(s.name): s.to_list() for s in frames.series_of(values)}
        elif isinstance(values, Mapping):
            named = {c: (list(v) if np.ndim(v) else [v]) for c, v in values.items()}
        else:
            listed = [values] if np.ndim(values) == 0 else list(values)
            rows = (
                [[v] for v in listed]
                if len(self.columns) == 1 and np.ndim(listed[0]) == 0
                else [list(r) for r in listed]
            )
            if any(len(r) != len(self.columns) for r in rows):
                raise InputError(f"each row of values needs {len(self.columns)} entries, one for each column asked for")
            return {k: [r[i] for r in rows] for i, k in enumerate(self.columns)}
        found = {columns.place(c): v for c, v in named.items()}
        missing = [columns.called(k) for k in self.columns if k not in found]
        if missing:
            raise InputError(f"values have no column {missing[0]}, which was asked for")
        return {k: found[k] for k in self.columns}

    def _table(self, cells: Mapping[int, Sequence[Any]], n: int) -> InputTable:
        return asked_table(self.estimator._columns, {**{k: [v] * n for k, v in self.given.items()}, **cells}, n)

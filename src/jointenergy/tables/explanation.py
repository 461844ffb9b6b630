"""tables: which entries make a row unusual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING
from jointenergy.tables.columns import Floats
from jointenergy.tables.reading import InputTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from jointenergy.tables.base import TableEstimator

SHOWN = 12  # columns of a plot


@dataclass(frozen=True, eq=False)
class Explanation:
    """Hold the surprise of each entry given the others, `[n, columns]`, in nats.

    The surprise is the mean of log p(row) with the entry redrawn given the rest of the row, minus log p(row): above 0
    for an entry less probable than usual, 0 for a missing one. It does not depend on a column's unit or spread.
    """

    surprise: Floats
    names: tuple[str, ...]
    cells: list[list[Any]]
    log_density: Floats
    """log p(row), as in `score_samples`."""

    def top(self, row: int = 0, n: int = 3) -> list[tuple[str, float]]:
        """Return the most surprising columns of a row with their surprise."""
        order = np.argsort(-self.surprise[row], kind="stable")[:n]
        return [(self.names[k], float(self.surprise[row, k])) for k in order]

    def plot(self, row: int = 0, *, ax: Axes | None = None) -> Axes:
        """Plot the surprise of a row's entries as bars, the largest on top."""
        import matplotlib.pyplot as plt

        if not 0 <= row < len(self.surprise):
            raise InputError(f"there is no row {row}: the explanation has {len(self.surprise)}")
        if ax is None:
            _, ax = plt.subplots(figsize=(6, 0.6 + 0.32 * min(SHOWN, len(self.names))), layout="constrained")
        top = self.top(row, SHOWN)[::-1]
        values = dict(zip(self.names, self.cells[row], strict=True))
        ax.barh(
            [f"{name} = {_shown(values[name])}" for name, _ in top],
            [value for _, value in top],
            color=["tab:red" if value > 0 else "tab:blue" for _, value in top],
        )
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set_xlabel("surprise given the other columns (nats)")
        return ax


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@torch.no_grad()
def explained(
    estimator: TableEstimator, table: InputTable, cells: list[list[Any]], targets: Tensor | None
) -> Explanation:
    """Compute the surprise of all entries, with one pass per column."""
    density, columns = estimator._density, estimator._columns
    x, y = estimator._encoded(table, targets)
    keys = estimator._one_key(len(x))
    whole = density.expected_log_density(x, y, keys, n_jobs=estimator.n_jobs)
    surprise = np.zeros((table.n_rows, columns.n_columns))
    for place, k in enumerate(columns.numbers):
        known = ~x[:, place].isnan()
        hidden = x.clone()
        hidden[:, place] = torch.nan
        usual = density.expected_log_density(hidden, y, keys, n_jobs=estimator.n_jobs)
        surprise[:, k] = torch.where(known, usual - whole, 0.0).numpy()
    for place, k in enumerate(columns.discrete):
        at = density.n_targets + place
        known, open_y = y[:, at] != MISSING, y.clone()
        open_y[:, at] = MISSING
        usual = density.expected_log_density(x, open_y, keys, n_jobs=estimator.n_jobs)
        surprise[:, k] = torch.where(known, usual - whole, 0.0).numpy()
    # A value that no training row had counts as one in n + 1 rows.
    for k, values in columns.categories.items():
        seen = {None, *values, *columns.rare.get(k, {})}
        new = np.array([v is not None and v == v and v not in seen for v in table.columns[k]])
        surprise[new, k] = np.log(columns.n_rows + 1)
    names = columns.names or tuple(f"x{k}" for k in range(columns.n_columns))
    return Explanation(surprise, names, cells, estimator._log_density(table, targets))

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
    """How surprising each entry of each row is given the others, `[n, columns]`, in nats.

    It is the mean of log p(row) over what the entry may be, drawn given the rest of the row, less log p(row) as it is:
    above 0 for an entry less probable than usual, 0 for one that is missing. No unit and no spread of a column matters.
    """

    surprise: Floats
    names: tuple[str, ...]
    cells: list[list[Any]]
    log_density: Floats
    """log p(row), as `score_samples` has it."""

    def top(self, row: int = 0, n: int = 3) -> list[tuple[str, float]]:
        """The columns of a row that surprise most."""
        order = np.argsort(-self.surprise[row], kind="stable")[:n]
        return [(self.names[k], float(self.surprise[row, k])) for k in order]

    def plot(self, row: int = 0, *, ax: Axes | None = None) -> Axes:
        """Bars of a row's entries, the most surprising on top."""
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
    """One pass for each column, with the entry hidden."""
    density, columns = estimator._density, estimator._columns
    x, y = estimator._encoded(table, targets)
    keys = estimator._one_key(len(x))
    whole = density.expected_log_density(x, y, keys)
    surprise = np.zeros((table.n_rows, columns.n_columns))
    for place, k in enumerate(columns.numbers):
        known = ~x[:, place].isnan()
        hidden = x.clone()
        hidden[:, place] = torch.nan
        usual = density.expected_log_density(hidden, y, keys)
        surprise[:, k] = torch.where(known, usual - whole, 0.0).numpy()
    for place, k in enumerate(columns.discrete):
        at = density.n_targets + place
        known, open_y = y[:, at] != MISSING, y.clone()
        open_y[:, at] = MISSING
        usual = density.expected_log_density(x, open_y, keys)
        surprise[:, k] = torch.where(known, usual - whole, 0.0).numpy()
    # A value that no row had is as strange as one row more would make it.
    for k, values in columns.categories.items():
        seen = {None, *values, *columns.rare.get(k, {})}
        new = np.array([v is not None and v == v and v not in seen for v in table.columns[k]])
        surprise[new, k] = np.log(columns.n_rows + 1)
    names = columns.names or tuple(f"x{k}" for k in range(columns.n_columns))
    return Explanation(surprise, names, cells, estimator._log_density(table, targets))

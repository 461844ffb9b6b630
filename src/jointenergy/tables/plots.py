"""tables: plots of a fitted density over one or two columns, and of class probabilities over one column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jointenergy.errors import InputError
from jointenergy.tables.columns import Columns, Floats
from jointenergy.tables.conditional import Conditional

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVE, MAP = 200, 50  # points along a column: in a curve, in a heat map


def grid(columns: Columns, k: int, n: int) -> list[Any]:
    """Return values of a column: all categories, or numbers over the range of the training data."""
    if k in columns.left_out:
        raise InputError(f"column {columns.called(k)} is not part of the model")
    if k not in columns.numbers:
        return list(columns.categories[k])
    place = columns.numbers.index(k)
    low, high = columns.scaling.low[place], columns.scaling.high[place]
    if columns.kinds[k] == "whole" and high - low < n:
        return list(np.arange(low, high + 1).tolist())
    # Evenly spaced on the transformed scale, so that heavy tails do not fill the plot.
    first, last = columns.scaling.scaled(np.stack((columns.scaling.low, columns.scaling.high)))[:, place].tolist()
    line = np.zeros((n, len(columns.numbers)))
    line[:, place] = np.linspace(first, last, n)
    return list(np.unique(columns.scaling.restored(line)[:, place]).tolist())


def axis_values(columns: Columns, k: int, values: list[Any]) -> npt.NDArray[Any]:
    """Convert values for matplotlib: dates as dates."""
    if columns.kinds[k] == "date":
        return np.asarray(np.array(values) * 1e6, dtype="int64").view("datetime64[us]")
    return np.asarray(values)


def plot_density(of: Conditional, *, ax: Axes | None = None, label: str | None = None) -> Axes:
    """Plot p(column | given) as a curve or bars; for two numeric columns as a heat map."""
    import matplotlib.pyplot as plt

    columns = of.estimator._columns
    if len(of.columns) > 2:
        raise InputError(f"plot_density takes one or two columns, got {len(of.columns)}")
    if ax is None:
        _, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
    k = of.columns[0]
    if len(of.columns) == 1:
        values = grid(columns, k, CURVE)
        found = of.density({k: values})
        if k in columns.numbers:
            ax.plot(axis_values(columns, k, values), found, label=label)
            ax.set_ylim(bottom=0)
        else:
            ax.bar([str(v) for v in values], found, label=label, alpha=0.7)
        ax.set_xlabel(columns.called(k).strip("'"))
        ax.set_ylabel("density" if k in columns.numbers else "probability")
        return ax
    other = of.columns[1]
    if not {k, other} <= set(columns.numbers):
        raise InputError("plot_density takes one column of any kind, or two columns of numbers")
    across, up = grid(columns, k, MAP), grid(columns, other, MAP)
    points = {k: np.tile(across, len(up)).tolist(), other: np.repeat(up, len(across)).tolist()}
    found = of.log_density(points).reshape(len(up), len(across))
    peak = math.ceil(found.max())
    shown = ax.contourf(
        axis_values(columns, k, across), axis_values(columns, other, up), found, levels=np.arange(peak - 8, peak + 1)
    )
    ax.figure.colorbar(shown, ax=ax, label="log-density")
    ax.set_xlabel(columns.called(k).strip("'"))
    ax.set_ylabel(columns.called(other).strip("'"))
    return ax


@dataclass(frozen=True, eq=False)
class PartialDependence:
    """Hold p(class | column = value), the other columns averaged given that value: `[values, classes]`.

    The usual partial dependence replaces the column in all rows, and so asks about rows that cannot occur; conditioning
    does not.
    """

    column: str
    values: npt.NDArray[Any]
    average: Floats
    classes: npt.NDArray[Any]

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Plot a line for each class, or grouped bars for categories."""
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
        if self.values.dtype.kind in "OUSb":
            for i, name in enumerate(self.classes):
                width = 0.8 / len(self.classes)
                ax.bar(np.arange(len(self.values)) + width * i, self.average[:, i], width, label=str(name))
            ax.set_xticks(np.arange(len(self.values)) + 0.4 - 0.4 / len(self.classes), [str(v) for v in self.values])
        else:
            for i, name in enumerate(self.classes):
                ax.plot(self.values, self.average[:, i], label=str(name))
        ax.set_ylim(0, 1)
        ax.set_xlabel(self.column)
        ax.set_ylabel("probability")
        ax.legend()
        return ax

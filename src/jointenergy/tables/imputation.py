"""tables: tables filled in, with their draws and intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from jointenergy.tables.columns import Columns, Floats, InputTable, is_frame


@dataclass(frozen=True, eq=False)
class Imputed:
    """A table with what was missing filled in, from p(missing | known).

    `X` has the means of the draws in number columns and the most frequent draws in category columns; it is a frame if a
    frame came. `draws` are whole rows, `[n_draws, n, columns]`. Between `low` and `high`, `[n, columns]`, lies the
    missing number with probability `level`; both are NaN in category columns.
    """

    X: Any
    draws: npt.NDArray[Any]
    low: Floats
    high: Floats
    level: float


def imputed(
    columns: Columns, given: Any, table: InputTable, x: Tensor, all_x: Tensor, all_y: Tensor, level: float
) -> Imputed:
    draws = columns.decode(all_x, all_y)
    numbers = columns.numbers_of(all_x)
    ordered, n_draws = np.sort(numbers, axis=0), len(numbers)
    low, high = (np.full((table.n_rows, columns.n_columns), np.nan) for _ in range(2))
    for ends, q in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
        # At the places q (n + 1): a further draw then lies between them with just that probability.
        place = min(max(q * (n_draws + 1) - 1, 0.0), n_draws - 1.0)
        below = min(int(place + 1e-9), n_draws - 2)
        ends[:, list(columns.numbers)] = ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])
    filled = draws[0].copy()
    known = ~x.isnan().numpy()
    for place, k in enumerate(columns.numbers):
        filled[:, k] = np.where(known[:, place], table.columns[k], numbers[:, :, place].mean(0))
    for place, k in enumerate(columns.discrete):
        most = torch.mode(all_y[:, :, place], dim=0).values
        filled[:, k] = [columns.categories[k][i] for i in most.tolist()]  # what is known is the same in all draws
    if not is_frame(given):
        return Imputed(filled.astype(np.float64), draws, low, high, level)
    frame = given.copy()
    for k in range(columns.n_columns):
        column = type(given.iloc[:, k])(filled[:, k], index=given.index)
        kind = np.float64 if k in columns.numbers else _with(given.iloc[:, k].dtype, columns.categories.get(k, []))
        frame[given.columns[k]] = column.astype(kind)
    return Imputed(frame, draws, low, high, level)


def _with(kind: Any, values: list[Any]) -> Any:
    """The type of a column of categories with those that the model knows; any other as it is."""
    if not hasattr(kind, "categories"):
        return kind
    known = list(kind.categories)
    return type(kind)([*known, *(v for v in values if v not in known)], ordered=kind.ordered)

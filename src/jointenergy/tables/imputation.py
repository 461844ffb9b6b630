"""tables: completed tables with their draws and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from jointenergy.tables import frames
from jointenergy.tables.columns import Columns, Floats
from jointenergy.tables.frames import is_frame
from jointenergy.tables.reading import InputTable


@dataclass(frozen=True, eq=False)
class Imputed:
    """Hold a table completed from p(missing | known).

    Attributes
    ----------
    X : data frame or array
        The completed table: means of the draws for numbers, the most frequent draw for categories. It has the types of
        the input: a data frame keeps its column types, and integers stay integers.
    draws : list of data frames or array
        Completed tables, one per draw; an array is `[n_draws, n, columns]`.
    low, high : array
        Bounds, `[n, columns]`, between which a missing number lies with probability `level`; dates in seconds since
        1970, NaN in category columns.
    """

    X: Any
    draws: Any
    low: Floats
    high: Floats
    level: float


def imputed(
    columns: Columns,
    given: Any,
    table: InputTable,
    x: Tensor,
    all_x: Tensor,
    all_y: Tensor,
    level: float,
    rng: np.random.Generator,
) -> Imputed:
    rows = columns.decode(all_x, all_y, rng, table)
    n_draws = len(all_x)
    low, high = (np.full((table.n_rows, columns.n_columns), np.nan) for _ in range(2))
    filled = [column[0].copy() for column in rows]
    known = ~x.isnan().numpy()
    for place, k in enumerate(columns.numbers):
        rows[k][:, known[:, place]] = table.columns[k][known[:, place]]
        ordered = np.sort(rows[k], axis=0)
        for ends, q in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
            # Order statistics at q (n + 1): a further draw lies between them with exactly that probability.
            at = min(max(q * (n_draws + 1) - 1, 0.0), n_draws - 1.0)
            below = min(int(at + 1e-9), n_draws - 2)
            ends[:, k] = ordered[below] + (at - below) * (ordered[below + 1] - ordered[below])
        unit = columns.scaling.unit[place]
        mean = rows[k].mean(0)
        mean = np.rint(mean / unit) * unit if unit > 0 else mean
        filled[k] = np.where(known[:, place], table.columns[k], mean)
    for place, k in enumerate(columns.discrete):
        most = torch.mode(all_y[:, :, place], dim=0).values.numpy()
        filled[k] = np.array([*columns.most_frequent(k, most), None], dtype=object)[:-1]
        # Known cells are copied, since rare values share a state.
        seen = np.array([v in columns.rare.get(k, {}) for v in table.columns[k]], dtype=bool)
        filled[k][seen] = table.columns[k][seen]
        rows[k][:, seen] = table.columns[k][seen]
    index, copies = getattr(given, "index", None) if is_frame(given) else None, _copies(columns, table)

    def written(cells: Sequence[npt.NDArray[Any]]) -> Any:
        made = columns.table(cells, index)
        return frames.copied(made, given, copies) if columns.like is not None and is_frame(given) else made

    draws: Any = [written([c[i] for c in rows]) for i in range(n_draws)]
    if columns.like is None:
        draws = np.stack(draws)
    whole = written(filled)
    if columns.like is None and columns.numeric:
        whole = whole.astype(np.float64)
    return Imputed(whole, draws, low, high, level)


def _copies(columns: Columns, table: InputTable) -> dict[int, npt.NDArray[np.bool_]]:
    """Return the known cells, by column, whose values floats may not hold: integers, dates and durations."""
    found = {}
    for k, kind in enumerate(columns.kinds):
        if kind in ("whole", "date", "span"):
            known = ~np.isnan(table.columns[k])
            same = columns.categories.get(k)  # another value of a constant column is replaced
            found[k] = known if same is None else known & (table.columns[k] == same[0])
    return {k: known for k, known in found.items() if known.any()}

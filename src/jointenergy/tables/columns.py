"""tables: the columns of a table: which enter the model, how numbers are scaled and categories encoded."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.tables import frames
from jointenergy.tables.frames import Kind
from jointenergy.tables.reading import InputTable

Floats = npt.NDArray[np.float64]

MOST_VALUES = 32  # categories of a column with a state of their own; rarer ones share one state
HEAVY = 12.0  # a column with values this many robust standard deviations from its center gets a log-like scale
RESOLUTIONS = (86400.0, 3600.0, 60.0, 1.0, 1e-3, 1e-6)  # in seconds; a column of days has whole days in its draws


@dataclass(frozen=True, eq=False)
class Columns:
    """Encode a table: which columns are numbers and which categories, the scaling, the names of the categories.

    A table without numbers gets one column of zeros, so that there is an x. A constant column is not part of the model
    and is decoded as its value. Columns that are `left_out` are passed through.
    """

    kinds: tuple[Kind, ...]
    numbers: tuple[int, ...]
    categories: dict[int, list[Any]]
    """Ordered values of each category column, and the value of each constant column."""
    rare: dict[int, dict[Any, float]]
    """Rare values that share the last state of a category column, with their weights."""
    left_out: tuple[int, ...]
    scaling: Scaling
    n_rows: int
    """Training rows."""
    names: tuple[str, ...] | None = None
    like: Any = field(default=None, compare=False)
    """An empty data frame like the training data, when that was a data frame."""

    @classmethod
    def fit(cls, table: InputTable, weight: Floats, *, n_rows: int, shared: bool = False) -> Columns:
        """Fit to the training table: weighted means and scales without NaN, one for all columns with `shared`."""
        values, rare, numbers = {}, {}, []
        for k in range(len(table.columns)):
            if k in table.left_out:
                continue
            found = table.values(k)
            if not found:
                raise InputError(f"column {table.called(k)} has no value at all: drop it")
            if table.kinds[k] == "category":
                values[k], rare[k] = _kept(found, table.columns[k], weight)
            elif len(found) == 1 and not shared:
                values[k] = found
            else:
                numbers.append(k)
        rare = {k: v for k, v in rare.items() if v}
        scaling = Scaling.fit(table, tuple(numbers), weight, shared=shared)
        if not numbers and not any(len(v) > 1 for v in values.values()):
            warnings.warn("no column of X varies: there is nothing to learn from", stacklevel=2)
        return cls(
            table.kinds,
            tuple(numbers),
            values,
            rare,
            table.left_out,
            scaling,
            n_rows,
            table.names,
            table.like,
        )

    @property
    def n_columns(self) -> int:
        return len(self.kinds)

    @property
    def discrete(self) -> tuple[int, ...]:
        """Category columns that are part of the model."""
        return tuple(k for k, values in self.categories.items() if len(values) > 1)

    @property
    def n_features(self) -> int:
        return max(len(self.numbers), 1)

    def called(self, k: int) -> str:
        return f"{k}" if self.names is None else f"{self.names[k]!r}"

    def place(self, column: Any) -> int:
        """Return the position of a column, given by name or position."""
        names = [] if self.names is None else list(self.names)
        if isinstance(column, str) and column in names:
            return names.index(column)
        if isinstance(column, int | np.integer) and not isinstance(column, bool) and 0 <= column < self.n_columns:
            return int(column)
        known = f"one of {names}" if names else f"a number from 0 to {self.n_columns - 1}"
        raise InputError(f"there is no column {column!r}: name {known}")

    def label_space(self, targets: dict[str, list[str]]) -> LabelSpace:
        """Return the label variables: the targets first, then the category columns."""
        own = {}
        for k in self.discrete:
            states = [f"{i}: {v}" for i, v in enumerate(self.categories[k])]
            own[f"column {k}"] = [*states, f"{len(states)}: others"] if k in self.rare else states
        return LabelSpace({**targets, **own})

    def encode(self, table: InputTable) -> tuple[Tensor, Tensor]:
        """Return standardized numbers `[n, D]`, NaN where missing, and categories as labels `[n, C]`, or MISSING."""
        x = self.scaling.scaled(table.numbers(self.numbers)) if self.numbers else np.zeros((table.n_rows, 1))
        labels = np.full((table.n_rows, len(self.discrete)), MISSING, dtype=np.int64)
        for place, k in enumerate(self.discrete):
            where = {value: i for i, value in enumerate(self.categories[k])}
            where |= dict.fromkeys(self.rare.get(k, {}), len(where))
            labels[:, place] = [where.get(value, MISSING) for value in table.columns[k]]
        return torch.from_numpy(x), torch.from_numpy(labels)

    def log_shares(self, table: InputTable) -> Floats:
        """Return, summed over each row, log p(value | its shared state) of rare values and log 1 / (n + 1) of values
        that no training row had."""
        found, strange = np.zeros(table.n_rows), -np.log(self.n_rows + 1)
        for k, values in self.categories.items():
            counts = self.rare.get(k, {})
            total = sum(counts.values())
            shares: dict[Any, float] = {None: 0.0, **dict.fromkeys(values, 0.0)}
            shares |= {value: float(np.log(count / total)) for value, count in counts.items()}
            found += [shares.get(frames.plain(value), strange) for value in table.columns[k]]
        return found

    def decode(
        self, x: Tensor, labels: Tensor, rng: np.random.Generator, origin: InputTable | None = None
    ) -> list[npt.NDArray[Any]]:
        """Decode rows `[..., D]` and `[..., C]` into columns `[...]` of numbers or categories.

        Rare values are drawn by their frequency. Columns that were left out come from `origin`, or are missing.
        """
        form = tuple(x.shape[:-1])
        numbers = self.scaling.restored(x.numpy()) if self.numbers else np.zeros((*form, 0))
        found: list[npt.NDArray[Any]] = []
        for k, kind in enumerate(self.kinds):
            if k in self.left_out:
                blank = np.full(form, None if kind == "category" else np.nan, object if kind == "category" else float)
                found.append(blank if origin is None else np.broadcast_to(origin.columns[k], form))
            elif k in self.numbers:
                found.append(numbers[..., self.numbers.index(k)])
            elif k in self.discrete:
                found.append(self._cells(k, labels[..., self.discrete.index(k)].numpy(), rng))
            else:
                cells = np.empty(form, dtype=object if kind == "category" else np.float64)
                cells[...] = self.categories[k][0]
                found.append(cells)
        return found

    def _cells(self, k: int, codes: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[Any]:
        called = np.empty(len(self.categories[k]) + 1, dtype=object)
        called[:-1] = self.categories[k]
        cells = called[codes]
        if k in self.rare:
            others = codes == len(self.categories[k])
            values, counts = list(self.rare[k]), np.array(list(self.rare[k].values()), dtype=np.float64)
            drawn = rng.choice(len(values), int(others.sum()), p=counts / counts.sum())
            cells[others] = [values[i] for i in drawn]
        return cells

    def most_frequent(self, k: int, codes: npt.NDArray[np.int64]) -> list[Any]:
        """Decode codes, a shared state as its most frequent value."""
        listed = list(self.categories[k])
        if k in self.rare:
            listed.append(max(self.rare[k], key=lambda value: self.rare[k][value]))
        return [listed[i] for i in codes.tolist()]

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers, so that an array of floats can hold them."""
        values = [v for k in self.categories for v in (*self.categories[k], *self.rare.get(k, {}))]
        return all(isinstance(v, int | float) for v in values)

    def table(self, columns: Sequence[npt.NDArray[Any]], index: Any = None) -> Any:
        """Return columns as a data frame like the training data; else as an array, of objects with categories."""
        if self.like is not None:
            return frames.written(self.like, self.kinds, columns, index)
        kind: type = object if "category" in self.kinds else np.float64
        return np.stack([np.asarray(c, dtype=kind) for c in columns], axis=-1)


def _kept(values: list[Any], cells: npt.NDArray[Any], weight: Floats) -> tuple[list[Any], dict[Any, float]]:
    """Return the ordered values with a state of their own, and the rarer ones with their weights."""
    if len(values) <= MOST_VALUES:
        return values, {}
    counts = dict.fromkeys(values, 0.0)
    for value, much in zip(cells, weight.tolist(), strict=True):
        if value is not None:
            counts[value] += much
    order = {value: i for i, value in enumerate(values)}
    ranked = sorted(values, key=lambda v: (-counts[v], order[v]))
    kept = sorted(ranked[: MOST_VALUES - 1], key=lambda v: order[v])
    return kept, {v: counts[v] for v in values if v not in set(kept)}


@dataclass(frozen=True, eq=False)
class Scaling:
    """Transform numbers for the model: arsinh for heavy tails, then standardization.

    A column with a `bend` b > 0 becomes arsinh((x - center) / b): linear in the middle, logarithmic in the tails. The
    inverse rounds to multiples of `unit` and clips to `low` and `high` where a unit is known. Numbers without a unit
    are clipped to `low` where the data have no negative one.
    """

    mean: Floats
    scale: Floats
    center: Floats
    bend: Floats
    unit: Floats
    low: Floats
    high: Floats

    @classmethod
    def fit(cls, table: InputTable, numbers: tuple[int, ...], weight: Floats, *, shared: bool) -> Scaling:
        values = table.numbers(numbers)
        known = ~np.isnan(values)
        for k, column in zip(numbers, values.T, strict=True):
            if np.abs(column[~np.isnan(column)]).max(initial=0.0) > 1e150:
                raise InputError(
                    f"column {table.called(k)} holds numbers too large to be squared: give it another unit"
                )
        center, bend = np.zeros(len(numbers)), np.zeros(len(numbers))
        for place, column in enumerate(() if shared else values.T):
            center[place], bend[place] = _bend(column[known[:, place]])
        bent = _bent(values, center, bend)
        count = (known * weight[:, None]).sum(0)
        mean = np.where(known, bent * weight[:, None], 0.0).sum(0) / count
        variance = np.where(known, (bent - mean) ** 2 * weight[:, None], 0.0).sum(0) / count
        if shared and len(numbers):  # one mean and scale for all pixels
            variance = np.full_like(mean, (variance + mean**2).mean() - mean.mean() ** 2)
            mean = np.full_like(mean, mean.mean())
        scale = np.sqrt(variance)
        # A column whose rows that count are constant stays as wide as it is; rounding makes it a little wide.
        scale = np.where(scale > 10 * np.finfo(float).eps * np.maximum(np.abs(mean), 1e-300), scale, 1.0)
        with np.errstate(invalid="ignore"):
            low = np.array([np.nanmin(c) for c in values.T])
            high = np.array([np.nanmax(c) for c in values.T])
        unit = np.array([_unit(table, k) for k in numbers])
        return cls(mean, scale, center, bend, unit, low, high)

    def scaled(self, values: Floats) -> Floats:
        found: Floats = (_bent(values, self.center, self.bend) - self.mean) / self.scale
        return found

    def restored(self, x: Floats, *, smooth: bool = False) -> Floats:
        """Invert the transform, `[..., D]`; without rounding and clipping where `smooth`."""
        bent = x * self.scale + self.mean
        curved = self.center + self.bend * np.sinh(np.clip(bent, -300, 300) * (self.bend > 0))
        values: Floats = np.where(self.bend > 0, curved, bent)
        return values if smooth else self.possible(values)

    def possible(self, values: Floats, place: int | slice = slice(None)) -> Floats:
        """Round and clip numbers, all of them or those of one place, to what the data show to be possible."""
        unit, low, high = self.unit[place], self.low[place], self.high[place]
        rounded = np.rint(values / np.where(unit > 0, unit, 1.0)) * unit
        positive = np.where(low >= 0, np.maximum(values, low), values)
        found: Floats = np.where(unit > 0, np.clip(rounded, low, high), positive) + 0.0  # no -0
        return found

    def log_volume(self, values: Floats) -> Floats:
        """Return the log-derivative of the inverse transform, `[n, D]`; at the center for missing numbers."""
        away = np.where(np.isnan(values), 0.0, values - self.center) / np.where(self.bend > 0, self.bend, 1.0)
        curved = np.where(self.bend > 0, np.log(np.maximum(self.bend, 1e-300)) + 0.5 * np.log1p(away**2), 0.0)
        found: Floats = np.log(self.scale) + curved
        return found


def _bent(values: Floats, center: Floats, bend: Floats) -> Floats:
    curved = np.arcsinh((values - center) / np.where(bend > 0, bend, 1.0))
    return np.where(bend > 0, curved, values)


def _bend(known: Floats) -> tuple[float, float]:
    """Return the center and width of a heavy-tailed column, or zeros."""
    low, center, high = np.quantile(known, [0.25, 0.5, 0.75])
    away = np.abs(known - center)
    width = (high - low) / 1.349  # standard deviation of a Gaussian with these quartiles
    if width == 0 and (away > 0).any():
        width = float(np.median(away[away > 0]))
    return (float(center), float(width)) if away.max() > HEAVY * width > 0 else (0.0, 0.0)


def _unit(table: InputTable, k: int) -> float:
    """Return the unit that all values are multiples of: 1 for integers, a day or less for dates; 0 for none."""
    kind = table.kinds[k]
    if kind == "whole":
        return 1.0
    if kind not in ("date", "span"):
        return 0.0
    known = table.columns[k][~np.isnan(table.columns[k])]
    return next((u for u in RESOLUTIONS if np.abs(known / u - np.rint(known / u)).max() * u < 1e-6), 1e-6)

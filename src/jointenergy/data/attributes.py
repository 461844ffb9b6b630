"""data: binary attributes of rows: made from categories, selected by name and frequency, held out in pairs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointenergy.data.options import NOT, Options
from jointenergy.data.tables import is_missing
from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace, nearest
from jointenergy.limits import memory

SEVERAL = ";"
"""Separates the values of a cell that holds several."""


@dataclass(frozen=True)
class Attributes:
    """Hold binary attributes of rows: names, and int64 `[n, K]` of 0, 1 and MISSING."""

    names: tuple[str, ...]
    y: NDArray[np.int64]

    @classmethod
    def of_categories(cls, columns: Mapping[str, Sequence[str]]) -> Attributes:
        """Make one attribute, `column_value`, for each value of each column; a cell "a;b" has both values.

        Attributes of an empty cell are MISSING.
        """
        names: list[str] = []
        found = []
        for column, cells in columns.items():
            values = [set() if is_missing(cell) else {v.strip() for v in cell.split(SEVERAL)} for cell in cells]
            absent = np.array([not v for v in values])
            for value in sorted(set().union(*values)):
                if len(names) * 8 * len(cells) > memory():
                    raise InputError(
                        f"column {column!r} has too many values to make an attribute of each: leave it out"
                    )
                names.append(f"{column}_{re.sub(r'[^0-9A-Za-z]+', '_', value).strip('_')}")
                found.append(np.where(absent, MISSING, [value in v for v in values]))
        if not names:
            raise InputError(f"the columns {', '.join(columns)} hold no values to make attributes of")
        return cls(tuple(names), np.stack(found, axis=1).astype(np.int64))

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Return which rows have no missing attribute."""
        whole: NDArray[np.bool_] = (self.y != MISSING).all(1)
        return whole

    def rows(self, which: NDArray[np.bool_]) -> Attributes:
        return Attributes(self.names, self.y[which])

    def frequency(self) -> NDArray[np.float64]:
        """Return the frequency of each attribute among rows where it is not missing."""
        share: NDArray[np.float64] = (self.y == 1).sum(0) / np.maximum((self.y != MISSING).sum(0), 1)
        return share

    def chosen(self, options: Options, name: str) -> Attributes:
        """Select the attributes that the options name (default: all) and that are frequent enough."""
        wanted = options.attributes or self.names
        columns = [self.index(word, name) for word in wanted]
        share = self.frequency()
        kept = [k for k in columns if share[k] >= options.min_frequency]
        if not kept:
            raise InputError(
                f"no attribute of {name!r} is in {options.min_frequency:.0%} of the rows: lower "
                f"data.options.min_frequency; the commonest has {max(share[k] for k in columns):.1%}"
            )
        return Attributes(tuple(self.names[k] for k in kept), self.y[:, kept])

    def index(self, word: str, name: str) -> int:
        if word not in self.names:
            raise InputError(f"{name!r} has no attribute {word!r}: {nearest(word, self.names)}")
        return self.names.index(word)

    def having(self, word: str, name: str) -> NDArray[np.bool_]:
        """Return which rows have an attribute, or do not have it: "not Young"."""
        wanted = 0 if word.startswith(NOT) else 1
        has: NDArray[np.bool_] = self.y[:, self.index(word.removeprefix(NOT), name)] == wanted
        return has

    def in_pairs(self, pairs: Sequence[tuple[str, str]], name: str) -> NDArray[np.bool_]:
        """Return which rows have both attributes of any pair."""
        held = np.zeros(len(self.y), np.bool_)
        for one, other in pairs:
            held |= self.having(one, name) & self.having(other, name)
        return held

    @property
    def labels(self) -> LabelSpace:
        return LabelSpace.binary(self.names)

"""labels: named categorical variables, their one-hot codes and enumeration, and MISSING."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jointenergy.errors import EnumerationError, InputError, plural
from jointenergy.inputs import has_no_value, is_integer
from jointenergy.limits import CLASSES

__all__ = ["MISSING", "LabelSpace"]

MISSING = -1
"""Marks an unknown label in `y`: densities sum over it."""

ENUMERATION_LIMIT = 4096
"""The largest number of label states that are summed by enumeration for one row of x."""


Given = Mapping[str, Any] | Tensor | None
"""Labels to hold fixed, as public functions take them: a mapping of names, a tensor with MISSING, or None.

A mapping has one value for all rows under each name, a number or a name, or an array with one for each row.
"""


@functools.cache
def constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Create a small index tensor once per device and keep it: recorded steps read its memory."""
    # Cached, so it must not be created in a caller's inference mode: such tensors cannot enter a gradient later.
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.int64, device=device)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the end of an error message: the closest known names, or a list of them."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}?"
    listed = ", ".join(repr(k) for k in known[:10]) or "none"
    return f"the known ones are {listed}" + (", ..." if len(known) > 10 else "")


@dataclass(frozen=True)
class LabelSpace:
    """Define named categorical label variables. Column k of a label tensor `y` holds the value of variable k.

    Parameters
    ----------
    variables
        Maps each name to its number of values (at least 2) or to a list of value names.

    Examples
    --------
    >>> import jointenergy as je
    >>> labels = je.LabelSpace({"animal": ["cat", "dog", "bird"], "indoors": 2})
    >>> labels.encode({"animal": "dog"})
    tensor([[ 1, -1]])
    >>> labels.n_codes, labels.n_states
    (5, 6)
    >>> je.LabelSpace.binary(["smiling", "hat"])
    LabelSpace({'smiling': 2, 'hat': 2})
    >>> je.LabelSpace.none()
    LabelSpace({})
    """

    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]

    def __init__(self, variables: Mapping[str, int | Sequence[str]]) -> None:
        if not isinstance(variables, Mapping):
            raise InputError(f"label variables are a mapping from names to values, got {type(variables).__name__}")
        values: list[tuple[str, ...]] = []
        n_codes = 0
        for name, spec in variables.items():
            if not isinstance(name, str) or not name:
                raise InputError(f"a label variable needs a non-empty name, got {name!r}")
            if not is_integer(spec) and (not isinstance(spec, Sequence) or isinstance(spec, str)):
                raise InputError(
                    f"label variable {name!r} needs a number of values or a list of value names, got {spec!r}"
                )
            n_codes += int(spec) if not isinstance(spec, Sequence) else len(spec)
            if n_codes > CLASSES:
                raise InputError(
                    f"the label variables up to {name!r} have {n_codes:,} values, more than the {CLASSES:,} that are "
                    "accepted: use fewer"
                )
            n_values = len(spec) if isinstance(spec, Sequence) else int(spec)
            if n_values < 2:
                raise InputError(f"label variable {name!r} needs at least 2 values, got {n_values}")
            value_names = tuple(map(str, spec if isinstance(spec, Sequence) else range(n_values)))
            if len(set(value_names)) < len(value_names):
                raise InputError(f"label variable {name!r} names a value twice: {list(value_names[:10])}")
            values.append(value_names)
        object.__setattr__(self, "names", tuple(variables))
        object.__setattr__(self, "values", tuple(values))

    @classmethod
    def binary(cls, names: Sequence[str]) -> LabelSpace:
        """Create one variable with the values 0 and 1 for each name."""
        if isinstance(names, str):
            raise InputError(f"binary labels need a list of names, got the string {names!r}")
        if len(set(names)) < len(names):
            raise InputError(f"label variables are named twice: {sorted({n for n in names if names.count(n) > 1})}")
        return cls(dict.fromkeys(names, 2))

    @classmethod
    def none(cls) -> LabelSpace:
        """Create an empty label space, for a density of x alone."""
        return cls({})

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __repr__(self) -> str:
        return f"LabelSpace({dict(zip(self.names, self.cardinalities, strict=True))})"

    # Cached: kernels read these at every step, and there may be hundreds of variables.

    @functools.cached_property
    def cardinalities(self) -> tuple[int, ...]:
        """The number of values of each variable."""
        return tuple(len(v) for v in self.values)

    @functools.cached_property
    def n_codes(self) -> int:
        """The width of a one-hot code: the sum of the cardinalities."""
        return sum(self.cardinalities)

    @property
    def n_states(self) -> int:
        """The number of complete labels: the product of the cardinalities."""
        return math.prod(self.cardinalities)

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """The index at which each variable's block begins in a one-hot code."""
        starts, total = [], 0
        for cardinality in self.cardinalities:
            starts.append(total)
            total += cardinality
        return tuple(starts)

    @functools.cached_property
    def variable_of_code(self) -> tuple[int, ...]:
        """The variable that each entry of a one-hot code belongs to."""
        return tuple(k for k, cardinality in enumerate(self.cardinalities) for _ in range(cardinality))

    @functools.cached_property
    def value_of_code(self) -> tuple[int, ...]:
        """The value that each entry of a one-hot code stands for."""
        return tuple(v for cardinality in self.cardinalities for v in range(cardinality))

    @functools.cached_property
    def shared_cardinality(self) -> int | None:
        """The number of values if all variables have the same; None otherwise."""
        return self.cardinalities[0] if len(set(self.cardinalities)) == 1 else None

    def index(self, name: str) -> int:
        """Return the column of the variable called `name`."""
        if name not in self.names:
            raise InputError(f"there is no label called {name!r}: {nearest(str(name), self.names)}")
        return self.names.index(name)

    def value_index(self, name: str, value: int | str) -> int:
        """Return the index of a value of variable `name`; the value is an index or a name."""
        known = self.values[self.index(name)]
        if isinstance(value, str) and value in known:
            return known.index(value)
        if isinstance(value, str | float | bool | None):
            raise InputError(f"label {name!r} has no value {value!r}: {nearest(str(value), known)}")
        if not is_integer(value):
            raise InputError(f"a value of label {name!r} is a number or a name, got {type(value).__name__}")
        if not 0 <= value < len(known):
            raise InputError(f"label {name!r} takes the values 0 to {len(known) - 1}, got {value}")
        return int(value)

    def encode(self, given: Mapping[str, Any], n: int = 1, device: torch.device | str | None = None) -> Tensor:
        """Convert names to `n` rows of label indices, MISSING for variables that are not in `given`.

        A name has one value for all rows, a number or a name, or an array with one for each row, MISSING allowed.
        """
        rows = torch.full((n, len(self)), MISSING, dtype=torch.int64)
        for name, value in given.items():
            k = self.index(name)
            rows[:, k] = self._column(name, value, n) if _is_many(value) else self.value_index(name, value)
        return rows.to(device)

    def _column(self, name: str, values: Any, n: int) -> Tensor:  # noqa: ANN401 (arrays of any library)
        """Return the indices of one value of `name` for each of `n` rows."""
        if getattr(values, "ndim", 1) == 2 and values.shape[1] == 1:
            values = values.reshape(-1)
        listed = values.tolist() if hasattr(values, "tolist") else list(values)
        if len(listed) != n:
            raise InputError(
                f"label {name!r} has {plural(len(listed), 'value')} for {plural(n, 'row')}: give one for each"
            )
        found = []
        for v in listed:
            unknown = has_no_value(v) or (is_integer(v) and v == MISSING)
            whole = isinstance(v, float) and v.is_integer()  # integers beside NaN are floats
            found.append(MISSING if unknown else self.value_index(name, int(v) if whole else v))
        return torch.tensor(found, dtype=torch.int64)

    def decode(self, y: Tensor) -> list[dict[str, str]]:
        """Convert label indices to names: one mapping per row, without missing entries."""
        return [
            {name: self.values[k][v] for k, (name, v) in enumerate(zip(self.names, row, strict=True)) if v != MISSING}
            for row in self.check(y).tolist()
        ]

    def check(self, y: Tensor, n: int | None = None, *, complete: bool = False) -> Tensor:
        """Check labels and return them as int64 `[n, L]`; `[n]` is accepted when L = 1."""
        if not isinstance(y, Tensor):
            raise InputError(f"labels must be an integer tensor, got {type(y).__name__}")
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise InputError(f"labels must be integers (torch.int64), got {y.dtype}: convert with y.long()")
        if y.ndim == 1 and len(self) == 1:
            y = y[:, None]
        if y.ndim != 2 or y.shape[1] != len(self):
            raise InputError(
                f"labels need {len(self)} column(s), one for each of {self._names_shown()}, got shape {tuple(y.shape)}"
            )
        if n is not None and len(y) != n:
            raise InputError(f"labels have {len(y)} rows where x has {n}")
        y = y.long()
        if y.numel():
            wrong = (y >= constant(self.cardinalities, y.device)) | (y < MISSING)
            if complete:
                wrong |= y == MISSING
            if wrong.any():
                row, column = (int(i) for i in wrong.nonzero()[0])
                allowed = f"0 to {self.cardinalities[column] - 1}" + ("" if complete else f", or {MISSING} for missing")
                raise InputError(
                    f"label {self.names[column]!r} takes the values {allowed}; row {row} has {int(y[row, column])}"
                )
        return y

    def given(self, given: Given, n: int, device: torch.device | str | None = None) -> Tensor:
        """Return given labels as checked `[n, L]`, from a mapping of names, a tensor with MISSING, or None."""
        if given is None:
            return torch.full((n, len(self.names)), MISSING, dtype=torch.int64, device=device)
        if isinstance(given, Mapping):
            return self.encode(given, n, device)
        return self.check(given, n).to(device)

    def allowed(self, y: Tensor) -> Tensor:
        """Return which entries of a one-hot code the labels allow, bool `[..., n_codes]`: all where missing."""
        spread = y.index_select(-1, constant(self.variable_of_code, y.device))
        return (spread == MISSING) | (spread == constant(self.value_of_code, y.device))

    def one_hot(self, y: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Convert complete labels `[n, L]` to one-hot codes `[n, n_codes]`."""
        return self.code_of(self.check(y, complete=True), dtype)

    def code_of(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Do the same as `one_hot` for internal callers with checked labels `[..., L]`."""
        code = torch.zeros(*y.shape[:-1], self.n_codes, dtype=dtype, device=y.device)
        return code.scatter_(-1, y + constant(self.offsets, y.device), 1)

    def from_one_hot(self, code: Tensor) -> Tensor:
        """Convert codes `[..., n_codes]` to labels `[..., L]`: the largest entry of each block."""
        if not isinstance(code, Tensor) or code.ndim < 1 or code.shape[-1] != self.n_codes:
            raise InputError(f"codes of {self!r} have {self.n_codes} entries a row, got {_form(code)}")
        if self.shared_cardinality is not None:  # hundreds of blocks in one operation
            return code.reshape(*code.shape[:-1], len(self), self.shared_cardinality).argmax(-1)
        blocks = code.split(self.cardinalities, dim=-1) if len(self) else ()
        if not blocks:
            return torch.zeros(*code.shape[:-1], 0, dtype=torch.int64, device=code.device)
        return torch.stack([b.argmax(-1) for b in blocks], dim=-1)

    def enumerate(self, columns: Sequence[int] | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return all states of the variables in `columns` (None: all), `[S, len(columns)]`, the last column fastest."""
        chosen = range(len(self)) if columns is None else columns
        sizes = [self.cardinalities[k] for k in chosen]
        n_states = math.prod(sizes)
        if n_states > ENUMERATION_LIMIT:
            raise EnumerationError(
                f"{len(sizes)} free label(s) have {n_states:,} states, more than the {ENUMERATION_LIMIT:,} that are "
                "enumerated: give more labels, or sample them with a label kernel (GibbsWithGradients, SingleSiteGibbs)"
            )
        if not sizes:
            return torch.zeros(1, 0, dtype=torch.int64, device=device)
        return torch.cartesian_prod(*(torch.arange(s, device=device) for s in sizes)).reshape(n_states, len(sizes))

    def completed(self, y: Tensor, columns: Tensor) -> Tensor:
        """Fill the variables in `columns` with all their states, `[n, S, L]`."""
        choices = self.enumerate(columns.tolist(), y.device)
        states = y[:, None, :].repeat(1, len(choices), 1)
        states[:, :, columns] = choices
        return states

    def subspace(self, names: Sequence[str]) -> LabelSpace:
        """Return the label space of the variables called `names`, in that order."""
        return LabelSpace({name: self.values[self.index(name)] for name in names})

    def _names_shown(self) -> str:
        shown = ", ".join(self.names[:5]) or "no labels"
        return shown + (", ..." if len(self) > 5 else "")


def _is_many(value: object) -> bool:
    """Tell an array, a tensor or a list from one value; an array without dimensions is one value."""
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0


def _form(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__

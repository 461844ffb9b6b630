"""runs: data as users have them, arrays, tensors or a torch Dataset, made into rows to train on and rows held out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from jointenergy.data import Dataset, View
from jointenergy.data.base import split_rows
from jointenergy.data.training import TrainingData, filled
from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Box, Domain, Reals
from jointenergy.runs.arrays import tensor_of

LabelNames = LabelSpace | Mapping[str, int | Sequence[str]] | Sequence[str] | int
MOST_CLASSES = 10_000  # of one label: more are identifiers, not classes
COLORS = (1, 3)  # channels of an image
MARGIN = 0.2  # of the range of numbers in a table, kept free around them at least
SMALL_SHARE = 200.0  # and in few columns so much that the box of the numbers is this part of the range
REFERENCE = 1.5  # standard deviations of x that the Gaussian around a table has


@dataclass(frozen=True, eq=False)
class UserRows:
    """x `[n, *event]`, uint8 or float32, NaN where it is not known, with labels `[n, L]`."""

    x: Tensor
    y: Tensor
    labels: LabelSpace


def rows_of_user(data: object, labels: LabelNames | None) -> UserRows:
    """Read what a user passes as data: (x, y), x alone, a torch Dataset, or a data set of the library."""
    if isinstance(data, Dataset):
        if labels is not None and label_space(labels) != data.labels:
            raise InputError(f"the data set has the labels {data.labels!r} of its own: leave labels= out")
        return UserRows(data.x, data.y, data.labels)
    if isinstance(data, TorchDataset):
        data = _read(data)
    if isinstance(data, tuple | list):
        if len(data) != 2:
            raise InputError(f"data must be (x, y), x alone or a Dataset, got {len(data)} parts")
        x, y = data
    else:
        x, y = data, None
    x = _numbers(x)
    if y is None:
        if labels is not None:
            raise InputError("labels= names the values of y, and there is no y: pass data as (x, y)")
        return UserRows(x, torch.empty(len(x), 0, dtype=torch.int64), LabelSpace.none())
    codes, space = label_columns(y, labels)
    if len(codes) != len(x):
        raise InputError(f"x has {len(x)} rows and y has {len(codes)}: each row of x needs its labels")
    return UserRows(x, codes, space)


def _read(dataset: TorchDataset[Any]) -> tuple[Tensor, np.ndarray[Any, Any] | None]:
    """All items of a torch Dataset, read once: x, or (x, y)."""
    if not hasattr(dataset, "__len__"):
        raise InputError(
            "a torch Dataset needs a length: an iterable one cannot be shuffled, read it into arrays first"
        )
    n = len(dataset)
    if n == 0:
        raise InputError("the Dataset has no items")
    xs, ys = [], []
    for i in range(n):
        item = dataset[i]
        pair = isinstance(item, tuple | list)
        if pair and len(item) != 2:
            raise InputError(
                f"items of a Dataset must be x or (x, y); item {i} is a {type(item).__name__} of {len(item)}"
            )
        x = item[0] if pair else item
        try:
            xs.append(torch.as_tensor(np.asarray(x)) if not isinstance(x, Tensor) else x)
        except (TypeError, ValueError):
            raise InputError(
                f"x of item {i} is a {type(x).__name__}: let the Dataset's transform make a tensor of it"
            ) from None
        if xs[-1].shape != xs[0].shape:
            raise InputError(
                f"item {i} of the Dataset has the shape {tuple(xs[-1].shape)} and item 0 {tuple(xs[0].shape)}: bring "
                "all to one size"
            )
        if pair:
            ys.append(np.asarray(item[1].cpu() if isinstance(item[1], Tensor) else item[1]))
    if ys and len(ys) != n:
        raise InputError("some items of the Dataset have labels and some have none: use MISSING, -1, for no label")
    return torch.stack(xs), np.stack(ys) if ys else None


def _numbers(x: object) -> Tensor:
    """x as uint8 or float32 `[n, *event]`; NaN is what is not known."""
    found = tensor_of(x, "x")  # type: ignore[arg-type]
    if found.ndim < 2:
        raise InputError(f"x needs a shape [n, *event], one row for each example, got {tuple(found.shape)}")
    if len(found) < 2:
        raise InputError(f"x has {len(found)} row(s): training needs at least 2")
    if found.dtype == torch.uint8:
        return found
    if found.is_complex():
        raise InputError(f"x must be real numbers, got {found.dtype}")
    found = found.float()
    if bool(found.isinf().any()):
        row = int(found.isinf().flatten(1).any(1).nonzero()[0])
        raise InputError(f"x has an infinite value in row {row}: replace it, or set it to NaN if it is not known")
    return found


def label_space(labels: LabelNames) -> LabelSpace:
    """Labels as a user names them: a LabelSpace, its mapping, the names of the classes or their number."""
    if isinstance(labels, LabelSpace):
        return labels
    return LabelSpace(labels) if isinstance(labels, Mapping) else LabelSpace({"class": labels})


def label_columns(y: object, labels: LabelNames | None) -> tuple[Tensor, LabelSpace]:
    """Labels as int64 `[n, L]` with MISSING, and their meaning: as named, or read off the values."""
    array = np.asarray(y.cpu() if isinstance(y, Tensor) else y)
    if array.ndim not in (1, 2):
        raise InputError(f"y needs a shape [n] or [n, L], one column for each label, got {array.shape}")
    columns = array.reshape(len(array), -1)
    space = None if labels is None else label_space(labels)
    if space is not None and len(space) != columns.shape[1]:
        raise InputError(f"y has {columns.shape[1]} column(s) and labels= names {len(space)}: {list(space.names)}")
    names = space.names if space is not None else ("class",) if array.ndim == 1 else _names(columns.shape[1])
    values = space.values if space is not None else (None,) * len(names)
    found = [_column(columns[:, k], name, known) for k, (name, known) in enumerate(zip(names, values, strict=True))]
    made = space or LabelSpace({name: list(known) for name, (_, known) in zip(names, found, strict=True)})
    codes = torch.stack([codes for codes, _ in found], dim=1)
    return made.check(codes, len(codes)), made


def _names(n: int) -> tuple[str, ...]:
    return ("class",) if n == 1 else tuple(f"label{k}" for k in range(n))


def _column(column: np.ndarray[Any, Any], name: str, known: Sequence[str] | None) -> tuple[Tensor, Sequence[str]]:
    """One label as codes, and the names of its values."""
    if column.dtype.kind in "OUS":
        missing = np.array([v is None or v != v for v in column.tolist()])
        words = [str(v) for v in column.tolist()]
        known = sorted({w for w, m in zip(words, missing, strict=True) if not m}) if known is None else known
        places = {word: i for i, word in enumerate(known)}
        for word, m in zip(words, missing, strict=True):
            if not m and word not in places:
                raise InputError(
                    f"y has the value {word!r} of {name!r}, which labels= does not name: {list(known)[:5]}"
                )
        codes = [MISSING if m else places[w] for w, m in zip(words, missing, strict=True)]
        return torch.tensor(codes, dtype=torch.int64), known
    if column.dtype.kind not in "iufb":
        raise InputError(f"y must hold whole numbers or names, got {column.dtype}")
    wide = column.astype(np.float64)
    hidden = np.isnan(wide)
    if not np.array_equal(wide[~hidden], np.round(wide[~hidden])):
        raise InputError(f"labels of {name!r} must be whole numbers from 0, or {MISSING} where missing, got fractions")
    whole = np.where(hidden, MISSING, wide).astype(np.int64)
    if known is None:
        largest = int(whole.max(initial=-1))
        if largest < 0:
            raise InputError(f"no row has a label {name!r}: pass labels= to say its values, or leave y out")
        if largest >= MOST_CLASSES:
            raise InputError(
                f"labels of {name!r} go up to {largest}: number the classes from 0, or name them with labels="
            )
        known = [str(i) for i in range(max(largest + 1, 2))]
    return torch.from_numpy(whole), known


def domain_of(x: Tensor, bounds: tuple[float, float] | None) -> tuple[Domain, View]:
    """Where x lives, and its range: a box for pixels and x between usual bounds, R^D for the columns of a table.

    Around a table stands a Gaussian reference; its range is so wide that uniform noise hardly ever looks like a row.
    """
    if bounds is not None:
        return Box(bounds[0], bounds[1]), View.of(bounds)
    if x.dtype == torch.uint8:
        return Box(-1.0, 1.0), View(-1.0, 1.0)
    known = x[~x.isnan()]
    if known.numel() == 0:
        raise InputError("x has no value that is known")
    low, high = float(known.min()), float(known.max())
    if low == high:
        raise InputError(f"every value of x is {low:g}: there is nothing to learn from")
    for usual in ((0.0, 1.0), (-1.0, 1.0)):
        if usual[0] <= low and high <= usual[1]:
            return Box(*usual), View(*usual)
    if x.ndim > 2:
        return Box(low, high), View(low, high)
    middle, half = (low + high) / 2, (high - low) / 2 * max(1.0 + MARGIN, SMALL_SHARE ** (1.0 / x.shape[1]))
    return Reals(REFERENCE * float(known.std()), float(known.mean())), View(middle - half, middle + half)


def training_data(
    rows: UserRows, bounds: View, validation: float | int | object, labels: LabelNames | None, shape: Iterable[int]
) -> TrainingData:
    """UserRows scaled to the bounds and shaped as the network takes them, some of them held out.

    Held-out rows must be complete in x; of rows that miss entries none are held out.
    """
    event_shape = tuple(shape)
    x, y = _scaled(rows.x, bounds).reshape(len(rows.x), *event_shape), rows.y
    complete = ~x.isnan().flatten(1).any(1)
    if isinstance(validation, float | int):
        whole = complete.nonzero()[:, 0]
        if len(whole) < 2:
            raise InputError("rows are held out to judge the run, and no two rows of x are complete: pass validation=")
        sample = Dataset(x[whole], y[whole], rows.labels, "data")
        _, chosen = split_rows(sample, validation, 0)
        held = whole[torch.tensor(chosen)]
        rest = torch.ones(len(x), dtype=torch.bool)
        rest[held] = False
        x_held, y_held = x[held], y[held]
        x, y = x[rest], y[rest]
    else:
        other = rows_of_user(validation, rows.labels if len(rows.labels) else labels)
        x_held, y_held = _scaled(other.x, bounds).reshape(len(other.x), *event_shape), other.y
        if bool(x_held.isnan().any()):
            raise InputError("validation rows must be complete, and some miss entries of x")
    mask = ~x.isnan()
    if bool(mask.all()):
        return TrainingData(x, y, x_held, y_held, rows.labels)
    return TrainingData(filled(x.nan_to_num(), mask), y, x_held, y_held, rows.labels, mask)


def _scaled(x: Tensor, bounds: View) -> Tensor:
    return bounds.of_pixels(x) if x.dtype == torch.uint8 else x


def candidate_shapes(x: Tensor) -> list[tuple[str, Tensor]]:
    """x as a network may want it: as it is, with a channel, channels first, flat; with what was done in words."""
    shape = x.shape[1:]
    found = [("", x)]
    if len(shape) == 3 and shape[-1] in COLORS and shape[0] not in COLORS:
        found.insert(0, ("channels first", x.movedim(-1, 1).contiguous()))
    if len(shape) == 2:
        found.append(("with a channel", x[:, None]))
    if len(shape) > 1:
        found.append(("flattened", x.flatten(1)))
    return found

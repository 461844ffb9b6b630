"""runs: convert user data (arrays, tensors, data frames, lists or a torch Dataset) to rows and labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from jointenergy.data import Dataset, View
from jointenergy.data.base import split_rows
from jointenergy.data.covariances import covariance_of
from jointenergy.data.training import TrainingData, filled
from jointenergy.errors import InputError
from jointenergy.inputs import has_no_value
from jointenergy.labels import MISSING, Given, LabelSpace
from jointenergy.models import Box, Domain, Reals
from jointenergy.runs.arrays import Labels, shaped, tensor_of, unmasked
from jointenergy.training.defaults import CORRELATED

LabelNames = LabelSpace | Mapping[str, int | Sequence[str]] | Sequence[str] | int
LARGEST = 1e6  # largest |x| that float32 represents with enough digits
MOST_CLASSES = 10_000  # maximum classes of a label; more are probably identifiers
COLORS = (1, 3)  # channels of an image
MARGIN = 0.2  # minimum margin around the values of a table, as a share of their range
SMALL_SHARE = 200.0  # with few columns, the margin grows until the values fill 1 / this of the box
TABLE = 32  # maximum columns of rows that are a table whatever their range
REFERENCE = 1.5  # width of the Gaussian reference of a table of many columns, in standard deviations of x


@dataclass(frozen=True, eq=False)
class UserRows:
    """x `[n, *event]`, uint8 or float32 with NaN for unknown entries, and labels `[n, L]`."""

    x: Tensor
    y: Tensor
    labels: LabelSpace


def rows_of_user(data: object, labels: LabelNames | None, what: str = "data", named_by: str = "labels=") -> UserRows:
    """Read user data: (x, y), x alone, a torch Dataset, or a data set of the library.

    `what` and `named_by` say in messages which data these are, and what names the labels.
    """
    if isinstance(data, Dataset):
        if labels is not None and label_space(labels) != data.labels:
            raise InputError(f"the data set defines its labels {data.labels!r}: leave out labels=")
        return UserRows(data.x, data.y, data.labels)
    if isinstance(data, DataLoader):
        raise InputError("data is a DataLoader, but fit makes its own batches: pass its dataset, loader.dataset")
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
            raise InputError(f"{named_by} names the values of y, but there is no y: pass {what} as (x, y)")
        return UserRows(x, torch.empty(len(x), 0, dtype=torch.int64), LabelSpace.none())
    codes, space = label_columns(y, labels, named_by)
    if len(codes) != len(x):
        raise InputError(f"x has {len(x)} rows but y has {len(codes)}: pass one row of labels per row of x")
    return UserRows(x, codes, space)


def _read(dataset: TorchDataset[Any]) -> tuple[Tensor, np.ndarray[Any, Any] | None]:
    """Read all items of a torch Dataset once: x, or (x, y)."""
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
        if isinstance(item, tuple | list) and len(item) == 1:
            item = item[0]  # a TensorDataset of x alone
        pair = isinstance(item, tuple | list)
        if pair and len(item) != 2:
            raise InputError(
                f"items of a Dataset must be x or (x, y); item {i} is a {type(item).__name__} of {len(item)}"
            )
        x = item[0] if pair else item
        try:
            xs.append(x if isinstance(x, Tensor) else torch.from_numpy(np.array(unmasked(x))))
        except (TypeError, ValueError):
            raise InputError(
                f"x of item {i} is a {type(x).__name__}: convert it to a tensor in the Dataset's transform"
            ) from None
        if xs[-1].shape != xs[0].shape:
            raise InputError(
                f"item {i} of the Dataset has shape {tuple(xs[-1].shape)} but item 0 has {tuple(xs[0].shape)}: resize "
                "all to one shape"
            )
        if pair:
            ys.append(unmasked(item[1].cpu() if isinstance(item[1], Tensor) else item[1]))
    if ys and len(ys) != n:
        raise InputError("some items of the Dataset have no labels: use MISSING (-1) for them")
    if len({y.shape for y in ys}) > 1:
        raise InputError(
            "labels of the Dataset's items have different shapes: give every item the same number of labels"
        )
    return torch.stack(xs), np.stack(ys) if ys else None


def _numbers(x: object) -> Tensor:
    """Convert x to uint8 or float32 `[n, *event]`; NaN marks unknown entries."""
    found = tensor_of(x, "x")
    if found.layout != torch.strided:
        raise InputError("x is a sparse tensor: pass x.to_dense()")
    if found.ndim < 2:
        raise InputError(f"x must have shape [n, *event], one row per example, got {tuple(found.shape)}")
    if len(found) < 2:
        raise InputError(f"x has {len(found)} row(s): training needs at least 2")
    if found.dtype == torch.uint8:
        return found
    if found.is_complex():
        raise InputError(f"x must be real numbers, got {found.dtype}")
    found = found if found.is_floating_point() else found.float()
    if found.numel() and float(found.nan_to_num(0.0, 0.0, 0.0).abs().max()) > LARGEST:
        raise InputError(f"x has values beyond {LARGEST:g}: scale its columns")
    if bool(found.isinf().any()):
        row = int(found.isinf().flatten(1).any(1).nonzero()[0])
        raise InputError(f"x has an infinite value in row {row}: replace it, or set it to NaN if it is unknown")
    return found.float()


def label_space(labels: LabelNames) -> LabelSpace:
    """Convert a user's labels: a LabelSpace, its mapping, the class names or their number."""
    if isinstance(labels, LabelSpace):
        return labels
    return LabelSpace(labels) if isinstance(labels, Mapping) else LabelSpace({"class": labels})


def given_of(given: Labels, labels: LabelSpace) -> Given:
    """Convert labels to the format of `jointenergy.inference`."""
    if given is None or isinstance(given, Mapping | Tensor):
        return given
    if isinstance(given, np.ndarray) and given.dtype.kind in "iu" and not np.ma.is_masked(given):
        return tensor_of(given, "labels")
    return label_columns(given, labels, "the run")[0]


def label_columns(y: object, labels: LabelNames | None, named_by: str = "labels=") -> tuple[Tensor, LabelSpace]:
    """Convert labels to int64 `[n, L]` with MISSING, and return their label space: as named, or inferred from y."""
    try:
        array = unmasked(y.detach().cpu().double() if isinstance(y, Tensor) else y)
    except (TypeError, ValueError):
        raise InputError("y must be one array, but its rows have different lengths or types") from None
    if array.ndim not in (1, 2):
        raise InputError(f"y must have shape [n] or [n, L], one column per label, got {array.shape}")
    columns = array.reshape(len(array), -1)
    titles = tuple(map(str, getattr(y, "columns", ())))  # of a data frame
    space = None if labels is None else label_space(labels)
    if space is not None and len(space) != columns.shape[1]:
        raise InputError(f"y has {columns.shape[1]} column(s) but {named_by} names {len(space)}: {list(space.names)}")
    if space is not None and len(titles) > 1:
        if set(titles) != set(space.names):
            raise InputError(f"y has the columns {list(titles)} but {named_by} names {list(space.names)}")
        columns = columns[:, [titles.index(name) for name in space.names]]
    names = space.names if space is not None else titles or _names(columns.shape[1])
    values = space.values if space is not None else (None,) * len(names)
    found = [
        _column(columns[:, k], name, known, named_by) for k, (name, known) in enumerate(zip(names, values, strict=True))
    ]
    made = space or LabelSpace({name: list(known) for name, (_, known) in zip(names, found, strict=True)})
    codes = torch.stack([codes for codes, _ in found], dim=1)
    return made.check(codes, len(codes)), made


def _names(n: int) -> tuple[str, ...]:
    return ("class",) if n == 1 else tuple(f"label{k}" for k in range(n))


def _column(
    column: np.ndarray[Any, Any], name: str, known: Sequence[str] | None, named_by: str
) -> tuple[Tensor, Sequence[str]]:
    """Convert one label to codes, with the names of its values."""
    if column.dtype.kind == "O":
        plain = [None if has_no_value(v) else v for v in column.tolist()]
        for v in plain:
            if isinstance(v, dict | list | tuple | set | Tensor):
                raise InputError(f"labels of {name!r} must be integers or names, but one is a {type(v).__name__}")
        numbers = all(v is None or isinstance(v, int | float | np.number) for v in plain)
        column = np.array([np.nan if v is None else float(v) for v in plain]) if numbers else column
    if column.dtype.kind in "OUS":
        missing = np.array([has_no_value(v) for v in column.tolist()])
        words = [str(v) for v in column.tolist()]
        known = sorted({w for w, m in zip(words, missing, strict=True) if not m}) if known is None else known
        places = {word: i for i, word in enumerate(known)}
        for word, m in zip(words, missing, strict=True):
            if not m and word not in places:
                raise InputError(
                    f"y has the value {word!r} of {name!r}, which {named_by} does not name: {list(known)[:5]}"
                )
        codes = [MISSING if m else places[w] for w, m in zip(words, missing, strict=True)]
        return torch.tensor(codes, dtype=torch.int64), known
    if column.dtype.kind not in "iufb":
        raise InputError(f"y must contain integers or names, got {column.dtype}")
    wide = column.astype(np.float64)
    hidden = np.isnan(wide)
    if np.isinf(wide).any():
        raise InputError(f"labels of {name!r} have an infinite value: use {MISSING} or NaN where they are missing")
    if not np.array_equal(wide[~hidden], np.round(wide[~hidden])):
        raise InputError(f"labels of {name!r} must be integers from 0, or {MISSING} where missing, got fractions")
    whole = np.where(hidden, MISSING, wide).astype(np.int64)
    if known is None:
        if (smallest := int(whole.min(initial=MISSING))) < MISSING:
            raise InputError(f"labels of {name!r} must be integers from 0, or {MISSING} where missing, got {smallest}")
        largest = int(whole.max(initial=-1))
        if largest < 0:
            raise InputError(f"no row has a label {name!r}: pass labels= to name its values, or leave out y")
        if largest >= MOST_CLASSES:
            raise InputError(
                f"labels of {name!r} go up to {largest}: number the classes from 0, or name them with labels="
            )
        known = [str(i) for i in range(max(largest + 1, 2))]
    return torch.from_numpy(whole), known


def domain_of(x: Tensor, bounds: tuple[float, float] | None) -> tuple[Domain, View]:
    """Choose the domain and range of x: a box for pixels and x within common bounds, R^D for the columns of a table.

    A table gets a Gaussian reference with the covariance of its columns, and a range so wide that uniform noise hardly
    ever looks like a row.
    """
    if bounds is not None:
        return Box(bounds[0], bounds[1]), View.of(bounds)
    if x.dtype == torch.uint8:
        return Box(-1.0, 1.0), View(-1.0, 1.0)
    known = x[~x.isnan()]
    if known.numel() == 0:
        raise InputError("x has no known values")
    low, high = float(known.min()), float(known.max())
    if low == high:
        raise InputError(f"every value of x is {low:g}: pass x that varies")
    table = x.ndim == 2 and x.shape[1] <= TABLE
    if table and (unknown := x.isnan().all(0).nonzero()).numel():
        raise InputError(f"column {int(unknown[0])} of x has no known value: leave it out")
    for usual in () if table else ((0.0, 1.0), (-1.0, 1.0)):
        if usual[0] <= low and high <= usual[1]:
            return Box(*usual), View(*usual)
    if x.ndim > 2:
        return Box(low, high), View(low, high)
    middle, half = (low + high) / 2, (high - low) / 2 * max(1.0 + MARGIN, SMALL_SHARE ** (1.0 / x.shape[1]))
    view = View(middle - half, middle + half)
    if x.shape[1] > CORRELATED:
        return Reals(REFERENCE * float(known.std()), float(known.mean())), view
    mean = x.nanmean(0)
    return Reals.gaussian(mean, covariance_of(torch.where(x.isnan(), mean, x))), view


def training_data(
    rows: UserRows, domain: Domain, bounds: View, validation: object, shape: Iterable[int]
) -> TrainingData:
    """Scale rows to the bounds, reshape them for the network, and hold some out.

    Held-out rows are complete in x: rows with unknown entries are not held out.
    """
    event_shape = tuple(shape)
    x, y = _checked(rows.x, domain, bounds, event_shape, "x"), rows.y
    complete = ~x.isnan().flatten(1).any(1)
    if isinstance(validation, float | int):
        whole = complete.nonzero()[:, 0]
        if len(whole) < 2:
            raise InputError("held-out rows must be complete, but fewer than two rows of x are: pass validation=")
        sample = Dataset(x[whole], y[whole], rows.labels, "data")
        _, chosen = split_rows(sample, validation, 0)
        held = whole[torch.tensor(chosen)]
        rest = torch.ones(len(x), dtype=torch.bool)
        rest[held] = False
        x_held, y_held = x[held], y[held]
        x, y = x[rest], y[rest]
    else:
        named = len(rows.labels) > 0
        other = rows_of_user(validation, rows.labels if named else None, "validation", "the training set")
        if len(other.labels) and not named:
            raise InputError("validation has labels, but the training set has none: pass x alone as validation")
        x_held, y_held = _checked(other.x, domain, bounds, event_shape, "x of validation"), other.y
        if bool(x_held.isnan().any()):
            raise InputError("validation rows must be complete, but some have unknown entries: remove those rows")
    mask = ~x.isnan()
    if bool(mask.all()):
        return TrainingData(x, y, x_held, y_held, rows.labels)
    return TrainingData(filled(x.nan_to_num(), mask), y, x_held, y_held, rows.labels, mask)


def _checked(x: Tensor, domain: Domain, bounds: View, event_shape: tuple[int, ...], what: str) -> Tensor:
    """Scale x to the bounds, reshape it for the network, and check that it lies in its box."""
    found = shaped(_scaled(x, bounds), event_shape)
    if tuple(found.shape[1:]) != event_shape:
        raise InputError(f"{what} has rows of shape {tuple(x.shape[1:])}, but the network expects {event_shape}")
    known = found[~found.isnan()]
    slack = 1e-3 * (bounds[1] - bounds[0])
    if (
        isinstance(domain, Box)
        and known.numel()
        and not (bounds[0] - slack <= float(known.min()) and float(known.max()) <= bounds[1] + slack)
    ):
        raise InputError(
            f"{what} has values from {float(known.min()):g} to {float(known.max()):g} outside the box from "
            f"{bounds[0]:g} to {bounds[1]:g}: scale it, give pixels as uint8, or pass other bounds"
        )
    return found


def _scaled(x: Tensor, bounds: View) -> Tensor:
    return bounds.of_pixels(x) if x.dtype == torch.uint8 else x


def candidate_shapes(x: Tensor) -> list[tuple[str, Tensor]]:
    """List the shapes of x that a network may expect, each with a description: unchanged, with a channel, flat."""
    shape = x.shape[1:]
    found = [("", x)]
    if len(shape) == 3 and shape[-1] in COLORS and shape[0] not in COLORS:
        found.insert(0, ("channels first", x.movedim(-1, 1).contiguous()))
    if len(shape) == 2:
        found.append(("with a channel", x[:, None]))
    if len([size for size in shape if size != 1]) == 2:  # gray; the order of flattened colors is ambiguous
        found.append(("flattened", x.flatten(1)))
    return found

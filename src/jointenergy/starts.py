"""starts: initial states of chains, x uniform or from class Gaussians or from data, and labels.

A start of x has `draw(y)`, which returns one row for each row of labels, on the device of its own tensors. A start of
labels has `draw(n)`. `Start` combines one of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import check_x
from jointenergy.labels import MISSING, Given, LabelSpace, constant

__all__ = [
    "ClassGaussianStart",
    "ClassGaussians",
    "FrequencyLabels",
    "GivenStart",
    "LabelStart",
    "MissingLabels",
    "MixedStart",
    "SomeLabels",
    "Start",
    "StartSpec",
    "Uniform",
    "UniformLabels",
    "UniformStart",
    "XStart",
]


class XStart(Protocol):
    """Protocol of a start of x: draws one row for each row of labels.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> start = je.starts.UniformStart(-1.0, 1.0, (2,))
    >>> y = torch.zeros(4, 1, dtype=torch.int64)
    >>> start.draw(y, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 2])
    """

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor: ...


class LabelStart(Protocol):
    """Protocol of a start of labels; given labels are written in.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> start = je.starts.UniformLabels(je.LabelSpace({"class": 3, "size": 2}))
    >>> start.draw(2, generator=torch.Generator().manual_seed(0), given={"size": 1})[:, 1]
    tensor([1, 1])
    """

    @property
    def labels(self) -> LabelSpace: ...

    def draw(self, n: int, *, generator: torch.Generator, given: Given = None) -> Tensor: ...


@final
class UniformStart:
    """Draw x uniformly between bounds.

    Parameters
    ----------
    low
        The lower bound: a number, or a tensor of the event shape.
    high
        The upper bound, likewise.
    event_shape
        The shape of one row of x.
    dtype
        The dtype of x; by default that of the bounds.
    device
        The device of x; by default that of the bounds.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> start = je.starts.UniformStart(-1.0, 1.0, event_shape=(3, 8, 8))
    >>> y = torch.zeros(4, 1, dtype=torch.int64)
    >>> start.draw(y, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

    def __init__(
        self,
        low: float | Tensor,
        high: float | Tensor,
        event_shape: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        like = next((b for b in (low, high) if isinstance(b, Tensor)), torch.zeros(()))
        dtype, device = dtype or like.dtype, device or like.device
        bounds = [torch.as_tensor(b, dtype=dtype, device=device).detach() for b in (low, high)]
        for name, bound in zip(("low", "high"), bounds, strict=True):
            if bound.ndim and bound.shape != tuple(event_shape):
                raise InputError(
                    f"{name} must be a number or have the event shape {tuple(event_shape)}, got {tuple(bound.shape)}"
                )
        if not dtype.is_floating_point:
            raise InputError(f"bounds of x must be floating-point, got {dtype}: convert them with .float()")
        self.low, self.high = (b.expand(*event_shape).clone() for b in bounds)
        if not bool((self.low.isfinite() & self.high.isfinite() & (self.low <= self.high)).all()):
            raise InputError("uniform starts need finite bounds with low <= high everywhere")

    @classmethod
    def of_batch(cls, x: Tensor) -> UniformStart:
        """Use the smallest and the largest value of each entry in a batch of data as bounds."""
        check_x(x)
        return cls(x.amin(0), x.amax(0), x.shape[1:])

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        shape = (len(y), *self.low.shape)
        unit = torch.rand(shape, generator=generator, device=generator.device, dtype=self.low.dtype)
        # Rounding may exceed a bound, and a kernel that rejects proposals outside a box would never move such a row.
        return (self.low + (self.high - self.low) * unit.to(self.low.device)).clamp(self.low, self.high)


@final
@dataclass(frozen=True, eq=False)
class ClassGaussianStart:
    """Draw x from N(mean_c, covariance_c + jitter I), one Gaussian for each value c of a label variable.

    A row whose class is MISSING draws its class from the class frequencies first. Use `fit` to create one, and
    `compact` for one that fits into a small file.

    Parameters
    ----------
    column
        The column of the label variable that is the class.
    means
        `[C, D]`.
    factors
        Factors of the covariances, `[C, D, K]`: lower Cholesky factors, or `K` leading directions.
    frequencies
        Of the classes, `[C]`.
    event_shape
        The shape of one row of x.
    bounds
        Clamp draws to (low, high).
    rest
        Standard deviations of what the leading directions leave out, `[C, D]`: of each spatial frequency of an image
        (its cosine transform), of each entry of all else.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> x, y = torch.randn(100, 2), torch.arange(100) % 2
    >>> start = je.starts.ClassGaussianStart.fit(x, y, je.LabelSpace({"class": 2}))
    >>> start.draw(torch.zeros(4, 1, dtype=torch.int64), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 2])
    """

    column: int
    means: Tensor  # [C, D]
    factors: Tensor  # [C, D, K]
    frequencies: Tensor  # [C]
    event_shape: tuple[int, ...]
    bounds: tuple[float, float] | None = None
    rest: Tensor | None = None  # [C, D]

    @classmethod
    def fit(
        cls,
        x: Tensor,
        y: Tensor,
        labels: LabelSpace,
        variable: str | None = None,
        jitter: float = 1e-3,
        bounds: tuple[float, float] | None = None,
    ) -> ClassGaussianStart:
        """Estimate the Gaussians from data; rows whose class is missing are left out.

        Parameters
        ----------
        x
            Data, `[n, *event]`.
        y
            Labels.
        labels
            The label space.
        variable
            The name of the class variable; may be omitted if there is only one.
        jitter
            Added to the diagonal of the covariances.
        bounds
            Clamp draws to (low, high).
        """
        if variable is None:
            if len(labels) != 1:
                raise InputError(
                    f"class Gaussians need one label variable as the class, and there are {len(labels)}: "
                    + (f"name it with variable=, for example {labels.names[0]!r}, or " if len(labels) else "")
                    + "start chains uniformly, in a recipe with start.x = 'uniform'"
                )
            variable = labels.names[0]
        if not (jitter >= 0 and math.isfinite(jitter)):
            raise InputError(f"jitter must be finite and not negative, got {jitter}")
        if bounds is not None and not bounds[0] < bounds[1]:
            raise InputError(f"bounds must be (low, high) with low < high, got {bounds}")
        check_x(x)
        column = labels.index(variable)
        classes = labels.check(y, len(x))[:, column].to(x.device)
        gaussians, counts = [], []
        for c, name in enumerate(labels.values[column]):
            rows = x.detach()[classes == c].flatten(1)
            if len(rows) < 2:
                raise InputError(
                    f"class {name!r} of {variable!r} has {len(rows)} row(s) and a Gaussian needs at least 2: "
                    "add rows of it, or start with UniformStart"
                )
            gaussians.append(_gaussian(rows, jitter, f"class {name!r} of {variable!r}"))
            counts.append(len(rows))
        means, factors = (torch.stack(parts) for parts in zip(*gaussians, strict=True))
        frequencies = torch.tensor(counts, dtype=torch.float32, device=x.device) / sum(counts)
        return cls(column, means, factors, frequencies, tuple(x.shape[1:]), bounds)

    def to(self, like: Tensor) -> ClassGaussianStart:
        """Return the same start with the dtype and device of `like`."""
        rest = None if self.rest is None else self.rest.to(like)
        means, factors, frequencies = (part.to(like) for part in (self.means, self.factors, self.frequencies))
        return replace(self, means=means, factors=factors, frequencies=frequencies, rest=rest)

    def compact(self, rank: int = 64) -> ClassGaussianStart:
        """Keep `rank` leading directions of each covariance, and of the rest only its variances.

        Spatial frequencies of natural images are nearly independent, so that an image drawn this way has the spectrum
        of its class. Up to `rank` dimensions are kept as they are.

        Parameters
        ----------
        rank
            The number of directions.
        """
        size = self.means.shape[1]
        if self.rest is not None or size <= rank:
            return self
        basis = _from_cosines(torch.eye(size, dtype=self.means.dtype).view(size, *self.event_shape)).flatten(1)
        leading, rest = [], []
        for factor in self.factors.cpu():
            covariance = factor @ factor.T
            # A fixed first vector makes the search for eigenvectors repeatable.
            values, vectors = map(torch.from_numpy, eigsh(covariance.numpy(), rank, v0=np.ones(size)))
            leading.append(vectors * values.clamp(min=0).sqrt())
            other = covariance - leading[-1] @ leading[-1].T
            rest.append(((basis @ other) * basis).sum(1).clamp(min=0).sqrt())
        factors, deviations = (torch.stack(parts).to(self.means) for parts in (leading, rest))
        return replace(self, factors=factors, rest=deviations)

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        device, n = generator.device, len(y)
        classes = y[:, self.column].to(self.means.device)
        # Both draws are made for all rows, so that a row's noise does not depend on which classes are missing.
        any_class = torch.multinomial(self.frequencies.to(device), n, replacement=True, generator=generator)
        shape = (n, self.factors.shape[2])
        noise = torch.randn(shape, generator=generator, device=device, dtype=self.means.dtype).to(self.means.device)
        classes = torch.where(classes == MISSING, any_class.to(classes.device), classes)
        x = self.means[classes]
        # One product per class: factors[classes] would be n matrices of size D x D.
        if x.is_cuda:
            # All rows in each product, without waiting for the device; half precision is enough for a start.
            for c, factor in enumerate(self.factors):
                with torch.autocast("cuda", torch.bfloat16):
                    moved = noise @ factor.T
                x = torch.where((classes == c)[:, None], x + moved, x)
        else:
            for c in classes.unique().tolist():
                rows = classes == c
                x[rows] += noise[rows] @ self.factors[c].T
        if self.rest is not None:
            fine = torch.randn(x.shape, generator=generator, device=device, dtype=x.dtype).to(x.device)
            x = x + _from_cosines((fine * self.rest[classes]).view(n, *self.event_shape)).flatten(1)
        if self.bounds is not None:
            x = x.clamp(*self.bounds)
        return x.view(n, *self.event_shape)


def _gaussian(rows: Tensor, jitter: float, name: str) -> tuple[Tensor, Tensor]:
    """Return mean and Cholesky factor in the dtype of `rows`, computed in float64 if the device supports it."""
    wide = rows if rows.device.type == "mps" else rows.double()
    mean = wide.mean(0)
    covariance = (wide - mean).T @ (wide - mean) / (len(rows) - 1)
    covariance.diagonal().add_(jitter)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed.item():
        raise InputError(f"the covariance of {name} is singular with jitter={jitter}: raise the jitter")
    return mean.to(rows.dtype), factor.to(rows.dtype)


def _from_cosines(x: Tensor) -> Tensor:
    """Return the images `[n, C, H, W]` of coefficients of orthonormal cosines; other rows have no frequencies."""
    if x.ndim < 3:
        return x
    for axis in range(1, x.ndim):
        k = torch.arange(x.shape[axis], dtype=x.dtype, device=x.device)
        cosines = (math.pi / len(k) * k[:, None] * (k + 0.5)).cos() * math.sqrt(2 / len(k))
        cosines[0] /= math.sqrt(2)
        x = (x.movedim(axis, -1) @ cosines).movedim(-1, axis)
    return x


@final
@dataclass(frozen=True)
class MixedStart:
    """Draw each row from `one` with probability `share`, else from `other`.

    Parameters
    ----------
    one
        A start of x.
    other
        Another start of x.
    share
        The probability of `one`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> from jointenergy.starts import GivenStart, MixedStart, UniformStart
    >>> start = MixedStart(UniformStart(-1.0, 1.0, (2,)), GivenStart(torch.zeros(100, 2)), share=0.1)
    >>> start.draw(torch.zeros(4, 1, dtype=torch.int64), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 2])
    """

    one: XStart
    other: XStart
    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InputError(f"share must lie between 0 and 1, got {self.share}")

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        # All rows of both, so that a row does not depend on the choices of the others.
        one, other = self.one.draw(y, generator=generator), self.other.draw(y, generator=generator)
        chosen = torch.rand(len(y), generator=generator, device=generator.device).to(one.device) < self.share
        return torch.where(chosen.view(-1, *(1,) * (one.ndim - 1)), one, other)


@dataclass(frozen=True)
class Uniform:
    """Start chains uniformly in the range of the data: an argument of `fit`, bound to its data there.

    Parameters
    ----------
    rows
        Use the range of each entry of x in the first `rows` rows; None uses the bounds of the domain or of all data.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> x, y, labels = torch.randn(100, 2), torch.zeros(100, 1, dtype=torch.int64), je.LabelSpace({"class": 2})
    >>> start = je.starts.Uniform().bind(x, y, labels, (-1.0, 1.0), clamp=True)
    >>> start.draw(y[:4], generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 2])
    """

    rows: int | None = None

    def bind(self, x: Tensor, y: Tensor, labels: LabelSpace, bounds: tuple[float, float], *, clamp: bool) -> XStart:
        """Bind to data and return a start of x."""
        if self.rows is not None:
            return UniformStart.of_batch(x[: self.rows])
        return UniformStart(*bounds, x.shape[1:], device=x.device)


@dataclass(frozen=True)
class ClassGaussians:
    """Start chains at Gaussians fitted to the classes: an argument of `fit`, bound to its data there.

    Class starts keep the classes balanced among the chains; uniform starts find modes far from the data.

    Parameters
    ----------
    uniform
        The fraction of chains that start uniformly.
    variable
        The name of the class variable; may be omitted if there is only one.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> x, y, labels = torch.randn(100, 2), torch.arange(100)[:, None] % 2, je.LabelSpace({"class": 2})
    >>> start = je.starts.ClassGaussians(uniform=0.1).bind(x, y, labels, (-1.0, 1.0), clamp=True)
    >>> start.draw(y[:4], generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 2])
    """

    uniform: float = 0.0
    variable: str | None = None

    def bind(self, x: Tensor, y: Tensor, labels: LabelSpace, bounds: tuple[float, float], *, clamp: bool) -> XStart:
        """Bind to data and return a start of x; with `clamp`, draws are clamped to the bounds."""
        fitted = ClassGaussianStart.fit(x, y, labels, self.variable, bounds=(bounds[0], bounds[1]) if clamp else None)
        if self.uniform == 0:
            return fitted
        return MixedStart(UniformStart(*bounds, x.shape[1:], device=x.device), fitted, self.uniform)


@runtime_checkable
class StartSpec(Protocol):
    """Protocol of a start that is not yet bound to data, such as `Uniform()`: one object serves several fits.

    Examples
    --------
    >>> import jointenergy as je
    >>> isinstance(je.starts.Uniform(), je.starts.StartSpec)
    True
    """

    def bind(self, x: Tensor, y: Tensor, labels: LabelSpace, bounds: tuple[float, float], *, clamp: bool) -> XStart: ...


@final
class GivenStart:
    """Start from rows of data: all of them in order if as many chains are asked for, else drawn without replacement.

    Parameters
    ----------
    x
        The rows, `[n, *event]`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> start = je.starts.GivenStart(torch.randn(10, 2))
    >>> start.draw(torch.zeros(4, 1, dtype=torch.int64), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 2])
    """

    def __init__(self, x: Tensor) -> None:
        self.x = check_x(x).detach().clone()

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        n = len(y)
        if n > len(self.x):
            raise InputError(f"{n:,} chains cannot start from {len(self.x):,} given rows: ask for fewer, or give more")
        if n == len(self.x):
            return self.x.clone()
        return self.x[torch.randperm(len(self.x), generator=generator, device=generator.device)[:n].to(self.x.device)]


@final
@dataclass(frozen=True)
class MissingLabels:
    """Leave all labels but the given ones MISSING: for chains on log p(x), which sum the labels out.

    Parameters
    ----------
    labels
        The label space.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> start = je.starts.MissingLabels(je.LabelSpace({"class": 3}))
    >>> start.draw(2, generator=torch.Generator().manual_seed(0))
    tensor([[-1],
            [-1]])
    """

    labels: LabelSpace

    def draw(self, n: int, *, generator: torch.Generator, given: Given = None) -> Tensor:
        return self.labels.given(given, n, generator.device).to(generator.device, copy=True)


@final
@dataclass(frozen=True)
class UniformLabels:
    """Draw every label uniformly and independently of the others.

    Parameters
    ----------
    labels
        The label space.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> start = je.starts.UniformLabels(je.LabelSpace({"class": 3}))
    >>> start.draw(4, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 1])
    """

    labels: LabelSpace

    def draw(self, n: int, *, generator: torch.Generator, given: Given = None) -> Tensor:
        bits = torch.randint(1 << 62, (n, len(self.labels)), generator=generator, device=generator.device)
        return _written(self.labels, bits % constant(self.labels.cardinalities, bits.device), given)


@final
@dataclass(frozen=True, eq=False)
class SomeLabels:
    """Use the labels of another start for a fraction of the chains, and MISSING ones for the rest.

    Parameters
    ----------
    label_start
        Draws the labels.
    share
        The fraction of chains with labels.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> start = je.starts.SomeLabels(je.starts.UniformLabels(je.LabelSpace({"class": 3})), share=0.5)
    >>> start.draw(4, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 1])
    """

    label_start: LabelStart
    share: float

    @property
    def labels(self) -> LabelSpace:
        return self.label_start.labels

    def draw(self, n: int, *, generator: torch.Generator, given: Given = None) -> Tensor:
        y = self.label_start.draw(n, generator=generator)
        kept = torch.rand(n, 1, generator=generator, device=generator.device).to(y.device) < self.share
        return _written(self.labels, torch.where(kept, y, MISSING), given)


@final
@dataclass(frozen=True, eq=False)
class FrequencyLabels:
    """Draw rows of labels as often as they occur in the data. Use `fit` to create one.

    Given labels overwrite drawn ones; they do not condition the others. A missing entry of a drawn row is filled from
    the variable's own frequencies, or uniformly if the variable is missing everywhere.

    Parameters
    ----------
    labels
        The label space.
    rows
        Rows of labels, `[N, L]`.
    frequencies
        Of each variable's values, `[L, largest cardinality]`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> start = je.starts.FrequencyLabels.fit(torch.tensor([[2], [2], [2]]), je.LabelSpace({"class": 3}))
    >>> start.draw(2, generator=torch.Generator().manual_seed(0))
    tensor([[2],
            [2]])
    """

    labels: LabelSpace
    rows: Tensor
    frequencies: Tensor

    @classmethod
    def fit(cls, y: Tensor, labels: LabelSpace) -> FrequencyLabels:
        rows = labels.check(y).clone()
        if len(rows) < 1:
            raise InputError("label frequencies need at least 1 row of labels, got 0: give some, or use UniformLabels")
        frequencies = torch.zeros(len(labels), max(labels.cardinalities, default=0), device=y.device)
        for k, cardinality in enumerate(labels.cardinalities):
            known = rows[rows[:, k] != MISSING, k]
            counts = torch.bincount(known, minlength=cardinality) if len(known) else torch.ones(cardinality)
            frequencies[k, :cardinality] = counts / counts.sum()
        return cls(labels, rows, frequencies)

    def draw(self, n: int, *, generator: torch.Generator, given: Given = None) -> Tensor:
        device = generator.device
        chosen = torch.randint(len(self.rows), (n,), generator=generator, device=device)
        y = self.rows[chosen.to(self.rows.device)]
        if len(self.labels):
            completion = torch.multinomial(self.frequencies.to(device), n, replacement=True, generator=generator).T
            y = torch.where(y == MISSING, completion.to(y.device), y)
        return _written(self.labels, y, given)


def _written(labels: LabelSpace, y: Tensor, given: Given) -> Tensor:
    fixed = labels.given(given, len(y), y.device).to(y.device)
    return torch.where(fixed == MISSING, y, fixed)


@final
@dataclass(frozen=True, eq=False)
class Start:
    """Draw initial states of chains: labels first, then x for those labels, both on the device of x.

    Parameters
    ----------
    x_start
        Draws x.
    label_start
        Draws the labels.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> from jointenergy.starts import Start, UniformLabels, UniformStart
    >>> start = Start(UniformStart(-1.0, 1.0, (2,)), UniformLabels(je.LabelSpace({"class": 3})))
    >>> x, y = start.draw(4, generator=torch.Generator().manual_seed(0), given={"class": 2})
    >>> x.shape, y[:, 0]
    (torch.Size([4, 2]), tensor([2, 2, 2, 2]))
    """

    x_start: XStart
    label_start: LabelStart

    def draw(self, n: int, *, generator: torch.Generator, given: Given = None) -> tuple[Tensor, Tensor]:
        if n < 1:
            raise InputError(f"a start needs at least 1 chain, got n={n}")
        y = self.label_start.draw(n, generator=generator, given=given)
        x = self.x_start.draw(y, generator=generator)
        return x, y.to(x.device)

"""starts: where fresh chains begin: uniform in the data's bounds, class Gaussians, given data; and their labels.

A start of x has `draw(y)`, one row for each row of the fresh chains' labels, on the device of its own tensors. A start
of labels has `draw(n)`. `Start` joins one of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import check_x
from jointenergy.labels import MISSING, Given, LabelSpace, constant


class XStart(Protocol):
    """Where the x of a fresh chain begins."""

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor: ...


class LabelStart(Protocol):
    """Where the labels of a fresh chain begin; those that are given are written in."""

    @property
    def labels(self) -> LabelSpace: ...

    def draw(self, n: int, *, generator: torch.Generator, given: Given = None) -> Tensor: ...


@final
class UniformStart:
    """Uniform between bounds: numbers, or tensors of the event shape, whose dtype and device x then has."""

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
        """Between the smallest and the largest value of each dimension in a batch of data."""
        check_x(x)
        return cls(x.amin(0), x.amax(0), x.shape[1:])

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        shape = (len(y), *self.low.shape)
        unit = torch.rand(shape, generator=generator, device=generator.device, dtype=self.low.dtype)
        # Rounding may step over a bound, and a kernel that rejects what lies outside a box would never move such a row.
        return (self.low + (self.high - self.low) * unit.to(self.low.device)).clamp(self.low, self.high)


@final
@dataclass(frozen=True, eq=False)
class ClassGaussianStart:
    """One Gaussian N(mean_c, covariance_c + jitter I) over the flattened x for each value c of a label variable.

    A row whose class is MISSING draws its class by the classes' `frequencies` first.
    """

    column: int
    """Of the label variable that is the class."""
    means: Tensor  # [C, D]
    factors: Tensor  # [C, D, D], lower Cholesky factors
    frequencies: Tensor  # [C]
    event_shape: tuple[int, ...]
    bounds: tuple[float, float] | None = None

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
        """From data: rows whose class is missing are left out; draws are clamped to `bounds` where they are given."""
        if variable is None:
            if len(labels) != 1:
                raise InputError(
                    f"class Gaussians need one label variable as the class, and there are {len(labels)}: "
                    + (f"name it with variable=, for example {labels.names[0]!r}, or " if len(labels) else "")
                    + "begin elsewhere, in a recipe by start.x = 'uniform'"
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

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        device, n = generator.device, len(y)
        classes = y[:, self.column].to(self.means.device)
        # Both draws are made for all rows, so that a row's noise does not depend on which other classes are missing.
        any_class = torch.multinomial(self.frequencies.to(device), n, replacement=True, generator=generator)
        shape = (n, self.means.shape[1])
        noise = torch.randn(shape, generator=generator, device=device, dtype=self.means.dtype).to(self.means.device)
        classes = torch.where(classes == MISSING, any_class.to(classes.device), classes)
        x = self.means[classes]
        # One product a class: factors[classes] would be n matrices of D x D.
        if x.is_cuda:
            # All rows in each, which the host need not wait for; in half precision, which a start can do with.
            for c, factor in enumerate(self.factors):
                with torch.autocast("cuda", torch.bfloat16):
                    moved = noise @ factor.T
                x = torch.where((classes == c)[:, None], x + moved, x)
        else:
            for c in classes.unique().tolist():
                rows = classes == c
                x[rows] += noise[rows] @ self.factors[c].T
        if self.bounds is not None:
            x = x.clamp(*self.bounds)
        return x.view(n, *self.event_shape)


def _gaussian(rows: Tensor, jitter: float, name: str) -> tuple[Tensor, Tensor]:
    """Mean and Cholesky factor in the dtype of `rows`, computed in float64 wherever the device has it."""
    wide = rows if rows.device.type == "mps" else rows.double()
    mean = wide.mean(0)
    covariance = (wide - mean).T @ (wide - mean) / (len(rows) - 1)
    covariance.diagonal().add_(jitter)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed.item():
        raise InputError(f"the covariance of {name} is singular with jitter={jitter}: raise the jitter")
    return mean.to(rows.dtype), factor.to(rows.dtype)


@final
@dataclass(frozen=True)
class MixedStart:
    """Each row from `one` with the probability `share`, else from `other`."""

    one: XStart
    other: XStart
    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InputError(f"share must lie between 0 and 1, got {self.share}")

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        # All rows of both, so that a row does not depend on what the others begin with.
        one, other = self.one.draw(y, generator=generator), self.other.draw(y, generator=generator)
        chosen = torch.rand(len(y), generator=generator, device=generator.device).to(one.device) < self.share
        return torch.where(chosen.view(-1, *(1,) * (one.ndim - 1)), one, other)


@dataclass(frozen=True)
class Uniform:
    """Fresh chains begin uniformly in the range of the data; of its first `rows` rows where that many are named."""

    rows: int | None = None

    def bind(self, x: Tensor, y: Tensor, labels: LabelSpace, bounds: tuple[float, float], *, clamp: bool) -> XStart:
        """The start for some data."""
        if self.rows is not None:
            return UniformStart.of_batch(x[: self.rows])
        return UniformStart(*bounds, x.shape[1:], device=x.device)


@dataclass(frozen=True)
class ClassGaussians:
    """Fresh chains begin at Gaussians fitted to the classes; the share `uniform` of them is uniform all the same.

    Uniform starts find what lies far from the data; those in the classes keep the shares of the classes among chains.
    """

    uniform: float = 0.0
    variable: str | None = None

    def bind(self, x: Tensor, y: Tensor, labels: LabelSpace, bounds: tuple[float, float], *, clamp: bool) -> XStart:
        """The start for some data; with `clamp` it is clamped to the bounds, as its chains are."""
        fitted = ClassGaussianStart.fit(x, y, labels, self.variable, bounds=(bounds[0], bounds[1]) if clamp else None)
        if self.uniform == 0:
            return fitted
        return MixedStart(UniformStart(*bounds, x.shape[1:], device=x.device), fitted, self.uniform)


@runtime_checkable
class StartSpec(Protocol):
    """Where the x of fresh chains begins, not yet bound to data: one object serves several fits."""

    def bind(self, x: Tensor, y: Tensor, labels: LabelSpace, bounds: tuple[float, float], *, clamp: bool) -> XStart: ...


@final
class GivenStart:
    """Rows of given data: all in their order when as many are asked for, otherwise drawn without replacement."""

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
    """No label but the given ones: for chains on log p(x), which sum the labels out. On the generator's device."""

    labels: LabelSpace

    def draw(self, n: int, *, generator: torch.Generator, given: Given = None) -> Tensor:
        return self.labels.given(given, n, generator.device).to(generator.device, copy=True)


@final
@dataclass(frozen=True)
class UniformLabels:
    """Every variable uniform over its values, independently of the others. On the generator's device."""

    labels: LabelSpace

    def draw(self, n: int, *, generator: torch.Generator, given: Given = None) -> Tensor:
        bits = torch.randint(1 << 62, (n, len(self.labels)), generator=generator, device=generator.device)
        return _written(self.labels, bits % constant(self.labels.cardinalities, bits.device), given)


@final
@dataclass(frozen=True, eq=False)
class SomeLabels:
    """The labels of another start for the share `share` of chains, none but the given ones for the rest."""

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
    """Whole rows of labels, as often as they occur in the data; given labels overwrite, they do not condition.

    A missing entry of a drawn row is completed from the variable's own frequencies, or uniformly when the variable is
    missing everywhere.
    """

    labels: LabelSpace
    rows: Tensor  # [N, L]: drawing one uniformly is drawing a configuration by its frequency, without a table of them
    frequencies: Tensor  # [L, largest cardinality], 0 beyond a variable's own values

    @classmethod
    def fit(cls, y: Tensor, labels: LabelSpace) -> FrequencyLabels:
        rows = labels.check(y).clone()
        if len(rows) < 1:
            raise InputError("the frequencies of no rows are unknown: give at least 1 row of labels, or UniformLabels")
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
    """Where fresh chains begin: labels first, then x for those labels; both on the device of x."""

    x_start: XStart
    label_start: LabelStart

    def draw(self, n: int, *, generator: torch.Generator, given: Given = None) -> tuple[Tensor, Tensor]:
        if n < 1:
            raise InputError(f"a start needs at least 1 chain, got n={n}")
        y = self.label_start.draw(n, generator=generator, given=given)
        x = self.x_start.draw(y, generator=generator)
        return x, y.to(x.device)

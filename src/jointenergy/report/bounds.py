"""report: bounds on the mean log-likelihood of rows at a temperature, by annealing both ways."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.kernels import Kernel, SingleSiteGibbs
from jointenergy.labels import MISSING
from jointenergy.models import JointModel
from jointenergy.report.annealing import Pilot, effective_share, forward, log_mean_exp, pilot, reverse
from jointenergy.report.laws import Path

How = Literal["summed", "given", "moved"]
RARE = 0.05  # how often the upper bound with its margin may fail
COLLAPSED = 0.1  # the share of chains below which the weights of a few decide
GRID = tuple(2.0**k for k in range(-4, 3))
AT_ONCE = 1000  # rows


def how_labels(model: JointModel) -> How:
    """Summed where they can be; given where each has an unknown normalizer of its own; else moved with x."""
    if model.normalizer == "conditional":
        return "given"
    return "summed" if model.can_sum() else "moved"


@dataclass(frozen=True, eq=False)
class Points:
    """Rows with f, the log-density that is annealed: of x alone where labels are summed, else of x and y."""

    x: Tensor
    y: Tensor
    f: Tensor

    @classmethod
    def of(cls, model: JointModel, x: Tensor, y: Tensor, how: How) -> Points:
        """Rows inside the domain, and with all labels where these are not summed."""
        y = torch.full((len(x), len(model.labels)), MISSING, device=x.device) if how == "summed" else y.to(x.device)
        usable = model.domain.contains(x)
        if how != "summed":
            usable &= (y != MISSING).all(1)
        x, y = x[usable], y[usable]
        if len(x) == 0:
            raise InputError("no row lies inside the model's domain with the labels that its likelihood needs")
        with torch.no_grad():
            pieces = zip(x.split(AT_ONCE), y.split(AT_ONCE), strict=True)
            f = torch.cat([model.log_density(a, b).double() for a, b in pieces])
        return cls(x, y, f)

    def some(self, n: int, *, generator: torch.Generator) -> Points:
        """Up to n rows, chosen at random."""
        index = torch.randperm(len(self.x), generator=generator)[:n].to(self.x.device)
        return Points(self.x[index], self.y[index], self.f[index])


@dataclass(frozen=True)
class Effort:
    """The number of temperatures, of forward chains for each normalizer, and of rows that chains go back from."""

    n_temperatures: int
    n_chains: int
    n_rows: int
    n_tries: int = 1
    """Chains that go back from each of these rows."""
    x_steps: int = 2


@dataclass(frozen=True, eq=False)
class Bounds:
    """On the mean log-likelihood of rows, in nats, at a temperature.

    `upper` lies above it in expectation, and `upper + margin` with a probability of 1 - RARE at least. `annealed` lies
    in expectation below the mean of log p_ann, the density of what the annealing draws. p_ann tends to the model's as
    the temperatures grow many; of rows that are like the model's own draws its mean log lies below the model's. Rows
    that are unlike them may be likelier under p_ann than under the model: then `annealed` lies above `upper`.
    """

    temperature: float
    n_temperatures: int
    upper: float
    annealed: float
    error: float
    """The standard error of upper - annealed."""
    margin: float
    share: float
    """The effective share of the forward chains, the lowest among several normalizers."""
    ahead: Tensor
    """Forward chains' log weights, the estimate of log Z taken off."""
    back: Tensor
    """The same of chains that went back from rows."""

    @property
    def crossed(self) -> bool:
        """Whether the two contradict each other, so that p_ann is not the model's law."""
        return self.annealed > self.upper + 2 * self.error

    @property
    def lower(self) -> float | None:
        return None if self.crossed else self.annealed

    @property
    def cautious(self) -> float:
        """The smaller of the two: each alone is too large where the annealing is too fast, on different grounds."""
        return min(self.upper, self.annealed)

    def shifted(self, nats: float) -> Bounds:
        """The same of a density that is so much higher: the mean log-Jacobian of another way to write the rows."""
        return replace(self, upper=self.upper + nats, annealed=self.annealed + nats)

    @property
    def collapsed(self) -> bool:
        return self.share < COLLAPSED


@dataclass(frozen=True, eq=False)
class Annealer:
    """A model's path with its tuned step sizes, and how its labels are treated."""

    path: Path
    pilot: Pilot
    how: How

    @classmethod
    def tuned(
        cls,
        model: JointModel,
        points: Points,
        temperatures: Sequence[float],
        *,
        how: How,
        y_kernel: Kernel | None = None,
        n_chains: int = 32,
        generator: torch.Generator,
    ) -> Annealer:
        """By a run ahead on streams of its own, from which nothing is kept but numbers of the schedule."""
        moving = (y_kernel or SingleSiteGibbs()) if how == "moved" else None
        path = Path(model, max(temperatures), moving)
        groups, _ = groups_of(points, how)
        y = groups.repeat(math.ceil(n_chains / len(groups)), 1)
        return cls(path, pilot(path, min(temperatures), y, points.x[:1], apart=0.3, generator=generator), how)

    def log_normalizers(
        self, groups: Tensor, like: Tensor, temperature: float, effort: Effort, *, generator: torch.Generator
    ) -> Tensor:
        """log Z as each forward chain sees it, `[groups, n_chains]`."""
        schedule = self.pilot.schedule(temperature, effort.n_temperatures, effort.x_steps)
        y = groups.repeat_interleave(effort.n_chains, 0)
        return forward(self.path, schedule, y, like, generator=generator).view(len(groups), -1)

    def bounds(self, points: Points, temperature: float, effort: Effort, *, generator: torch.Generator) -> Bounds:
        """On the mean over all points; chains go back from some, whose f tells how these differ from all."""
        groups, which = groups_of(points, self.how)
        weights = self.log_normalizers(groups, points.x[:1], temperature, effort, generator=generator)
        log_z, shares = log_mean_exp(weights, 1), effective_share(weights, 1)
        upper = float((points.f / temperature - log_z[which]).mean())

        some = points.some(effort.n_rows, generator=generator)
        which_some = (some.y[:, None] == groups).all(2).int().argmax(1) if self.how == "given" else _zeros(some)
        schedule = self.pilot.schedule(temperature, effort.n_temperatures, effort.x_steps)
        rows = torch.arange(len(some.x), device=some.x.device).repeat_interleave(effort.n_tries)
        seen = reverse(self.path, schedule, some.x[rows], some.y[rows], generator=generator).view(-1, effort.n_tries)
        below = log_mean_exp(some.f[:, None] / temperature - seen, 1)
        annealed, of_rows = regressed(below, some.f / temperature, points.f / temperature)

        # The variance of a log mean of weights is about (1 / share - 1) / n.
        part = torch.bincount(which, minlength=len(groups)).double() / len(which)
        of_z = float((part**2 * (1 / shares - 1) / effort.n_chains).sum())
        return Bounds(
            temperature,
            effort.n_temperatures,
            upper,
            annealed,
            math.sqrt(of_z + of_rows),
            math.log(len(groups) / RARE),
            float(shares.min()),
            (weights - log_z[:, None]).flatten().cpu(),
            (seen - log_z[which_some][:, None]).flatten().cpu(),
        )


def regressed(values: Tensor, known: Tensor, known_of_all: Tensor) -> tuple[float, float]:
    """The mean of values that are measured on some rows, carried over to all rows by what is known of all.

    And its variance. A line is fitted to the rows measured: their chance surplus of what is known is taken off.
    """
    n = len(values)
    if n < 3 or len(known_of_all) <= n or float(known.var()) == 0:
        return float(values.mean()), float(values.var()) / n if n > 1 else 0.0
    away = known - known.mean()
    slope = (away * values).sum() / away.square().sum()
    rest = values - values.mean() - slope * away
    mean = values.mean() + slope * (known_of_all.mean() - known.mean())
    return float(mean), float(rest.square().sum()) / (n - 2) / n


def groups_of(points: Points, how: How) -> tuple[Tensor, Tensor]:
    """The labels of each normalizer, `[groups, L]`, and which of them each row has."""
    if how == "given":
        groups, which = points.y.unique(dim=0, return_inverse=True)
        return groups, which
    return torch.full_like(points.y[:1], MISSING), _zeros(points)


def _zeros(points: Points) -> Tensor:
    return torch.zeros(len(points.x), dtype=torch.int64, device=points.x.device)


def temperature_grid(points: Points, own: float) -> list[float]:
    """A geometric grid around the temperature at which f / T varies as much as in a Gaussian; and the chains' own.

    -log p of a Gaussian in D dimensions has the standard deviation sqrt(D / 2).
    """
    natural = float(points.f.std(correction=0)) / math.sqrt(points.x[0].numel() / 2) or 1.0
    grid = {natural * factor for factor in GRID}
    if own > 0:
        grid.add(own)
    return sorted(grid)


def offsets(
    annealer: Annealer,
    log_prior: Tensor,
    like: Tensor,
    temperature: float,
    effort: Effort,
    *,
    generator: torch.Generator,
) -> Tensor:
    """log Z_y - log p(y) of every label state of a conditional model, in the shape of the cardinalities.

    `model.tempered(1 / temperature).with_offsets(these)` is joint: its labels can be summed and compared.
    """
    labels = annealer.path.model.labels
    groups = labels.enumerate(list(range(len(labels))), like.device)
    weights = annealer.log_normalizers(groups, like, temperature, effort, generator=generator)
    return (log_mean_exp(weights, 1).cpu() - log_prior.double().flatten().cpu()).view(labels.cardinalities)

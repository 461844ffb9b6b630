"""metrics: bounds on the mean log-likelihood at a temperature, by forward and reverse annealed importance sampling.

Forward weights have the mean Z (Neal 2001). Chains that run in reverse from a given x have weights with the mean
p_ann(x), the normalized density of the end points of forward chains (RAISE: Burda, Grosse and Salakhutdinov 2015). Both
hold for any number of intermediate distributions and any step size, if each kernel is reversible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import DomainError, InputError
from jointenergy.inputs import check_positive
from jointenergy.kernels import MALA, Kernel, SingleSiteGibbs, State, Target
from jointenergy.kernels.base import Evaluation, evaluate_x, known_of, over
from jointenergy.labels import MISSING
from jointenergy.models import Box, JointModel

How = Literal["summed", "given", "moved"]
RARE = 0.05  # the failure probability of the upper bound with its margin
COLLAPSED = 0.1  # an effective fraction of chains below this means that a few weights dominate
GRID = tuple(2.0**k for k in range(-4, 3))
AT_ONCE = 1000  # rows or chains evaluated at once
ACCEPTANCE = 0.574  # optimal for MALA (Roberts and Rosenthal 1998)
EDGE = 1e-6  # relative to a box's width: rows on its edge are moved this far inside, where z is finite


@dataclass(frozen=True, eq=False)
class Seen:
    """An evaluation of the model at points z: f and its gradient, the reference term, and the map from z to x."""

    z: Tensor
    f: Tensor
    f_by_x: Tensor
    reference: Tensor
    reference_by_x: Tensor
    log_volume: Tensor
    log_volume_by_z: Tensor
    x_by_z: Tensor


@dataclass(frozen=True, eq=False)
class Path:
    """The annealing path exp(a f), a from 0 on, with labels summed out, given or sampled.

    In a box, chains move in unbounded coordinates z, x = low + width * sigmoid(z). At a = 0 the distribution is uniform
    and sampled exactly, no proposal leaves the box, and mass near the walls is not a thin layer. On R^D the path starts
    from the reference term at the hottest temperature, and the reference cools with f from there on.
    """

    model: JointModel
    hottest: float
    y_kernel: Kernel | None = None
    """Moves the labels if they can neither be summed nor are given."""
    x_kernel: Callable[[float], Kernel] = MALA
    """Creates the x kernel from a step size, at temperature 1. It must be adjusted, or the bounds do not hold."""

    def __post_init__(self) -> None:
        if not self.model.domain.proper:
            raise DomainError(
                "a likelihood needs a domain on which the density has a normalizer: declare domain=Box(low, high), or "
                "domain=Reals(scale) for a Gaussian reference term"
            )
        check_positive(self, "hottest", self.hottest)

    def log_normalizer_at_start(self, n_dims: int) -> float:
        """Return log Z at a = 0."""
        domain = self.model.domain
        flat_labels = 0.0 if self.y_kernel is None else sum(math.log(c) for c in self.model.labels.cardinalities)
        if isinstance(domain, Box):
            return n_dims * math.log(domain.high - domain.low) + flat_labels
        return domain.log_normalizer(n_dims) + n_dims / 2 * math.log(self.hottest) + flat_labels

    def draw(self, y: Tensor, like: Tensor, keys: Tensor) -> State:
        """Draw exact samples at a = 0, one for each row of y; `like` is any row of x."""
        keys, x_keys, y_keys = streams.split(keys.to(like.device), 3)
        domain, n_dims = self.model.domain, like[0].numel()
        if isinstance(domain, Box):
            z = streams.uniform(x_keys, n_dims, like.dtype).logit()
        else:
            z = domain.tempered(1 / self.hottest).of_noise(streams.normal(x_keys, n_dims, like.dtype))
        y = y.to(like.device)
        if self.y_kernel is not None:
            y = self.model.labels.from_one_hot(streams.gumbel(y_keys, self.model.labels.n_codes))
        return State(z.view(len(y), *like.shape[1:]), y, keys, known=known_of(y))

    def enter(self, x: Tensor, y: Tensor, keys: Tensor) -> State:
        """Turn given rows into states of chains."""
        domain = self.model.domain
        if isinstance(domain, Box):
            share = (x - domain.low) / (domain.high - domain.low)
            x = share.clamp(EDGE, 1 - EDGE).logit()
        return State(x.clone(), y.to(x.device), keys.to(x.device), known=known_of(y))

    def look(self, state: State) -> Seen:
        """Evaluate the model once, for every distribution of the path."""
        z, domain = state.x, self.model.domain
        if isinstance(domain, Box):
            width, share = domain.high - domain.low, z.sigmoid()
            x, x_by_z, by_z = domain.low + width * share, width * share * (-z).sigmoid(), 1 - 2 * share
            log_volume = x_by_z.log().flatten(1).sum(1, dtype=torch.float64)
            reference, reference_by_x = torch.zeros_like(log_volume), torch.zeros_like(z)
        else:
            x, x_by_z, by_z = z, torch.ones_like(z), torch.zeros_like(z)
            reference, reference_by_x = domain.log_reference(z).double(), domain.reference_gradient(z)
            log_volume = torch.zeros_like(reference)
        here = evaluate_x(Target(self.model), replace(state, x=x, evaluation=None))
        return Seen(z, here.log_density.double(), here.gradient, reference, reference_by_x, log_volume, by_z, x_by_z)

    def slope(self, a: float, seen: Seen) -> Tensor:
        """Return the derivative of the log-density with respect to a, `[n]`."""
        return seen.f - seen.reference if a < 1 / self.hottest else seen.f

    def log_density(self, a: float, seen: Seen) -> Tensor:
        """Return the unnormalized log-density of x, `[n]` in float64; the reference is never hotter than `hottest`."""
        return a * seen.f + (max(a, 1 / self.hottest) - a) * seen.reference

    def evaluation(self, a: float, seen: Seen) -> Evaluation:
        """Return the log-density and gradient with respect to z."""
        by_x = a * seen.f_by_x + (max(a, 1 / self.hottest) - a) * seen.reference_by_x
        value = self.log_density(a, seen) + seen.log_volume
        return Evaluation("x", value, by_x * seen.x_by_z + seen.log_volume_by_z)


class PathDistribution(JointModel):
    """One distribution of a path, in the coordinates of its chains."""

    def __init__(self, path: Path, a: float) -> None:
        super().__init__(path.model.labels, event_shape=path.model.event_shape, normalizer=path.model.normalizer)
        self.path, self.a = path, a
        self.last: Seen | None = None

    def with_gradient(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        y = torch.full((len(x), len(self.labels)), MISSING, device=x.device) if y is None else y
        self.last = self.path.look(State(x, y, torch.empty(0), known=known_of(y)))
        found = self.path.evaluation(self.a, self.last)
        return found.log_density, found.gradient

    def seen_after(self, state: State, before: Seen) -> Seen:
        """Combine the evaluations before and at the last proposal into that of the state after a step."""
        # A kernel that leaves no evaluation did not evaluate its end point.
        if state.evaluation is None or self.last is None:
            return self.path.look(state)
        moved = (state.x == self.last.z).flatten(1).all(1)
        both = ((getattr(self.last, f.name), getattr(before, f.name)) for f in fields(Seen))
        return Seen(*(torch.where(over(moved, new), new, old) for new, old in both))

    # Label kernels compare values at one x, so terms of x alone do not matter.

    def log_density_of_codes(self, x: Tensor, code: Tensor) -> Tensor:
        return self.a * self.path.model.log_density_of_codes(self._x(x), code)

    def log_density_of_states(self, x: Tensor, states: Tensor) -> Tensor:
        return self.a * self.path.model.log_density_of_states(self._x(x), states)

    def _x(self, z: Tensor) -> Tensor:
        domain = self.path.model.domain
        return domain.low + (domain.high - domain.low) * z.sigmoid() if isinstance(domain, Box) else z


@dataclass(frozen=True)
class Schedule:
    """Inverse temperatures from 0 to the last, with a step size for each after the first.

    All are fixed before a chain starts: the bounds do not hold for step sizes that depend on the chain.
    """

    inverse_temperatures: tuple[float, ...]
    step_sizes: tuple[float, ...]
    x_steps: int = 1

    @property
    def n_temperatures(self) -> int:
        return len(self.step_sizes)


def forward(path: Path, schedule: Schedule, y: Tensor, like: Tensor, *, generator: torch.Generator) -> Tensor:
    """Run annealed importance sampling and return each chain's log weight, `[n]` in float64, one per row of y.

    The weights have the mean Z. So the log of their average lies below log Z in expectation, and above log Z + b with
    probability at most exp(-b) (Markov's inequality). `like` is any row of x.
    """
    keys = streams.chain_keys(len(y), generator=generator)
    start, found = path.log_normalizer_at_start(like[0].numel()), []
    for y_piece, piece in zip(y.split(AT_ONCE), keys.split(AT_ONCE), strict=True):
        state = path.draw(y_piece, like, piece)
        total = torch.full((len(piece),), start, dtype=torch.float64, device=like.device)
        seen = path.look(state)
        for k, before, a in _inverse_temperatures(schedule):
            total += path.log_density(a, seen) - path.log_density(before, seen)
            state, seen = _moved(path, schedule, k, state, seen)
        found.append(total)
    return torch.cat(found)


def reverse(path: Path, schedule: Schedule, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Tensor:
    """Run the annealing in reverse from x and return each chain's estimate of log Z, `[n]` in float64.

    exp(log-density of x - estimate) has the mean p_ann(x), so log-density - estimate lies below log p_ann(x) in
    expectation, for any x. If x are exact samples, the estimate lies above log Z in expectation (bidirectional Monte
    Carlo).
    """
    keys = streams.chain_keys(len(x), generator=generator)
    start, found = path.log_normalizer_at_start(x[0].numel()), []
    for x_piece, y_piece, piece in zip(x.split(AT_ONCE), y.split(AT_ONCE), keys.split(AT_ONCE), strict=True):
        state = path.enter(x_piece, y_piece, piece)
        total = torch.full((len(piece),), start, dtype=torch.float64, device=x.device)
        seen = path.look(state)
        for k, before, a in reversed(list(_inverse_temperatures(schedule))):
            state, seen = _moved(path, schedule, k, state, seen)
            total += path.log_density(a, seen) - path.log_density(before, seen)
        found.append(total)
    return torch.cat(found)


def _inverse_temperatures(schedule: Schedule) -> Iterator[tuple[int, float, float]]:
    """Yield the number of each kernel, and the inverse temperatures before and at it."""
    a = schedule.inverse_temperatures
    return ((k, a[k], a[k + 1]) for k in range(schedule.n_temperatures))


def _moved(path: Path, schedule: Schedule, k: int, state: State, seen: Seen) -> tuple[State, Seen]:
    """Apply kernel k. Labels and x alternate between temperatures, so that each kernel is reversible."""
    a = schedule.inverse_temperatures[k + 1]
    distribution = PathDistribution(path, a)
    target = Target(distribution)
    if path.y_kernel is not None and k % 2:
        state, _ = path.y_kernel.step(target, replace(state, evaluation=None))
        return state, path.look(state)
    state = replace(state, evaluation=path.evaluation(a, seen))
    kernel = path.x_kernel(schedule.step_sizes[k])
    for _ in range(schedule.x_steps):
        state, _ = kernel.step(target, state)
        seen = distribution.seen_after(state, seen)
    return state, seen


@dataclass(frozen=True)
class Pilot:
    """The result of a pilot run: step sizes along the path, and its thermodynamic length.

    `length` accumulates the standard deviations of the slope: distributions at equal lengths differ equally.
    """

    inverse_temperatures: Sequence[float]
    length: Sequence[float]
    step_sizes: Sequence[float]

    def schedule(self, temperature: float, n_temperatures: int, x_steps: int) -> Schedule:
        """Return inverse temperatures at equal thermodynamic distances up to 1 / temperature."""
        known = torch.tensor(self.inverse_temperatures, dtype=torch.float64)
        length = torch.tensor(self.length, dtype=torch.float64)
        end = _between(torch.tensor([1 / temperature], dtype=torch.float64), known, length)
        at = torch.linspace(0, 1, n_temperatures + 1, dtype=torch.float64) * end
        a = _between(at, length, known)
        a[0], a[-1] = 0.0, 1 / temperature
        steps = _between(a[1:], known, torch.tensor(self.step_sizes, dtype=torch.float64).log()).exp()
        return Schedule(tuple(a.tolist()), tuple(steps.tolist()), x_steps)


def pilot(
    path: Path,
    coldest: float,
    y: Tensor,
    like: Tensor,
    *,
    apart: float,
    growth: float = 1.05,
    generator: torch.Generator,
) -> Pilot:
    """Run chains along the path in steps of `apart` standard deviations of a log weight, and tune step sizes.

    If chains freeze, the deviations mean little: inverse temperatures then grow by the factor `growth`.
    """
    state = path.draw(y, like, streams.chain_keys(len(y), generator=generator))
    a, length, log_step = 0.0, 0.0, math.log(like[0].numel() ** (-1 / 3))
    found = [(0.0, 0.0, log_step)]
    while a < 1 / coldest:
        seen = path.look(state)
        deviation = float(path.slope(a, seen).std()) + 1e-30
        following = min(max(a + apart / deviation, a * growth), 1 / coldest)
        length += (following - a) * deviation
        a = following
        target = Target(PathDistribution(path, a))
        if path.y_kernel is not None:
            state = path.y_kernel.step(target, replace(state, evaluation=None))[0]
            seen = path.look(state)
        state = replace(state, evaluation=path.evaluation(a, seen))
        for _ in range(2):
            state, info = MALA(math.exp(log_step)).step(target, state)
            assert info.x_acceptance is not None
            log_step += 0.5 * (float(info.x_acceptance.mean()) - ACCEPTANCE)
        found.append((a, length, log_step))
    inverse_temperatures, lengths, log_steps = zip(*found, strict=True)
    return Pilot(inverse_temperatures, lengths, [math.exp(s) for s in log_steps])


def _between(at: Tensor, known: Tensor, values: Tensor) -> Tensor:
    """Interpolate linearly between known points, which ascend."""
    place = torch.searchsorted(known, at).clamp(1, len(known) - 1)
    low, high = known[place - 1], known[place]
    share = ((at - low) / (high - low)).clamp(0, 1)
    return values[place - 1] + share * (values[place] - values[place - 1])


def log_mean_exp(values: Tensor, dim: int = 0) -> Tensor:
    return values.logsumexp(dim) - math.log(values.shape[dim])


def effective_share(log_weights: Tensor, dim: int = 0) -> Tensor:
    """Return the effective sample size of weights over their number n: 1 if all are equal, 1 / n if one dominates."""
    log_size = 2 * log_weights.logsumexp(dim) - (2 * log_weights).logsumexp(dim)
    return log_size.exp() / log_weights.shape[dim]


def how_labels(model: JointModel) -> How:
    """Sum labels where possible, hold them if each has its own unknown normalizer, else move them with x."""
    if model.normalizer == "conditional":
        return "given"
    return "summed" if model.can_sum() else "moved"


@dataclass(frozen=True, eq=False)
class Points:
    """Rows with their f: the log-density of x if labels are summed, else of x and y."""

    x: Tensor
    y: Tensor
    f: Tensor

    @classmethod
    def of(cls, model: JointModel, x: Tensor, y: Tensor, how: How) -> Points:
        """Select rows inside the domain, with complete labels unless these are summed."""
        y = torch.full((len(x), len(model.labels)), MISSING, device=x.device) if how == "summed" else y.to(x.device)
        usable = model.domain.contains(x)
        if how != "summed":
            usable &= (y != MISSING).all(1)
        x, y = x[usable], y[usable]
        if len(x) == 0:
            raise InputError(
                "no row lies inside the model's domain with the labels that its likelihood needs: check the scale of x "
                "and missing labels"
            )
        with torch.no_grad():
            pieces = zip(x.split(AT_ONCE), y.split(AT_ONCE), strict=True)
            f = torch.cat([model.log_density(a, b).double() for a, b in pieces])
        return cls(x, y, f)

    def some(self, n: int, *, generator: torch.Generator) -> Points:
        """Select up to n rows at random."""
        index = torch.randperm(len(self.x), generator=generator)[:n].to(self.x.device)
        return Points(self.x[index], self.y[index], self.f[index])


@dataclass(frozen=True)
class Effort:
    """The number of temperatures, of forward chains for each normalizer, and of rows for reverse chains."""

    n_temperatures: int
    n_chains: int
    n_rows: int
    n_tries: int = 1
    """Reverse chains per row."""
    x_steps: int = 2


@dataclass(frozen=True, eq=False)
class Bounds:
    """Bounds on the mean log-likelihood of rows at a temperature, in nats.

    `upper` is an upper bound in expectation, `upper + margin` with probability at least 1 - RARE. `annealed` is a lower
    bound, in expectation, on the mean of log p_ann, the density of the annealing's samples. p_ann approaches the model
    as temperatures are added; for rows that resemble the model's samples its mean log lies below the model's. For other
    rows p_ann may be larger than the model's density: then `annealed` exceeds `upper`.
    """

    temperature: float
    n_temperatures: int
    upper: float
    annealed: float
    error: float
    """The standard error of upper - annealed."""
    margin: float
    share: float
    """The effective fraction of forward chains, the smallest over normalizers."""
    ahead: Tensor
    """Log weights of forward chains minus the estimate of log Z."""
    back: Tensor
    """The same for reverse chains."""

    @property
    def crossed(self) -> bool:
        """Whether the bounds contradict each other, so that p_ann is not the model's distribution."""
        return self.annealed > self.upper + 2 * self.error

    @property
    def lower(self) -> float | None:
        return None if self.crossed else self.annealed

    @property
    def cautious(self) -> float:
        """The smaller of the two: each is too large, for different reasons, if the annealing is too fast."""
        return min(self.upper, self.annealed)

    def shifted(self, nats: float) -> Bounds:
        """Add `nats` to both, such as the mean log-Jacobian of a change of variables."""
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
        """Tune by a pilot run with its own random numbers, of which only the schedule is kept."""
        moving = (y_kernel or SingleSiteGibbs()) if how == "moved" else None
        path = Path(model, max(temperatures), moving)
        groups, _ = groups_of(points, how)
        y = groups.repeat(math.ceil(n_chains / len(groups)), 1)
        return cls(path, pilot(path, min(temperatures), y, points.x[:1], apart=0.3, generator=generator), how)

    def log_normalizers(
        self, groups: Tensor, like: Tensor, temperature: float, effort: Effort, *, generator: torch.Generator
    ) -> Tensor:
        """Return the log weights of forward chains, `[groups, n_chains]`."""
        schedule = self.pilot.schedule(temperature, effort.n_temperatures, effort.x_steps)
        y = groups.repeat_interleave(effort.n_chains, 0)
        return forward(self.path, schedule, y, like, generator=generator).view(len(groups), -1)

    def bounds(self, points: Points, temperature: float, effort: Effort, *, generator: torch.Generator) -> Bounds:
        """Bound the mean over all points. Reverse chains start from some; a regression on f extends them to all."""
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

        # The variance of the log of a mean weight is about (1 / share - 1) / n.
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
    """Extrapolate the mean of values measured on some rows to all rows, by linear regression; also its variance."""
    n = len(values)
    if n < 3 or len(known_of_all) <= n or float(known.var()) == 0:
        return float(values.mean()), float(values.var()) / n if n > 1 else 0.0
    away = known - known.mean()
    slope = (away * values).sum() / away.square().sum()
    rest = values - values.mean() - slope * away
    mean = values.mean() + slope * (known_of_all.mean() - known.mean())
    return float(mean), float(rest.square().sum()) / (n - 2) / n


def groups_of(points: Points, how: How) -> tuple[Tensor, Tensor]:
    """Return the labels of each normalizer, `[groups, L]`, and the group of each row."""
    if how == "given":
        groups, which = points.y.unique(dim=0, return_inverse=True)
        return groups, which
    return torch.full_like(points.y[:1], MISSING), _zeros(points)


def _zeros(points: Points) -> Tensor:
    return torch.zeros(len(points.x), dtype=torch.int64, device=points.x.device)


def temperature_grid(points: Points, own: float) -> list[float]:
    """Return a geometric grid around the temperature at which f / T varies as for a Gaussian, and the chains' own.

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
    """Estimate log Z_y - log p(y) of every label state of a conditional model, in the shape of the cardinalities.

    `model.tempered(1 / temperature).with_offsets(offsets)` is joint: its labels can be summed and compared.
    """
    labels = annealer.path.model.labels
    groups = labels.enumerate(list(range(len(labels))), like.device)
    weights = annealer.log_normalizers(groups, like, temperature, effort, generator=generator)
    return (log_mean_exp(weights, 1).cpu() - log_prior.double().flatten().cpu()).view(labels.cardinalities)

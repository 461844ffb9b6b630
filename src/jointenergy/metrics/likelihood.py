"""metrics: bounds on the mean log-likelihood of rows at a temperature, by annealed importance sampling both ways.

Forward weights have the mean Z (Neal 2001). Chains that run the way back from a given x have weights with the mean
p_ann(x), the density of what the forward chains end in, itself normalized (RAISE: Burda, Grosse and Salakhutdinov,
2015). Both hold for any number of laws and any step size, provided that each kernel leaves its law as it is and is its
own reverse.
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
RARE = 0.05  # how often the upper bound with its margin may fail
COLLAPSED = 0.1  # the share of chains below which the weights of a few decide
GRID = tuple(2.0**k for k in range(-4, 3))
AT_ONCE = 1000  # rows or chains
ACCEPTANCE = 0.574  # at which MALA goes farthest (Roberts and Rosenthal 1998)
EDGE = 1e-6  # of a box's width: rows on its edge are taken this far inside, where a chain without bounds can begin


@dataclass(frozen=True, eq=False)
class Seen:
    """The model at some points z: f and its gradient by x, the reference term, and how z becomes x."""

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
    """The laws exp(a f) of a model, a from 0 on, with labels summed, given or moved along.

    A box is walked in coordinates z without bounds, x = low + width * sigmoid(z): its law at a = 0 is uniform and drawn
    exactly, no proposal leaves it, and mass that leans on its walls is no narrow layer. On R^D the reference term alone
    is the law at a = 0, at the hottest temperature of interest; it cools with f from there on.
    """

    model: JointModel
    hottest: float
    y_kernel: Kernel | None = None
    """Moves the labels, where these can be neither summed nor are given."""
    x_kernel: Callable[[float], Kernel] = MALA
    """Of a step size, at temperature 1: adjusted, or there are no bounds."""

    def __post_init__(self) -> None:
        if not self.model.domain.proper:
            raise DomainError(
                "a likelihood needs a domain on which the density has a normalizer: declare domain=Box(low, high), or "
                "domain=Reals(scale) for a Gaussian reference term"
            )
        check_positive(self, "hottest", self.hottest)

    def log_normalizer_at_start(self, n_dims: int) -> float:
        """log Z of the law at a = 0."""
        domain = self.model.domain
        flat_labels = 0.0 if self.y_kernel is None else sum(math.log(c) for c in self.model.labels.cardinalities)
        if isinstance(domain, Box):
            return n_dims * math.log(domain.high - domain.low) + flat_labels
        return domain.log_normalizer(n_dims) + n_dims / 2 * math.log(self.hottest) + flat_labels

    def draw(self, y: Tensor, like: Tensor, keys: Tensor) -> State:
        """Exact draws of the law at a = 0, one for each row of y; `like` is any row of x."""
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
        """Given rows as states of chains."""
        domain = self.model.domain
        if isinstance(domain, Box):
            share = (x - domain.low) / (domain.high - domain.low)
            x = share.clamp(EDGE, 1 - EDGE).logit()
        return State(x.clone(), y.to(x.device), keys.to(x.device), known=known_of(y))

    def look(self, state: State) -> Seen:
        """One look at the model, which serves every law of the path."""
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
        """The derivative by a of the law's log-density, `[n]`."""
        return seen.f - seen.reference if a < 1 / self.hottest else seen.f

    def log_density(self, a: float, seen: Seen) -> Tensor:
        """Of x, up to the normalizer, `[n]` in float64; the reference term is never hotter than the hottest."""
        return a * seen.f + (max(a, 1 / self.hottest) - a) * seen.reference

    def evaluation(self, a: float, seen: Seen) -> Evaluation:
        """Of the law as chains see it, by z."""
        by_x = a * seen.f_by_x + (max(a, 1 / self.hottest) - a) * seen.reference_by_x
        value = self.log_density(a, seen) + seen.log_volume
        return Evaluation("x", value, by_x * seen.x_by_z + seen.log_volume_by_z)


class Law(JointModel):
    """One law of a path, in the coordinates of its chains."""

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
        """What was seen of a state after a step, each row of it either as before or as last looked at."""
        # A kernel that leaves no evaluation did not look where it went.
        if state.evaluation is None or self.last is None:
            return self.path.look(state)
        moved = (state.x == self.last.z).flatten(1).all(1)
        both = ((getattr(self.last, f.name), getattr(before, f.name)) for f in fields(Seen))
        return Seen(*(torch.where(over(moved, new), new, old) for new, old in both))

    # What moves labels compares values at one x: terms of x alone do not matter.

    def log_density_of_codes(self, x: Tensor, code: Tensor) -> Tensor:
        return self.a * self.path.model.log_density_of_codes(self._x(x), code)

    def log_density_of_states(self, x: Tensor, states: Tensor) -> Tensor:
        return self.a * self.path.model.log_density_of_states(self._x(x), states)

    def _x(self, z: Tensor) -> Tensor:
        domain = self.path.model.domain
        return domain.low + (domain.high - domain.low) * z.sigmoid() if isinstance(domain, Box) else z


@dataclass(frozen=True)
class Schedule:
    """Inverse temperatures from 0 to the last, with a step size of MALA for each after the first.

    All is fixed before a chain starts: a step size that looked at the chain would make the bounds none.
    """

    inverse_temperatures: tuple[float, ...]
    step_sizes: tuple[float, ...]
    x_steps: int = 1

    @property
    def n_temperatures(self) -> int:
        return len(self.step_sizes)


def forward(path: Path, schedule: Schedule, y: Tensor, like: Tensor, *, generator: torch.Generator) -> Tensor:
    """log Z of the last law as each chain sees it, `[n]` in float64, one chain for each row of y.

    The mean of their exponentials is Z. So the log of that mean lies below log Z in expectation, and above log Z + b
    with a probability below exp(-b), by Markov's inequality. `like` is any row of x.
    """
    keys = streams.chain_keys(len(y), generator=generator)
    start, found = path.log_normalizer_at_start(like[0].numel()), []
    for y_piece, piece in zip(y.split(AT_ONCE), keys.split(AT_ONCE), strict=True):
        state = path.draw(y_piece, like, piece)
        total = torch.full((len(piece),), start, dtype=torch.float64, device=like.device)
        seen = path.look(state)
        for k, before, a in _laws(schedule):
            total += path.log_density(a, seen) - path.log_density(before, seen)
            state, seen = _moved(path, schedule, k, state, seen)
        found.append(total)
    return torch.cat(found)


def reverse(path: Path, schedule: Schedule, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Tensor:
    """log Z of the last law as chains see it that start at x and go the way back, `[n]` in float64.

    The last law's log-density of x minus this has, exponentiated, the mean p_ann(x): so its own mean lies below
    log p_ann(x), whatever x is. Only where x are exact draws of the last law has this a mean above log Z itself
    (bidirectional Monte Carlo).
    """
    keys = streams.chain_keys(len(x), generator=generator)
    start, found = path.log_normalizer_at_start(x[0].numel()), []
    for x_piece, y_piece, piece in zip(x.split(AT_ONCE), y.split(AT_ONCE), keys.split(AT_ONCE), strict=True):
        state = path.enter(x_piece, y_piece, piece)
        total = torch.full((len(piece),), start, dtype=torch.float64, device=x.device)
        seen = path.look(state)
        for k, before, a in reversed(list(_laws(schedule))):
            state, seen = _moved(path, schedule, k, state, seen)
            total += path.log_density(a, seen) - path.log_density(before, seen)
        found.append(total)
    return torch.cat(found)


def _laws(schedule: Schedule) -> Iterator[tuple[int, float, float]]:
    """The number of each kernel, and the inverse temperatures before and at it."""
    a = schedule.inverse_temperatures
    return ((k, a[k], a[k + 1]) for k in range(schedule.n_temperatures))


def _moved(path: Path, schedule: Schedule, k: int, state: State, seen: Seen) -> tuple[State, Seen]:
    """The state after kernel k. Labels and x take turns from law to law, so that each kernel is its own reverse."""
    a = schedule.inverse_temperatures[k + 1]
    law = Law(path, a)
    target = Target(law)
    if path.y_kernel is not None and k % 2:
        state, _ = path.y_kernel.step(target, replace(state, evaluation=None))
        return state, path.look(state)
    state = replace(state, evaluation=path.evaluation(a, seen))
    kernel = path.x_kernel(schedule.step_sizes[k])
    for _ in range(schedule.x_steps):
        state, _ = kernel.step(target, state)
        seen = law.seen_after(state, seen)
    return state, seen


@dataclass(frozen=True)
class Pilot:
    """What a run ahead found out: step sizes along the path, and how far apart its laws are.

    `length` adds up the standard deviations of the slope: laws at equal lengths differ equally (thermodynamic length).
    """

    inverse_temperatures: Sequence[float]
    length: Sequence[float]
    step_sizes: Sequence[float]

    def schedule(self, temperature: float, n_temperatures: int, x_steps: int) -> Schedule:
        """Laws at equal distances from the first to the one at a temperature."""
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
    """A run ahead whose laws lie `apart` standard deviations of a log weight, and step sizes are tuned on the way.

    Where chains freeze the deviations mean little: an inverse temperature is then `growth` times the one before.
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
        target = Target(Law(path, a))
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
    """Linear interpolation between known points, which ascend."""
    place = torch.searchsorted(known, at).clamp(1, len(known) - 1)
    low, high = known[place - 1], known[place]
    share = ((at - low) / (high - low)).clamp(0, 1)
    return values[place - 1] + share * (values[place] - values[place - 1])


def log_mean_exp(values: Tensor, dim: int = 0) -> Tensor:
    return values.logsumexp(dim) - math.log(values.shape[dim])


def effective_share(log_weights: Tensor, dim: int = 0) -> Tensor:
    """The effective sample size of weights as a share of their number n: 1 if all are equal, 1 / n if one has all."""
    log_size = 2 * log_weights.logsumexp(dim) - (2 * log_weights).logsumexp(dim)
    return log_size.exp() / log_weights.shape[dim]


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

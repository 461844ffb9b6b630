"""report: annealed importance sampling by adjusted chains, forward for log Z and in reverse from given rows.

Forward weights have the mean Z (Neal 2001). Chains that run the way back from a given x have weights with the mean
p_ann(x), the density of what the forward chains end in, itself normalized (RAISE: Burda, Grosse and Salakhutdinov,
2015). Both hold for any number of laws and any step size, provided that each kernel leaves its law as it is and is its
own reverse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.kernels import MALA, State, Target
from jointenergy.report.laws import Law, Path, Seen

ACCEPTANCE = 0.574  # at which MALA goes farthest (Roberts and Rosenthal 1998)
AT_ONCE = 1000  # chains


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

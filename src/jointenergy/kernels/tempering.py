"""kernels: parallel tempering over (x, y), replicas of each chain on a ladder of temperatures, and annealed starts."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.inputs import check_count, check_positive
from jointenergy.kernels.base import Kernel, State, Target, metropolis, over
from jointenergy.kernels.chain import last
from jointenergy.kernels.hmc import HMC
from jointenergy.kernels.joint import BlockGibbs
from jointenergy.kernels.mala import MALA
from jointenergy.kernels.mixed_hmc import MixedHMC


@dataclass(frozen=True)
class Ladder:
    """Inverse temperatures from 1 downwards. The rung b samples f(x, y) * b, reference term and labels included.

    Summed over labels that is the sum of exp(b f), not exp(b log sum exp f): x and y are tempered together, so that
    each rung has one joint density, and a swap compares the same f at both.
    """

    inverse_temperatures: tuple[float, ...]

    def __post_init__(self) -> None:
        rungs = tuple(self.inverse_temperatures)
        object.__setattr__(self, "inverse_temperatures", rungs)
        for b in rungs:
            check_positive(self, "inverse temperature", b)
        if len(rungs) < 2 or any(b <= c for b, c in itertools.pairwise(rungs)):
            raise InputError(f"a ladder needs two or more inverse temperatures, each below the one before, got {rungs}")

    @classmethod
    def geometric(cls, n: int, hottest: float) -> Ladder:
        """`n` rungs from 1 down to the inverse temperature `hottest`."""
        check_count("the number of rungs", n, least=2)
        check_positive(cls, "hottest", hottest)
        return cls(tuple(hottest ** (k / (n - 1)) for k in range(n)))


def rungs_needed(dimension: int, hottest: float, *, swapped: float = 0.3) -> int:
    """About how many rungs a geometric ladder from 1 down to `hottest` needs, for swaps at a rate of `swapped`.

    Where f spreads as that of a Gaussian of so many dimensions, neighbors whose temperatures differ by a factor r swap
    at a rate of about erfc(sqrt(dimension) log(r) / sqrt(8)): the log ratio of a swap is normal with the variance
    dimension log(r)^2 and minus half of it as its mean. Between the temperature 5e-5 of cold
    image chains and 1 there are hundreds.
    """
    check_count("dimension", dimension)
    check_positive(Ladder, "hottest", hottest)
    quantile = float(torch.tensor(1.0 - swapped, dtype=torch.float64).erfinv())
    return 1 + max(1, math.ceil(abs(math.log(hottest)) * math.sqrt(dimension / 8.0) / quantile))


@dataclass(frozen=True)
class Replicas:
    """The chains of every rung, the coldest first, and the share of swaps accepted between neighbors so far."""

    states: tuple[State, ...]
    swap_rates: tuple[float, ...]
    round_trips: int
    """How often a replica has come from the hottest rung to the coldest."""

    @property
    def cold(self) -> State:
        """The chains at temperature 1, the only ones that sample f."""
        return self.states[0]


def swap_log_ratio(colder: float, hotter: float, f_colder: Tensor, f_hotter: Tensor) -> Tensor:
    """The log acceptance ratio of exchanging the states of two rungs, f the full log-density at each."""
    return (colder - hotter) * (f_hotter - f_colder)


def parallel_tempering(
    kernel: Kernel,
    target: Target,
    x: Tensor,
    ladder: Ladder,
    *,
    steps: int,
    swap_every: int = 1,
    generator: torch.Generator,
) -> Replicas:
    """Run each chain of x with a replica on every rung, and exchange neighbors every `swap_every` steps.

    The kernel must be exact and at temperature 1: its step sizes are stretched for the hotter rungs. Swaps are decided
    for each chain alone, pairs (0, 1), (2, 3), ... and (1, 2), (3, 4), ... in turns.
    """
    check_count("steps", steps)
    check_count("swap_every", swap_every)
    part = kernel.x_kernel if isinstance(kernel, BlockGibbs) else kernel
    if not isinstance(part, MALA | HMC | MixedHMC) or part.temperature != 1.0:
        raise InputError(
            f"rungs need an exact kernel at temperature 1, of MALA, HMC or MixedHMC, got {type(part).__name__}: "
            "for others `annealed` gives approximate starts"
        )
    rungs = ladder.inverse_temperatures
    kernels = [_stretched(kernel, b) for b in rungs]
    targets = [_tempered(target, b) for b in rungs]
    states = [k.init(t, x, generator=generator) for k, t in zip(kernels, targets, strict=True)]
    visited = torch.zeros(len(rungs), len(x), dtype=torch.bool, device=x.device)
    accepted = [[0.0, 0] for _ in rungs[1:]]
    trips, done, turn = 0, 0, 0
    while done < steps:
        span = min(swap_every, steps - done)
        states = [last(k, t, s, span) for k, t, s in zip(kernels, targets, states, strict=True)]
        done += span
        if done >= steps:
            break
        for i in range(turn % 2, len(rungs) - 1, 2):
            states[i], states[i + 1], swapped = _swap(target, rungs[i], rungs[i + 1], states[i], states[i + 1])
            accepted[i][0] += float(swapped.double().sum())
            accepted[i][1] += len(swapped)
            visited[i], visited[i + 1] = (
                torch.where(swapped, visited[j], visited[k]) for j, k in ((i + 1, i), (i, i + 1))
            )
        visited[-1] = True
        trips += int(visited[0].sum())
        visited[0] = False
        turn += 1
    return Replicas(tuple(states), tuple(a / n if n else 0.0 for a, n in accepted), trips)


def annealed(
    kernel: Kernel, target: Target, x: Tensor, ladder: Ladder, *, steps: int, generator: torch.Generator
) -> State:
    """Approximate starts: `steps` steps on every rung from the hottest to temperature 1, for any kernel.

    Nothing corrects for how fast the ladder is gone down, so these are no draws of f: run an exact kernel from them.
    """
    check_count("steps", steps)
    state = None
    for b in reversed(ladder.inverse_temperatures):
        here = _tempered(target, b)
        begun = kernel.init(
            here, x if state is None else state.x, None if state is None else state.y, generator=generator
        )
        state = last(kernel, here, begun, steps)
    assert state is not None
    return state


def _swap(target: Target, colder: float, hotter: float, a: State, b: State) -> tuple[State, State, Tensor]:
    """Exchange x and y of two rungs where accepted; each rung keeps its random keys."""
    keys, key = streams.split(a.keys, 2)
    with torch.no_grad():
        f_a, f_b = (target.model.log_density_unchecked(s.x, s.y) for s in (a, b))
    accept, _ = metropolis(key, swap_log_ratio(colder, hotter, f_a, f_b))
    x = [torch.where(over(accept, a.x), p.x, q.x) for p, q in ((b, a), (a, b))]
    y = [torch.where(accept[:, None], p.y, q.y) for p, q in ((b, a), (a, b))]
    return (
        replace(a, x=x[0], y=y[0], keys=keys, evaluation=None, ahead=()),
        replace(b, x=x[1], y=y[1], evaluation=None, ahead=()),
        accept,
    )


def _tempered(target: Target, b: float) -> Target:
    if b == 1.0:
        return target
    return Target(target.model.tempered(b), given_y=target.given_y, given_x=target.given_x, mask=target.mask)


def _stretched(kernel: Kernel, b: float) -> Kernel:
    """Step sizes for a density that is flatter by b: distances grow by its root."""
    if isinstance(kernel, BlockGibbs):
        return replace(kernel, x_kernel=_stretched(kernel.x_kernel, b))
    power = 1.0 if isinstance(kernel, MALA) else 0.5
    stretched: Kernel = replace(cast(Any, kernel), step_size=cast(Any, kernel).step_size / b**power)
    return stretched

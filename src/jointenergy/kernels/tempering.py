"""kernels: parallel tempering over (x, y), and annealed starts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.inputs import check_count, check_number, check_positive
from jointenergy.kernels.base import Kernel, State, Target, check_kernel, metropolis, over
from jointenergy.kernels.chain import last
from jointenergy.kernels.hmc import HMC
from jointenergy.kernels.joint import BlockGibbs
from jointenergy.kernels.mala import MALA
from jointenergy.kernels.mixed_hmc import MixedHMC


@dataclass(frozen=True)
class Ladder:
    """Define inverse temperatures from 1 downwards. Rung b samples exp(b f(x, y)), reference term included.

    x and y are tempered together: with labels summed out, rung b has the density sum over y of exp(b f(x, y)). Each
    rung has one joint density, and a swap compares the same f at both.

    Parameters
    ----------
    inverse_temperatures
        Two or more, strictly decreasing from 1.

    Examples
    --------
    >>> import jointenergy as je
    >>> je.kernels.Ladder.geometric(3, hottest=0.25).inverse_temperatures
    (1.0, 0.5, 0.25)
    """

    inverse_temperatures: tuple[float, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.inverse_temperatures, Sequence):
            raise InputError(f"a ladder needs a sequence of inverse temperatures, got {self.inverse_temperatures!r}")
        rungs = tuple(self.inverse_temperatures)
        object.__setattr__(self, "inverse_temperatures", rungs)
        for b in rungs:
            check_positive(self, "inverse temperature", b)
        if len(rungs) < 2 or any(b <= c for b, c in itertools.pairwise(rungs)):
            raise InputError(f"a ladder needs two or more inverse temperatures, each below the one before, got {rungs}")
        if rungs[0] != 1.0:
            raise InputError(f"a ladder begins with 1, the density itself, got {rungs}")

    @classmethod
    def geometric(cls, n: int, hottest: float) -> Ladder:
        """Create `n` rungs in geometric spacing from 1 down to the inverse temperature `hottest`."""
        check_count("the number of rungs", n, least=2)
        _check_hottest(hottest)
        return cls(tuple(hottest ** (k / (n - 1)) for k in range(n)))


def rungs_needed(dimension: int, hottest: float, *, swapped: float = 0.3) -> int:
    """Estimate how many rungs a geometric ladder needs.

    If f varies like that of a Gaussian, the log ratio of a swap between temperatures that differ by a factor r is
    normal with variance v = dimension log(r)^2 and mean -v / 2, so swaps are accepted at the rate

        erfc(sqrt(dimension) log(r) / sqrt(8))

    Parameters
    ----------
    dimension
        The number of entries of x.
    hottest
        The smallest inverse temperature.
    swapped
        The swap rate to aim for.

    Examples
    --------
    >>> import jointenergy as je
    >>> je.kernels.rungs_needed(2, hottest=0.1)
    3
    >>> je.kernels.rungs_needed(3072, hottest=0.1)
    63
    """
    check_count("dimension", dimension)
    _check_hottest(hottest)
    if not 0 < check_number("swapped", swapped) < 1:
        raise InputError(f"swapped must be a rate between 0 and 1, got {swapped}")
    quantile = float(torch.tensor(1.0 - swapped, dtype=torch.float64).erfinv())
    return 1 + max(1, math.ceil(abs(math.log(hottest)) * math.sqrt(dimension / 8.0) / quantile))


@dataclass(frozen=True)
class Replicas:
    """The result of `parallel_tempering`.

    Parameters
    ----------
    states
        The chains of every rung, the coldest first.
    swap_rates
        The fraction of accepted swaps between neighbors.
    round_trips
        How often a replica has moved from the hottest rung to the coldest.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> replicas = je.kernels.parallel_tempering(
    ...     je.kernels.MALA(0.5), je.kernels.Target(model), torch.zeros(8, 2), je.kernels.Ladder((1.0, 0.5)),
    ...     steps=10, generator=torch.Generator().manual_seed(0),
    ... )
    >>> replicas.cold.x.shape, len(replicas.swap_rates)
    (torch.Size([8, 2]), 1)
    """

    states: tuple[State, ...]
    swap_rates: tuple[float, ...]
    round_trips: int

    @property
    def cold(self) -> State:
        """The chains at temperature 1, the only ones that sample f."""
        return self.states[0]


def swap_log_ratio(colder: float, hotter: float, f_colder: Tensor, f_hotter: Tensor) -> Tensor:
    """Return the log acceptance ratio of exchanging the states of two rungs with log-densities f."""
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
    """Run each chain with a replica on every rung, and propose swaps between neighboring rungs.

    Swaps are decided per chain, alternating between the pairs (0, 1), (2, 3), ... and (1, 2), (3, 4), ...

    Parameters
    ----------
    kernel
        `MALA`, `HMC`, `MixedHMC`, or a `BlockGibbs` with one of them, at temperature 1. Hotter rungs use larger step
        sizes.
    target
        What to sample.
    x
        Starting positions, `[n, *event]`.
    ladder
        The inverse temperatures.
    steps
        Steps on every rung.
    swap_every
        Steps between swaps.
    generator
        Source of randomness.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> replicas = je.kernels.parallel_tempering(
    ...     je.kernels.MALA(0.5), je.kernels.Target(model), torch.zeros(8, 2), je.kernels.Ladder.geometric(3, 0.25),
    ...     steps=10, generator=torch.Generator().manual_seed(0),
    ... )
    >>> [state.x.shape for state in replicas.states]
    [torch.Size([8, 2]), torch.Size([8, 2]), torch.Size([8, 2])]
    """
    check_count("steps", steps)
    check_count("swap_every", swap_every)
    _check_ladder(ladder)
    part = kernel.x_kernel if isinstance(kernel, BlockGibbs) else kernel
    if not isinstance(part, MALA | HMC | MixedHMC) or part.temperature != 1.0:
        raise InputError(
            f"parallel tempering needs MALA, HMC or MixedHMC at temperature 1, got {part}: for other kernels "
            "`annealed` gives approximate starts"
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
    """Draw approximate starts: `steps` steps on every rung from the hottest to temperature 1, with any kernel.

    The result is not an exact sample of f. Run an exact kernel from it.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> state = je.kernels.annealed(
    ...     je.kernels.Langevin(0.01, 0.1), je.kernels.Target(model), torch.zeros(8, 2), je.kernels.Ladder((1.0, 0.1)),
    ...     steps=10, generator=torch.Generator().manual_seed(0),
    ... )
    >>> state.x.shape
    torch.Size([8, 2])
    """
    check_count("steps", steps)
    _check_ladder(ladder)
    check_kernel(kernel)
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


def _check_hottest(hottest: float) -> None:
    if not 0 < check_number("hottest", hottest) < 1:
        raise InputError(f"hottest must be an inverse temperature between 0 and 1, got {hottest}")


def _check_ladder(ladder: Ladder) -> None:
    if not isinstance(ladder, Ladder):
        raise InputError(f"tempering needs a Ladder such as Ladder((1.0, 0.5)), got {type(ladder).__name__}")


def _tempered(target: Target, b: float) -> Target:
    if b == 1.0:
        return target
    return Target(target.model.tempered(b), given_y=target.given_y, given_x=target.given_x, mask=target.mask)


def _stretched(kernel: Kernel, b: float) -> Kernel:
    """Enlarge step sizes for exp(b f): distances grow with 1 / sqrt(b)."""
    if isinstance(kernel, BlockGibbs):
        return replace(kernel, x_kernel=_stretched(kernel.x_kernel, b))
    power = 1.0 if isinstance(kernel, MALA) else 0.5
    stretched: Kernel = replace(cast(Any, kernel), step_size=cast(Any, kernel).step_size / b**power)
    return stretched

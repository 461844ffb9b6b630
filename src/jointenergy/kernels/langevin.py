"""kernels: unadjusted Langevin dynamics on x."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.fusing import fused
from jointenergy.inputs import check_positive, graphs, is_number, ordinary
from jointenergy.kernels.base import Evaluation, Info, Kernel, State, Target, evaluate_x, gradient_of, log_density_at


@dataclass(frozen=True)
class PolynomialDecay:
    """Shrink the step size polynomially (Welling and Teh 2011; JEM, equation 3).

        factor(t) = (1 + t / offset) ** -power,   t = 0, 1, ... counts the steps of a chain

    With power in (1/2, 1] and temperature 1 the bias of the chain vanishes in the long run.

    Parameters
    ----------
    power
        The exponent.
    offset
        The number of steps after which the decay sets in.

    Examples
    --------
    >>> import jointenergy as je
    >>> je.kernels.PolynomialDecay(power=0.5, offset=10).factor(30)
    0.5
    """

    power: float
    offset: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "power", self.power)
        check_positive(self, "offset", self.offset)

    def factor(self, t: int) -> float:
        """Return the factor of the step size at step t."""
        return math.pow(1.0 + t / self.offset, -self.power)


@dataclass(frozen=True)
class Langevin(Kernel):
    """Move x by unadjusted Langevin dynamics, the sampler of JEM and IGEBM.

        x' = x + step_size * gradient of f + noise_scale * noise,   noise ~ N(0, I)

    The chain samples exp(f / T) at the temperature T = noise_scale^2 / (2 step_size), up to a bias that vanishes with
    the step size. A gradient clamp and bounds change the distribution that is sampled: use them for training, and
    `MALA` for exact samples.

    Parameters
    ----------
    step_size
        The factor of the gradient.
    noise_scale
        The standard deviation of the noise; 0 gives gradient ascent.
    gradient_clamp
        Clamp each entry of the gradient to [-gradient_clamp, gradient_clamp].
    bounds
        Clamp x to (low, high) after each step.
    schedule
        Shrinks the step size, and the noise with its square root, so that the temperature stays the same.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.Langevin(step_size=0.1, noise_scale=0.02)
    >>> round(kernel.temperature, 6)
    0.002
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 20).x.shape
    torch.Size([64, 2])
    """

    step_size: float
    noise_scale: float
    gradient_clamp: float | None = None
    bounds: tuple[float, float] | None = None
    schedule: PolynomialDecay | None = None

    moves_x: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "step_size", self.step_size)
        check_positive(self, "noise_scale", self.noise_scale, zero=True)
        if self.gradient_clamp is not None:
            check_positive(self, "gradient_clamp", self.gradient_clamp)
        if self.bounds is not None and not _ordered_pair(self.bounds):
            raise InputError(f"Langevin needs bounds (low, high) with low < high, got {self.bounds}")
        if self.schedule is not None and not isinstance(self.schedule, PolynomialDecay):
            raise InputError(f"Langevin needs a schedule such as PolynomialDecay(0.6), got {self.schedule!r}")

    @classmethod
    def at_temperature(cls, step_size: float, temperature: float = 1.0) -> Langevin:
        """Create the kernel with the noise scale of a given temperature.

        Examples
        --------
        >>> import jointenergy as je
        >>> je.kernels.Langevin.at_temperature(step_size=0.5, temperature=1.0).noise_scale
        1.0
        """
        check_positive(cls, "step_size", step_size)
        check_positive(cls, "temperature", temperature)
        return cls(step_size, math.sqrt(2.0 * step_size * temperature))

    @property
    def temperature(self) -> float:
        """The temperature T = noise_scale^2 / (2 step_size); the chain samples exp(f / T)."""
        return self.noise_scale**2 / (2.0 * self.step_size)

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        here = evaluate_x(target, state)
        factor = 1.0 if self.schedule is None else self.schedule.factor(state.step)
        # A step size that changes with each step would trigger recompilation.
        move = _moved if self.schedule is None else _moved_plainly
        x, keys = move(
            state.x,
            state.keys,
            here.gradient,
            target.mask,
            self.step_size * factor,
            self.noise_scale * math.sqrt(factor),
            self.gradient_clamp,
            self.bounds,
            streams.first_drawn(state.ahead, state.keys, state.x, adjusted=False),
        )
        if target.mask is not None:
            # Held values may lie outside the bounds, and must not change by rounding: -0.0 + 0.0 is 0.0.
            x = target.hold_x(x)
        later = State(x, state.y, keys, state.step + 1, None, state.known, state.both, state.ahead[1:])
        return later, Info(here.log_density, here.gradient, moved_from=state)

    def look_ahead(self, state: State, steps: int) -> State:
        steps = streams.steps_ahead(state.x, steps) if self.noise_scale > 0 else 0
        return replace(state, ahead=streams.noise_ahead(state.keys, state.x, steps)) if steps else state

    def recompute(self, target: Target, state: State) -> Tensor:
        """Recompute the x that `step` gives with its graph to the weights, for losses through the last step."""
        with graphs():
            state = replace(state, x=ordinary(state.x), y=ordinary(state.y), keys=ordinary(state.keys))
            x = state.x.clone().requires_grad_()
            value = log_density_at(target, x, state.y, state.known)
            gradient = target.moving(gradient_of(value, x, create_graph=True))
            return self.step(target, replace(state, evaluation=Evaluation("x", value, gradient)))[0].x


def _moved_plainly(
    x: Tensor,
    keys: Tensor,
    gradient: Tensor,
    mask: Tensor | None,
    step_size: float,
    noise_scale: float,
    gradient_clamp: float | None,
    bounds: tuple[float, float] | None,
    drawn: streams.DrawnNoise | None,
) -> tuple[Tensor, Tensor]:
    """Return x after a step and the next keys; no noise where `mask` is True."""
    if gradient_clamp is not None:
        gradient = gradient.clamp(-gradient_clamp, gradient_clamp)
    x = torch.add(x, gradient, alpha=step_size)
    if noise_scale > 0:
        if drawn is None:
            keys, noise = streams.next_normal_like(keys, x)
        else:
            keys, noise = drawn.following, drawn.values if drawn.values is not None else drawn.like(x)
        x.add_(noise if mask is None else noise.masked_fill(mask, 0.0), alpha=noise_scale)
    else:
        (keys,) = streams.split(keys, 1)
    return x if bounds is None else x.clamp(*bounds), keys


_moved = fused(_moved_plainly)


def _ordered_pair(bounds: object) -> bool:
    return isinstance(bounds, tuple) and len(bounds) == 2 and all(map(is_number, bounds)) and bounds[0] < bounds[1]

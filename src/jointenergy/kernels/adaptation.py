"""kernels: warm-up, which tunes step sizes, scales and trajectory lengths with all chains and then freezes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import check_count, is_number
from jointenergy.kernels.base import Info, Kernel, State, Target, check_precision
from jointenergy.kernels.chain import run_unchecked
from jointenergy.kernels.cycle import Cycle
from jointenergy.kernels.discrete_mala import DiscreteMALA
from jointenergy.kernels.hmc import HMC
from jointenergy.kernels.joint import BlockGibbs
from jointenergy.kernels.mala import MALA
from jointenergy.kernels.mixed_hmc import MixedHMC
from jointenergy.kernels.motion import DiagonalMetric
from jointenergy.kernels.preconditioned import PreconditionedMALA

K = TypeVar("K", bound=Kernel)
ACCEPTANCES: dict[type[Kernel], float] = {
    MALA: 0.574,
    PreconditionedMALA: 0.574,
    DiscreteMALA: 0.574,
    HMC: 0.651,
    MixedHMC: 0.651,
}
"""Optimal acceptance rates (Roberts and Rosenthal 1998; Sun et al. 2022 for labels; Beskos et al. 2013)."""
LEAST_STEPS = 30
LONGEST = 256  # leapfrog steps
FARTHEST = 60.0  # the log of the largest step size: on a flat density none is too large
FLATTEST = 1e-6  # the smallest scale relative to the largest: an entry may not move at all


@dataclass
class DualAveraging:
    """Adapt a log step size to an acceptance rate by Nesterov's dual averaging (Hoffman and Gelman 2014)."""

    acceptance: float
    begin: float
    """The first step size."""
    count: int = 0
    shortfall: float = 0.0
    log_step: float = field(init=False)
    mean_log_step: float = field(init=False)

    def __post_init__(self) -> None:
        self.log_step = self.mean_log_step = math.log(self.begin)

    def update(self, accepted: float) -> None:
        self.count += 1
        rate = 1.0 / (self.count + 10.0)
        self.shortfall += rate * (self.acceptance - accepted - self.shortfall)
        log_step = math.log(10.0 * self.begin) - math.sqrt(self.count) / 0.05 * self.shortfall
        self.log_step = max(-FARTHEST, min(FARTHEST, log_step))
        share = self.count**-0.75
        self.mean_log_step += share * (self.log_step - self.mean_log_step)

    @property
    def step_size(self) -> float:
        return math.exp(self.log_step)

    @property
    def final(self) -> float:
        """The adapted step size: the exponential of the averaged log step size."""
        return math.exp(self.mean_log_step)


@dataclass
class LongestTrajectory:
    """Adapt the longest trajectory time of HMC by the ChEES criterion (Hoffman, Radul and Sountsov 2021).

    It follows the gradient of the expected squared change of |x|^2 with Adam on the log of the time.
    """

    time: float
    rate: float = 0.025
    count: int = 0
    mean: float = 0.0
    square: float = 0.0

    def update(self, kernel: HMC, before: State, info: Info) -> None:
        assert info.reached is not None
        assert info.x_acceptance is not None
        scale = 1.0 if kernel.metric is None else kernel.metric.scale.to(before.x)
        x, to = ((v / scale).flatten(1).double() for v in (before.x, info.reached[0]))
        velocity, weight = info.reached[1].flatten(1).double(), info.x_acceptance.double()
        if not bool(to.isfinite().all()):
            return
        total = weight.sum().clamp(min=1e-12)
        x, to = x - x.mean(0), to - (weight[:, None] * to).sum(0) / total
        share = kernel.length(before.step) / kernel.leapfrog_steps
        each = (to.square().sum(1) - x.square().sum(1)) * (to * velocity).sum(1) * share * self.time
        slope = float((weight * each).sum() / total)
        self.count += 1
        self.mean += 0.1 * (slope - self.mean)
        self.square += 0.05 * (slope**2 - self.square)
        if self.square > 0:
            move = self.mean / (1 - 0.9**self.count) / math.sqrt(self.square / (1 - 0.95**self.count))
            self.time *= math.exp(self.rate * max(-2.0, min(2.0, move)))


def adapt(
    kernel: K,
    target: Target,
    state: State,
    steps: int,
    *,
    acceptance: float | None = None,
    scales: bool = True,
    lengths: bool = True,
) -> tuple[K, State]:
    """Tune a kernel during warm-up, and return it with the chains after `steps` steps.

    The step size follows the mean acceptance of all chains by dual averaging. Each block of `BlockGibbs` has its own
    step size. The returned kernel is fixed, so its chains are exact; discard those of the warm-up.

    Parameters
    ----------
    kernel
        One of `MALA`, `PreconditionedMALA`, `HMC`, `MixedHMC`, `DiscreteMALA`, a `BlockGibbs` of them, or a `Cycle`
        with any of these, which share the steps; its other kernels, such as `LabelJump`, stay as they are.
    target
        What to sample.
    state
        The chains to start from; more chains give better estimates.
    steps
        The number of warm-up steps, at least 30.
    acceptance
        The acceptance rate to aim for; by default the optimal rate of the kernel.
    scales
        Whether `MALA`, `HMC` and `MixedHMC` get a diagonal metric: the standard deviation of each entry of x over
        chains.
    lengths
        Whether an `HMC` with jitter gets its longest trajectory by the ChEES criterion.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.MALA(step_size=0.01)
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> kernel, state = je.kernels.adapt(kernel, target, state, 100)
    >>> kernel.step_size > 0.1
    True
    """
    check_count("the steps of a warm-up", steps, least=LEAST_STEPS)
    if acceptance is not None and not (is_number(acceptance) and 0 < acceptance < 1):
        raise InputError(f"the acceptance rate to adapt to must lie between 0 and 1, got {acceptance}")
    if isinstance(kernel, Cycle):
        return cast("tuple[K, State]", _each(kernel, target, state, steps, acceptance, scales, lengths))
    if not _parts(kernel):
        raise InputError(f"{type(kernel).__name__} has no step size to adapt: use it without a warm-up")
    if kernel.adjusted:
        check_precision(kernel, target, state.x)
    if scales and _scalable(kernel):
        first = steps // 3
        kernel, state, spread = _stage(kernel, target, state, first, acceptance, lengths)
        kernel = _scaled(kernel, spread)
        kernel, state, spread = _stage(kernel, target, state, first, acceptance, lengths)
        kernel, steps = _scaled(kernel, spread), steps - 2 * first
    kernel, state, _ = _stage(kernel, target, state, steps, acceptance, lengths)
    return kernel, replace(state, step=0)


def _each(
    cycle: Cycle,
    target: Target,
    state: State,
    steps: int,
    acceptance: float | None,
    scales: bool,
    lengths: bool,
) -> tuple[Cycle, State]:
    """Adapt the kernels of a cycle that have a step size to adapt, each on its own."""
    able = [i for i, kernel in enumerate(cycle.kernels) if _parts(kernel)]
    if not able:
        raise InputError("no kernel of the Cycle has a step size to adapt: use it without a warm-up")
    kernels = list(cycle.kernels)
    for i in able:
        share = max(steps // len(able), LEAST_STEPS)
        kernels[i], state = adapt(
            kernels[i], target, state, share, acceptance=acceptance, scales=scales, lengths=lengths
        )
    return replace(cycle, kernels=tuple(kernels)), state


def _stage(
    kernel: K, target: Target, state: State, steps: int, acceptance: float | None, lengths: bool
) -> tuple[K, State, Tensor]:
    """Adapt for some steps; also return the standard deviation of x over chains in the second half."""
    guides = {name: DualAveraging(acceptance or of, size) for name, (size, of) in _parts(kernel).items()}
    longest = None
    if lengths and isinstance(kernel, HMC) and kernel.jitter:
        longest = LongestTrajectory(kernel.step_size * kernel.leapfrog_steps)
    total, squares, n = torch.zeros_like(state.x[0].double()), torch.zeros_like(state.x[0].double()), 0
    center = state.x.double().mean(0)
    for i in range(steps):
        before = state
        ((state, info),) = run_unchecked(kernel, target, state, 1)
        for name, guide in guides.items():
            accepted = info.x_acceptance if name == "x" else info.y_acceptance
            assert accepted is not None
            guide.update(float(accepted.mean()))
        if longest is not None:
            assert isinstance(kernel, HMC)
            longest.update(kernel, before, info)
        kernel = _with_steps(kernel, {name: g.step_size for name, g in guides.items()}, longest)
        if i >= steps // 2:
            away = state.x.double() - center
            total, squares, n = total + away.sum(0), squares + away.square().sum(0), n + len(away)
    spread = (squares / n - (total / n) ** 2).clamp(min=0).sqrt()
    kernel = _with_steps(kernel, {name: g.final for name, g in guides.items()}, longest)
    return kernel, state, spread.clamp(min=max(FLATTEST * float(spread.max()), torch.finfo(torch.float32).tiny))


def _parts(kernel: Kernel) -> dict[str, tuple[float, float]]:
    """Return the step sizes that can be adapted, each with its target acceptance rate."""
    if isinstance(kernel, BlockGibbs):
        x, y = _parts(kernel.x_kernel), _parts(kernel.y_kernel)
        return {name: part for name, part in (("x", x.get("x")), ("y", y.get("y"))) if part is not None}
    wanted = ACCEPTANCES.get(type(kernel))
    step_size = getattr(kernel, "step_size", None)
    return {} if wanted is None or step_size is None else {"x" if kernel.moves_x else "y": (step_size, wanted)}


def _scalable(kernel: Kernel) -> bool:
    return isinstance(kernel.x_kernel if isinstance(kernel, BlockGibbs) else kernel, MALA | HMC | MixedHMC)


def _scaled(kernel: K, spread: Tensor) -> K:
    """Set the metric, and rescale the step size so that moves keep their average length."""
    if isinstance(kernel, BlockGibbs):
        return replace(kernel, x_kernel=_scaled(kernel.x_kernel, spread))
    assert isinstance(kernel, MALA | HMC | MixedHMC)
    before = 1.0 if kernel.metric is None else float(kernel.metric.scale.log().mean().exp())
    unit = float(spread.log().mean().exp()) / before
    power = 2 if isinstance(kernel, MALA) else 1
    return replace(kernel, metric=DiagonalMetric(spread), step_size=kernel.step_size / unit**power)


def _with_steps(kernel: K, sizes: dict[str, float], longest: LongestTrajectory | None) -> K:
    if isinstance(kernel, BlockGibbs):
        x, y = kernel.x_kernel, kernel.y_kernel
        if "x" in sizes:
            x = _with_steps(x, {"x": sizes["x"]}, None)
        if "y" in sizes:
            y = _with_steps(y, {"y": sizes["y"]}, None)
        return replace(kernel, x_kernel=x, y_kernel=y)
    (size,) = sizes.values()
    if longest is None:
        return cast(K, replace(cast(Any, kernel), step_size=size))
    assert isinstance(kernel, HMC)
    longest.time = min(longest.time, LONGEST * size)
    leaps = max(1, math.ceil(longest.time / size))
    return replace(kernel, step_size=size, leapfrog_steps=leaps)

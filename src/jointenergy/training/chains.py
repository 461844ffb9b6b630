"""training: the chains of a run: starting points, kernel and replay buffer."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jointenergy.buffers import Buffer, Drawn
from jointenergy.data.augmentations import Change
from jointenergy.errors import InputError
from jointenergy.kernels import BlockGibbs, Info, Kernel, Langevin, State, Target, last
from jointenergy.kernels.base import Known, over
from jointenergy.kernels.chain import run_unchecked
from jointenergy.starts import MissingLabels, SomeLabels, Start

TUNE = 10  # iterations between two adaptations of the step size
ACCEPTED = 0.6  # target acceptance rate of MALA
LEAST_STEP, MOST_STEP = 1e-5, 1.0  # limits of an adapted step, in units of the kernel's metric

# Well beyond what healthy chains reach, and far below what lets one diverged chain dominate a gradient.
EXTREME = 50.0  # median absolute deviations from the median log-density, plus 5 nats
FAR = 3.0  # widths of the data range beyond it


@dataclass(frozen=True)
class Moved:
    """Chains after their steps: start, final state, divergence flags, and x before its last move."""

    drawn: Drawn
    state: State
    sick: Tensor
    fresh: Drawn
    """Fresh start of each chain, in case it is restarted."""
    x: Tensor
    """Final state of the chains; a diverged chain stays at its start."""
    acceptance: Tensor | None = None
    """Whether the last move of x was accepted, per chain; None if the kernel accepts all moves."""
    moved_from: State | None = None
    """The state before the last Langevin step, inside the last block of a kernel that also moves labels."""


@dataclass
class Chains:
    """Persistent chains from a buffer, some restarted at each draw; without a buffer, all start fresh."""

    kernel: Kernel
    steps: int
    start: Start
    buffer: Buffer | None
    generator: torch.Generator
    bounds: tuple[float, float]
    guarded: bool = True
    """Whether diverged chains are restarted and excluded from the objective."""
    augmentation: Sequence[Change] = ()
    """Augmentation of chains drawn from the buffer, and of fresh chains every few steps."""
    augment_every: int = 0

    def __post_init__(self) -> None:
        # On the device and updated in place, like everything in a step; the host reads it when needed.
        self.n_purged = torch.zeros((), dtype=torch.int64, device=self.generator.device)

    @property
    def langevin(self) -> Langevin:
        """The kernel that moves x, whose last step computes the KL term."""
        kernel = self.kernel.x_kernel if isinstance(self.kernel, BlockGibbs) else self.kernel
        if not isinstance(kernel, Langevin):
            raise InputError(
                f"the KL term needs a final Langevin step, not one of {type(kernel).__name__}: use a Langevin kernel"
            )
        return kernel

    @property
    def step_size(self) -> float | None:
        """The step size of the kernel that moves x, if it has one."""
        return step_size_of(self.kernel)

    def adapt(self, acceptance: Tensor | None) -> None:
        """Lengthen the step if many moves are accepted, shorten it if few are."""
        if acceptance is not None and (before := self.step_size) is not None:
            factor = math.exp(0.7 * (float(acceptance.mean()) - ACCEPTED))
            self.kernel = with_step_size(self.kernel, min(max(before * factor, LEAST_STEP), MOST_STEP))

    @functools.cached_property
    def known(self) -> Known:
        """Which labels chains miss that are given none: all, where they sample log p(x), those of some, or none."""
        start = self.start.label_start
        if not isinstance(start, MissingLabels | SomeLabels) or not len(start.labels) or self.kernel.moves_y:
            return "complete"
        return "missing" if isinstance(start, MissingLabels) else None

    def draw(self, n: int, given: Tensor | None = None) -> tuple[Drawn, Drawn]:
        """Draw chains to move, and a fresh start for each.

        With given labels, draw buffer chains that have them, and fresh ones where the buffer has none.
        """
        fresh = self.fresh(n, given)
        if self.buffer is None:
            return fresh, fresh
        if given is None:
            drawn, unmatched = self.buffer.draw_unchecked(n, generator=self.generator), None
        else:
            drawn, unmatched = self.buffer.draw_matching(given, generator=self.generator)
        for change in self.augmentation:
            drawn = replace(drawn, x=change(drawn.x, generator=self.generator))
        anew = torch.rand(n, generator=self.generator, device=self.generator.device) < self.buffer.restart
        lost = self.lost(drawn.x) & ~anew
        self.n_purged += lost.sum()
        anew |= lost if unmatched is None else lost | unmatched
        return drawn.replaced(anew, fresh), fresh

    def fresh(self, n: int, given: Tensor | None = None) -> Drawn:
        return Drawn.fresh(*self.start.draw(n, generator=self.generator, given=given))

    def lost(self, x: Tensor) -> Tensor:
        """Flag chains that are not finite or far outside the data range."""
        if not self.guarded:
            return torch.zeros(len(x), dtype=torch.bool, device=x.device)
        low, high = self.bounds
        # A comparison with NaN is false, so NaN counts as lost.
        distance = (x.flatten(1) - (low + high) / 2).abs().amax(1)
        return ~(distance < (0.5 + FAR) * (high - low))

    def move(self, target: Target, drawn: Drawn, fresh: Drawn, *, known: Known) -> Moved:
        """Move the chains by their steps; `known` tells which of their labels are missing."""
        state = self.kernel.init_unchecked(target, drawn.x, drawn.y, known=known, generator=self.generator)
        info = Info()
        for later, said in run_unchecked(self.kernel, target, state, self.steps):
            state, info = later, said
        sick = self.sick(state.x, info.log_density)
        x = torch.where(over(sick, state.x), drawn.x, state.x)
        return Moved(drawn, state, sick, fresh, x, info.x_acceptance, info.moved_from)

    def sick(self, x: Tensor, log_density: Tensor | None) -> Tensor:
        """Flag lost chains and outliers in log-density, which would dominate the gradient."""
        lost = self.lost(x)
        if log_density is None or not self.guarded:
            return lost
        distance = (log_density - log_density.nanmedian()).abs()
        return lost | ~(distance <= EXTREME * distance.nanmedian() + 5.0)

    def store(self, moved: Moved) -> None:
        """Store chains in the buffer, restarting diverged ones."""
        if self.buffer is None:
            return
        self.n_purged += moved.sick.sum()
        after = Drawn(moved.state.x, moved.state.y, moved.drawn.age + self.steps, moved.drawn.slots)
        self.buffer.store_unchecked(after.replaced(moved.sick, moved.fresh), generator=self.generator)

    def sweep(self) -> None:
        """Restart every lost chain in the buffer, not only those of the last draw."""
        if self.buffer is None:
            return
        slots = self.lost(self.buffer.state_dict()["x"][: len(self.buffer)]).nonzero()[:, 0]
        if len(slots):
            fresh = self.fresh(len(slots))
            self.n_purged += len(slots)
            self.buffer.store(Drawn(fresh.x, fresh.y, fresh.age, slots), generator=self.generator)

    def others(self, n: int) -> Tensor:
        """Return x of other chains: from the buffer, or fresh ones without a buffer."""
        if self.buffer is None:
            return self.fresh(n).x
        return self.buffer.draw(min(n, len(self.buffer)), generator=self.generator).x

    def sample(
        self, target: Target, x: Tensor, y: Tensor, steps: int, *, denoise: int = 0, generator: torch.Generator
    ) -> State:
        """Run chains of a trained model from x and y, separate from those of training.

        The last `denoise` steps are without noise.
        """
        if denoise:
            state = self.sample(target, x, y, steps - denoise, generator=generator)
            return last(without_noise(self.kernel), target, state, denoise)
        state = self.kernel.init(target, x, y, generator=generator)
        stretch = self.augment_every if self.augmentation and self.augment_every else steps
        while steps > 0:
            state = last(self.kernel, target, state, min(stretch, steps))
            steps -= stretch
            if steps > 0:  # samples end with a step of the model
                for change in self.augmentation:
                    state = replace(state, x=target.hold_x(change(state.x, generator=generator)))
        return state


def step_size_of(kernel: Kernel) -> float | None:
    """Return the step size of the part that moves x, if it has one."""
    moves_x = kernel.x_kernel if isinstance(kernel, BlockGibbs) else kernel
    found = getattr(moves_x, "step_size", None)
    return found if isinstance(found, float | int) else None


def without_noise(kernel: Kernel) -> Kernel:
    """Return the kernel with Langevin moves of x that have no noise."""
    if isinstance(kernel, BlockGibbs):
        return replace(kernel, x_kernel=without_noise(kernel.x_kernel))
    return replace(kernel, noise_scale=0.0)  # type: ignore[type-var]


def with_step_size(kernel: Kernel, step_size: float | None) -> Kernel:
    """Return the kernel with another step size of x; unchanged for None."""
    if step_size is None or step_size == step_size_of(kernel):
        return kernel
    if isinstance(kernel, BlockGibbs):
        return replace(kernel, x_kernel=with_step_size(kernel.x_kernel, step_size))
    return replace(kernel, step_size=step_size)  # type: ignore[type-var]

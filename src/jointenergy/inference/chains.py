"""inference: chains run for their end: what moves, what helps them to arrive, what is shown on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError, NormalizerError
from jointenergy.inputs import check_count, check_positive
from jointenergy.kernels import (
    HMC,
    MALA,
    BlockGibbs,
    Cycle,
    ExactGibbs,
    GibbsWithGradients,
    Kernel,
    LabelJump,
    Langevin,
    MixedHMC,
    State,
    Target,
    UnderdampedLangevin,
    adapt,
    last,
    run,
)
from jointenergy.kernels.base import categorical_by_label
from jointenergy.labels import MISSING
from jointenergy.models import JointModel
from jointenergy.networks.accelerated import hold

Frames = Callable[[int, State], None]
"""Called with the number of steps made and the chains as they then are, first with 0: progress, or a film."""


class Augmentation(Protocol):
    """A random change of a batch, such as those of `jointenergy.data.augmentations`."""

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor: ...


@dataclass(frozen=True)
class Aids:
    """What helps chains to arrive and to differ. Each changes the law on the way; the last steps are the kernel's own.

    `augmentations` are applied after every `augment_every` steps and never after the last (Gibbs-JEM, appendix B). In
    the first `flip_labels_for` steps the given labels are redrawn uniformly at each step, and in the first
    `raise_noise_for` steps the noise is `noise_factor` times its own (IGEBM, appendix A.2).
    """

    augmentations: Sequence[Augmentation] = ()
    augment_every: int = 0
    flip_labels_for: int = 0
    raise_noise_for: int = 0
    noise_factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("augment_every", "flip_labels_for", "raise_noise_for"):
            check_count(name, getattr(self, name), least=0)
        check_positive(self, "noise_factor", self.noise_factor)
        if bool(self.augmentations) != bool(self.augment_every):
            raise InputError("augmentations and augment_every go together: what is done to x, and after how many steps")

    def stop(self, done: int, steps: int) -> int:
        """The step up to which the chains now run without a change from outside."""
        if done < self.flip_labels_for:
            return done + 1
        stops = [steps, self.raise_noise_for]
        if self.augment_every:
            stops.append((done // self.augment_every + 1) * self.augment_every)
        return min(s for s in stops if s > done)


NONE = Aids()


@dataclass(frozen=True)
class Mover:
    """What one step is: labels first where a kernel moves them, then `x_steps` moves of x."""

    x_kernel: Kernel
    y_kernel: Kernel | None
    x_steps: int
    joint: Kernel | None = None
    """What moves x and labels together in place of both."""

    @property
    def moves_y(self) -> bool:
        return self.y_kernel is not None or self.joint is not None

    @property
    def kernel(self) -> Kernel:
        if self.joint is not None:
            return self.joint
        return self.x_kernel if self.y_kernel is None else BlockGibbs(self.y_kernel, self.x_kernel, self.x_steps)

    @property
    def temperature(self) -> float | None:
        """That of x: the chains sample f / temperature. None where the kernel knows of none."""
        return getattr(self.x_kernel, "temperature", None)

    def run(self, target: Target, state: State, steps: int) -> Iterator[State]:
        moves = 1 if self.moves_y else self.x_steps
        for i, (later, _) in enumerate(run(self.kernel, target, state, steps * moves), start=1):
            if i % moves == 0:
                yield later

    def with_kernel(self, kernel: Kernel) -> Mover:
        """The same with its kernel replaced by one of the same kind."""
        if self.joint is not None:
            return replace(self, joint=kernel)
        if isinstance(kernel, BlockGibbs) and self.y_kernel is not None:
            return replace(self, x_kernel=kernel.x_kernel, y_kernel=kernel.y_kernel)
        return replace(self, x_kernel=kernel)

    def with_more_noise(self, factor: float) -> Mover:
        """The same with the noise on x multiplied."""
        kernel = self.x_kernel if self.joint is None else self.joint
        if isinstance(kernel, Langevin):
            return replace(self, x_kernel=replace(kernel, noise_scale=kernel.noise_scale * factor))
        if isinstance(kernel, MALA | HMC | UnderdampedLangevin):
            return replace(self, x_kernel=replace(kernel, temperature=kernel.temperature * factor**2))
        raise InputError(f"noise cannot be raised for {type(kernel).__name__}: use Langevin, MALA or HMC")


def plan(
    model: JointModel,
    given: Tensor,
    *,
    resample: bool,
    x_kernel: Kernel,
    y_kernel: Kernel | None,
    x_steps: int,
    aids: Aids = NONE,
) -> tuple[Mover, tuple[str, ...]]:
    """How labels that are not given are treated, and plain sentences about what was done instead."""
    joint = x_kernel if isinstance(x_kernel, LabelJump | MixedHMC | Cycle) else None
    x_kernel = x_kernel if joint is None else joint.x_kernel
    if not isinstance(x_kernel, Kernel) or not x_kernel.moves_x or x_kernel.moves_y:
        raise InputError(f"x_kernel must be a kernel that moves x alone, got {x_kernel!r}")
    check_count("x_steps", x_steps)
    alone = Mover(x_kernel, None, x_steps)
    if aids.raise_noise_for:
        alone.with_more_noise(aids.noise_factor)  # raises where it cannot be done
    if not bool((given == MISSING).any()):
        return alone, ()
    model.check_summable(given)
    notes = []
    summable = model.can_sum(given)
    if not resample:
        if summable:
            return alone, ()
        notes.append("the free labels have more states than can be summed, so they were resampled")
    if joint is not None:
        return Mover(x_kernel, None, x_steps, joint), tuple(notes)
    if y_kernel is None:
        y_kernel = ExactGibbs() if summable else GibbsWithGradients()
        if not summable:
            notes.append("the free labels have more states than can be drawn at once: GibbsWithGradients moved them")
    mover = Mover(x_kernel, y_kernel, x_steps)
    _ = mover.kernel  # raises where the two do not fit
    temperature = mover.temperature
    if temperature is not None and not math.isclose(temperature, 1.0, rel_tol=1e-6):
        notes.append(f"x moved at temperature {temperature:.3g} and the labels at 1: together they have no density")
    return mover, tuple(notes)


@torch.no_grad()
def given_log_prob(model: JointModel, x: Tensor, given: Tensor) -> Tensor:
    """log p(the given labels | x); x need not be finite, and its row then is not."""
    return model.log_density_unchecked(x, given) - model.log_density_unchecked(x, torch.full_like(given, MISSING))


def why_no_log_prob(model: JointModel, given: Tensor) -> str | None:
    """One sentence where p(the given labels | x) cannot be had."""
    nothing = torch.full_like(given, MISSING)
    try:
        model.check_summable(nothing)
    except NormalizerError:
        return "log p(given | x) is not known: each label of this model has an unknown normalizer of its own"
    if not model.can_sum():
        return "log p(given | x) is not known: the labels have more states than can be summed"
    return None


def run_chains(
    model: JointModel,
    mover: Mover,
    x: Tensor,
    y: Tensor,
    given: Tensor,
    *,
    steps: int,
    warm_up: int = 0,
    keys: Tensor,
    mask: Tensor | None = None,
    aids: Aids = NONE,
    frames: Frames | None = None,
    batch_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Where chains from x and y end, all labels drawn, however many of them are run at once.

    In `warm_up` steps before the others the kernel is adapted by the chains that run first, and fixed for all.
    """
    check_count("the number of steps", steps, least=0)
    size = len(x) if batch_size is None else check_count("batch_size", batch_size)
    if frames is not None and size < len(x):
        raise InputError("frames shows all chains side by side: leave batch_size out")
    ends: list[tuple[Tensor, Tensor]] = []
    for piece in (slice(i, i + size) for i in range(0, len(x), size)):
        held = {} if mask is None else {"given_x": x[piece], "mask": mask[piece]}
        target = Target(model, given_y=given[piece], **held)
        state = initial_state(mover, target, x[piece], y[piece], keys[piece])
        with hold(model):
            if warm_up and not ends:
                adapted, state = adapt(mover.kernel, target, state, warm_up)
                mover = mover.with_kernel(adapted)
            elif warm_up:
                state = last(mover.kernel, target, state, warm_up)
            state = move(mover, target, state, steps, aids=aids, frames=frames)
        if not mover.moves_y:
            state = draw_free(target, state)
        ends.append((state.x, state.y))
    return torch.cat([e[0] for e in ends]), torch.cat([e[1] for e in ends])


def held_mask(x: Tensor, mask: Tensor) -> Tensor:
    """The mask of what is given in the shape of x, or one sentence about what is wrong with it."""
    if not isinstance(x, Tensor) or x.ndim < 2:
        raise InputError("x must be a tensor with one row per example and a further dimension")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise InputError("mask must be a boolean tensor, True where x is given")
    if tuple(mask.shape) not in (tuple(x.shape), tuple(x.shape[1:])):
        raise InputError(f"mask must have the shape of x or of one row of it, got {tuple(mask.shape)}")
    return mask.to(x.device).expand_as(x)


def initial_state(mover: Mover, target: Target, x: Tensor, y: Tensor, keys: Tensor) -> State:
    """Checked starting states with these keys: labels that do not move and are not given are summed out."""
    y, keys = y.to(x.device), keys.to(x.device)
    if not mover.moves_y:
        y = target.open_labels(y)
    else:
        keys, key = streams.split(keys, 2)
        y = target.hold_y(y)
        y = torch.where(y == MISSING, _uniform_labels(target, key), y)
    # `init` checks; the keys that it draws are not used, because those of a chain must not depend on its batch.
    state = mover.kernel.init(target, x, y, generator=torch.Generator().manual_seed(0))
    return replace(state, keys=keys.clone())


def move(
    mover: Mover, target: Target, state: State, steps: int, *, aids: Aids = NONE, frames: Frames | None = None
) -> State:
    """The chains after all steps, with what helps them, shown on the way."""
    done = 0
    if frames is not None:
        frames(0, state)
    while done < steps:
        here = target
        if done < aids.flip_labels_for:
            here, state = _flipped(target, state)
        now = mover.with_more_noise(aids.noise_factor) if done < aids.raise_noise_for else mover
        for later in now.run(here, state, aids.stop(done, steps) - done):
            state, done = later, done + 1
            if frames is not None:
                frames(done, state)
        state = replace(state, y=target.hold_y(state.y))
        if aids.augment_every and done % aids.augment_every == 0 and done < steps:
            state = _augmented(target, state, aids.augmentations)
    return state


def draw_free(target: Target, state: State) -> State:
    """Labels that were summed out, drawn from p(y | x, given): Gibbs-JEM's algorithm 3 returns them undrawn."""
    if not bool((state.y == MISSING).any()):
        return state
    return ExactGibbs().step(target, state)[0]


def _uniform_labels(target: Target, keys: Tensor) -> Tensor:
    flat = torch.zeros(len(keys), target.model.labels.n_codes, device=keys.device)
    return categorical_by_label(target.model, keys, flat)


def _flipped(target: Target, state: State) -> tuple[Target, State]:
    """The given labels replaced by uniform ones, for a step."""
    keys, key = streams.split(state.keys, 2)
    given = target.open_labels(state.y)
    flipped = torch.where(given == MISSING, MISSING, _uniform_labels(target, key))
    here = Target(target.model, given_y=flipped, given_x=target.given_x, mask=target.mask)
    return here, replace(state, y=here.hold_y(state.y), keys=keys)


def _augmented(target: Target, state: State, augmentations: Sequence[Augmentation]) -> State:
    keys, seeds = streams.split(state.keys, 2)
    rows = []
    # Each row by itself, seeded by its chain: what happens to a chain does not depend on the others beside it.
    for row, seed in zip(state.x.split(1), seeds.tolist(), strict=True):
        generator = torch.Generator().manual_seed(seed)
        for change in augmentations:
            row = change(row, generator=generator)
        rows.append(row)
    x = torch.cat(rows)
    if x.shape != state.x.shape:
        raise InputError(f"augmentations must keep the shape of x, {list(state.x.shape)}, got {list(x.shape)}")
    return replace(state, x=target.hold_x(x.to(state.x)), keys=keys)

"""inference: run chains for their final states: kernels, aids for mixing, and progress callbacks."""

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
"""Called with the number of steps done and the current chains, first with 0: for progress, or a film."""


class Augmentation(Protocol):
    """A random change of a batch, such as those of `jointenergy.data.augmentations`."""

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor: ...


@dataclass(frozen=True)
class Aids:
    """Aids for mixing. Each changes the distribution during the run; the last steps are plain steps of the kernel.

    `augmentations` are applied after every `augment_every` steps, but not after the last one (Kelly, Zemel and
    Grathwohl 2021, appendix B). In the first `flip_labels_for` steps the given labels are redrawn uniformly at each
    step, and in the first `raise_noise_for` steps the noise is multiplied by `noise_factor` (Du and Mordatch 2019,
    appendix A.2).

    The last `denoise_for` steps are different: they are Langevin steps without noise, which remove from samples the
    noise that data and chains have in training.
    """

    augmentations: Sequence[Augmentation] = ()
    augment_every: int = 0
    flip_labels_for: int = 0
    raise_noise_for: int = 0
    noise_factor: float = 1.0
    denoise_for: int = 0

    def __post_init__(self) -> None:
        for name in ("augment_every", "flip_labels_for", "raise_noise_for", "denoise_for"):
            check_count(name, getattr(self, name), least=0)
        check_positive(self, "noise_factor", self.noise_factor)
        if bool(self.augmentations) != bool(self.augment_every):
            raise InputError("augmentations and augment_every must be given together")

    def stop(self, done: int, steps: int) -> int:
        """Return the step up to which chains run without a change from outside."""
        if done < self.flip_labels_for:
            return done + 1
        stops = [steps, self.raise_noise_for, steps - self.denoise_for]
        if self.augment_every:
            stops.append((done // self.augment_every + 1) * self.augment_every)
        return min(s for s in stops if s > done)


NONE = Aids()


@dataclass(frozen=True)
class Mover:
    """One step: first labels, if a kernel moves them, then `x_steps` moves of x."""

    x_kernel: Kernel
    y_kernel: Kernel | None
    x_steps: int
    joint: Kernel | None = None
    """A kernel that moves x and labels jointly, instead of both."""

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
        """Temperature of x: the chains sample f / temperature. None if the kernel has none."""
        return getattr(self.x_kernel, "temperature", None)

    def run(self, target: Target, state: State, steps: int) -> Iterator[State]:
        moves = 1 if self.moves_y else self.x_steps
        for i, (later, _) in enumerate(run(self.kernel, target, state, steps * moves), start=1):
            if i % moves == 0:
                yield later

    def with_kernel(self, kernel: Kernel) -> Mover:
        """Return a copy with another kernel of the same kind."""
        if self.joint is not None:
            return replace(self, joint=kernel)
        if isinstance(kernel, BlockGibbs) and self.y_kernel is not None:
            return replace(self, x_kernel=kernel.x_kernel, y_kernel=kernel.y_kernel)
        return replace(self, x_kernel=kernel)

    def without_noise(self) -> Mover:
        """Return a copy whose moves of x have no noise."""
        if not isinstance(self.x_kernel, Langevin) or self.joint is not None:
            kernel = self.joint or self.x_kernel
            raise InputError(f"the last steps of {type(kernel).__name__} cannot go without noise: use Langevin")
        return replace(self, x_kernel=replace(self.x_kernel, noise_scale=0.0))

    def with_more_noise(self, factor: float) -> Mover:
        """Return a copy with the noise on x multiplied."""
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
    """Choose how free labels are treated; return notes about deviations from the request."""
    joint = x_kernel if isinstance(x_kernel, LabelJump | MixedHMC | Cycle) else None
    x_kernel = x_kernel if joint is None else joint.x_kernel
    if not isinstance(x_kernel, Kernel) or not x_kernel.moves_x or x_kernel.moves_y:
        raise InputError(f"x_kernel must be a kernel that moves x alone, got {x_kernel!r}")
    check_count("x_steps", x_steps)
    if not isinstance(aids, Aids):
        raise InputError(f"aids must be Aids, got {type(aids).__name__}")
    alone = Mover(x_kernel, None, x_steps)
    if aids.denoise_for:
        alone.without_noise()  # raises where it cannot be done
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
        notes.append("the free labels have too many states to sum out, so they were resampled")
    if joint is not None:
        mover = Mover(x_kernel, None, x_steps, joint)
        parts = joint.kernels if isinstance(joint, Cycle) else ()
        if any(isinstance(part, BlockGibbs) or not part.moves_x for part in parts):
            notes.extend(_two_temperatures(mover))
        return mover, tuple(notes)
    if y_kernel is None:
        y_kernel = ExactGibbs() if summable else GibbsWithGradients()
        if not summable:
            notes.append("the free labels have too many states to draw jointly: GibbsWithGradients moved them")
    mover = Mover(x_kernel, y_kernel, x_steps)
    _ = mover.kernel  # raises where the two do not fit
    return mover, (*notes, *_two_temperatures(mover))


def _two_temperatures(mover: Mover) -> tuple[str, ...]:
    """Say that no joint density is sampled, where x moves at another temperature than labels."""
    temperature = mover.temperature
    if temperature is None or math.isclose(temperature, 1.0, rel_tol=1e-6):
        return ()
    return (f"x moved at temperature {temperature:.3g} but labels at 1: they have no joint density",)


@torch.no_grad()
def given_log_prob(model: JointModel, x: Tensor, given: Tensor) -> Tensor:
    """Return log p(given labels | x); rows with non-finite x give NaN."""
    return model.log_density_unchecked(x, given) - model.log_density_unchecked(x, torch.full_like(given, MISSING))


def why_no_log_prob(model: JointModel, given: Tensor) -> str | None:
    """Explain why p(given labels | x) is unavailable; None if it is available."""
    nothing = torch.full_like(given, MISSING)
    try:
        model.check_summable(nothing)
    except NormalizerError:
        return "log p(given | x) is unknown: each label of this model has an unknown normalizing constant"
    if not model.can_sum():
        return "log p(given | x) is unknown: the labels have too many states to enumerate"
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
    progress: Callable[[int], None] | None = None,
    batch_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run chains from x and y and return their final states with all labels drawn; independent of the batch size.

    `progress` is called after each batch with the number of chains that have ended. In `warm_up` extra steps the kernel
    is adapted on the first batch of chains, then fixed for all.
    """
    check_count("the number of steps", steps, least=0)
    size = len(x) if batch_size is None else check_count("batch_size", batch_size)
    if frames is not None and size < len(x):
        raise InputError("frames needs all chains in one batch: leave out batch_size")
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
        if progress is not None:
            progress(min(piece.stop, len(x)))
    return torch.cat([e[0] for e in ends]), torch.cat([e[1] for e in ends])


def held_mask(x: Tensor, mask: Tensor) -> Tensor:
    """Check a mask of given entries and expand it to the shape of x."""
    if not isinstance(x, Tensor) or x.ndim < 2:
        raise InputError("x must be a tensor with one row per example and a further dimension")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise InputError("mask must be a boolean tensor, True where x is given")
    if tuple(mask.shape) not in (tuple(x.shape), tuple(x.shape[1:])):
        raise InputError(f"mask must have the shape of x or of one row of it, got {tuple(mask.shape)}")
    return mask.to(x.device).expand_as(x)


def initial_state(mover: Mover, target: Target, x: Tensor, y: Tensor, keys: Tensor) -> State:
    """Create checked starting states with these keys; free labels that do not move are summed out."""
    y, keys = y.to(x.device), keys.to(x.device)
    if not mover.moves_y:
        y = target.open_labels(y)
    else:
        keys, key = streams.split(keys, 2)
        y = target.hold_y(y)
        y = torch.where(y == MISSING, _uniform_labels(target, key), y)
    # `init` only checks: its keys are replaced, since those of a chain must not depend on its batch.
    state = mover.kernel.init(target, x, y, generator=torch.Generator().manual_seed(0))
    return replace(state, keys=keys.clone())


def move(
    mover: Mover, target: Target, state: State, steps: int, *, aids: Aids = NONE, frames: Frames | None = None
) -> State:
    """Run all steps, with the aids, calling `frames` on the way."""
    done = 0
    if frames is not None:
        frames(0, state)
    while done < steps:
        here = target
        if done < aids.flip_labels_for:
            here, state = _flipped(target, state)
        now = mover.with_more_noise(aids.noise_factor) if done < aids.raise_noise_for else mover
        now = now.without_noise() if done >= steps - aids.denoise_for else now
        for later in now.run(here, state, aids.stop(done, steps) - done):
            state, done = later, done + 1
            if frames is not None:
                frames(done, state)
        state = replace(state, y=target.hold_y(state.y))
        if aids.augment_every and done % aids.augment_every == 0 and done < steps:
            state = _augmented(target, state, aids.augmentations)
    return state


def draw_free(target: Target, state: State) -> State:
    """Draw labels that were summed out from p(y | x, given)."""
    if not bool((state.y == MISSING).any()):
        return state
    return ExactGibbs().step(target, state)[0]


def _uniform_labels(target: Target, keys: Tensor) -> Tensor:
    flat = torch.zeros(len(keys), target.model.labels.n_codes, device=keys.device)
    return categorical_by_label(target.model, keys, flat)


def _flipped(target: Target, state: State) -> tuple[Target, State]:
    """Replace the given labels by uniform ones for one step."""
    keys, key = streams.split(state.keys, 2)
    given = target.open_labels(state.y)
    flipped = torch.where(given == MISSING, MISSING, _uniform_labels(target, key))
    here = Target(target.model, given_y=flipped, given_x=target.given_x, mask=target.mask)
    return here, replace(state, y=here.hold_y(state.y), keys=keys)


def _augmented(target: Target, state: State, augmentations: Sequence[Augmentation]) -> State:
    keys, seeds = streams.split(state.keys, 2)
    rows = []
    # Augment each row with its own seed, so that a chain does not depend on the others.
    for row, seed in zip(state.x.split(1), seeds.tolist(), strict=True):
        generator = torch.Generator().manual_seed(seed)
        for change in augmentations:
            row = change(row, generator=generator)
        rows.append(row)
    x = torch.cat(rows)
    if x.shape != state.x.shape:
        raise InputError(f"augmentations must keep the shape of x, {list(state.x.shape)}, got {list(x.shape)}")
    return replace(state, x=target.hold_x(x.to(state.x)), keys=keys)

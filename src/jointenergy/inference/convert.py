"""inference: convert real x to another class or attribute, with the path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.inference.chains import (
    NONE,
    Aids,
    Frames,
    given_log_prob,
    held_mask,
    plan,
    run_chains,
    why_no_log_prob,
)
from jointenergy.inputs import check_count, check_memory
from jointenergy.kernels import Kernel, State
from jointenergy.labels import MISSING, Given
from jointenergy.models import JointModel


@dataclass(frozen=True, eq=False)
class Converted:
    """x after the conversion to new labels, and the path."""

    x: Tensor
    y: Tensor
    path: Tensor
    """x on the way, `[frames, n, *event]`: the input first, the result last."""
    steps: tuple[int, ...]
    """The number of steps made at each frame."""
    log_prob: Tensor | None
    """log p(new labels | x) at each frame, `[frames, n]`; None if it is unknown, as a note explains."""
    temperature: float | None
    notes: tuple[str, ...]


def convert(
    model: JointModel,
    x: Tensor,
    to: Given,
    *,
    mask: Tensor | None = None,
    method: Literal["resample", "marginalize"] = "resample",
    x_kernel: Kernel,
    y_kernel: Kernel | None = None,
    x_steps: int = 1,
    steps: int,
    every: int = 1,
    aids: Aids = NONE,
    frames: Frames | None = None,
    generator: torch.Generator,
) -> Converted:
    """Run chains on p(x, free labels | `to`) from real rows, keeping a frame every `every` steps.

    The new labels are any subset; also name labels that should not change. Entries of x where `mask` is True are kept.
    With `resample`, free labels start uniformly and move before x.
    """
    check_count("every", every)
    if method not in ("resample", "marginalize"):
        raise InputError(f"method must be 'resample' or 'marginalize', got {method!r}")
    model.check_x(x)
    if mask is not None:
        mask = held_mask(x, mask)
    given = model.labels.given(to, len(x), x.device)
    if not bool((given != MISSING).any()):
        raise InputError("a conversion needs at least one new label")
    mover, notes = plan(
        model,
        given,
        resample=method == "resample",
        x_kernel=x_kernel,
        y_kernel=y_kernel,
        x_steps=x_steps,
        aids=aids,
    )
    n_frames = 1 + check_count("the number of steps", steps, least=0) // every
    check_memory(len(x) * n_frames, tuple(x.shape[1:]), "frames")
    path, at = [], []

    def keep(step: int, state: State) -> None:
        if step % every == 0 or step == steps:
            path.append(state.x.clone())
            at.append(step)
        if frames is not None:
            frames(step, state)

    keys = streams.chain_keys(len(x), generator=generator)
    free = torch.full_like(given, MISSING)
    end, y = run_chains(
        model, mover, x.detach(), free, given, steps=steps, keys=keys, mask=mask, aids=aids, frames=keep
    )
    unknown = why_no_log_prob(model, given)
    log_prob = None if unknown else torch.stack([given_log_prob(model, frame, given) for frame in path])
    notes += (unknown,) if unknown else ()
    return Converted(end, y, torch.stack(path), tuple(at), log_prob, mover.temperature, notes)

"""inference: inpainting and imputation: draw any entries of x given the others, with or without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.inference.chains import NONE, Aids, Frames, held_mask, plan, run_chains
from jointenergy.inputs import check_count, check_memory, check_number
from jointenergy.kernels import Kernel
from jointenergy.labels import Given
from jointenergy.models import JointModel
from jointenergy.starts import XStart


@dataclass(frozen=True, eq=False)
class Inpainted:
    """Completed rows: every draw, and statistics of the draws; known entries are unchanged."""

    draws: Tensor  # [n_draws, n, *event]
    y: Tensor  # [n_draws, n, L]
    mean: Tensor  # [n, *event]
    std: Tensor | None
    """Standard deviation of the draws; None for a single draw."""
    low: Tensor | None
    high: Tensor | None
    """Bounds that contain a further draw with probability `level`."""
    level: float
    temperature: float | None
    """Temperature T: the chains sampled f / T."""
    notes: tuple[str, ...]


def inpaint(
    model: JointModel,
    x: Tensor,
    mask: Tensor,
    *,
    given: Given = None,
    n_draws: int = 1,
    level: float = 0.9,
    method: Literal["resample", "marginalize"] = "marginalize",
    x_kernel: Kernel,
    y_kernel: Kernel | None = None,
    x_steps: int = 1,
    steps: int,
    start: XStart | Tensor | Literal["input"],
    aids: Aids = NONE,
    batch_size: int | None = None,
    frames: Frames | None = None,
    generator: torch.Generator,
) -> Inpainted:
    """Draw the entries of x where `mask` is False, given those where it is True and the given labels.

    `mask` has the shape of x or of one row. Unknown entries of x are ignored and may be NaN, unless `start="input"`
    starts there; a tensor of the shape of one row starts at that point, such as the mean of the data, and a start such
    as UniformStart from noise. Free labels are summed out or resampled, and drawn for each completed row.
    """
    check_count("n_draws", n_draws)
    if not 0 < check_number("level", level) < 1:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    if method not in ("resample", "marginalize"):
        raise InputError(f"method must be 'resample' or 'marginalize', got {method!r}")
    mask = held_mask(x, mask)
    filled = model.check_x(x.detach() if _is_input(start) else torch.where(mask, x.detach(), 0.0))
    n = len(x)
    check_memory(n * n_draws, tuple(x.shape[1:]))
    labels = model.labels.given(given, n, x.device).repeat(n_draws, 1)
    mover, notes = plan(
        model,
        labels,
        resample=method == "resample",
        x_kernel=x_kernel,
        y_kernel=y_kernel,
        x_steps=x_steps,
        aids=aids,
    )
    repeats = (n_draws, *(1,) * (x.ndim - 1))
    rows, held = filled.repeat(repeats), mask.repeat(repeats)
    # All randomness of a row comes from its own key, so that it does not depend on the other rows.
    own = streams.chain_keys(n, generator=generator).to(x.device)
    start_keys, keys = streams.split(torch.cat(streams.split(own, n_draws)), 2)
    begin = torch.where(held, rows, _start(start, rows, labels, start_keys))
    end, y = run_chains(
        model,
        mover,
        begin,
        labels,
        labels,
        steps=steps,
        keys=keys,
        mask=held,
        aids=aids,
        frames=frames,
        batch_size=batch_size,
    )
    draws = end.view(n_draws, *x.shape)
    mean = torch.where(mask, filled, draws.mean(0))
    std = low = high = None
    if n_draws > 1:
        std = draws.std(0).masked_fill(mask, 0.0)
        low, high = (torch.where(mask, filled, q) for q in _interval(draws, level))
        if (n_draws + 1) * (1 - level) / 2 < 1 - 1e-9:
            notes += (
                f"{n_draws} draws are too few for level {level}: the interval is their range, with a lower coverage",
            )
    return Inpainted(draws, y.view(n_draws, n, -1), mean, std, low, high, level, mover.temperature, notes)


def _is_input(start: XStart | Tensor | str) -> bool:
    if isinstance(start, str) and start != "input":
        raise InputError(f"start must be 'input', a tensor or a start such as UniformStart, got {start!r}")
    return isinstance(start, str)


def _start(start: XStart | Tensor | str, rows: Tensor, labels: Tensor, keys: Tensor) -> Tensor:
    if isinstance(start, str):
        return rows
    if isinstance(start, Tensor):
        if start.shape != rows.shape[1:] or not bool(start.isfinite().all()):
            raise InputError(f"a start at the mean must be finite and of shape {tuple(rows.shape[1:])}")
        return start.detach().to(rows).expand_as(rows)
    generators = (torch.Generator().manual_seed(seed) for seed in keys.tolist())
    drawn = torch.cat([start.draw(y, generator=g) for y, g in zip(labels.split(1), generators, strict=True)]).to(rows)
    if drawn.shape != rows.shape:
        raise InputError(f"the start returns x of shape {tuple(drawn.shape[1:])}, but x has {tuple(rows.shape[1:])}")
    return drawn


def _interval(draws: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Return the quantiles at q (n + 1): a further draw lies between them with exactly that probability."""
    ordered, n = draws.sort(0).values, len(draws)
    found = []
    for q in ((1 - level) / 2, (1 + level) / 2):
        # Rounded a little, so that integers are exact.
        place = min(max(round(q * (n + 1) - 1, 9), 0.0), n - 1.0)
        below = min(int(place), n - 2)
        found.append(torch.lerp(ordered[below], ordered[below + 1], place - below))
    return found[0], found[1]

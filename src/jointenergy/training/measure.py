"""training: measurements of a trainer: the guard's signals, accuracy on held-out rows."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor

from jointenergy.kernels import BlockGibbs, GibbsWithGradients, Target, last
from jointenergy.kernels.base import log_density_at
from jointenergy.labels import MISSING
from jointenergy.objectives import Loss
from jointenergy.streams import seeded
from jointenergy.training.chains import Moved
from jointenergy.training.engine import Engine
from jointenergy.training.guard import Signals
from jointenergy.training.health import at_bounds
from jointenergy.training.statistics import frozen
from jointenergy.training.trainer import Trainer

LOOK_ROWS = 32  # rows of data and chains per look of the guard
LABEL_STEPS = 100  # label kernel steps, if labels are too many to enumerate
SCORED_AT_ONCE = 1000  # rows per batch


class Look:
    """Compute the guard's signals from the current weights, upcoming data and chains; equal in all processes.

    Recorded after a replayed step, whose outcome is at the same address each time.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.engine = Engine(
            self._body, "guard's look", recorded=trainer.engine.recorded, key=lambda: trainer.engine.recordings
        )

    def __call__(self, loss: Loss, moved: Moved, norm: Tensor) -> Signals:
        trainer = self.trainer
        self.seen = loss, moved, norm
        trainer.feeds[0].look_ahead()
        if trainer.plain:
            parts = self._body()
        else:
            parts = trainer.without_failing_compiler(self.engine if trainer.engine.replays else self._body)
        trainer.world.mean([parts])
        return Signals(*parts.tolist())

    def _body(self) -> Tensor:
        with torch.no_grad(), frozen(self.trainer.model) if self.trainer.batch_statistics else nullcontext():
            return _signals(self.trainer, *self.seen)


def _signals(trainer: Trainer, loss: Loss, moved: Moved, norm: Tensor) -> Tensor:
    feed, data, bounds = trainer.feeds[0], trainer.data, trainer.chains.bounds
    if data.mask is None:
        rows = feed.rows_ahead[:LOOK_ROWS]
        x_data, y_data = data.x[rows], data.y[rows]
    else:
        x_data, y_data = data.x_held[:LOOK_ROWS], data.y_held[:LOOK_ROWS]
    x = moved.x[:LOOK_ROWS]  # diverged chains stay at their start
    y, known = trainer.plan.scored(torch.cat((y_data, moved.state.y[:LOOK_ROWS])))
    values = log_density_at(Target(trainer.fast), torch.cat((x_data, x)), y, known)
    f, g = values.split((len(x_data), len(x)))
    f_spread, f_mean = torch.std_mean(f, correction=0)
    g_spread, g_mean = torch.std_mean(g, correction=0)
    return torch.stack(
        (
            loss.total.detach(),
            norm,
            f_mean,
            f_spread,
            g_mean,
            g_spread,
            moved.sick.float().mean(),
            (x - moved.drawn.x[:LOOK_ROWS]).abs().mean() / (max(trainer.chains.steps, 1) * (bounds[1] - bounds[0])),
            _spread(x, trainer.plan.spread),
            at_bounds(x, bounds) - trainer.plan.share_at_bounds,
        )
    )


def _spread(x: Tensor, of_data: Tensor) -> Tensor:
    """Return the spread of chains relative to the data's; 1 if the data have none."""
    ratio = x.std(0, correction=0).mean() / of_data
    return torch.where(of_data > 0, ratio, torch.ones_like(ratio))


@torch.no_grad()
def accuracy(trainer: Trainer) -> float:
    """Return the accuracy of the averaged weights on held-out rows, over all label entries; NaN if undefined."""
    model, data = trainer.ema, trainer.data
    known = data.y_held != MISSING
    if model.normalizer == "conditional" or not bool(known.any()):
        return math.nan
    right = []
    for x in data.x_held.split(SCORED_AT_ONCE):
        if model.can_sum():
            right.append(torch.stack([p.argmax(1) for p in model.label_probs(x).values()], dim=1))
        else:
            right.append(_drawn_labels(trainer, x))
    return float((torch.cat(right) == data.y_held)[known].float().mean())


def _drawn_labels(trainer: Trainer, x: Tensor) -> Tensor:
    """Draw labels given x with the run's own kernel, if they are too many to enumerate."""
    kernel = trainer.plan.kernel
    kernel = kernel.y_kernel if isinstance(kernel, BlockGibbs) else kernel
    if kernel.moves_x and kernel.moves_y:
        kernel = GibbsWithGradients()
    target = Target(trainer.ema)
    generator = seeded(trainer.seed, "labels", trainer.iteration, device=x.device)
    return last(kernel, target, kernel.init(target, x, generator=generator), LABEL_STEPS).y

"""tables: early stopping: the validation split, and when its score ends a fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor

from jointenergy.data.training import TrainingData
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.tables.density import FEW_STATES
from jointenergy.training.callbacks import Callback
from jointenergy.training.loop import Loop
from jointenergy.training.trainer import Trainer

Score = Callable[[Trainer], Tensor]
"""Log-probability of each held-out row."""

LEAST = 30  # labeled rows that a useful validation split needs
MOST = 500  # rows that a standard error is computed for, at most


def held_out(
    y: Tensor, labels: LabelSpace, n_targets: int, mask: Tensor, asked: bool | str, fraction: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Split off validation rows; none if "auto" finds too few labeled rows.

    Held-out rows have all targets and numbers, and at most as many missing categories as can be summed out; every class
    keeps training rows.
    """
    nothing, everything = torch.empty(0, dtype=torch.int64), torch.arange(len(y))
    sizes = torch.tensor(labels.cardinalities[n_targets:], dtype=torch.float64)
    n_states = torch.where(y[:, n_targets:] == MISSING, sizes, 1.0).prod(1)
    y = y[:, :n_targets]
    able = ((y != MISSING).all(1) & mask.all(1) & (n_states <= FEW_STATES)).nonzero()[:, 0]
    n_held = int(len(able) * fraction)
    if asked is False or n_held < (LEAST if asked == "auto" else 1):
        return nothing, everything
    strata = None
    if y.shape[1]:
        counts = np.unique(y[able, 0].numpy(), return_counts=True)[1]
        if counts.min() >= 2 and n_held >= len(counts):
            strata = y[able, 0].numpy()
    _, chosen = train_test_split(able.numpy(), test_size=n_held, random_state=seed, stratify=strata)
    held = torch.from_numpy(np.sort(chosen))
    rest = everything[~torch.isin(everything, held)]
    lost = any(set(y[held, k].tolist()) - set(y[rest, k].tolist()) for k in range(y.shape[1]))
    return (nothing, everything) if lost else (held, rest)


@dataclass
class EarlyStopping(Callback):
    """Keep the newest weights within a standard error of the best score, and decide when to stop.

    The newest, not the best: the density still improves after the class probabilities have converged.
    """

    score: Callable[[Trainer], Tensor]
    """Held-out log-probabilities, one per row."""
    every: int
    patience: int
    weight: Tensor | None = None
    """Row weights, 1 on average."""
    scores: list[float] = field(default_factory=list)
    kept: dict[str, Tensor] | None = None
    error: float = 0.0
    """Standard error of the best score."""
    worse: int = 0
    """Consecutive evaluations worse than the best by more than that."""

    def before_step(self, loop: Loop) -> None:
        self.look(loop)

    def on_end(self, loop: Loop) -> None:
        self.look(loop)

    def look(self, loop: Loop) -> None:
        trainer = loop.trainer
        if trainer.iteration % self.every:
            return
        found = self.score(trainer)
        (score, error), best = _mean_and_error(found, self.weight), max(self.scores, default=-math.inf)
        self.scores.append(score)
        if score > best:
            self.error, best = error, score
        near = score >= best - self.error
        self.worse = 0 if near else self.worse + 1
        if near:
            self.kept = {k: v.clone() for k, v in trainer.ema.state_dict().items()}
        loop.enough = self.worse >= self.patience


def _mean_and_error(found: Tensor, weight: Tensor | None) -> tuple[float, float]:
    """Return the weighted mean, with weights of mean 1, and its standard error."""
    mean, spread = found.mean(), found.std(correction=0)
    if weight is not None:
        weight = weight.to(found)
        mean = (weight * found).mean()
        spread = (weight * (found - mean)).square().mean().sqrt()
    # With many rows the error would be smaller than the noise of training, which must not count as getting worse.
    return float(mean), float(spread) / math.sqrt(min(len(found), MOST))


def score_of(data: TrainingData, n_targets: int) -> Callable[[Trainer], Tensor]:
    """Score held-out rows by log p(targets | the rest), missing categories summed out; without targets by density."""
    x, y = data.x_held, data.y_held
    rest = y.clone()
    rest[:, :n_targets] = MISSING

    def score(trainer: Trainer) -> Tensor:
        with torch.no_grad():
            found = trainer.ema.log_density_unchecked(x, y)
            return found - trainer.ema.log_density_unchecked(x, rest) if n_targets else found

    return score

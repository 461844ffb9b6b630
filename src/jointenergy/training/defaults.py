"""training: settings that suit some data where nobody names others; `docs/fit.md` says how they were chosen."""

from __future__ import annotations

import math
from typing import Any

from jointenergy.buffers import ReplayBuffer
from jointenergy.data.training import TrainingData
from jointenergy.data.views import View
from jointenergy.kernels import BlockGibbs, ExactGibbs, GibbsWithGradients, Kernel, Langevin
from jointenergy.labels import MISSING
from jointenergy.models import JointModel
from jointenergy.objectives import EnergyL2, LogPX, LogPYGivenX, Objective
from jointenergy.starts import ClassGaussians, StartSpec, Uniform
from jointenergy.training.settings import CadenceSettings, OptimizerSettings

SMALL = 400  # values of a row up to which chains are those of vectors, however it is shaped
EPOCHS, FEWEST, MOST = 200, 2000, 10_000  # passes over the rows, and the iterations that they are at least and at most
GAUSSIANS = 1.5e8  # entries of the covariances of all classes, for fresh chains to begin in them: 600 MB
LEAST_ROWS = 10  # of each class, likewise
CHECKS = 8  # of health in a run


def default_objective(model: JointModel) -> Objective:
    """JEM with an L2 on energies; of a model without labels log p(x) alone."""
    small = _small(model.event_shape or ())
    l2 = EnergyL2(0.1 if small else 0.2)
    return LogPX() + l2 if len(model.labels) == 0 else LogPX() + LogPYGivenX(2.0 if small else 3.0) + l2


def default_kernel(model: JointModel, objective: Objective, bounds: View) -> Kernel:
    """Langevin with the steps of JEM, brought to the range of x; with labels of its own where the objective has a
    joint density."""
    half = (bounds[1] - bounds[0]) / 2
    if _small(model.event_shape or ()):
        langevin = Langevin(0.5 * half**2, 0.1 * half, bounds=(bounds[0], bounds[1]))
    else:
        langevin = Langevin(0.5 * half**2, 0.02 * half, gradient_clamp=1.0 / half, bounds=(bounds[0], bounds[1]))
    if not any(term.name == "log_p_xy" for term in objective.terms):
        return langevin
    return BlockGibbs(ExactGibbs() if model.can_sum() else GibbsWithGradients(), langevin)


def default_start(data: TrainingData) -> StartSpec:
    """Gaussians of the classes, where each has rows enough and there is memory for them; else uniform."""
    if len(data.labels) != 1:
        return Uniform()
    y = data.y[:, 0]
    counts = y[y != MISSING].bincount(minlength=data.labels.cardinalities[0])
    size = math.prod(data.event_shape)
    if int(counts.min()) < LEAST_ROWS or len(counts) * size**2 > GAUSSIANS:
        return Uniform()
    return ClassGaussians(uniform=0.2 if _small(data.event_shape) else 0.1)


def default_settings(data: TrainingData, bounds: View, *, on_gpu: bool) -> dict[str, Any]:
    """The numbers of a run: steps, batches, iterations, noise, optimizer."""
    small, half = _small(data.event_shape), (bounds[1] - bounds[0]) / 2
    n = len(data.x)
    batch_size = min(128 if small or on_gpu else 64, max(2, n // 2))
    iterations = min(MOST, max(FEWEST, EPOCHS * n // batch_size))
    return {
        "batch_size": batch_size,
        "iterations": iterations,
        "steps": 20 if small else 10,
        "sampling_steps": 100 if small else 20,
        "noise": (0.1 if small else 0.05) * half,
        "noise_clamp": True,
        "buffer": ReplayBuffer(5000 if small or on_gpu else 500, restart=0.05),
        "optimizer": OptimizerSettings(
            name="adamw",
            learning_rate=1e-3 if small or on_gpu else 2e-3,
            weight_decay=0.05 if small else 0.01,
            clip_norm=1.0,
            warmup=min(100, iterations // 10),
            decay="cosine",
            ema=0.99 if small or iterations < MOST else 0.999,
        ),
    }


def default_cadence(iterations: int) -> CadenceSettings:
    """Rows of metrics fifty times in a run, checks of health eight times."""
    every = max(1, -(-iterations // CHECKS))
    return CadenceSettings(log=max(1, iterations // 50), check=every, checkpoint=every, keep=2)


def _small(event_shape: tuple[int, ...]) -> bool:
    return math.prod(event_shape) <= SMALL

"""training: default settings by type of data; `docs/fit.md` describes how they were chosen."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from jointenergy import kernels
from jointenergy.buffers import ReplayBuffer
from jointenergy.data import CorrelatedNoise
from jointenergy.data.covariances import covariance_of
from jointenergy.data.training import TrainingData
from jointenergy.data.views import View
from jointenergy.labels import MISSING
from jointenergy.models import JointModel, Reals
from jointenergy.objectives import EnergyL2, LogPX, LogPYGivenX, Objective
from jointenergy.starts import ClassGaussians, StartSpec, Uniform
from jointenergy.training.settings import CadenceSettings, OptimizerSettings

CORRELATED = 200  # maximum columns of a table for moves, noise and a reference that follow its covariance
SMALL = 100  # values of a row up to which it is treated as a vector, whatever its shape
# Passes over the rows, and the minimum and maximum iterations; images overfit sooner.
EPOCHS, FEWEST, MOST = {"image": 60, "small": 200}, {"image": 1000, "small": 2000}, 10_000
GAUSSIANS = 1.5e8  # maximum entries of all class covariances for class Gaussian starts: 600 MB
LEAST_ROWS = 10  # minimum rows per class for class Gaussian starts
CHECKS = 8  # health checks per run
STEP = 0.1  # first step size for a table, in units of the covariance within classes
# Noise on the columns of a table, in standard deviations within classes. It grows as the root of the number of columns
# from FEW_COLUMNS on: rows of many columns lie far apart.
NOISE, FEW_COLUMNS, MOST_NOISE = 0.15, 8, 0.3
WIDE = 1.5  # maximum unit of x, in standard deviations


def default_objective(model: JointModel) -> Objective:
    """Return JEM with an energy L2; log p(x) for a model without labels."""
    weight, l2 = {"table": (1.0, 0.001), "small": (2.0, 0.1), "image": (3.0, 0.2)}[kind_of(model)]
    return LogPX() + EnergyL2(l2) if len(model.labels) == 0 else LogPX() + LogPYGivenX(weight) + EnergyL2(l2)


def unit_of(data: TrainingData, bounds: View) -> float:
    """Return the scale of x for step sizes and noise: 1 for pixels in [-1, 1], smaller if x fills little of a wide
    range."""
    half, spread = (bounds[1] - bounds[0]) / 2, WIDE * float(data.x.std())
    return min(half, spread) if spread > 0 else half


def default_kernel(model: JointModel, objective: Objective, data: TrainingData, bounds: View) -> kernels.Kernel:
    """Return Langevin scaled to x: at temperature 1 for a table, at a low temperature in a box, as in the papers.

    The columns of a table are correlated, and classes are narrow: moves follow the covariance within classes, and moves
    that overshoot are rejected. `fit` adapts the step size.

    If the objective has a joint density, moves of labels alternate with moves of x.
    """
    unit, box, kind = unit_of(data, bounds), (bounds[0], bounds[1]), kind_of(model)
    langevin: kernels.Kernel
    if correlated(model, data):
        noised = within_classes(data) + default_noise(data).root.cpu().double().square()  # of uncorrelated columns
        if adapts(model, objective, data):
            langevin = kernels.PreconditionedMALA(STEP, kernels.Preconditioner(torch.linalg.inv(noised).to(data.x)))
        else:
            langevin = kernels.Langevin.at_temperature(0.5 * float(torch.linalg.eigvalsh(noised)[0]))  # diverges at 2
    elif kind == "table":
        langevin = kernels.Langevin.at_temperature(0.02 * unit**2)
    elif kind == "small":
        langevin = kernels.Langevin(0.5 * unit**2, 0.1 * unit, bounds=box)
    else:
        langevin = kernels.Langevin(0.5 * unit**2, 0.02 * unit, gradient_clamp=1.0 / unit, bounds=box)
    if not any(term.name == "log_p_xy" for term in objective.terms):
        return langevin
    return kernels.BlockGibbs(kernels.ExactGibbs() if model.can_sum() else kernels.GibbsWithGradients(), langevin)


def default_start(model: JointModel, data: TrainingData) -> StartSpec:
    """Return class Gaussians if every class has enough rows and they fit in memory, else a uniform start."""
    share = {"table": 0.0, "small": 0.2, "image": 0.1}[kind_of(model)]
    elsewhere = Uniform(rows=len(data.x)) if kind_of(model) == "table" else Uniform()
    if len(data.labels) != 1:
        return elsewhere
    y = data.y[:, 0]
    counts = y[y != MISSING].bincount(minlength=data.labels.cardinalities[0])
    size = math.prod(data.event_shape)
    if int(counts.min()) < LEAST_ROWS or len(counts) * size**2 > GAUSSIANS:
        return elsewhere
    return ClassGaussians(uniform=share)


def default_settings(model: JointModel, data: TrainingData, bounds: View, *, on_gpu: bool) -> dict[str, Any]:
    """Return the numbers of a run: steps, batch size, iterations, noise, optimizer."""
    kind, unit = kind_of(model), unit_of(data, bounds)
    small = kind != "image"
    n = len(data.x)
    batch_size = min(128 if small or on_gpu else 64, max(2, n // 2))
    size: Literal["small", "image"] = "small" if small else "image"
    iterations = min(MOST, max(FEWEST[size], EPOCHS[size] * n // batch_size))
    return {
        "batch_size": batch_size,
        "iterations": iterations,
        "steps": 40 if correlated(model, data) else 20 if small else 10,
        "sampling_steps": 100 if small else 20,
        "noise": default_noise(data) if correlated(model, data) else (0.1 if small else 0.05) * unit,
        # Chains of a large buffer move seldom, and lag behind the weights.
        "buffer": ReplayBuffer(1000 if kind == "table" else 5000 if small or on_gpu else 500, restart=0.05),
        "optimizer": OptimizerSettings(
            name="adamw",
            learning_rate=1e-3 if kind == "small" or on_gpu else 2e-3,
            weight_decay=0.05 if small else 0.01,
            clip_norm=1.0,
            warmup=min(100, iterations // 10),
            decay="cosine",
            ema=0.99 if small or iterations < MOST else 0.999,
        ),
    }


def default_noise(data: TrainingData) -> CorrelatedNoise:
    """Return uncorrelated noise on the columns of a table, scaled by their standard deviations within classes."""
    noise = min(MOST_NOISE, NOISE * math.sqrt(max(1.0, math.prod(data.event_shape) / FEW_COLUMNS)))
    return CorrelatedNoise((noise * within_classes(data).diagonal().sqrt().diag()).to(data.x))


def within_classes(data: TrainingData) -> Tensor:
    """Return the covariance of the rows within their classes."""
    return covariance_of(data.x, data.y if len(data.labels) == 1 else None)


def correlated(model: JointModel, data: TrainingData) -> bool:
    """Whether the rows are a table with few enough columns for a covariance."""
    return kind_of(model) == "table" and math.prod(data.event_shape) <= CORRELATED


def adapts(model: JointModel, objective: Objective, data: TrainingData) -> bool:
    """Whether the default kernel has an adapted step size; the KL term needs Langevin instead."""
    return correlated(model, data) and not any("last_step" in term.draws for term in objective.terms)


def default_cadence(iterations: int) -> CadenceSettings:
    """Log metrics fifty times per run, check health eight times."""
    every = max(1, -(-iterations // CHECKS))
    return CadenceSettings(log=max(1, iterations // 50), check=every, checkpoint=every, keep=2)


def kind_of(model: JointModel) -> Literal["table", "small", "image"]:
    """Classify the data: a table with a reference, small rows in a box, or images."""
    if isinstance(model.domain, Reals):
        return "table"
    return "small" if math.prod(model.event_shape or ()) <= SMALL else "image"

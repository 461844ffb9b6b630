"""training: default settings by type of data; `docs/fit.md` describes how they were chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
MOST = 10_000  # iterations
GAUSSIANS = 1.5e8  # maximum entries of all class covariances for class Gaussian starts: 600 MB
LEAST_ROWS = 10  # minimum rows per class for class Gaussian starts
CHECKS = 8  # health checks per run
STEP = 0.1  # first step size for a table, in units of the covariance within classes
# Noise on the columns of a table, in standard deviations within classes. It grows as the root of the number of columns
# from FEW_COLUMNS on: rows of many columns lie far apart.
NOISE, FEW_COLUMNS, MOST_NOISE = 0.15, 8, 0.3
WIDE = 1.5  # maximum unit of x, in standard deviations

Kind = Literal["table", "small", "image"]


@dataclass(frozen=True)
class Numbers:
    """The default numbers of a kind of data, which `fit` and `jointenergy init` share. Those of chains are lengths in
    units of x."""

    label_weight: float
    """Of log p(y given x), where that of log p(x) is 1."""
    energy_l2: float
    steps: int
    sampling_steps: int
    step_size: float
    noise_scale: float
    gradient_clamp: float | None
    data_noise: float
    buffer: int
    restart: float
    uniform: float
    """Share of class Gaussian starts that are uniform instead."""
    batch_size: int
    learning_rate: float
    weight_decay: float
    epochs: int
    """Passes over the rows; images overfit sooner."""
    fewest: int
    """Minimum iterations."""


# Chains of a large buffer move seldom, and lag behind the weights. Chains do not leave uniform noise of many pixels.
SMALL_ROWS = Numbers(
    label_weight=2.0,
    energy_l2=0.1,
    steps=20,
    sampling_steps=100,
    step_size=0.5,
    noise_scale=0.1,
    gradient_clamp=None,
    data_noise=0.1,
    buffer=5000,
    restart=0.05,
    uniform=0.2,
    batch_size=128,
    learning_rate=1e-3,
    weight_decay=0.05,
    epochs=200,
    fewest=2000,
)
TABLE = replace(SMALL_ROWS, label_weight=1.0, energy_l2=0.001, steps=40, buffer=1000, uniform=0.0, learning_rate=2e-3)
IMAGES = Numbers(
    label_weight=3.0,
    energy_l2=0.2,
    steps=10,
    sampling_steps=100,
    step_size=0.5,
    noise_scale=0.03,
    gradient_clamp=1.0,
    data_noise=0.05,
    buffer=256,
    restart=0.02,
    uniform=0.0,
    batch_size=64,
    learning_rate=2e-3,
    weight_decay=0.01,
    epochs=60,
    fewest=1000,
)
NUMBERS: dict[Kind, Numbers] = {"table": TABLE, "small": SMALL_ROWS, "image": IMAGES}


def default_objective(model: JointModel) -> Objective:
    """Return JEM with an energy L2; log p(x) for a model without labels."""
    chosen = NUMBERS[kind_of(model)]
    density = LogPX() if len(model.labels) == 0 else LogPX() + LogPYGivenX(chosen.label_weight)
    return density + EnergyL2(chosen.energy_l2)


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
    else:
        n = NUMBERS[kind]
        clamp = None if n.gradient_clamp is None else n.gradient_clamp / unit
        langevin = kernels.Langevin(n.step_size * unit**2, n.noise_scale * unit, gradient_clamp=clamp, bounds=box)
    if not any(term.name == "log_p_xy" for term in objective.terms):
        return langevin
    return kernels.BlockGibbs(kernels.ExactGibbs() if model.can_sum() else kernels.GibbsWithGradients(), langevin)


def default_start(model: JointModel, data: TrainingData) -> StartSpec:
    """Return class Gaussians if every class has enough rows and they fit in memory, else a uniform start."""
    kind = kind_of(model)
    if gaussian_classes(data.y, data.labels.cardinalities, data.event_shape):
        return ClassGaussians(uniform=NUMBERS[kind].uniform)
    return Uniform(rows=len(data.x)) if kind == "table" else Uniform()


def gaussian_classes(y: Tensor, cardinalities: Sequence[int], event_shape: Sequence[int]) -> bool:
    """Whether every class of a single label has enough rows for a Gaussian, and all covariances fit in memory."""
    if len(cardinalities) != 1:
        return False
    counts = y[:, 0][y[:, 0] != MISSING].bincount(minlength=cardinalities[0])
    return int(counts.min()) >= LEAST_ROWS and len(counts) * math.prod(event_shape) ** 2 <= GAUSSIANS


def default_settings(model: JointModel, data: TrainingData, bounds: View, *, on_gpu: bool) -> dict[str, Any]:
    """Return the numbers of a run: steps, batch size, iterations, noise, optimizer."""
    kind, unit, n = kind_of(model), unit_of(data, bounds), len(data.x)
    chosen, image = NUMBERS[kind], kind == "image"
    batch_size = min(128 if on_gpu else chosen.batch_size, max(2, n // 2))
    iterations = min(MOST, max(chosen.fewest, chosen.epochs * n // batch_size))
    return {
        "batch_size": batch_size,
        "iterations": iterations,
        "steps": chosen.steps if kind != "table" or correlated(model, data) else SMALL_ROWS.steps,
        "sampling_steps": chosen.sampling_steps,
        "noise": default_noise(data) if correlated(model, data) else chosen.data_noise * unit,
        "buffer": ReplayBuffer(5000 if image and on_gpu else chosen.buffer, restart=chosen.restart),
        "optimizer": OptimizerSettings(
            name="adamw",
            learning_rate=1e-3 if on_gpu else chosen.learning_rate,
            weight_decay=chosen.weight_decay,
            clip_norm=1.0,
            warmup=min(100, iterations // 10),
            decay="cosine",
            ema=0.999 if image and iterations == MOST else 0.99,
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


def kind_of(model: JointModel) -> Kind:
    """Classify the data: a table with a reference, small rows in a box, or images."""
    if isinstance(model.domain, Reals):
        return "table"
    return "small" if math.prod(model.event_shape or ()) <= SMALL else "image"

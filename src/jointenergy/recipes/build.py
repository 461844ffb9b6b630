"""recipes: build everything a training run needs from a recipe and its data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jointenergy import kernels, objectives
from jointenergy.buffers import Buffer, ReplayBuffer, ReservoirBuffer
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.recipes.calls import Call, Named, made
from jointenergy.recipes.data import view_of
from jointenergy.recipes.networks import model_of, temperature_of
from jointenergy.recipes.schema import Recipe
from jointenergy.recipes.settings import HMCSettings, MALASettings, MixedHMCSettings, UnderdampedSettings
from jointenergy.starts import ClassGaussians, StartSpec, Uniform
from jointenergy.training.distributed import World
from jointenergy.training.plan import Plan, make_plan
from jointenergy.training.trainer import ALONE, Trainer


def trainer_of(recipe: Recipe, data: TrainingData, seed: int, *, guarded: bool = True, world: World = ALONE) -> Trainer:
    """Create a trainer for the recipe."""
    return Trainer(plan_of(recipe, data, seed, guarded=guarded), world)


def plan_of(recipe: Recipe, data: TrainingData, seed: int, *, guarded: bool = True) -> Plan:
    """Create the training plan of a recipe, with freshly initialized weights."""
    for what, names in (("data.augment", recipe.data.augment), ("chain.augment", recipe.chain.augment)):
        if names and len(data.event_shape) != 3:
            raise InputError(f"{what} needs images, but rows of {recipe.data.name!r} have shape {data.event_shape}")
    arguments = arguments_of(recipe, data)
    return make_plan(model_of(recipe, data, seed), data, **arguments, seed=seed, guarded=guarded)


def arguments_of(recipe: Recipe, data: TrainingData) -> dict[str, Any]:
    """Convert the recipe to arguments of `fit`, except model, data and seed."""
    return {name: made(value) for name, value in described_arguments(recipe, data).items()}


def described_arguments(recipe: Recipe, data: TrainingData) -> dict[str, Any]:
    """Like `arguments_of`, with arguments that depend on the data as calls."""
    described, chain = _described_objectives(recipe, data), recipe.chain
    return {
        "objective": described[0],
        "label_objective": described[1] if len(described) > 1 else None,
        "kernel": kernel_of(recipe),
        "bounds": view_of(recipe.data),
        "iterations": recipe.iterations,
        "batch_size": recipe.batch_size,
        "steps": chain.steps,
        "sampling_steps": chain.sampling_steps,
        "denoising_steps": chain.denoising_steps,
        "completion_steps": chain.completion_steps,
        "buffer": buffer_of(recipe),
        "start": x_start_of(recipe),
        "start_labels": recipe.start.labels,
        "dequantize": recipe.data.dequantize,
        "augment": recipe.data.augment,
        "noise": recipe.data.noise,
        "classifier_noise": recipe.data.classifier_noise,
        "chain_augment": chain.augment,
        "augment_every": chain.augment_every,
        "keep_labels": chain.keep_labels,
        "sum_labels": chain.sum_labels,
        "optimizer": recipe.optimizer,
        "cadence": recipe.cadence,
        "engine": recipe.engine,
    }


def kernel_of(recipe: Recipe) -> kernels.Kernel:
    """The kernel of the recipe's chains."""
    chain, moves_x, moves_y = recipe.chain, x_kernel_of(recipe), y_kernel_of(recipe)
    kernel = moves_x if moves_y is None else kernels.BlockGibbs(moves_y, moves_x, chain.x_steps)
    if chain.label_jump is None:
        return kernel
    jump, unit = chain.label_jump, temperature_of(recipe)
    same = chain.kernel.temperature / unit
    return kernels.Cycle((kernel, kernels.LabelJump(jump.step_size * unit, jump.steps, same)))


def y_kernel_of(recipe: Recipe) -> kernels.Kernel | None:
    """The kernel of labels, if chains move them."""
    moves = recipe.chain.label_moves
    by_name: dict[str, Callable[[], kernels.Kernel | None]] = {
        "none": lambda: None,
        "exact": kernels.ExactGibbs,
        "single-site": kernels.SingleSiteGibbs,
        "gibbs-with-gradients": lambda: kernels.GibbsWithGradients(moves.balancing),
        "discrete-mala": lambda: kernels.DiscreteMALA(moves.step_size),
        "path-auxiliary": lambda: kernels.PathAuxiliary(moves.flips, moves.balancing),
        "group-gibbs": lambda: kernels.GroupGibbs(moves.groups),
    }
    return by_name[recipe.chain.label_kernel]()


def x_kernel_of(recipe: Recipe) -> kernels.Kernel:
    """The kernel of x: Langevin clamped to the data's bounds if the recipe says so, or another.

    If the model is f / T, its gradients are 1 / T times those of f, so step sizes are T times those of the recipe.
    """
    kernel, unit = recipe.chain.kernel, temperature_of(recipe)
    if isinstance(kernel, MALASettings):
        return kernels.MALA(kernel.step_size * unit, kernel.temperature / unit)
    # Of motion the step is a time, in which x moves by the root of it.
    time = kernel.step_size * math.sqrt(unit)
    if isinstance(kernel, HMCSettings):
        return kernels.HMC(time, kernel.leapfrog_steps, kernel.temperature / unit, kernel.jitter)
    if isinstance(kernel, MixedHMCSettings):
        return kernels.MixedHMC(time, kernel.visits, kernel.leapfrog_steps, kernel.temperature / unit)
    if isinstance(kernel, UnderdampedSettings):
        return kernels.UnderdampedLangevin(time, kernel.friction / math.sqrt(unit), kernel.temperature / unit)
    decay = kernel.schedule
    return kernels.Langevin(
        kernel.step_size * unit,
        kernel.noise_scale,
        gradient_clamp=None if kernel.gradient_clamp is None else kernel.gradient_clamp / unit,
        bounds=(recipe.data.low, recipe.data.high) if recipe.chain.clamp else None,
        schedule=None if decay is None else kernels.PolynomialDecay(decay.power, decay.offset),
    )


def x_start_of(recipe: Recipe) -> StartSpec:
    """Create the start of x for fresh chains."""
    if recipe.start.x == "class-gaussians":
        return ClassGaussians(recipe.start.uniform)
    return Uniform(recipe.batch_size if recipe.start.x == "batch" else None)


def buffer_of(recipe: Recipe) -> Buffer | None:
    """Create the replay buffer, if the recipe has one."""
    if recipe.buffer.kind == "none":
        return None
    kind = ReplayBuffer if recipe.buffer.kind == "replay" else ReservoirBuffer
    return kind(recipe.buffer.size, restart=recipe.buffer.restart)


def objectives_of(recipe: Recipe, data: TrainingData) -> tuple[objectives.Objective, ...]:
    """Create the recipe's objective, or two objectives for separate batches."""
    return tuple(objective.make() for objective in _described_objectives(recipe, data))


def _described_objectives(recipe: Recipe, data: TrainingData) -> list[Call]:
    """Describe the terms of nonzero weight as one objective; with separate batches, log p(y | x) is a second one.

    For a model f / T all weights are multiplied by T, so that losses and gradients are those of f.
    """
    weights, label_weights, unit = recipe.objective, None, temperature_of(recipe)
    joint, marginal, labels = weights.log_p_xy, weights.log_p_x, weights.log_p_y_given_x
    if recipe.chain.label_temperature == "last":
        joint, marginal, labels = 0.0, marginal + joint, labels + recipe.chain.kernel.temperature * joint
    if weights.frequency_weights:
        label_weights = Call(objectives.frequency_weights, Named("data.y", data.y), Named("data.labels", data.labels))
    smoothing = {"label_smoothing": weights.label_smoothing} if weights.label_smoothing else {}
    classifier = Call(objectives.LogPYGivenX, weight=labels * unit, label_weights=label_weights, **smoothing)
    terms = [
        Call(objectives.LogPX, weight=marginal * unit),
        Call(objectives.LogPXY, weight=joint * unit),
        Call(objectives.LogPXGivenY, weight=weights.log_p_x_given_y * unit),
        Call(objectives.PseudoLikelihood, weight=weights.pseudo_likelihood * unit),
        Call(
            objectives.DenoisingScoreMatching,
            weight=weights.denoising_score_matching * unit,
            noise_scale=weights.noise_scale,
        ),
        Call(
            objectives.NoiseContrastiveEstimation,
            weight=weights.noise_contrastive_estimation * unit,
            n_noise=weights.n_noise,
        ),
        Call(
            objectives.EnergyDiscrepancy,
            weight=weights.energy_discrepancy * unit,
            n_noise=weights.n_noise,
            noise_scale=weights.noise_scale,
        ),
        Call(objectives.EnergyL2, weight=weights.energy_l2 * unit**2),
        Call(objectives.KLTerm, weight=weights.kl * unit, entropy_weight=weights.entropy / unit),
    ]
    groups = [terms, [classifier]] if recipe.data.separate_batches else [[*terms, classifier]]
    return [Call(objectives.Objective, tuple(t for t in group if t.kwargs["weight"] > 0)) for group in groups]

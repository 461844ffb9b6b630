"""training: from a recipe and its data to the chains, the objectives and the optimizer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from jointenergy.buffers import Buffer, ReplayBuffer, ReservoirBuffer
from jointenergy.errors import InputError
from jointenergy.kernels import BlockGibbs, ExactGibbs, GibbsWithGradients, Kernel, Langevin, SingleSiteGibbs
from jointenergy.models import JointModel
from jointenergy.objectives import (
    EnergyL2,
    KLTerm,
    LogPX,
    LogPXGivenY,
    LogPXY,
    LogPYGivenX,
    Objective,
    Term,
    frequency_weights,
)
from jointenergy.starts import (
    ClassGaussianStart,
    FrequencyLabels,
    LabelStart,
    MissingLabels,
    MixedStart,
    Start,
    UniformLabels,
    UniformStart,
    XStart,
)
from jointenergy.training.chains import Chains
from jointenergy.training.distributed import World
from jointenergy.training.feeds import TrainingData, augmentation_of, view_of
from jointenergy.training.order import seeded
from jointenergy.training.recipe import Recipe

LABEL_KERNELS: dict[str, Kernel] = {
    "exact": ExactGibbs(),
    "single-site": SingleSiteGibbs(),
    "gibbs-with-gradients": GibbsWithGradients(),
}


def kernel_of(recipe: Recipe) -> Kernel:
    chain = recipe.chain
    bounds = (recipe.data.low, recipe.data.high) if chain.clamp else None
    langevin = Langevin(chain.step_size, chain.noise_scale, gradient_clamp=chain.gradient_clamp, bounds=bounds)
    if chain.label_kernel == "none":
        return langevin
    return BlockGibbs(LABEL_KERNELS[chain.label_kernel], langevin, chain.x_steps)


def start_of(recipe: Recipe, data: TrainingData) -> Start:
    """Where chains begin; those that sample log p(x) and move no labels have them all missing."""
    uniform = UniformStart(recipe.data.low, recipe.data.high, data.event_shape, device=data.x.device)
    x_start: XStart = uniform
    if recipe.start.x == "batch":
        x_start = UniformStart.of_batch(data.x[: recipe.batch_size])
    elif recipe.start.x == "class-gaussians":
        bounds = (recipe.data.low, recipe.data.high)
        x_start = ClassGaussianStart.fit(data.x, data.y, data.labels, bounds=bounds if recipe.chain.clamp else None)
        if recipe.start.uniform > 0:
            x_start = MixedStart(uniform, x_start, recipe.start.uniform)
    label_start: LabelStart
    if recipe.chain.label_kernel == "none" and recipe.objective.log_p_x_given_y == 0 and not recipe.chain.keep_labels:
        label_start = MissingLabels(data.labels)
    elif recipe.start.labels == "uniform":
        label_start = UniformLabels(data.labels)
    else:
        label_start = FrequencyLabels.fit(data.y, data.labels)
    return Start(x_start, label_start)


def chains_of(
    recipe: Recipe,
    data: TrainingData,
    seed: int,
    world: World,
    *,
    guarded: bool = True,
    kernel: Kernel | None = None,
    start: Start | None = None,
) -> Chains:
    """The chains with this process's shard of the buffer, filled with fresh starts.

    `kernel` and `start` are the recipe's own, unless the caller has others.
    """
    buffer: Buffer | None = None
    if recipe.buffer.kind != "none":
        kind = ReplayBuffer if recipe.buffer.kind == "replay" else ReservoirBuffer
        size = max(recipe.buffer.size, recipe.batch_size)
        buffer = kind(world.share(size, "buffer.size"), data.event_shape, data.labels, device=data.x.device)
    bounds = view_of(recipe.data)
    if recipe.chain.augment and len(data.event_shape) != 3:
        raise InputError(f"chain.augment changes images, and rows of {recipe.data.name!r} are {data.event_shape}")
    chains = Chains(
        kernel_of(recipe) if kernel is None else kernel,
        recipe.chain.steps,
        start_of(recipe, data) if start is None else start,
        buffer,
        recipe.buffer.restart,
        seeded(seed, "chains", 0, world.rank, device=data.x.device),
        bounds,
        guarded,
        augmentation_of(recipe.chain.augment, bounds),
        recipe.chain.augment_every,
    )
    if buffer is not None:
        # In pieces: the draws of ten thousand images are large.
        for _ in range(0, buffer.capacity, 1000):
            n = min(1000, buffer.capacity - len(buffer))
            buffer.store(chains.fresh(n), generator=chains.generator)
    return chains


def objectives_of(recipe: Recipe, data: TrainingData) -> list[Objective]:
    """The terms whose weight is not zero, in one objective, or log p(y | x) in one of its own for separate batches."""
    weights = recipe.objective
    label_weights = frequency_weights(data.y, data.labels) if weights.frequency_weights else None
    classifier = LogPYGivenX(weights.log_p_y_given_x, label_weights)
    terms: list[Term] = [
        LogPX(weights.log_p_x),
        LogPXY(weights.log_p_xy),
        LogPXGivenY(weights.log_p_x_given_y),
        EnergyL2(weights.energy_l2),
        KLTerm(weights.kl, weights.entropy),
    ]
    groups: list[list[Term]] = [terms, [classifier]] if recipe.data.separate_batches else [[*terms, classifier]]
    return [Objective(tuple(t for t in group if t.weight > 0)) for group in groups]


def optimizer_of(recipe: Recipe, model: JointModel, rate: Tensor) -> torch.optim.Optimizer:
    """With its learning rate in a tensor that stays. Without weight decay: the step applies it, decoupled."""
    settings = recipe.optimizer
    # Fused: one program for all weights, and one that can be told by a tensor to change nothing (`found_inf`).
    common: dict[str, Any] = {"lr": rate, "fused": True}
    if settings.name == "sgd":
        common |= {"momentum": settings.momentum, "nesterov": settings.momentum > 0}
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), **common)
        if settings.momentum > 0:  # or else a first step that changes nothing would leave momenta that are no numbers
            for parameter in model.parameters():
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    common["capturable"] = rate.is_cuda  # its count of steps is a tensor there, as a recorded step needs it
    return torch.optim.Adam(model.parameters(), betas=(settings.beta1, settings.beta2), **common)


def inner_parameters(model: JointModel) -> list[Tensor]:
    """All but those of the last linear layer, which adaptive clipping leaves alone."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    last = {id(p) for p in layers[-1].parameters()} if layers else set()
    return [p for p in model.parameters() if id(p) not in last]


def learning_rate_factor(recipe: Recipe, iteration: int) -> float:
    """What the learning rate is multiplied by, a function of the iteration (from 0) alone."""
    settings = recipe.optimizer
    done = iteration / recipe.iterations
    factor = min(1.0, (iteration + 1) / settings.warmup) if settings.warmup else 1.0
    if settings.decay == "cosine":
        factor *= 0.5 * (1.0 + math.cos(math.pi * done))
    elif settings.decay == "staircase":
        factor *= settings.decay_factor ** sum(done >= at for at in settings.decay_at)
    return factor

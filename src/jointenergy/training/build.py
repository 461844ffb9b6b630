"""training: from a recipe and its data to the model, the chains, the objective and the optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jointenergy.buffers import Buffer, ReplayBuffer, ReservoirBuffer
from jointenergy.data import Dataset, Scale, load, split
from jointenergy.errors import InputError
from jointenergy.kernels import BlockGibbs, ExactGibbs, GibbsWithGradients, Kernel, Langevin, SingleSiteGibbs
from jointenergy.labels import LabelSpace
from jointenergy.models import Box, Concat, JointModel, LogitModel, PairModel, Reals
from jointenergy.networks import MLP, WideResNet
from jointenergy.objectives import EnergyL2, KLTerm, LogPX, LogPXY, LogPYGivenX, Objective, Term
from jointenergy.starts import (
    ClassGaussianStart,
    FrequencyLabels,
    LabelStart,
    MissingLabels,
    Start,
    UniformLabels,
    UniformStart,
    XStart,
)
from jointenergy.training.chains import Chains
from jointenergy.training.order import seeded
from jointenergy.training.recipe import MLPNetwork, Recipe

LABEL_KERNELS: dict[str, Kernel] = {
    "exact": ExactGibbs(),
    "single-site": SingleSiteGibbs(),
    "gibbs-with-gradients": GibbsWithGradients(),
}


@dataclass(frozen=True)
class TrainingData:
    """Rows scaled to the recipe's bounds, on the training device: those that are learned from, and held-out ones."""

    x: Tensor
    y: Tensor
    x_held: Tensor
    y_held: Tensor
    labels: LabelSpace

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])


def data_of(recipe: Recipe, folder: Path | None = None, device: torch.device | str = "cpu") -> TrainingData:
    """The training split, scaled, with the recipe's share held out; the held-out rows are the same for every seed."""
    dataset = load(recipe.data.name, folder, "train")
    if dataset.x.dtype == torch.uint8:
        scaled = Scale(recipe.data.low, recipe.data.high)(dataset.x)
        dataset = Dataset(scaled, dataset.y, dataset.labels, dataset.name)
    rest, held = (part.to(device) for part in split(dataset, recipe.data.validation, seed=0))
    return TrainingData(rest.x, rest.y, held.x, held.y, dataset.labels)


def model_of(recipe: Recipe, data: TrainingData, seed: int) -> JointModel:
    """The model with seeded weights; the global random state is left as it was."""
    settings, labels = recipe.model, data.labels
    domain = Box(recipe.data.low, recipe.data.high) if settings.domain == "box" else Reals(settings.reference_scale)
    network = settings.network
    size = math.prod(data.event_shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seeded(seed, "weights").initial_seed()))
        if isinstance(network, MLPNetwork):
            if settings.family == "pair":
                mlp = MLP((size + labels.n_codes, *network.hidden, 1), activation=network.activation)
                return PairModel(Concat(mlp), labels, domain=domain, event_shape=data.event_shape).to(data.x.device)
            mlp = MLP((size, *network.hidden, labels.n_codes), activation=network.activation)
            body: nn.Module = nn.Sequential(nn.Flatten(), mlp) if len(data.event_shape) > 1 else mlp
        else:
            if settings.family == "pair" or len(data.event_shape) != 3:
                raise InputError("a wide-resnet gives logits of images: use model.family = 'logits' and image data")
            norm = None if network.norm == "none" else network.norm
            body = WideResNet(
                network.depth,
                network.width,
                n_classes=labels.n_codes,
                in_channels=data.event_shape[0],
                norm=norm,
                activation=network.activation,
            )
        return LogitModel(body, labels, domain=domain, event_shape=data.event_shape).to(data.x.device)


def kernel_of(recipe: Recipe) -> Kernel:
    chain = recipe.chain
    bounds = (recipe.data.low, recipe.data.high) if chain.clamp else None
    langevin = Langevin(chain.step_size, chain.noise_scale, gradient_clamp=chain.gradient_clamp, bounds=bounds)
    if chain.label_kernel == "none":
        return langevin
    return BlockGibbs(LABEL_KERNELS[chain.label_kernel], langevin, chain.x_steps)


def start_of(recipe: Recipe, data: TrainingData) -> Start:
    """Chains that move no labels have them all missing: they sample log p(x)."""
    x_start: XStart
    if recipe.start.x == "uniform":
        x_start = UniformStart(recipe.data.low, recipe.data.high, data.event_shape, device=data.x.device)
    elif recipe.start.x == "batch":
        x_start = UniformStart.of_batch(data.x[: recipe.batch_size])
    else:
        bounds = (recipe.data.low, recipe.data.high)
        x_start = ClassGaussianStart.fit(data.x, data.y, data.labels, bounds=bounds if recipe.chain.clamp else None)
    label_start: LabelStart
    if recipe.chain.label_kernel == "none":
        label_start = MissingLabels(data.labels)
    elif recipe.start.labels == "uniform":
        label_start = UniformLabels(data.labels)
    else:
        label_start = FrequencyLabels.fit(data.y, data.labels)
    return Start(x_start, label_start)


def chains_of(recipe: Recipe, data: TrainingData, seed: int, *, guarded: bool = True) -> Chains:
    """The chains with their buffer, a replay buffer filled with fresh starts."""
    buffer: Buffer | None = None
    if recipe.buffer.kind != "none":
        kind = ReplayBuffer if recipe.buffer.kind == "replay" else ReservoirBuffer
        size = max(recipe.buffer.size, recipe.batch_size)
        buffer = kind(size, data.event_shape, data.labels, device=data.x.device)
    chains = Chains(
        kernel_of(recipe),
        recipe.chain.steps,
        start_of(recipe, data),
        buffer,
        recipe.buffer.restart,
        seeded(seed, "chains", 0),
        (recipe.data.low, recipe.data.high),
        guarded,
    )
    if buffer is not None:
        buffer.store(chains.fresh(buffer.capacity), generator=chains.generator)
    return chains


def objective_of(recipe: Recipe) -> Objective:
    """The terms whose weight is not zero."""
    weights = recipe.objective
    terms: list[Term] = [
        LogPX(weights.log_p_x),
        LogPYGivenX(weights.log_p_y_given_x),
        LogPXY(weights.log_p_xy),
        EnergyL2(weights.energy_l2),
        KLTerm(weights.kl),
    ]
    return Objective(tuple(t for t in terms if t.weight > 0))


def optimizer_of(recipe: Recipe, model: JointModel) -> torch.optim.Optimizer:
    """Without weight decay: the step applies it, decoupled, whatever the optimizer."""
    settings = recipe.optimizer
    common: dict[str, Any] = {"lr": settings.learning_rate}
    if settings.name == "sgd":
        common |= {"momentum": settings.momentum, "nesterov": settings.momentum > 0}
        return torch.optim.SGD(model.parameters(), **common)
    return torch.optim.Adam(model.parameters(), betas=(settings.beta1, settings.beta2), **common)


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

"""recipes: from a recipe and its data to all that a training run is made of."""

from __future__ import annotations

from jointenergy.buffers import Buffer, ReplayBuffer, ReservoirBuffer
from jointenergy.data.augmentations import augmentation
from jointenergy.errors import InputError
from jointenergy.kernels import BlockGibbs, ExactGibbs, GibbsWithGradients, Kernel, Langevin, SingleSiteGibbs
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
from jointenergy.recipes.data import changes_of, view_of
from jointenergy.recipes.networks import model_of
from jointenergy.recipes.schema import Recipe
from jointenergy.starts import (
    ClassGaussians,
    FrequencyLabels,
    LabelStart,
    MissingLabels,
    Start,
    Uniform,
    UniformLabels,
    XStartSpec,
)
from jointenergy.training.distributed import World
from jointenergy.training.feeds import TrainingData
from jointenergy.training.plan import Plan
from jointenergy.training.trainer import ALONE, Trainer

LABEL_KERNELS: dict[str, Kernel] = {
    "exact": ExactGibbs(),
    "single-site": SingleSiteGibbs(),
    "gibbs-with-gradients": GibbsWithGradients(),
}


def trainer_of(recipe: Recipe, data: TrainingData, seed: int, *, guarded: bool = True, world: World = ALONE) -> Trainer:
    """A trainer of the recipe."""
    return Trainer(plan_of(recipe, data, seed, guarded=guarded), world)


def plan_of(recipe: Recipe, data: TrainingData, seed: int, *, guarded: bool = True) -> Plan:
    """All that a run of the recipe is made of, with freshly drawn weights."""
    for what, names in (("data.augment", recipe.data.augment), ("chain.augment", recipe.chain.augment)):
        if names and len(data.event_shape) != 3:
            raise InputError(f"{what} changes images, and rows of {recipe.data.name!r} are {data.event_shape}")
    objectives, chain, bounds = objectives_of(recipe, data), recipe.chain, view_of(recipe.data)
    # The classifier's batch, the last one, is augmented; the density's is not, where it has one of its own.
    augmented = (True,) if len(objectives) == 1 else (False, True)
    return Plan(
        model=model_of(recipe, data, seed),
        data=data,
        objectives=objectives,
        kernel=kernel_of(recipe),
        start=start_of(recipe, data),
        bounds=bounds,
        iterations=recipe.iterations,
        batch_size=recipe.batch_size,
        steps=chain.steps,
        sampling_steps=chain.sampling_steps,
        completion_steps=chain.completion_steps,
        buffer=buffer_of(recipe),
        changes=tuple(changes_of(recipe.data, augment=augment) for augment in augmented),
        chain_augment=augmentation(chain.augment, bounds),
        augment_every=chain.augment_every,
        keep_labels=chain.keep_labels,
        sum_labels=chain.sum_labels,
        optimizer=recipe.optimizer,
        cadence=recipe.cadence,
        engine=recipe.engine,
        seed=seed,
        guarded=guarded,
        name=recipe.name,
    )


def kernel_of(recipe: Recipe) -> Kernel:
    """The kernel of the recipe's chains."""
    chain = recipe.chain
    bounds = (recipe.data.low, recipe.data.high) if chain.clamp else None
    langevin = Langevin(chain.step_size, chain.noise_scale, gradient_clamp=chain.gradient_clamp, bounds=bounds)
    if chain.label_kernel == "none":
        return langevin
    return BlockGibbs(LABEL_KERNELS[chain.label_kernel], langevin, chain.x_steps)


def x_start_of(recipe: Recipe) -> XStartSpec:
    """Where the x of fresh chains begins."""
    if recipe.start.x == "class-gaussians":
        return ClassGaussians(recipe.start.uniform)
    return Uniform(recipe.batch_size if recipe.start.x == "batch" else None)


def start_of(recipe: Recipe, data: TrainingData) -> Start:
    """Where chains begin; those that sample log p(x) and move no labels have them all missing."""
    bounds = (recipe.data.low, recipe.data.high)
    x_start = x_start_of(recipe).bind(data.x, data.y, data.labels, bounds, clamp=recipe.chain.clamp)
    label_start: LabelStart
    if recipe.chain.label_kernel == "none" and recipe.objective.log_p_x_given_y == 0 and not recipe.chain.keep_labels:
        label_start = MissingLabels(data.labels)
    elif recipe.start.labels == "uniform":
        label_start = UniformLabels(data.labels)
    else:
        label_start = FrequencyLabels.fit(data.y, data.labels)
    return Start(x_start, label_start)


def buffer_of(recipe: Recipe) -> Buffer | None:
    """Where chains are kept, if they are."""
    if recipe.buffer.kind == "none":
        return None
    kind = ReplayBuffer if recipe.buffer.kind == "replay" else ReservoirBuffer
    return kind(recipe.buffer.size, restart=recipe.buffer.restart)


def objectives_of(recipe: Recipe, data: TrainingData) -> tuple[Objective, ...]:
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
    return tuple(Objective(tuple(t for t in group if t.weight > 0)) for group in groups)

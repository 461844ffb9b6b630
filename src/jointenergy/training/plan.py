"""training: everything that a training run needs, bound to its data.

`jointenergy.fit` makes a plan from its arguments; a recipe is a file with these arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from jointenergy.buffers import Buffer
from jointenergy.data import GaussianNoise, View
from jointenergy.data.augmentations import Change, augmentation
from jointenergy.data.training import Pixels, TrainingData
from jointenergy.data.views import DequantizeRows
from jointenergy.errors import InputError, plural
from jointenergy.kernels import Kernel, Langevin
from jointenergy.kernels.base import Known
from jointenergy.labels import MISSING
from jointenergy.models import Box, JointModel
from jointenergy.objectives import DrawName, NoiseTerm, Objective
from jointenergy.starts import (
    FrequencyLabels,
    LabelStart,
    MissingLabels,
    SomeLabels,
    Start,
    StartSpec,
    Uniform,
    UniformLabels,
    XStart,
)
from jointenergy.training.health import at_bounds
from jointenergy.training.settings import CadenceSettings, EngineSettings, OptimizerSettings
from jointenergy.training.sharpness import SharpnessAware

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Gradients = Callable[[Callable[[], Tensor], list[nn.Parameter]], None]
"""Sets gradients on the parameters; the first argument computes the loss at the current weights."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The model, data and settings of a run. The model is trained in place."""

    model: JointModel
    data: TrainingData
    objectives: tuple[Objective, ...]
    """One objective, or two on separate batches: the density terms, then log p(y | x)."""
    kernel: Kernel
    start: Start
    bounds: View
    """The range of x, used to recognize diverged chains."""
    iterations: int
    batch_size: int
    steps: int = 20
    """Chain steps per iteration."""
    sampling_steps: int = 200
    """Chain steps per sample of the trained model."""
    denoising_steps: int = 0
    """The last of these, which are without noise."""
    completion_steps: int = 10
    """Chain steps that complete a row's missing entries at each visit."""
    density_every: int = 1
    """Of two objectives, the first takes part, with its chains, in every so many iterations."""
    buffer: Buffer | None = None
    """The replay buffer, not yet bound to the data; None starts every chain fresh."""
    changes: tuple[Sequence[Change], ...] = ((),)
    """Transforms of the rows of each objective, applied at each use."""
    chain_augment: Sequence[Change] = ()
    """Augmentation of chains drawn from the buffer."""
    augment_every: int = 0
    """After how many steps a chain of a trained model is augmented; 0: never."""
    keep_labels: float = 0.0
    """The share of chains that keep the label they began with, which the objective does not see."""
    sum_labels: bool = False
    """Whether the objective averages over labels at the final x of chains, instead of using their own labels."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    make_optimizer: OptimizerFactory | None = None
    """The user's optimizer, instead of one from the settings."""
    gradients: Gradients | None = None
    """Computes gradients from the loss, for example sharpness-aware minimization; None: one backward pass."""
    ema_of: Callable[[int], float] | None = None
    """The decay of the averaged weights at an iteration, if it is not constant."""
    negative_labels: Callable[[Tensor, torch.Generator], Tensor] | None = None
    """Maps the labels of rows to those of negatives of p(x | y); None: the same."""
    scored_labels: Callable[[Tensor], Tensor] | None = None
    """The labels at which data and chains are compared; None: summed out if the model can."""
    label_rows: int = 0
    """The rows, before equal ones were merged, of data without numbers: samples are compared by labels; else 0."""
    cadence: CadenceSettings = field(default_factory=CadenceSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    seed: int = 0
    guarded: bool = True
    adapted: bool = False
    """Whether the step size of a MALA kernel follows the share of its moves that is accepted."""

    @functools.cached_property
    def needs_of(self) -> tuple[frozenset[DrawName], ...]:
        """The draws that each objective needs."""
        missing, masked = bool((self.data.y == MISSING).any()), self.data.mask is not None
        return tuple(o.needs(self.model, missing_labels=missing, masked_x=masked) for o in self.objectives)

    @functools.cached_property
    def needs(self) -> frozenset[DrawName]:
        return frozenset[DrawName]().union(*self.needs_of)

    @property
    def uses_chains(self) -> bool:
        return bool(self.needs & {"negatives", "given_y"})

    @property
    def of_density(self) -> bool:
        """Whether a density of x is trained, by chains or without them."""
        return any(o.of_density for o in self.objectives)

    def scored(self, y: Tensor) -> tuple[Tensor, Known]:
        """Return the labels at which data and chains are compared: summed out, unless chains have given labels or the
        sum is intractable. Also return which of them are missing, if that is known statically."""
        if self.scored_labels is not None:
            return self.scored_labels(y), None
        own = self.model.normalizer == "conditional" or "given_y" in self.needs or not self.model.can_sum()
        return (y.clamp(min=0), "complete") if own else (torch.full_like(y, MISSING), "missing")

    @functools.cached_property
    def spread(self) -> Tensor:
        """The mean standard deviation of the entries of x, over held-out rows."""
        return self.data.x_held.std(0, correction=0).mean()

    @functools.cached_property
    def share_at_bounds(self) -> Tensor:
        """The share of values at the bounds, over held-out rows."""
        return at_bounds(self.data.x_held, self.bounds)


def make_plan(
    model: JointModel,
    data: TrainingData,
    *,
    objective: Objective,
    label_objective: Objective | None = None,
    kernel: Kernel,
    bounds: View,
    iterations: int,
    batch_size: int,
    steps: int = 20,
    sampling_steps: int = 200,
    denoising_steps: int = 0,
    completion_steps: int = 10,
    buffer: Buffer | None = None,
    start: StartSpec | XStart | Start | None = None,
    start_labels: Literal["uniform", "frequency"] = "uniform",
    dequantize: Pixels = "none",
    augment: Sequence[str | Change] = (),
    noise: float | Change = 0.0,
    classifier_noise: float | None = None,
    chain_augment: Sequence[str | Change] = (),
    augment_every: int = 0,
    keep_labels: float = 0.0,
    sum_labels: bool = False,
    optimizer: OptimizerSettings | OptimizerFactory | None = None,
    gradients: Gradients | None = None,
    cadence: CadenceSettings | None = None,
    engine: EngineSettings | None = None,
    seed: int = 0,
    guarded: bool = True,
    adapted: bool = False,
) -> Plan:
    """Bind the parts of a run to its data.

    With a `label_objective` the augmentation is for its batches alone: the density has batches of its own rows, which
    are not augmented. `classifier_noise` is the noise on its batches, where it differs from `noise`. Noise on data
    stays within the bounds that chains stay within. Chains that sample log p(x) and move no labels have none.
    """
    changes, chain_changes = _changes(augment, data, bounds, "augment"), _changes(chain_augment, data, bounds, "chains")
    before: list[Change] = []
    if dequantize != "none":
        before.append(DequantizeRows(dequantize, bounds[0], bounds[1], logit=bounds.levels is not None))
    box = (bounds[0], bounds[1]) if clamped(kernel, model) else None  # data and chains share one domain
    if label_objective is None and classifier_noise is not None:
        raise InputError("classifier_noise is for a label_objective with batches of its own: leave it out")

    if denoising_steps > sampling_steps:
        raise InputError(
            f"denoising_steps are the last of {plural(sampling_steps, 'sampling step')}: give at most as many, got "
            f"{denoising_steps}"
        )
    if denoising_steps and not isinstance(getattr(kernel, "x_kernel", kernel), Langevin):
        raise InputError("denoising_steps are steps of Langevin: set them to 0, or use a Langevin kernel")

    def noised(by: float | Change) -> list[Change]:
        if not isinstance(by, float | int):
            return [by]
        return [GaussianNoise(by, clamp=box)] if by > 0 else []

    augmented = (*before, *changes, *noised(noise if classifier_noise is None else classifier_noise))
    asked = (objective,) if label_objective is None else (objective, label_objective)
    objectives = tuple(_at_temperature(o, kernel) for o in asked)
    settings = optimizer if isinstance(optimizer, OptimizerSettings) else None
    return Plan(
        model=model,
        data=data,
        objectives=objectives,
        kernel=kernel,
        start=_start(start, start_labels, data, bounds, kernel, model, objective, keep_labels=keep_labels),
        bounds=bounds,
        iterations=iterations,
        batch_size=batch_size,
        steps=steps,
        sampling_steps=sampling_steps,
        denoising_steps=denoising_steps,
        completion_steps=completion_steps,
        buffer=buffer,
        changes=(augmented,) if label_objective is None else ((*before, *noised(noise)), augmented),
        chain_augment=chain_changes,
        augment_every=augment_every,
        keep_labels=keep_labels,
        sum_labels=sum_labels,
        optimizer=settings or OptimizerSettings(),
        make_optimizer=None if settings is not None or optimizer is None else optimizer,  # type: ignore[arg-type]
        gradients=SharpnessAware(settings.sam) if gradients is None and settings and settings.sam else gradients,
        cadence=cadence or CadenceSettings(),
        engine=engine or EngineSettings(),
        seed=seed,
        guarded=guarded,
        adapted=adapted,
    )


def _changes(named: Sequence[str | Change], data: TrainingData, bounds: View, what: str) -> list[Change]:
    if named and len(data.event_shape) != 3:
        raise InputError(f"the augmentation of {what} needs images, but rows have shape {data.event_shape}")
    found: list[Change] = []
    for change in named:
        found += augmentation([change], bounds) if isinstance(change, str) else [change]
    return found


def _start(
    start: StartSpec | XStart | Start | None,
    start_labels: Literal["uniform", "frequency"],
    data: TrainingData,
    bounds: View,
    kernel: Kernel,
    model: JointModel,
    objective: Objective,
    *,
    keep_labels: float,
) -> Start:
    if isinstance(start, Start):
        return start
    start = Uniform() if start is None else start
    clamp = clamped(kernel, model)
    x_start = start.bind(data.x, data.y, data.labels, bounds, clamp=clamp) if isinstance(start, StartSpec) else start
    conditional = model.normalizer == "conditional" or any("given_y" in term.draws for term in objective.terms)
    if not kernel.moves_y and not conditional and not keep_labels:
        return Start(x_start, MissingLabels(data.labels))
    label_start: LabelStart = UniformLabels(data.labels)
    if start_labels == "frequency":
        label_start = FrequencyLabels.fit(data.y, data.labels)
    if 0 < keep_labels < 1:
        label_start = SomeLabels(label_start, keep_labels)
    return Start(x_start, label_start)


def _at_temperature(objective: Objective, kernel: Kernel) -> Objective:
    """Give terms that compare rows with noise the temperature at which the kernel samples, if they have none."""
    if not any(isinstance(t, NoiseTerm) and t.temperature is None for t in objective.terms):
        return objective
    temperature = getattr(getattr(kernel, "x_kernel", kernel), "temperature", 1.0)
    if temperature == 0:
        raise InputError(
            "chains without noise have temperature 0 and no density: give the terms of the objective a temperature"
        )
    return Objective(tuple(t.at(temperature) if isinstance(t, NoiseTerm) else t for t in objective.terms))


def clamped(kernel: Kernel, model: JointModel) -> bool:
    """Return whether chains stay within bounds: clamped Langevin, or an exact kernel that rejects outside a box."""
    moves_x = getattr(kernel, "x_kernel", kernel)
    return moves_x.bounds is not None if isinstance(moves_x, Langevin) else isinstance(model.domain, Box)

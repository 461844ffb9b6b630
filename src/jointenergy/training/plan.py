"""training: everything that a training run is made of, built and bound to its data.

`jointenergy.fit` makes a plan from its arguments; a recipe is a file that says those arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from jointenergy.buffers import Buffer
from jointenergy.data import View
from jointenergy.data.augmentations import Change
from jointenergy.kernels import Kernel
from jointenergy.models import JointModel
from jointenergy.objectives import Objective
from jointenergy.starts import Start
from jointenergy.training.feeds import TrainingData
from jointenergy.training.settings import CadenceSettings, EngineSettings, OptimizerSettings

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Gradients = Callable[[Callable[[], Tensor], list[nn.Parameter]], None]
"""Leaves gradients on the parameters; the first argument computes the loss at the present weights."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What is trained, on what, and how. The model is trained in place."""

    model: JointModel
    data: TrainingData
    objectives: tuple[Objective, ...]
    """One, or two on batches of their own rows: the density's terms, then log p(y | x)."""
    kernel: Kernel
    start: Start
    bounds: View
    """The range of x, by which chains that left it are recognized."""
    iterations: int
    batch_size: int
    steps: int = 20
    """Chain steps of an iteration."""
    sampling_steps: int = 200
    """Chain steps of a sample from the start, when the model is trained."""
    completion_steps: int = 10
    """Chain steps that complete what a row misses, at each visit of it."""
    buffer: Buffer | None = None
    """Where chains are kept, not yet bound to the data; None starts every chain afresh."""
    changes: tuple[Sequence[Change], ...] = ((),)
    """What is done to the rows of each objective, each time that they are used."""
    chain_augment: Sequence[Change] = ()
    """What is done to chains that are drawn from the buffer."""
    augment_every: int = 0
    """After how many steps a chain of a trained model is augmented; 0: never."""
    keep_labels: bool = False
    """Whether each chain keeps the label that it began with, which the objective does not see."""
    sum_labels: bool = False
    """Whether the objective averages over the labels of chains that move them."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    make_optimizer: OptimizerFactory | None = None
    """The user's own optimizer, in place of the settings' one."""
    gradients: Gradients | None = None
    """How gradients are computed from the loss, as by sharpness-aware minimization; None: by one backward pass."""
    ema_of: Callable[[int], float] | None = None
    """The decay of the averaged weights at an iteration, where it is not constant."""
    negative_labels: Callable[[Tensor, torch.Generator], Tensor] | None = None
    """The labels that negatives of p(x | y) have, of those of their rows; None: the same."""
    scored_labels: Callable[[Tensor], Tensor] | None = None
    """The labels at which data and chains are compared; None: all summed out wherever the model can."""
    cadence: CadenceSettings = field(default_factory=CadenceSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    seed: int = 0
    guarded: bool = True
    name: str = "fit"

"""tables: how the joint density of a table is trained; `runs.fitting` trains it, in memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from jointenergy.buffers import ReplayBuffer
from jointenergy.data import CorrelatedNoise, View
from jointenergy.data.training import TrainingData
from jointenergy.kernels import BlockGibbs, PreconditionedMALA
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import TiltedGaussianModel
from jointenergy.objectives import LogPTargetsGivenRest, LogPXY, Objective, Term
from jointenergy.runs.fitting import train_plan
from jointenergy.starts import FrequencyLabels, MissingLabels, Start
from jointenergy.streams import seeded
from jointenergy.tables.density import FEW_STATES, X_STEPS, TableDensity, mover_of, x_kernel
from jointenergy.tables.early_stopping import EarlyStopping
from jointenergy.tables.gaussians import Gaussians
from jointenergy.tables.grids import LogPNumberGivenRest, TargetGrid
from jointenergy.tables.model import GaussianStart, tilted_model
from jointenergy.training import state
from jointenergy.training.callbacks import Callback
from jointenergy.training.check import check_trainer
from jointenergy.training.health import Health
from jointenergy.training.loop import Loop
from jointenergy.training.plan import Plan
from jointenergy.training.settings import CadenceSettings, EngineSettings, OptimizerSettings
from jointenergy.training.trainer import Trainer

SMALL_SHARE = 200.0  # volume of the uniform noise in health checks, relative to the data's own box
LONG = 1000  # longer fits are checked during training too
AVERAGED = 0.99  # decay of the averaged weights
SAMPLING_STEPS = 20  # chain steps of a health check, which also runs ten times as many


@dataclass(frozen=True)
class FitSettings:
    """Hold the settings of a fit, chosen from the data, and the weights of its terms."""

    iterations: int
    batch_size: int = 64
    hidden: tuple[int, ...] = (64, 64)
    shared: tuple[int, ...] = (64, 64)
    """Widths of the network of the value that all logits share."""
    density_every: int = 1
    steps: int = 3
    label_weight: float = 100.0
    learning_rate: float = 4e-3
    weight_decay: float = 0.5
    noise: float = 0.1
    label_noise: float = 0.1
    decay: bool = True
    target: int | None = None
    """Position of a regressor's target among the numbers."""


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Hold what the next call needs besides the model, on the CPU.

    A fitted density has averaged weights. Continuing from those would undo most of a short call: with decay 0.99 an
    average keeps one hundredth of a step.
    """

    weights: dict[str, Tensor]
    """Weights of the model, not averaged."""
    optimizer: dict[str, Tensor]
    """Moments and counts of the optimizer, named as in checkpoints."""
    iterations: int
    """Iterations of all calls so far."""

    @classmethod
    def of(cls, trainer: Trainer, before: int, *, set_back: bool) -> TrainingState:
        """Return the state after `before` iterations of earlier calls. After a rollback, training continues from the
        averaged weights of the rollback with a new optimizer."""
        tensors = {k: v.detach().cpu().clone() for k, v in state.save(trainer, {}).tensors.items()}
        weights = state.under(tensors, "ema/" if set_back else "model/")
        optimizer = {} if set_back else state.under(tensors, "optimizer/")
        return cls(weights, optimizer, before + trainer.iteration)

    def next_seed(self, seed: int) -> int:
        """Return the seed of the next call, so that it does not repeat noise, rows and chains of the previous one."""
        return int(seeded(seed, "after", self.iterations).initial_seed())


def unbiased(decay: float, n: int) -> float:
    """Return the decay at the n-th step of a moving average without bias toward its initial value."""
    return decay * (1.0 - decay ** (n - 1)) / (1.0 - decay**n)


def training_data(
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    weight: Tensor,
    split: tuple[Tensor, Tensor],
    labels: LabelSpace,
    *,
    shape: tuple[int, ...],
    device: torch.device | str,
) -> TrainingData:
    """Return the rows of a `split`, held-out and training rows. Health is judged on held-out rows, or on training rows
    if none are held out."""
    held, rest = split
    judged = held if len(held) else rest

    x, mask, share = x.float().view(-1, *shape), mask.view(-1, *shape), shares(weight[rest])
    hidden, share = None if bool(mask[rest].all()) else mask[rest], None if share is None else share.float()
    return TrainingData(x[rest], y[rest], x[judged], y[judged], labels, hidden, share).to(device)


def shares(weight: Tensor) -> Tensor | None:
    """Return row weights of mean 1, None if all are equal."""
    share = weight / weight.mean()
    return None if bool((share == 1).all()) else share


def bound_of(x: Tensor) -> float:
    """Return bounds so wide that uniform noise between them rarely looks like data."""
    if not bool(x.any()):
        return 1.0  # a table without numbers has a column of zeros, in which the guard must see chains move
    n_features = x[0].numel()
    return float(x.abs().max().clamp(min=1.0)) * max(2.0, float(SMALL_SHARE ** (1 / n_features)))


def optimizer_settings(settings: FitSettings) -> OptimizerSettings:
    """Return the rules of the optimizer, which cross-validation shares."""
    return OptimizerSettings(
        name="adamw",
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        clip_norm=5.0,
        warmup=min(50, max(1, settings.iterations // 10)),
        decay="cosine" if settings.decay else "none",
        ema=AVERAGED,
    )


def table_plan(
    settings: FitSettings,
    data: TrainingData,
    seed: int,
    *,
    bound: float,
    gaussians: Gaussians,
    n_targets: int,
    n_rows: int,
    before: TableDensity | None = None,
    progress: TrainingState | None = None,
) -> Plan:
    """Plan the training of a tilted Gaussian by MALA at temperature 1, its step size tuned by the acceptance rate.

    The objective is log p(x, y) of the observed entries plus a weighted log p(targets | the rest). Noise on rows has
    the covariance of the reference. Training continues from the density `before` and its `progress`, where given.
    """
    labels = data.labels
    if before is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seeded(seed, "weights").initial_seed()))
            model = tilted_model(gaussians, data, n_targets, settings.hidden, settings.shared)
    else:
        model = copy.deepcopy(before.model).float()
        if progress is not None:
            model.load_state_dict(progress.weights)
    model = model.to(data.x.device).requires_grad_(True).train()
    discrete, exact = n_targets < len(labels), labels.n_states <= FEW_STATES
    kernel = x_kernel(model, 0.3 if before is None else before.step_size)
    if discrete:
        kernel = mover_of(labels, kernel).kernel
    # When chains draw labels too, a step has several moves of x.
    moves = X_STEPS if exact and discrete else 1
    objectives = _objectives(settings, n_targets, data, gaussians)
    root = torch.linalg.cholesky(gaussians.covariance).mT.to(data.x)
    noises = (settings.noise, settings.label_noise)[: len(objectives)]
    changes = tuple((CorrelatedNoise(root * noise),) if data.mask is None else () for noise in noises)
    frequent, n_before = FrequencyLabels.fit(data.y, labels), 0 if progress is None else progress.iterations
    # A long fit keeps healthy checkpoints for rollback; a short one is judged at its end.
    half = settings.iterations if settings.iterations <= LONG else settings.iterations // 2
    return Plan(
        model=model,
        data=data,
        objectives=objectives,
        kernel=kernel,
        start=Start(
            GaussianStart(gaussians, data.event_shape, data.x), frequent if discrete else MissingLabels(labels)
        ),
        bounds=View(-bound, bound),
        iterations=settings.iterations,
        batch_size=settings.batch_size,
        steps=settings.steps // moves,
        sampling_steps=max(4, min(SAMPLING_STEPS, 2 * settings.iterations) // moves),
        completion_steps=settings.steps // moves,
        density_every=settings.density_every if len(objectives) > 1 else 1,
        buffer=ReplayBuffer(max(500, 4 * settings.batch_size), restart=0.02),
        changes=changes,
        optimizer=optimizer_settings(settings),
        # partial_fit calls may be one step each: use the unbiased average.
        ema_of=None if before is None and settings.decay else lambda i: unbiased(AVERAGED, n_before + i + 1),
        scored_labels=lambda y: compared_labels(y, n_targets, frequent.frequencies),
        label_rows=0 if bool(data.x.any()) else n_rows,  # a table without numbers has a column of zeros
        cadence=CadenceSettings(log=1, check=half, checkpoint=half, keep=2),
        # A tuned kernel would be recorded again at every change.
        engine=EngineSettings(record="off", compile="off", precision="float32"),
        seed=seed,
        adapted=True,
    )


def go_on(trainer: Trainer, before: TableDensity | None, progress: TrainingState | None) -> None:
    """Restore the averaged weights, chains and optimizer of earlier calls in a trainer."""
    buffer = trainer.chains.buffer
    if before is not None and buffer is not None:
        trainer.ema.load_state_dict(before.model.state_dict())
        chains, n = buffer.state_dict(), min(len(before.chains_x), buffer.capacity)
        chains["x"][:n], chains["y"][:n] = before.chains_x[:n], before.chains_y[:n]
        buffer.load_state_dict(chains)
    if progress is not None:
        state.restore_optimizer(trainer, progress.optimizer)


def compared_labels(y: Tensor, n_targets: int, frequencies: Tensor) -> Tensor:
    """Return labels for comparing data with chains: targets missing, so that they are summed out; missing discrete
    features replaced by the most frequent value, since they may be too many to sum out."""
    compared = torch.full_like(y, MISSING)
    if y.shape[1] > n_targets:
        compared[:, n_targets:] = torch.where(y == MISSING, frequencies.argmax(1), y)[:, n_targets:]
    return compared


def _objectives(
    settings: FitSettings, n_targets: int, data: TrainingData, gaussians: Gaussians
) -> tuple[Objective, ...]:
    extra = settings.label_weight - 1.0
    if extra <= 0 or (not n_targets and settings.target is None):
        return (Objective((LogPXY(),)),)
    asked: Term
    if settings.target is None:
        asked = LogPTargetsGivenRest(extra, n_targets)
    else:
        asked = LogPNumberGivenRest(extra, TargetGrid.of(gaussians, settings.target))
    # Rows with missing features are completed once for both terms.
    if data.mask is not None:
        return (Objective((LogPXY(), asked)),)
    return Objective((LogPXY(),)), Objective((asked,))


def mala_of(trainer: Trainer) -> PreconditionedMALA:
    """Return the kernel that moves x."""
    kernel = trainer.chains.kernel
    kernel = kernel.x_kernel if isinstance(kernel, BlockGibbs) else kernel
    assert isinstance(kernel, PreconditionedMALA)
    return kernel


class OneCheck(Callback):
    """Take the last check as the verdict: it judged the weights that are kept, so no second check is needed."""

    def on_check(self, loop: Loop) -> None:
        if loop.ended:
            loop.confirmed = loop.health


@dataclass
class LossCurve(Callback):
    """Record the loss of each iteration; a rollback overwrites the losses it takes back.

    Where the density takes part in some iterations only, the loss is the sum of as many as have it once.
    """

    of: dict[int, float] = field(default_factory=dict)
    own: dict[int, float] = field(default_factory=dict)
    """The loss of each iteration alone."""

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        at = loop.trainer.iteration
        self.own[at] = values["loss"]
        self.of[at] = sum(self.own.get(at - k, 0.0) for k in range(loop.trainer.plan.density_every))


@dataclass(frozen=True, eq=False)
class FitResult:
    """Hold the outcome of a fit."""

    density: TableDensity
    health: Health
    n_iter: int
    losses: list[float]
    scores: list[float]
    """Held-out log p(targets | the rest) at each evaluation of early stopping."""
    progress: TrainingState
    stopped: bool
    """Whether early stopping ended it."""
    diverged: bool
    """Whether the chains diverged for good; the last healthy weights are then used."""


def train(
    plan: Plan,
    gaussians: Gaussians,
    *,
    before: TableDensity | None = None,
    progress: TrainingState | None = None,
    stopping: EarlyStopping | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult:
    """Train to the end or to early stopping; if chains diverge for good, use the last healthy weights."""
    losses, set_back = LossCurve(), False
    watching = [OneCheck(), losses, *([] if stopping is None else [stopping]), *callbacks]
    loop, diverged = train_plan(plan, callbacks=watching, prepare=lambda trainer: go_on(trainer, before, progress))
    trainer = loop.trainer
    if diverged is not None:
        trainer.ema.load_state_dict(state.under(loop.store.load(loop.last_healthy).tensors, "ema/"))
        set_back = True
    if stopping is not None and stopping.worse and stopping.kept is not None:
        trainer.ema.load_state_dict(stopping.kept)
        set_back = True
    # The verdict is of the weights that are kept.
    health = check_trainer(trainer) if set_back or loop.health is None else loop.health
    model = copy.deepcopy(trainer.ema).cpu().double()
    assert isinstance(model, TiltedGaussianModel)
    buffer = trainer.chains.buffer
    assert buffer is not None
    chains = buffer.state_dict()
    density = TableDensity(model, gaussians, mala_of(trainer).step_size, chains["x"].cpu(), chains["y"].cpu())
    kept = [losses.of[i] for i in sorted(losses.of) if i <= trainer.iteration]
    scores = [] if stopping is None else stopping.scores
    reached = TrainingState.of(trainer, 0 if progress is None else progress.iterations, set_back=set_back)
    stopped = stopping is not None and stopping.worse >= stopping.patience
    return FitResult(density, health, trainer.iteration, kept, scores, reached, stopped, diverged is not None)

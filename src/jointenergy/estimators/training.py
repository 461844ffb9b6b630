"""estimators: a table's law, trained by the library's own trainer, loop and guard, in a folder that is thrown away."""

from __future__ import annotations

import copy
import math
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from jointenergy.estimators.anchors import GaussianStart, anchored_model
from jointenergy.estimators.gaussians import Gaussians
from jointenergy.estimators.law import FEW_STATES, X_STEPS, Law, mover_of, x_kernel
from jointenergy.kernels import BlockGibbs, Kernel, PreconditionedMALA
from jointenergy.kernels.mala import MALA
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import AnchoredModel, JointModel
from jointenergy.objectives import LogPTargetsGivenRest, LogPXY, Objective
from jointenergy.starts import FrequencyLabels, MissingLabels, Start
from jointenergy.training import build, measure
from jointenergy.training.chains import Chains
from jointenergy.training.checkpoints import load as load_checkpoint
from jointenergy.training.feeds import Change, TrainingData
from jointenergy.training.health import Health
from jointenergy.training.loop import Diverged, Fit, Report
from jointenergy.training.order import seeded
from jointenergy.training.recipe import Recipe
from jointenergy.training.settings import (
    BufferSettings,
    CadenceSettings,
    ChainSettings,
    DataSettings,
    EngineSettings,
    ModelSettings,
    ObjectiveSettings,
    OptimizerSettings,
)
from jointenergy.training.state import under
from jointenergy.training.trainer import Trainer

TUNE = 10  # iterations between two looks at how many moves are accepted
ACCEPTED = 0.6  # the share of moves that MALA should accept
LEAST_STEP, MOST_STEP = 1e-5, 1.0  # of the anchor's variance
SAMPLING_STEPS = 20  # of the chains of a check of health, and ten times as many: twice what samples are drawn with
SMALL_SHARE = 200.0  # uniform noise that health is judged against fills that many times the data's own box


@dataclass(frozen=True)
class Plan:
    """The sizes of a fit, chosen from the data, and the weights of its terms."""

    iterations: int
    batch_size: int = 64
    hidden: tuple[int, ...] = (64, 64)
    steps: int = 6
    label_weight: float = 100.0
    learning_rate: float = 4e-3
    weight_decay: float = 0.5
    noise: float = 0.1
    label_noise: float = 0.1
    decay: bool = True

    def recipe(self, bound: float, labels: LabelSpace, n_targets: int) -> Recipe:
        """As the engine's own settings; chains and objective are the table trainer's."""
        exact = labels.n_states <= FEW_STATES
        # Where chains draw labels too, a step is several moves of x.
        moves = X_STEPS if exact and n_targets < len(labels) else 1
        return Recipe(
            name="table",
            iterations=self.iterations,
            batch_size=self.batch_size,
            data=DataSettings(name="table", low=-bound, high=bound),
            model=ModelSettings(domain="reals"),
            objective=ObjectiveSettings(log_p_x=0.0, log_p_xy=1.0, log_p_y_given_x=self.label_weight - 1.0),
            chain=ChainSettings(
                steps=self.steps // moves,
                step_size=0.3,
                noise_scale=math.sqrt(2 * 0.3),
                sampling_steps=max(4, min(SAMPLING_STEPS, 2 * self.iterations) // moves),
                label_kernel="exact" if exact else "gibbs-with-gradients",
                completion_steps=self.steps // moves,
            ),
            buffer=BufferSettings(size=max(500, 4 * self.batch_size), restart=0.02),
            optimizer=OptimizerSettings(
                name="adamw",
                learning_rate=self.learning_rate,
                weight_decay=self.weight_decay,
                clip_norm=5.0,
                warmup=min(50, max(1, self.iterations // 10)),
                decay="cosine" if self.decay else "none",
                ema=0.99,
            ),
            cadence=CadenceSettings(
                log=1, check=max(100, self.iterations // 2), checkpoint=max(100, self.iterations // 2), keep=2
            ),
            # Tuned kernels would be recorded anew at every change.
            engine=EngineSettings(record="off", compile="off", precision="float32"),
        )


class TableTrainer(Trainer):
    """The trainer of an anchored model: MALA at temperature 1, whose step size follows what is accepted.

    The objective is log p(x, y) of what is observed plus more of log p(targets | the rest). Rows are noised in the
    shape of the anchor.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: TrainingData,
        seed: int,
        *,
        gaussians: Gaussians,
        n_targets: int,
        plan: Plan,
        before: Law | None = None,
    ) -> None:
        self.gaussians, self.n_targets, self.plan, self.before = gaussians, n_targets, plan, before
        super().__init__(recipe, data, seed)
        if data.mask is None:
            for feed, noise in zip(self.feeds, (plan.noise, plan.label_noise), strict=False):
                feed.changes = [self._noised(noise)]

    def make_model(self) -> JointModel:
        device = self.data.x.device
        if self.before is not None:
            model = copy.deepcopy(self.before.model).float()
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(seeded(self.seed, "weights").initial_seed()))
                model = anchored_model(self.gaussians, self.data, self.n_targets, self.plan.hidden)
        return model.to(device).requires_grad_(True).train()

    def make_objectives(self) -> list[Objective]:
        extra = self.plan.label_weight - 1.0
        if not self.n_targets or extra <= 0:
            return [Objective((LogPXY(),))]
        classes = LogPTargetsGivenRest(extra, self.n_targets)
        # Rows that miss features are completed once for both terms.
        if self.data.mask is not None:
            return [Objective((LogPXY(), classes))]
        return [Objective((LogPXY(),)), Objective((classes,))]

    def make_chains(self) -> Chains:
        labels, data = self.data.labels, self.data
        assert isinstance(self.model, AnchoredModel)
        step_size = 0.3 if self.before is None else self.before.step_size
        kernel = x_kernel(self.model, step_size)
        discrete = self.n_targets < len(labels)
        if discrete:
            kernel = mover_of(labels, kernel).kernel
        label_start = FrequencyLabels.fit(data.y, labels) if discrete else MissingLabels(labels)
        start = Start(GaussianStart(self.gaussians, data.event_shape, data.x), label_start)
        chains = build.chains_of(self.recipe, data, self.seed, self.world, kernel=kernel, start=start)
        buffer, before = chains.buffer, self.before
        if before is not None and buffer is not None and len(before.chains_x) == buffer.capacity:
            state = {"x": before.chains_x.clone(), "y": before.chains_y.clone()}
            buffer.load_state_dict(buffer.state_dict() | state)
        return chains

    def step(self):  # type: ignore[no-untyped-def]  # noqa: ANN201 (as the trainer's)
        found = super().step()
        moved = found[1]
        if moved is not None and moved.acceptance is not None and self.iteration % TUNE == 0:
            self.tune(float(moved.acceptance.mean()))
        return found

    @property
    def step_size(self) -> float:
        """Of the kernel that moves x."""
        kernel = self.chains.kernel.x_kernel if isinstance(self.chains.kernel, BlockGibbs) else self.chains.kernel
        assert isinstance(kernel, MALA | PreconditionedMALA)
        return kernel.step_size

    def tune(self, accepted: float) -> None:
        """A longer step where much is accepted, a shorter one where little is."""
        factor = math.exp(0.7 * (accepted - ACCEPTED))
        step_size = min(max(self.step_size * factor, LEAST_STEP), MOST_STEP)
        kernel = self.chains.kernel
        if isinstance(kernel, BlockGibbs):
            self.chains.kernel = replace(kernel, x_kernel=_with_step(kernel.x_kernel, step_size))
        else:
            self.chains.kernel = _with_step(kernel, step_size)

    def scored(self, y: Tensor) -> Tensor:
        """Targets summed out; discrete features as they are, since they may be too many to sum."""
        return torch.cat((torch.full_like(y[:, : self.n_targets], MISSING), y[:, self.n_targets :].clamp(min=0)), dim=1)

    def _noised(self, noise: float) -> Change:
        if len(self.data.event_shape) > 1:
            return lambda x, g: x + noise * torch.randn(x.shape, generator=g, device=x.device)
        root = torch.linalg.cholesky(self.gaussians.covariance).mT.to(self.data.x) * noise
        return lambda x, g: x + torch.randn(x.shape, generator=g, device=x.device) @ root


def _with_step(kernel: Kernel, step_size: float) -> Kernel:
    assert isinstance(kernel, MALA | PreconditionedMALA)
    return replace(kernel, step_size=step_size)


@dataclass(frozen=True, eq=False)
class Trained:
    """What a fit leaves."""

    law: Law
    health: Health | None
    n_iter: int
    losses: list[float]
    scores: list[float]
    """The held-out log p(targets | the rest), at each look of early stopping."""


@dataclass
class Watch:
    """Early stopping: keeps the newest weights that are within a standard error of the best, and says when to stop.

    The newest, not the best: the density goes on learning where the classes have nothing left to learn.
    """

    score: Callable[[TableTrainer], Tensor]
    """The held-out log-probabilities, one for each row."""
    every: int
    patience: int
    scores: list[float] = field(default_factory=list)
    kept: dict[str, Tensor] | None = None
    error: float = 0.0
    """The standard error of the best score."""
    worse: int = 0
    """Looks in a row that were worse than the best by more than that."""

    def look(self, run: Fit, trainer: TableTrainer) -> None:
        if trainer.iteration % self.every:
            return
        found = self.score(trainer)
        score, best = float(found.mean()), max(self.scores, default=-math.inf)
        self.scores.append(score)
        if score > best:
            self.error = float(found.std(correction=0)) / math.sqrt(len(found))
            best = score
        near = score >= best - self.error
        self.worse = 0 if near else self.worse + 1
        if near:
            self.kept = {k: v.clone() for k, v in trainer.ema.state_dict().items()}
        run.enough = self.worse >= self.patience


def train(
    trainer: TableTrainer, *, watch: Watch | None = None, report: Callable[[Report], None] = lambda _: None
) -> Trained:
    """To the end, or to where early stopping ends it; a run that could not be kept healthy warns and is taken as is."""
    losses: dict[int, float] = {}

    def tell(said: Report) -> None:
        if "loss" in said.values:
            losses[said.iteration] = said.values["loss"]
        report(said)

    with tempfile.TemporaryDirectory(prefix="jointenergy-") as name:
        run = Fit(Path(name), trainer, report=tell)
        if watch is not None:
            run.before_step = lambda _: watch.look(run, trainer)
        run.begin()
        try:
            run.fit()
            if watch is not None:
                watch.look(run, trainer)
        except Diverged:
            where = run.checkpoint_folder / run.last_healthy
            trainer.ema.load_state_dict(under(load_checkpoint(where).tensors, "ema/"))
            warnings.warn(
                f"the chains could not be kept healthy after {trainer.iteration} iterations, and the last healthy "
                "weights are used: look at health_, and take more or other features",
                ConvergenceWarning,
                stacklevel=3,
            )
    health = run.health
    if watch is not None and watch.worse and watch.kept is not None:
        trainer.ema.load_state_dict(watch.kept)
        health = measure.check(trainer)
    model = copy.deepcopy(trainer.ema).cpu().double()
    assert isinstance(model, AnchoredModel)
    buffer = trainer.chains.buffer
    assert buffer is not None
    state = buffer.state_dict()
    law = Law(model, trainer.gaussians, trainer.step_size, state["x"].cpu(), state["y"].cpu())
    kept = [losses[i] for i in sorted(losses) if i <= trainer.iteration]
    return Trained(law, health, trainer.iteration, kept, [] if watch is None else watch.scores)


def bound_of(x: Tensor) -> float:
    """Bounds around the data so wide that uniform noise between them hardly ever looks like data."""
    n_features = x[0].numel()
    return float(x.abs().max().clamp(min=1.0)) * max(2.0, float(SMALL_SHARE ** (1 / n_features)))

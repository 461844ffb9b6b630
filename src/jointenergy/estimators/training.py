"""estimators: a table's law, trained by the library's own trainer, loop and guard, in a folder that is thrown away."""

from __future__ import annotations

import copy
import math
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from jointenergy.estimators.anchors import GaussianStart, tilted_model
from jointenergy.estimators.feeding import most_frequent
from jointenergy.estimators.gaussians import Gaussians
from jointenergy.estimators.holding import Watch
from jointenergy.estimators.law import FEW_STATES, X_STEPS, Law, mover_of, x_kernel
from jointenergy.estimators.progress import Progress, unbiased
from jointenergy.kernels import BlockGibbs, Kernel, PreconditionedMALA
from jointenergy.kernels.base import Known
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import JointModel, TiltedGaussianModel
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
from jointenergy.training.state import restore_optimizer, under
from jointenergy.training.trainer import Trainer

TUNE = 10  # iterations between two looks at how many moves are accepted
ACCEPTED = 0.6  # the share of moves that MALA should accept
LEAST_STEP, MOST_STEP = 1e-5, 1.0  # of the anchor's variance
SAMPLING_STEPS = 20  # of the chains of a check of health, and ten times as many: twice what samples are drawn with


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
    """The trainer of a tilted Gaussian: MALA at temperature 1, whose step size follows what is accepted.

    The objective is log p(x, y) of what is observed plus more of log p(targets | the rest). Rows are noised in the
    shape of the anchor. It goes on from a law `before`, and from where its training stood if `progress` says that.
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
        progress: Progress | None = None,
    ) -> None:
        self.gaussians, self.n_targets, self.plan = gaussians, n_targets, plan
        self.before, self.progress = before, progress
        self.common = most_frequent(data.y, data.labels)
        super().__init__(recipe, data, seed)
        if before is not None:
            self.ema.load_state_dict(before.model.state_dict())
        if progress is not None:
            restore_optimizer(self, progress.optimizer)
        if data.mask is None:
            for feed, noise in zip(self.feeds, (plan.noise, plan.label_noise), strict=False):
                feed.changes = [self._noised(noise)]

    def make_model(self) -> JointModel:
        device = self.data.x.device
        if self.before is not None:
            model = copy.deepcopy(self.before.model).float()
            if self.progress is not None:
                model.load_state_dict(self.progress.weights)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(seeded(self.seed, "weights").initial_seed()))
                model = tilted_model(self.gaussians, self.data, self.n_targets, self.plan.hidden)
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
        assert isinstance(self.model, TiltedGaussianModel)
        step_size = 0.3 if self.before is None else self.before.step_size
        kernel = x_kernel(self.model, step_size)
        discrete = self.n_targets < len(labels)
        if discrete:
            kernel = mover_of(labels, kernel).kernel
        label_start = FrequencyLabels.fit(data.y, labels) if discrete else MissingLabels(labels)
        start = Start(GaussianStart(self.gaussians, data.event_shape, data.x), label_start)
        chains = build.chains_of(self.recipe, data, self.seed, self.world, kernel=kernel, start=start)
        buffer, before = chains.buffer, self.before
        if before is not None and buffer is not None:
            state, n = buffer.state_dict(), min(len(before.chains_x), buffer.capacity)
            state["x"][:n], state["y"][:n] = before.chains_x[:n], before.chains_y[:n]
            buffer.load_state_dict(state)
        return chains

    @property
    def n_before(self) -> int:
        """Iterations of earlier calls."""
        return 0 if self.progress is None else self.progress.iterations

    @property
    def ema_decay(self) -> float:
        """Where training comes in pieces, which may be one step each, the average forgets where it began."""
        decay = super().ema_decay
        whole = self.before is None and self.plan.decay
        return decay if whole else unbiased(decay, self.n_before + self.iteration + 1)

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
        assert isinstance(kernel, PreconditionedMALA)
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

    def scored(self, y: Tensor) -> tuple[Tensor, Known]:
        """Targets summed out; discrete features as they are, since they may be too many to sum, and compared with
        those of chains, which miss none: where they are missing, the most frequent."""
        summed = torch.full_like(y[:, : self.n_targets], MISSING)
        others = torch.where(y == MISSING, self.common, y)[:, self.n_targets :]
        return torch.cat((summed, others), dim=1), None

    def _noised(self, noise: float) -> Change:
        root = torch.linalg.cholesky(self.gaussians.covariance).mT.to(self.data.x) * noise
        return lambda x, g: x + (torch.randn(len(x), len(root), generator=g, device=x.device) @ root).view_as(x)


def _with_step(kernel: Kernel, step_size: float) -> Kernel:
    assert isinstance(kernel, PreconditionedMALA)
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
    progress: Progress


def train(
    trainer: TableTrainer, *, watch: Watch | None = None, report: Callable[[Report], None] = lambda _: None
) -> Trained:
    """To the end, or to where early stopping ends it; a run that could not be kept healthy warns and is taken as is."""
    losses: dict[int, float] = {}
    set_back = False

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
            set_back = True
            warnings.warn(
                f"the chains could not be kept healthy after {trainer.iteration} iterations, and the last healthy "
                "weights are used: look at health_, and take more or other features",
                ConvergenceWarning,
                stacklevel=3,
            )
    health = run.health
    if watch is not None and watch.worse and watch.kept is not None:
        trainer.ema.load_state_dict(watch.kept)
        set_back = True
        health = measure.check(trainer)
    model = copy.deepcopy(trainer.ema).cpu().double()
    assert isinstance(model, TiltedGaussianModel)
    buffer = trainer.chains.buffer
    assert buffer is not None
    state = buffer.state_dict()
    law = Law(model, trainer.gaussians, trainer.step_size, state["x"].cpu(), state["y"].cpu())
    kept = [losses[i] for i in sorted(losses) if i <= trainer.iteration]
    scores = [] if watch is None else watch.scores
    progress = Progress.of(trainer, trainer.n_before, set_back=set_back)
    return Trained(law, health, trainer.iteration, kept, scores, progress)

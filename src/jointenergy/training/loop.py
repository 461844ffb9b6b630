"""training: the loop around the step, with the guard's decisions, checkpoints, metrics and events."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from jointenergy.errors import InputError
from jointenergy.training import checkpoints
from jointenergy.training.checkpoints import Checkpoint
from jointenergy.training.guard import Guard, Judgment
from jointenergy.training.health import Health
from jointenergy.training.journal import Journal
from jointenergy.training.recipe import write
from jointenergy.training.trainer import Trainer

TELL = 25  # iterations that purged chains are counted up for one event
WATCH = 5  # iterations between two looks of the guard
MAX_ATTEMPTS = 6  # rollbacks before a run gives up
MAX_STEPS = 8  # times the recipe's chain steps, at the most
STEPS_UP = 1.5  # what one raise multiplies the chain steps by
RATE_DOWN = 0.5  # what one lowering multiplies the learning rate by


class Interrupted(RuntimeError):  # noqa: N818 (it says what happened)
    """The run was asked to stop; all of it is saved."""


class Diverged(RuntimeError):  # noqa: N818 (it says what happened)
    """The run could not be kept healthy; the last healthy weights are safe in its folder."""


@dataclass(frozen=True)
class Report:
    """Where a run stands, for whoever shows it."""

    iteration: int
    iterations: int
    values: dict[str, float]
    event: str | None = None


@dataclass
class Run:
    """A run folder and the trainer in it: `fit` goes to the end, whatever happens on the way."""

    folder: Path
    trainer: Trainer
    report: Callable[[Report], None] = lambda _: None
    before_step: Callable[[Trainer], None] = lambda _: None
    guard: Guard = field(default_factory=Guard)
    health: Health | None = None
    accuracy: float = float("nan")
    best_accuracy: float = -1.0
    interventions: int = 0
    seconds: float = 0.0
    stop: bool = False
    """Set from outside to end the run after the present step, saved."""
    last_healthy: str = "iteration-00000000"
    """Where a rollback goes: the newest checkpoint found healthy, the first of the run until there is one."""
    n_purged: int = 0
    unhealthy: int = 0
    """Checks in a row that found the run unhealthy."""

    def __post_init__(self) -> None:
        self.guarded = self.trainer.guarded
        self.journal = Journal(self.folder)
        self._shown: dict[str, float] = {}

    @property
    def checkpoint_folder(self) -> Path:
        return self.folder / "checkpoints"

    def begin(self) -> None:
        """Write the recipe and the first checkpoint: from here on the run can be resumed."""
        (self.folder / "recipe.toml").write_text(write(self.trainer.recipe))
        self._save(checked=False)

    def resume(self) -> None:
        """Go on from the newest checkpoint that is whole."""
        found, messages = checkpoints.newest(self.checkpoint_folder)
        if found is None:
            raise InputError(f"{self.folder} has no checkpoint that is whole: start the run again in a new folder")
        self.trainer.restore(found)
        values = found.values
        self.journal.load_state_dict(values["journal"])
        self.guard.load_state_dict(values["guard"])
        self.best_accuracy, self.interventions = values["best_accuracy"], values["interventions"]
        self.last_healthy, self.n_purged, self._shown = values["last_healthy"], values["n_purged"], values["shown"]
        self.unhealthy = values["unhealthy"]
        self.accuracy, self.seconds = values["accuracy"], values["seconds"]
        self.health = Health(**values["health"]) if values["health"] is not None else None
        for message in messages:
            self._event("damaged", message)
        for path in checkpoints.all_in(self.checkpoint_folder):
            if path.name > f"iteration-{found.iteration:08d}":
                shutil.rmtree(path)

    def fit(self) -> None:
        """To the recipe's last iteration, or `Diverged` when all tries are spent."""
        trainer, cadence = self.trainer, self.trainer.recipe.cadence
        while trainer.iteration < trainer.recipe.iterations:
            began = time.perf_counter()
            self.before_step(trainer)
            loss, moved, norm = trainer.step()
            judgment = Judgment("fine")
            if moved is not None and trainer.iteration % WATCH == 0:
                signals = trainer.signals(loss, moved, norm)
                judgment = self.guard.judge(signals)
                self._shown = {"f_data": signals.f_data, "f_samples": signals.f_samples, "gap": signals.gap}
            self.seconds += time.perf_counter() - began
            if self.guarded and self._react(judgment):
                continue
            if trainer.iteration % cadence.log == 0:
                parts = {name: float(value) for name, value in loss.parts.items()}
                self._log({"loss": float(loss.total.detach()), **parts, "gradient_norm": float(norm)})
            checked = trainer.iteration % cadence.check == 0 or trainer.iteration == trainer.recipe.iterations
            if checked and self._check():
                continue
            if checked or self.stop or trainer.iteration % cadence.checkpoint == 0:
                self._save(checked=checked)
            if self.stop:
                raise Interrupted(f"stopped after iteration {trainer.iteration}, all of it saved in {self.folder}")

    # What is done about trouble.

    def _tell_purges(self) -> None:
        """Say what the step has mended by itself: chains begun afresh, batches left out."""
        trainer = self.trainer
        if bool(trainer.chains.n_purged):
            trainer.chains.sweep()
            self.n_purged += int(trainer.chains.n_purged)
            trainer.chains.n_purged = torch.zeros_like(trainer.chains.n_purged)
        # One line for a spell of purging, not one for each step of it.
        if self.n_purged and trainer.iteration % TELL == 0:
            self._event("purge", f"{self.n_purged} chain(s) were sick and begun afresh", chains=self.n_purged)
            self.n_purged = 0
        if trainer.n_skipped and trainer.iteration % TELL == 0:
            n_skipped, trainer.n_skipped = trainer.n_skipped, 0
            self._event("skip", f"{n_skipped} batch(es) with a loss or gradient that is not finite changed no weight")

    def _react(self, judgment: Judgment) -> bool:
        """Whether the run was set back."""
        self._tell_purges()
        if judgment.verdict == "lagging":
            self._raise_steps(judgment.reason)
        if judgment.verdict != "trouble":
            return False
        self._roll_back(judgment.reason)
        return True

    def _raise_steps(self, reason: str) -> None:
        trainer = self.trainer
        most = MAX_STEPS * trainer.recipe.chain.steps
        if trainer.chains.steps < most:
            before = trainer.chains.steps
            trainer.chains.steps = min(most, max(before + 1, round(before * STEPS_UP)))
            self._event("steps", f"{reason}: chain steps go from {before} to {trainer.chains.steps}")

    def _roll_back(self, reason: str) -> None:
        """To the last healthy checkpoint, with new streams, then more steps, then a lower learning rate."""
        trainer = self.trainer
        at = trainer.iteration
        if trainer.attempt >= MAX_ATTEMPTS:
            self._event("diverged", f"{reason}; all {MAX_ATTEMPTS} tries are spent")
            raise Diverged(
                f"the run diverged at iteration {at} and {MAX_ATTEMPTS} rollbacks did not help ({reason}); its last "
                f"healthy weights are in {self.checkpoint_folder}, what happened is in {self.folder / 'events.jsonl'}"
            )
        attempt, steps, scale = trainer.attempt + 1, trainer.chains.steps, trainer.learning_rate_scale
        checkpoint = self._last_healthy()
        trainer.restore_weights(checkpoint)
        trainer.attempt = attempt
        trainer.chains.steps, trainer.learning_rate_scale = steps, scale
        trainer.new_streams()
        self.journal.cut_metrics(checkpoint.values["journal"])
        self.guard.forget()
        course = "new random streams"
        if attempt % 3 == 2:
            most = MAX_STEPS * trainer.recipe.chain.steps
            trainer.chains.steps = min(most, max(steps + 1, round(steps * STEPS_UP)))
            course = f"chain steps go from {steps} to {trainer.chains.steps}"
        elif attempt % 3 == 0:
            trainer.learning_rate_scale = scale * RATE_DOWN
            course = f"the learning rate is multiplied by {trainer.learning_rate_scale:g}"
        self._event(
            "rollback",
            f"{reason}: back from iteration {at} to {trainer.iteration}, {course}",
            attempt=attempt,
            rolled_back_at=at,
        )

    def _last_healthy(self) -> Checkpoint:
        """The newest checkpoint found healthy, or the first of the run. Later ones are removed: they are in doubt."""
        for path in checkpoints.all_in(self.checkpoint_folder):
            if path.name > self.last_healthy:
                shutil.rmtree(path)
        return checkpoints.load(self.checkpoint_folder / self.last_healthy)

    # What is written.

    def _check(self) -> bool:
        """Measure accuracy and health; whether the run was set back because it lost its health."""
        trainer = self.trainer
        self.accuracy = trainer.accuracy()
        if not trainer.uses_chains:
            return False
        self.health = trainer.health()
        ended = trainer.iteration >= trainer.recipe.iterations
        self.unhealthy = 0 if self.health.healthy else self.unhealthy + 1
        # Early in a run chains have yet to arrive; one that has been healthy must stay so.
        if self.health.healthy or (self.best_accuracy < 0 and not ended):
            return False
        reason = self.health.complaints[0]
        self._event("unhealthy", reason)
        # One bad check on the way may be chance; a run must not end on one.
        if not self.guarded or self.best_accuracy < 0 or (self.unhealthy < 2 and not ended):
            return False
        self._roll_back(reason)
        self.unhealthy = 0
        self.health = None
        return True

    def _save(self, *, checked: bool) -> None:
        """A checkpoint; one whose health was checked just now may be the best, or one to roll back to."""
        healthy = checked and (not self.trainer.uses_chains or (self.health is not None and self.health.healthy))
        better = healthy and self.accuracy > self.best_accuracy
        if better:
            self.best_accuracy = self.accuracy
        if healthy:
            self.last_healthy = f"iteration-{self.trainer.iteration:08d}"
        values: dict[str, Any] = {
            "journal": self.journal.state_dict(),
            "guard": self.guard.state_dict(),
            "best_accuracy": self.best_accuracy,
            "interventions": self.interventions,
            "accuracy": self.accuracy,
            "seconds": self.seconds,
            "last_healthy": self.last_healthy,
            "n_purged": self.n_purged,
            "shown": self._shown,
            "unhealthy": self.unhealthy,
            "health": None
            if self.health is None
            else {k: v for k, v in self.health.values().items() if k != "healthy"},
        }
        path = checkpoints.save(self.checkpoint_folder, self.trainer.checkpoint(values))
        if better:
            checkpoints.mark_best(self.checkpoint_folder, path)
        checkpoints.prune(self.checkpoint_folder, self.trainer.recipe.cadence.keep, spare=[self.last_healthy])

    def _log(self, values: dict[str, float]) -> None:
        row = {"iteration": self.trainer.iteration, **values, **self._shown, "steps": self.trainer.chains.steps}
        self.journal.metrics({**row, "seconds": round(self.seconds, 3)})
        self.report(Report(self.trainer.iteration, self.trainer.recipe.iterations, {**row, "accuracy": self.accuracy}))

    def _event(self, kind: str, sentence: str, **values: Any) -> None:  # noqa: ANN401 (JSON)
        if kind in ("purge", "skip", "steps", "rollback"):
            self.interventions += 1
        self.journal.event(kind, self.trainer.iteration, sentence, **values)
        self.report(Report(self.trainer.iteration, self.trainer.recipe.iterations, {}, event=sentence))

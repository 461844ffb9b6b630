"""training: the loop around the step: guard, checkpoints, metrics, events, callbacks."""

from __future__ import annotations

import copy
import json
import math
import time
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter

from jointenergy.errors import InputError, plural
from jointenergy.files.schema import Measured, Natural, Number, of_json
from jointenergy.limits import LARGEST
from jointenergy.training import checkpoints, edits, evidence, measure, state
from jointenergy.training.callbacks import Callback, Event
from jointenergy.training.chains import with_step_size
from jointenergy.training.check import check, check_trainer
from jointenergy.training.checkpoints import Checkpoint
from jointenergy.training.guard import Guard, Judgment, Signals
from jointenergy.training.health import Health
from jointenergy.training.journal import Journal, checked
from jointenergy.training.recovery import FIRST, MAX_TRIES, Recovery, raise_steps
from jointenergy.training.stores import FolderStore, MemoryStore, Store
from jointenergy.training.trainer import Trainer

TELL = 25  # iterations per event of restarted chains
WATCH = 5  # iterations between looks of the guard
MANY_SKIPS = 25  # skipped batches in a row that cannot be due to bad data
LATE, LATE_CHECKS = 0.5, 3  # a run not yet healthy after this share of iterations and so many checks is rolled back too
INTERVENTIONS = ("purge", "skip", "steps", "rate", "rollback")


class Interrupted(RuntimeError):  # noqa: N818 (it says what happened)
    """The run was stopped on request, after saving."""


class Diverged(RuntimeError):  # noqa: N818 (it says what happened)
    """The run diverged beyond recovery; its last healthy weights are saved."""


@dataclass(frozen=True)
class _LoopCourse:
    """The state of a loop in a checkpoint."""

    best_score: Number | None
    interventions: Natural
    accuracy: Measured
    seconds: Annotated[float, Field(ge=0, le=LARGEST)]
    n_purged: Natural
    shown: dict[str, Measured]
    unhealthy: Natural
    health: Health | None
    confirmed: Health | None


_COURSE = TypeAdapter(_LoopCourse)


@dataclass
class Loop:
    """Train to the end with recovery from divergence; a run with a folder can be resumed after any crash."""

    trainer: Trainer
    folder: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings of the run as plain values: stored in checkpoints, and compared on resume."""
    callbacks: list[Callback] = field(default_factory=list)
    guard: Guard = field(default_factory=Guard)
    health: Health | None = None
    """Health at the last check."""
    confirmed: Health | None = None
    """Health of the best weights at the end, with new chains, since one of many checks may pass by chance."""
    accuracy: float = float("nan")
    best_score: float | None = None
    """Score of the best healthy checkpoint; None if there is none."""
    interventions: int = 0
    seconds: float = 0.0
    stop: bool = False
    """Set from outside to save and stop after the current step."""
    enough: bool = False
    """Set from outside to make the current iteration the last: it is checked and saved like the final one."""
    recovery: Recovery = field(default_factory=Recovery)
    n_purged: int = 0
    unhealthy: int = 0
    """Unhealthy checks in a row."""

    def __post_init__(self) -> None:
        self.guarded, self.world = self.trainer.guarded, self.trainer.world
        self.look = measure.Look(self.trainer)
        self.store: Store = MemoryStore() if self.folder is None else FolderStore(self.folder / "checkpoints")
        self.journal = Journal(self.folder, silent=not self.world.first)
        # Fixes the columns from the first row, whenever the first look is.
        names = ("f_data", "f_samples", "gap") if self.trainer.uses_chains else ()
        self._shown: dict[str, float] = dict.fromkeys(names, math.nan)
        self._found: tuple[str, dict[str, Any], list[str], str | None] | None = None
        self._edits: list[edits.Edit] = []
        self._signals: Signals | None = None
        self._untold: list[Event] = []

    @property
    def ended(self) -> bool:
        """Whether all iterations are done."""
        return self.enough or self.trainer.iteration >= self.trainer.plan.iterations

    @property
    def complete(self) -> bool:
        """Whether all iterations are done and the best weights, if there are any, are checked once more."""
        unconfirmed = self.confirmed is None and self.best_score is not None and self.trainer.plan.of_density
        return self.ended and not unconfirmed

    @property
    def verdict(self) -> Health | None:
        """The health of the final result: of the best weights, or the last check if none were healthy."""
        return self.confirmed or self.health

    @property
    def score(self) -> float:
        """The criterion of the best checkpoint: accuracy minus the distance of samples from data."""
        accuracy = self.accuracy if math.isfinite(self.accuracy) else 0.0
        return accuracy - (0.0 if self.health is None else self.health.distance)

    @property
    def last_healthy(self) -> str:
        return self.recovery.last_healthy

    @property
    def checkpoint_folder(self) -> Path:
        if self.folder is None:
            raise InputError("the run has no folder: its checkpoints are in memory")
        return self.folder / "checkpoints"

    @property
    def where(self) -> str:
        """The name of the run in messages."""
        return "the run" if self.folder is None else str(self.folder)

    def begin(self) -> None:
        """Write the first checkpoint, from which the run can be resumed."""
        for warning in self.trainer.warnings:
            self._event("warning", warning)
        self._save(checked=False)

    def resume(self) -> None:
        """Continue from the newest intact checkpoint."""
        found, messages = state.newest(self.store, self.world, self.where)
        try:
            self._edits = edits.allowed(found.values["settings"], self.settings, found.iteration, self.where)
            changed = state.restore(self.trainer, found)
            self._take_values(found)
        except KeyError as missing:
            raise InputError(
                f"the checkpoints of {self.where} are from another version of jointenergy, without {missing}: continue "
                "with the version that started the run, or train in a new folder"
            ) from None
        self._found = (checkpoints.name_of(found.iteration), checked(found.values["journal"]), messages, changed)

    def _take_values(self, found: Checkpoint) -> None:
        values = found.values
        self.guard.load_state_dict(values["guard"])
        self.recovery.load_state_dict(values["recovery"])
        plain = json.dumps({f.name: values[f.name] for f in fields(_LoopCourse)})
        course = of_json(_COURSE, plain, "the checkpoint is damaged")
        self.best_score, self.interventions = course.best_score, course.interventions
        self.n_purged, self.unhealthy, self._shown = course.n_purged, course.unhealthy, course.shown
        self.accuracy, self.seconds = course.accuracy, course.seconds
        self.health, self.confirmed = course.health, course.confirmed

    def _take_up(self) -> None:
        """Truncate the log files to the checkpoint; a run opened only for reading keeps them."""
        if self._found is None:
            return
        name, journal, messages, changed = self._found
        self._found = None
        for message in self.journal.load_state_dict(journal):
            self._event("repaired", message)
        for message in messages:
            self._event("damaged", message)
        for edit in self._edits:
            self._event("edited", edits.sentence(edit), key=edit[0], old=edit[1], new=edit[2])
        if changed is not None:
            self._event("resumed", changed)
        self._remove_after(name)

    def fit(self) -> None:
        """Train to the last iteration; raise `Diverged` when all rollbacks are used up."""
        try:
            self._take_up()
            self._iterate()
            self._confirm()
        finally:
            self._tell_events()
        self._call("on_end")

    def set_iterations(self, iterations: int, settings: dict[str, Any]) -> None:
        """Change the total between two iterations; the run is saved with it at once."""
        for edit in edits.allowed(self.settings, settings, self.trainer.iteration, self.where, shorter=True):
            self._event("edited", edits.sentence(edit), key=edit[0], old=edit[1], new=edit[2])
        self.settings = settings
        self.trainer.plan = self.trainer.update.plan = replace(self.trainer.plan, iterations=iterations)
        self._save(checked=False)

    def _iterate(self) -> None:
        trainer, cadence = self.trainer, self.trainer.plan.cadence
        while not self.ended:
            if self._untold:
                self._tell_events()
            began = time.perf_counter()
            self.confirmed = None
            if self.callbacks:
                self._call("before_step")
            outcome = loss, moved, norm = trainer.step()
            judgment, watched = Judgment("fine"), trainer.iteration % WATCH == 0
            if moved is not None and watched:
                self._signals = self.look(loss, moved, norm)
                judgment = self.guard.judge(self._signals)
                seen = self._signals
                self._shown = {"f_data": seen.f_data, "f_samples": seen.f_samples, "gap": seen.gap}
            elif watched and norm.is_cuda:
                torch.cuda.synchronize(norm.device)  # attributes device time to this iteration
            self.seconds += time.perf_counter() - began
            for engine in (trainer.engine, self.look.engine):
                if engine.said is not None:
                    self._event("engine", engine.said)
                    engine.said = None
            if self.callbacks:
                self._call("on_step", outcome)
            if self.guarded and watched and self._react(judgment):
                continue
            if trainer.iteration % cadence.log == 0:
                parts = {name: float(value) for name, value in loss.parts.items()}
                self._log({"loss": float(loss.total.detach()), **parts, "gradient_norm": float(norm)})
            checked = trainer.iteration % cadence.check == 0 or self.ended
            if checked and self.guarded:
                self._tell_purges(at_once=True)
            if checked and self._check():
                continue
            # All processes agree to stop at the same iteration.
            alone = self.world.size == 1
            stopping = self.stop if alone else watched and self.world.any(self.stop, trainer.data.x.device)
            if checked or stopping or trainer.iteration % cadence.checkpoint == 0:
                self._save(checked=checked)
            if stopping:
                saved = "" if self.folder is None else f"; saved in {self.folder}"
                raise Interrupted(f"stopped after iteration {trainer.iteration}{saved}")

    # Recovery.

    def _tell_purges(self, *, at_once: bool = False) -> None:
        """Report restarted chains and skipped batches."""
        trainer, chains = self.trainer, self.trainer.chains
        if self.world.any(bool(chains.n_purged), trainer.data.x.device):
            chains.sweep()
            self.n_purged += int(self.world.sum(chains.n_purged.to(trainer.data.x.device)))
            chains.n_purged.zero_()
        # One event for a series of restarts, not one per step.
        tell = at_once or trainer.iteration % TELL == 0
        if self.n_purged and tell:
            self._event("purge", f"restarted {plural(self.n_purged, 'diverged chain')}", chains=self.n_purged)
            self.n_purged = 0
        if tell and (n_skipped := trainer.n_skipped):
            trainer.update.skips[0] = 0
            self._event("skip", f"skipped {plural(n_skipped, 'batch', 'batches')} with a non-finite loss or gradient")

    def _react(self, judgment: Judgment) -> bool:
        """Act on a judgment; return whether the run was rolled back."""
        self._tell_purges()
        if (n_skipped := self.trainer.skipped_in_row) >= MANY_SKIPS:
            reason = f"{n_skipped} batches in a row have a non-finite loss or gradient"
            judgment = Judgment("trouble", reason)
        if judgment.verdict == "lagging" and (helped := self.recovery.catch_up(self.trainer)) is not None:
            self._event(helped[0], f"{judgment.reason}: {helped[1]}")
        if judgment.verdict != "trouble":
            return False
        self._roll_back(judgment.reason)
        return True

    def _raise_steps(self, reason: str) -> bool:
        """Raise the number of chain steps; return whether that was possible."""
        raised = raise_steps(self.trainer)
        if raised is not None:
            self._event("steps", f"{reason}: {raised}")
        return raised is not None

    def _roll_back(self, reason: str) -> None:
        """Roll back to a healthy checkpoint and change course; the data order continues past the bad batch."""
        trainer, at = self.trainer, self.trainer.iteration
        evidence.picture(self.folder, trainer, f"trouble-{trainer.attempt + 1}-{at:08d}")
        if self.recovery.spent:
            self._give_up(reason)
        self.recovery.begin_try(at)
        name, checkpoint, messages = state.whole(self.store, self.recovery.healthy, self.world)
        for message in messages:
            self._event("damaged", message)
        del self.recovery.healthy[self.recovery.healthy.index(name) + 1 :]
        self._remove_after(name)  # later ones may be corrupted
        state.restore_weights(trainer, checkpoint)
        self.accuracy, self.health = _number(checkpoint.values["accuracy"]), _health(checkpoint.values["health"])
        self._keep_a_best(name, checkpoint)
        course = self.recovery.change_course(trainer)
        self.journal.cut_tables(checkpoint.values["journal"])
        self.guard.restore(checkpoint.values["guard"])
        says = f"{reason}: rolled back from iteration {at} to {trainer.iteration}, {course}"
        self._event("rollback", says, attempt=trainer.attempt, rolled_back_at=at)
        # Save at once: a run killed now must remember this attempt.
        self._save(checked=False)

    def _keep_a_best(self, name: str, checkpoint: Checkpoint) -> None:
        """If the best weights were removed, mark the checkpoint that the run was rolled back to."""
        best = self.store.best()
        gone = self.world.from_first(lambda: best is not None and best not in self.store.names())
        if gone:
            self.best_score = None if name == FIRST else self.score
            if self.world.first:
                self.store.mark_best(None if name == FIRST else name)

    def _give_up(self, reason: str) -> None:
        """Write diagnostics, and raise an error that says where they are."""
        says = evidence.diverged(self.folder, self.trainer, reason, self._signals, self.health)
        self._event("diverged", f"{reason}; all {MAX_TRIES} rollbacks are used up")
        where = self.store.where(self.last_healthy)
        weights = "it was never healthy" if self.last_healthy == FIRST else f"its last healthy weights are {where}"
        raise Diverged(f"{says}; {weights}")

    def _remove_after(self, name: str) -> None:
        self.world.wait()
        for later in self.store.names() if self.world.first else ():
            if later > name:
                self.store.remove(later)

    # Checks, checkpoints and logs.

    def _check(self) -> bool:
        """Measure accuracy and health; return whether the run was rolled back."""
        trainer = self.trainer
        self.accuracy = self.world.from_first(lambda: measure.accuracy(trainer))
        self.health = self.world.from_first(lambda: check_trainer(trainer)) if trainer.plan.of_density else None
        found = {"iteration": trainer.iteration, "accuracy": self.accuracy}
        self.journal.row("checks", found if self.health is None else {**found, **self.health.values()})
        self._call("on_check")
        if self.health is None:
            return False
        evidence.picture(self.folder, trainer, f"iteration-{trainer.iteration:08d}")
        ended = self.ended
        self.unhealthy = 0 if self.health.healthy else self.unhealthy + 1
        # Early in a run chains have not converged; a run that was healthy must stay so.
        early = self.best_score is None and (
            self.unhealthy < LATE_CHECKS or trainer.iteration < LATE * trainer.plan.iterations
        )
        if self.health.healthy or (early and not ended):
            return False
        reason = self.health.complaints[0]
        self._event("unhealthy", reason)
        # If only long chains drift, training chains were too short: use more steps, without a rollback.
        if self.guarded and not ended and trainer.uses_chains and self.health.drifting and self._raise_steps(reason):
            return False
        # One bad check may be chance, except at the end of a run.
        if not self.guarded or self.best_score is None or (self.unhealthy < 2 and not ended and not self.health.lost):
            return False
        self.unhealthy = 0
        self._roll_back(reason)
        return True

    def _confirm(self) -> None:
        """Check the best weights again at the end, with chains that did not select them."""
        if self.complete:
            return
        best = self.world.from_first(self.store.best)
        if best is None:
            return  # the mark was lost; the run is loaded from its newest checkpoint
        self.confirmed = self.world.from_first(lambda: self._health_of(best))
        if not self.confirmed.healthy:
            self._event("unhealthy", f"the best weights fail a second check: {self.confirmed.complaints[0]}")
        for warning in self.confirmed.warnings:
            self._event("warning", warning)
        self._save(checked=False)

    def _health_of(self, name: str) -> Health:
        trainer, found = self.trainer, self.store.load(name)
        tensors, step_size = found.tensors, found.values["step_size"]
        model, buffer = copy.deepcopy((trainer.ema, trainer.chains.buffer))
        model.load_state_dict(state.under(tensors, "ema/"))
        if buffer is not None:
            buffer.load_state_dict(state.under(tensors, "ranks/0/buffer/"))
        kernel = with_step_size(trainer.chains.kernel, step_size)
        plan = replace(trainer.plan, kernel=kernel, steps=trainer.chains.steps)
        return check(
            plan, model, buffer if trainer.uses_chains else None, iteration=trainer.iteration, stream="confirm"
        )

    def _save(self, *, checked: bool) -> None:
        """Save a checkpoint; if its health was just checked, it may become the best or a rollback target."""
        trainer = self.trainer
        healthy = checked and (not trainer.plan.of_density or (self.health is not None and self.health.healthy))
        better = healthy and (self.best_score is None or self.score >= self.best_score)
        if better:
            self.best_score = self.score
        if healthy:
            self.recovery.found_healthy(trainer.iteration)
        values: dict[str, Any] = {
            "settings": self.settings,
            "journal": self.journal.state_dict(),
            "guard": self.guard.state_dict(),
            "best_score": self.best_score,
            "interventions": self.interventions,
            "accuracy": _plain(self.accuracy),
            "seconds": self.seconds,
            "recovery": self.recovery.state_dict(),
            "n_purged": self.n_purged,
            "shown": {name: _plain(value) for name, value in self._shown.items()},
            "unhealthy": self.unhealthy,
            "health": None if self.health is None else self.health.state(),
            "confirmed": None if self.confirmed is None else self.confirmed.state(),
        }
        checkpoint = state.save(trainer, values)
        if self.world.first:
            name = self.store.save(checkpoint)
            if better:
                self.store.mark_best(name)
            self.store.prune(trainer.plan.cadence.keep, self.recovery.healthy)
        self.world.wait()

    def _log(self, values: dict[str, float]) -> None:
        row = {"iteration": self.trainer.iteration, **values, **self._shown, "steps": self.trainer.chains.steps}
        self.journal.row("metrics", {**row, "seconds": round(self.seconds, 3)})
        self._call("on_log", {**row, "accuracy": self.accuracy})

    def _event(self, kind: str, sentence: str, **values: Any) -> None:  # noqa: ANN401 (JSON)
        if kind in INTERVENTIONS:
            self.interventions += 1
        self.journal.event(kind, self.trainer.iteration, sentence, **values)
        self._untold.append(Event(kind, self.trainer.iteration, sentence, values))

    def _tell_events(self) -> None:
        """Report events between iterations, so that the run can be saved if a callback fails."""
        while self._untold:
            self._call("on_event", self._untold.pop(0))

    def _call(self, method: str, *values: object) -> None:
        """Call a method of the callbacks; if one fails, save the run before raising its error."""
        try:
            for callback in self.callbacks:
                getattr(callback, method)(self, *values)
        except Exception:
            if self.world.size == 1:  # with more processes the others would wait forever
                self._save(checked=False)
            raise


def _health(values: dict[str, Any] | None) -> Health | None:
    return None if values is None else Health.from_state(values)


def _plain(value: float) -> float | None:
    """Convert a number for JSON."""
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value

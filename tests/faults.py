"""Faults injected into a run on purpose, each harsh enough to ruin it unguarded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from jointenergy.kernels import Langevin
from jointenergy.training.loop import Loop
from jointenergy.training.trainer import Trainer


@dataclass
class Fault:
    """Called before each step; it strikes once the run has reached `at`, and does not strike again after a rollback."""

    at: int
    run: Loop | None = None
    struck_at: int | None = None
    lasted: int = 0

    length: ClassVar[int] = 1

    def __call__(self, trainer: Trainer) -> None:
        if self.struck_at is None and trainer.iteration >= self.at:
            self.struck_at = trainer.iteration
        if self.struck_at is None:
            return
        if self.active():
            self.strike(trainer)
            self.lasted += 1
        else:
            self.heal(trainer)

    def active(self) -> bool:
        return self.lasted < self.length

    def strike(self, trainer: Trainer) -> None:
        raise NotImplementedError

    def heal(self, trainer: Trainer) -> None:
        return


@dataclass
class LearningRate(Fault):
    """The learning rate times 100 for 50 steps."""

    length: ClassVar[int] = 50

    def strike(self, trainer: Trainer) -> None:
        if self.lasted == 0:
            self.right = trainer.update.settings
            trainer.update.settings = replace(self.right, learning_rate=self.right.learning_rate * 100)

    def heal(self, trainer: Trainer) -> None:
        trainer.update.settings = self.right


@dataclass
class NanBatch(Fault):
    """A batch of NaN."""

    def strike(self, trainer: Trainer) -> None:
        self.rows = trainer.feeds[0].order.ahead().clone()
        self.right = trainer.data.x[self.rows].clone()
        trainer.data.x[self.rows] = torch.nan

    def heal(self, trainer: Trainer) -> None:
        trainer.data.x[self.rows] = self.right


@dataclass
class WildBuffer(Fault):
    """Every second slot of the buffer overwritten with 1e6."""

    def strike(self, trainer: Trainer) -> None:
        assert trainer.chains.buffer is not None
        state = trainer.chains.buffer.state_dict()
        state["x"][::2] = 1e6
        trainer.chains.buffer.load_state_dict(state)


@dataclass
class WeightsTimesTen(Fault):
    """All weights multiplied by 10."""

    @torch.no_grad()
    def strike(self, trainer: Trainer) -> None:
        for p in trainer.model.parameters():
            p.mul_(10.0)


@dataclass
class CrippledSampler(Fault):
    """One chain step without noise, until the guard acts; forever without one."""

    def active(self) -> bool:
        assert self.run is not None
        events = self.run.journal.events_path
        return not events.exists() or ('"rollback"' not in events.read_text() and '"steps"' not in events.read_text())

    def strike(self, trainer: Trainer) -> None:
        assert isinstance(trainer.chains.kernel, Langevin)
        if self.lasted == 0:
            self.right = trainer.chains.kernel
            self.steps = trainer.chains.steps
        trainer.chains.kernel = replace(self.right, noise_scale=0.0)
        trainer.chains.steps = 1

    def heal(self, trainer: Trainer) -> None:
        trainer.chains.kernel = self.right
        trainer.chains.steps = max(trainer.chains.steps, self.steps)


FAULTS: dict[str, Callable[[int], Fault]] = {
    "learning rate": LearningRate,
    "nan batch": NanBatch,
    "wild buffer": WildBuffer,
    "weights times ten": WeightsTimesTen,
    "crippled sampler": CrippledSampler,
}

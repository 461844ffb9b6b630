"""training: where a diverged run is rolled back to, and what changes after that."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from jointenergy.training.trainer import Trainer

MAX_TRIES = 6  # rollbacks before a run is abandoned
TRIES_BEFORE_FARTHER = 2  # rollbacks to the newest healthy checkpoint before trying earlier ones
KEEP_HEALTHY = 4  # healthy checkpoints kept for rollbacks, besides the first of the run
MAX_STEPS = 8  # maximum multiple of the recipe's chain steps
STEPS_UP = 1.5  # factor of one increase of the chain steps
RATE_DOWN = 0.5  # factor of one decrease of the learning rate
LEAST_RATE = 0.125  # minimum share of the recipe's learning rate when chains lag
FIRST = "iteration-00000000"


@dataclass
class Recovery:
    """The recovery state of a run. Attempts count until the run is healthy past the last trouble."""

    healthy: list[str] = field(default_factory=lambda: [FIRST])
    """Rollback targets: the first checkpoint of the run, then healthy ones, newest last."""
    tries: int = 0
    trouble: int = 0
    """The latest iteration with trouble."""
    lags: int = 0
    """How often chains lagged since the run was last healthy."""

    @property
    def last_healthy(self) -> str:
        return self.healthy[-1]

    @property
    def spent(self) -> bool:
        return self.tries >= MAX_TRIES

    def found_healthy(self, iteration: int) -> None:
        """Add a healthy checkpoint as rollback target; of older ones, keep a few spread over the run."""
        self.healthy.append(f"iteration-{iteration:08d}")
        if len(self.healthy) > KEEP_HEALTHY + 1:
            at = [int(name.rpartition("-")[2]) for name in self.healthy]
            gaps = {i: at[i + 1] - at[i - 1] for i in range(1, len(at) - 1)}
            del self.healthy[min(gaps, key=gaps.__getitem__)]
        if iteration > self.trouble:
            self.tries = 0
        self.lags = 0

    def begin_try(self, at: int) -> str:
        """Return the checkpoint to roll back to: the newest healthy one, then earlier ones if that did not help.

        A run may look healthy for a while after it went wrong. The earliest healthy one is always kept.
        """
        if self.tries >= TRIES_BEFORE_FARTHER and len(self.healthy) > 2:
            self.healthy.pop()
        self.tries, self.trouble, self.lags = self.tries + 1, max(self.trouble, at), 0
        return self.last_healthy

    def change_course(self, trainer: Trainer) -> str:
        """Use new random streams; from the second attempt more chain steps, from the third a lower learning rate."""
        trainer.attempt += 1
        trainer.new_streams()
        raised = raise_steps(trainer) if self.tries % 3 == 2 else None
        if raised is not None:
            return raised
        if self.tries % 3 == 0:
            return lower_rate(trainer)
        return "new random streams"

    def catch_up(self, trainer: Trainer) -> tuple[str, str] | None:
        """Help lagging chains, alternating more steps and a lower learning rate; return the name and description.

        If the weights move faster than chains can follow, more steps alone do not help.
        """
        self.lags += 1
        lower = trainer.learning_rate_scale * RATE_DOWN >= LEAST_RATE
        raised = None if self.lags % 2 == 0 and lower else raise_steps(trainer)
        if raised is not None:
            return "steps", raised
        return ("rate", lower_rate(trainer)) if lower else None

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.healthy, self.tries = list(state["healthy"]), state["tries"]
        self.trouble, self.lags = state["trouble"], state["lags"]


def raise_steps(trainer: Trainer) -> str | None:
    """Raise the chain steps; return a description, or None at the maximum."""
    before = trainer.chains.steps
    more = min(MAX_STEPS * trainer.plan.steps, max(before + 1, round(before * STEPS_UP)))
    if more <= before:
        return None
    trainer.chains.steps = more
    return f"chain steps go from {before} to {more}"


def lower_rate(trainer: Trainer) -> str:
    """Lower the learning rate; return a description."""
    trainer.learning_rate_scale *= RATE_DOWN
    return f"the learning rate is multiplied by {trainer.learning_rate_scale:g}"

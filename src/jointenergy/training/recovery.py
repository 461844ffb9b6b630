"""training: where a run in trouble goes back to, and what it does differently from there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from jointenergy.training.trainer import Trainer

MAX_TRIES = 6  # rollbacks from the same trouble before a run gives up
TRIES_BEFORE_FARTHER = 2  # rollbacks to the newest healthy checkpoint before each try takes an earlier one
KEEP_HEALTHY = 4  # healthy checkpoints that a rollback may go to, beside the first of the run
MAX_STEPS = 8  # times the recipe's chain steps, at the most
STEPS_UP = 1.5  # what one raise multiplies the chain steps by
RATE_DOWN = 0.5  # what one lowering multiplies the learning rate by
LEAST_RATE = 0.125  # of the recipe's learning rate, at the least, where chains lag
FIRST = "iteration-00000000"


@dataclass
class Recovery:
    """The memory of a run's troubles. Tries count until the run is healthy beyond the farthest of them."""

    healthy: list[str] = field(default_factory=lambda: [FIRST])
    """Where a rollback may go: checkpoints found healthy, the newest last, behind the first of the run."""
    tries: int = 0
    trouble: int = 0
    """The farthest iteration at which there was trouble."""
    lags: int = 0
    """How often chains were found to lag since the run was last healthy."""

    @property
    def last_healthy(self) -> str:
        return self.healthy[-1]

    @property
    def spent(self) -> bool:
        return self.tries >= MAX_TRIES

    def found_healthy(self, iteration: int) -> None:
        """The checkpoint of this iteration is one to go back to; of older ones few are kept, spread over the run."""
        self.healthy.append(f"iteration-{iteration:08d}")
        if len(self.healthy) > KEEP_HEALTHY + 1:
            at = [int(name.rpartition("-")[2]) for name in self.healthy]
            gaps = {i: at[i + 1] - at[i - 1] for i in range(1, len(at) - 1)}
            del self.healthy[min(gaps, key=gaps.__getitem__)]
        if iteration > self.trouble:
            self.tries = 0
        self.lags = 0

    def begin_try(self, at: int) -> str:
        """The checkpoint to go back to: the newest found healthy, and where that has not helped, the ones before it.

        A run may look healthy for a while when it is already lost. The earliest healthy one is never given up.
        """
        if self.tries >= TRIES_BEFORE_FARTHER and len(self.healthy) > 2:
            self.healthy.pop()
        self.tries, self.trouble, self.lags = self.tries + 1, max(self.trouble, at), 0
        return self.last_healthy

    def change_course(self, trainer: Trainer) -> str:
        """New random streams; at the second try more chain steps as well, at the third a lower learning rate."""
        trainer.attempt += 1
        trainer.new_streams()
        raised = raise_steps(trainer) if self.tries % 3 == 2 else None
        if raised is not None:
            return raised
        if self.tries % 3 == 0:
            return lower_rate(trainer)
        return "new random streams"

    def catch_up(self, trainer: Trainer) -> tuple[str, str] | None:
        """What is done for chains that lag, by name and in words: more steps, a lower learning rate, in turn.

        Where the weights move faster than chains can follow, steps alone cost time and change nothing.
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
    """More chain steps from here on, in words, or None when there are no more to be had."""
    before = trainer.chains.steps
    more = min(MAX_STEPS * trainer.plan.steps, max(before + 1, round(before * STEPS_UP)))
    if more <= before:
        return None
    trainer.chains.steps = more
    return f"chain steps go from {before} to {more}"


def lower_rate(trainer: Trainer) -> str:
    """A lower learning rate from here on, in words."""
    trainer.learning_rate_scale *= RATE_DOWN
    return f"the learning rate is multiplied by {trainer.learning_rate_scale:g}"

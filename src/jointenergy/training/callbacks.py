"""training: callbacks during training: subclass `Callback` and override the methods that you need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jointenergy.training.advice import PAGE, changes

if TYPE_CHECKING:
    from jointenergy.training.loop import Loop
    from jointenergy.training.step import Outcome


@dataclass(frozen=True)
class Event:
    """An event in a run: its kind, such as "rollback", and one sentence."""

    kind: str
    iteration: int
    sentence: str
    values: dict[str, Any] = field(default_factory=dict)


class Callback:
    """Called during training. `loop.trainer` has the model and the chains.

    `loop.enough = True` ends the run: the current iteration is checked and saved like the last one. `loop.stop = True`
    interrupts it like Ctrl-C: `fit` saves it in its folder, if it has one, and raises `KeyboardInterrupt`. If a
    callback raises an error, the run is saved and ends.
    """

    def before_step(self, loop: Loop) -> None:
        """Called before each iteration."""

    def on_step(self, loop: Loop, outcome: Outcome) -> None:
        """Called after each iteration. Reading a tensor of `outcome` on a GPU synchronizes."""

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        """Called with each row of metrics."""

    def on_check(self, loop: Loop) -> None:
        """Called after each check, with updated `loop.health` and `loop.accuracy`."""

    def on_event(self, loop: Loop, event: Event) -> None:
        """Called with each event, such as a rollback."""

    def on_end(self, loop: Loop) -> None:
        """Called once, after the last iteration."""


@dataclass(frozen=True)
class Printed(Callback):
    """Print about ten lines of metrics per run, and one line per event."""

    name: str

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        at, total = loop.trainer.iteration, loop.trainer.plan.iterations
        every = max(1, total // 10)
        if at % every < loop.trainer.plan.cadence.log:
            shown = ("loss", "gap", "accuracy")
            what = ", ".join(f"{k} {v:.4g}" for k, v in values.items() if k in shown and v == v)
            print(f"[{self.name}] iteration {at:,} of {total:,}: {what}")

    def on_event(self, loop: Loop, event: Event) -> None:
        print(f"[{self.name}] iteration {event.iteration:,}: {event.sentence}")

    def on_end(self, loop: Loop) -> None:
        verdict = loop.verdict
        if verdict is None:
            return
        state = "healthy" if verdict.healthy else f"not healthy: {'; '.join(verdict.complaints)}"
        print(f"[{self.name}] the run is {state}")
        if not verdict.healthy:
            settings = ", then ".join(f"{change.verb} {change.fit}" for change in changes(verdict, loop.trainer.plan))
            print(f"[{self.name}] to change first: {settings}; the documentation ({PAGE}) explains the verdict")

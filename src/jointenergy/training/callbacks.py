"""training: what is told to others while a run trains: subclass `Callback` and write the methods that you need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jointenergy.training.loop import Loop
    from jointenergy.training.step import Outcome


@dataclass(frozen=True)
class Event:
    """Something that happened to a run: its kind, such as "rollback", and one sentence."""

    kind: str
    iteration: int
    sentence: str
    values: dict[str, Any] = field(default_factory=dict)


class Callback:
    """Called as a run trains. `loop.trainer` has the model and the chains, `loop.stop = True` ends and saves the run.

    An error that a callback raises ends the run after saving it.
    """

    def before_step(self, loop: Loop) -> None:
        """Called before each iteration."""

    def on_step(self, loop: Loop, outcome: Outcome) -> None:
        """Called after each iteration. Reading a tensor of `outcome` on a GPU waits for it."""

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        """Called with each row of metrics."""

    def on_check(self, loop: Loop) -> None:
        """Called after each check: `loop.health` and `loop.accuracy` are new."""

    def on_event(self, loop: Loop, event: Event) -> None:
        """Called with each event, such as a rollback."""

    def on_end(self, loop: Loop) -> None:
        """Called once, after the last iteration."""

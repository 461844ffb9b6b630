"""training: callbacks during training: subclass `Callback` and override the methods that you need."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from jointenergy.training.advice import PAGE, changes

if TYPE_CHECKING:
    from jointenergy.training.loop import Loop
    from jointenergy.training.step import Outcome

BAR, LINES = 20, 10  # cells of a progress bar; lines where there is none
UP = "\r\x1b[2K"  # to the beginning of the line, which is emptied


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
    """Print a progress bar with metrics in a terminal, about ten lines of them elsewhere, and one line per event."""

    name: str

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        at, total, bar = loop.trainer.iteration, loop.trainer.plan.iterations, sys.stdout.isatty()
        every = max(1, total // (BAR if bar else LINES))
        if at % every < loop.trainer.plan.cadence.log:
            shown = ("loss", "gap", "accuracy")
            what = ", ".join(f"{k} {v:.4g}" for k, v in values.items() if k in shown and v == v)
            full = BAR * at // max(total, 1)
            drawn = f" {'━' * full}{'╌' * (BAR - full)}" if bar else ""
            line = f"[{self.name}]{drawn} iteration {at:,} of {total:,}: {what}"
            if bar:
                print(UP + line[: get_terminal_size().columns - 1], end="" if at < total else "\n", flush=True)
            else:
                print(line)

    def on_event(self, loop: Loop, event: Event) -> None:
        start = UP if sys.stdout.isatty() else ""
        print(f"{start}[{self.name}] iteration {event.iteration:,}: {event.sentence}")

    def on_end(self, loop: Loop) -> None:
        verdict = loop.verdict
        if verdict is None:
            return
        state = "healthy" if verdict.healthy else f"not healthy: {'; '.join(verdict.complaints)}"
        start = UP if sys.stdout.isatty() else ""  # the bar of a fit that ended early
        print(f"{start}[{self.name}] the run is {state}")
        if not verdict.healthy:
            settings = ", then ".join(f"{change.verb} {change.fit}" for change in changes(verdict, loop.trainer.plan))
            print(f"[{self.name}] to change first: {settings}; the documentation ({PAGE}) explains the verdict")

"""cli: progress of a training run: a bar with the latest metrics and a line per event; in a pipe, only lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from jointenergy.cli.screen import console, say
from jointenergy.errors import plural
from jointenergy.training.callbacks import Callback, Event
from jointenergy.training.loop import Loop

NAMES = {"f_data": "f(data)", "f_samples": "f(samples)", "log_p_x": "log p(x)", "log_p_y_given_x": "log p(y|x)"}
HIDDEN = {"iteration", "seconds"}


class Lines(Callback):
    """Print a line for each logged row of metrics and each event."""

    def __init__(self, loop: Loop) -> None:
        self.began_at, self.began_seconds = loop.trainer.iteration, loop.seconds
        self.total = loop.trainer.plan.iterations

    def on_event(self, loop: Loop, event: Event) -> None:
        say(f"iteration {event.iteration}: {event.sentence}")

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        at, self.total = loop.trainer.iteration, loop.trainer.plan.iterations
        speed = (at - self.began_at) / max(loop.seconds - self.began_seconds, 1e-9)
        parts = [f"{NAMES.get(k, k)} {v:.3g}" for k, v in values.items() if k not in HIDDEN and math.isfinite(v)]
        if loop.health is not None:
            parts.append("healthy" if loop.health.healthy else "not healthy yet")
        self.draw(at, f"{speed:.3g} it/s", "  ".join(parts))

    def draw(self, iteration: int, speed: str, metrics: str) -> None:
        say(f"iteration {iteration}/{self.total}  {speed}  {metrics}")

    def on_end(self, loop: Loop) -> None:
        n, seconds = loop.trainer.iteration - self.began_at, loop.seconds - self.began_seconds
        say(f"trained {plural(n, 'iteration')} in {timedelta(seconds=round(seconds))}")


class Bar(Lines):
    """Draw a bar with the metrics below it, and print a line for each event."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.progress = Progress(
            TextColumn("{task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self.task = self.progress.add_task("", total=self.total, completed=self.began_at, speed="")
        self.below = Text("")
        self.live = Live(Group(self.progress, self.below), console=console, refresh_per_second=4)

    def draw(self, iteration: int, speed: str, metrics: str) -> None:
        self.progress.update(self.task, completed=iteration, total=self.total, speed=speed)
        self.below.plain = metrics

    def on_end(self, loop: Loop) -> None:
        super().on_end(loop)
        self.progress.update(self.task, completed=loop.trainer.iteration)


def train_with_progress(loop: Loop, also: Sequence[Callback] = ()) -> None:
    """Train to the end; the first process shows the progress."""
    if not loop.world.first:
        loop.fit()
        return
    bar = Bar(loop) if console.is_terminal else None
    loop.callbacks = [*loop.callbacks, *also, bar or Lines(loop)]
    with bar.live if bar else nullcontext():
        loop.fit()

"""cli: a training run on the screen: a bar, the newest figures below it, and a line for each event."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from jointenergy.training.callbacks import Callback, Event
from jointenergy.training.loop import Loop

NAMES = {"f_data": "f(data)", "f_samples": "f(samples)", "log_p_x": "log p(x)", "log_p_y_given_x": "log p(y|x)"}
HIDDEN = {"iteration", "seconds"}


class ProgressBar(Callback):
    """Show a bar with the newest figures, and a line for each event."""

    def __init__(self, loop: Loop, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self.began_at, self.began_seconds = loop.trainer.iteration, loop.seconds
        total = loop.trainer.plan.iterations
        self.task = self.progress.add_task("", total=total, completed=self.began_at, speed="")
        self.figures = Text("")
        self.live = Live(Group(self.progress, self.figures), console=console, refresh_per_second=4)

    def on_event(self, loop: Loop, event: Event) -> None:
        self.live.console.print(f"iteration {event.iteration}: {escape(event.sentence)}", highlight=False)

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        at = loop.trainer.iteration
        speed = (at - self.began_at) / max(loop.seconds - self.began_seconds, 1e-9)
        self.progress.update(self.task, completed=at, speed=f"{speed:.3g} it/s")
        parts = [f"{NAMES.get(k, k)} {v:.3g}" for k, v in values.items() if k not in HIDDEN and math.isfinite(v)]
        if loop.health is not None:
            parts.append("healthy" if loop.health.healthy else "not healthy yet")
        self.figures.plain = "  ".join(parts)

    def on_end(self, loop: Loop) -> None:
        self.progress.update(self.task, completed=loop.trainer.iteration)


def train_with_progress(loop: Loop, console: Console, also: Sequence[Callback] = ()) -> None:
    """Train to the end, shown by the first process of a run."""
    if not loop.world.first:
        loop.fit()
        return
    bar = ProgressBar(loop, console)
    loop.callbacks = [*loop.callbacks, *also, bar]
    with bar.live:
        loop.fit()

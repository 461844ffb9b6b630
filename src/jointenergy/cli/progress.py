"""cli: a training run on the screen: a bar, the newest figures below it, and a line for each event."""

from __future__ import annotations

import math
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from jointenergy.training.loop import Fit, Report

NAMES = {"f_data": "f(data)", "f_samples": "f(samples)", "log_p_x": "log p(x)", "log_p_y_given_x": "log p(y|x)"}
HIDDEN = {"iteration", "seconds"}


def train_with_progress(run: Fit, console: Console, also: Callable[[Report], None] | None = None) -> None:
    """`fit`, shown by the first process of a run; `also` is called with each report."""
    if not run.world.first:
        run.fit()
        return
    progress = Progress(
        TextColumn("{task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    task = progress.add_task("", total=run.trainer.recipe.iterations, completed=run.trainer.iteration, speed="")
    began_at, began_seconds = run.trainer.iteration, run.seconds
    figures = Text("")
    with Live(Group(progress, figures), console=console, refresh_per_second=4) as live:

        def show(at: Report) -> None:
            if also is not None:
                also(at)
            if at.event is not None:
                live.console.print(f"iteration {at.iteration}: {escape(at.event)}", highlight=False)
                return
            speed = (at.iteration - began_at) / max(run.seconds - began_seconds, 1e-9)
            progress.update(task, completed=at.iteration, speed=f"{speed:.3g} it/s")
            figures.plain = _figures(at.values, run)

        run.report = show
        run.fit()
        progress.update(task, completed=run.trainer.iteration)


def _figures(values: dict[str, float], run: Fit) -> str:
    parts = [f"{NAMES.get(k, k)} {v:.3g}" for k, v in values.items() if k not in HIDDEN and math.isfinite(v)]
    if run.health is not None:
        parts.append("healthy" if run.health.healthy else "not healthy yet")
    return "  ".join(parts)

"""cli: the progress of a training run: a bar with the newest metrics and a line for each event; in a pipe, lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from jointenergy.cli.screen import console, say
from jointenergy.training.loop import Fit, Report

NAMES = {"f_data": "f(data)", "f_samples": "f(samples)", "log_p_x": "log p(x)", "log_p_y_given_x": "log p(y|x)"}
HIDDEN = {"iteration", "seconds"}

Draw = Callable[[int, str, str], None]  # of an iteration, the speed and the metrics


def train_with_progress(run: Fit, also: Callable[[Report], None] | None = None) -> None:
    """Fit, while the first process shows each report; `also` is called with each report too."""
    if not run.world.first:
        run.fit()
        return
    began_at, began_seconds = run.trainer.iteration, run.seconds
    with _bar(run) if console.is_terminal else nullcontext(_line(run)) as draw:

        def show(at: Report) -> None:
            if also is not None:
                also(at)
            if at.event is not None:
                say(f"iteration {at.iteration}: {at.event}")
                return
            speed = (at.iteration - began_at) / max(run.seconds - began_seconds, 1e-9)
            draw(at.iteration, f"{speed:.3g} it/s", _metrics(at.values, run))

        run.report = show
        run.fit()


@contextmanager
def _bar(run: Fit) -> Iterator[Draw]:
    """Redraw a bar with the metrics below it."""
    progress = Progress(
        TextColumn("{task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    task = progress.add_task("", total=run.trainer.recipe.iterations, completed=run.trainer.iteration, speed="")
    below = Text("")

    def draw(iteration: int, speed: str, metrics: str) -> None:
        progress.update(task, completed=iteration, speed=speed)
        below.plain = metrics

    with Live(Group(progress, below), console=console, refresh_per_second=4):
        yield draw
        progress.update(task, completed=run.trainer.iteration)


def _line(run: Fit) -> Draw:
    """Print a line for each report."""
    return lambda iteration, speed, metrics: say(
        f"iteration {iteration}/{run.trainer.recipe.iterations}  {speed}  {metrics}"
    )


def _metrics(values: dict[str, float], run: Fit) -> str:
    parts = [f"{NAMES.get(k, k)} {v:.3g}" for k, v in values.items() if k not in HIDDEN and math.isfinite(v)]
    if run.health is not None:
        parts.append("healthy" if run.health.healthy else "not healthy yet")
    return "  ".join(parts)

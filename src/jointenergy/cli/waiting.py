"""cli: a progress bar for anything longer than two seconds, and a clean end after Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from jointenergy.cli.screen import INTERRUPTED

PATIENCE = 2.0  # seconds before the bar appears


@contextmanager
def waiting(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of steps done; the bar is shown on stderr."""
    console = Console(stderr=True)
    left = (TextColumn("left"), TimeRemainingColumn()) if total else ()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), *left)
    bar = Progress(*columns, console=console, refresh_per_second=4, transient=True)
    task = bar.add_task(what, total=total)
    timer = threading.Timer(PATIENCE, bar.start if console.is_terminal else lambda: None)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done: bar.update(task, completed=done)
    except KeyboardInterrupt:
        _end(timer, bar)
        console.print(f"stopped while {what}; nothing was written", highlight=False)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        _end(timer, bar)


def _end(timer: threading.Timer, bar: Progress) -> None:
    timer.cancel()
    timer.join()
    if bar.live.is_started:
        bar.stop()

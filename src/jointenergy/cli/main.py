"""cli: the `jointenergy` command; parse, call, show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from jointenergy import __version__
from jointenergy.errors import InputError
from jointenergy.evaluation.pictures import image_grid
from jointenergy.recipes import digits_jem

app = typer.Typer(
    name="jointenergy",
    help="Joint energy-based models of data and labels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
INTERRUPTED = 130  # what a shell expects of a program that Ctrl-C has ended


def _version(asked: bool) -> None:
    if asked:
        console.print(f"jointenergy {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Joint energy-based models of data and labels."""


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="The folder for the picture; what is there from before is replaced.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="The seed of weights, chains and batches.", min=0)] = 0,
    iterations: Annotated[int, typer.Option(help="How long to train.", min=1)] = digits_jem.Settings.iterations,
) -> None:
    """Train a JEM on the 8 x 8 digits that come with scikit-learn, measure it, and draw samples of each class."""
    out.mkdir(parents=True, exist_ok=True)
    settings = digits_jem.Settings(iterations=iterations)
    try:
        outcome = _train_with_progress(settings, seed)
    except KeyboardInterrupt:
        console.print(
            "stopped by Ctrl-C before the end of training; nothing was written, start again with the same command"
        )
        raise typer.Exit(INTERRUPTED) from None
    picture = out / "samples.png"
    image_grid(outcome.samples.view(-1, 1, 8, 8), settings.samples_per_class, digits_jem.BOUNDS, zoom=4).save(picture)
    console.print(f"accuracy on the test digits     {outcome.accuracy:.1%}", highlight=False)
    console.print(f"calibration error (ECE)         {outcome.ece:.2%}", highlight=False)
    console.print(
        f"samples that are of their class {outcome.agreement:.0%}, judged by the model itself", highlight=False
    )
    console.print(f"samples, a row for each digit   {picture}", highlight=False, soft_wrap=True)


def _train_with_progress(settings: digits_jem.Settings, seed: int) -> digits_jem.Outcome:
    columns = (
        TextColumn("training"),
        BarColumn(bar_width=12),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn(
            "loss {task.fields[loss]:+.3f}  f(data) {task.fields[data]:.2f}  f(samples) {task.fields[samples]:.2f}"
        ),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=settings.iterations, loss=0.0, data=0.0, samples=0.0)

        def show(at: digits_jem.Progress) -> None:
            progress.update(
                task, completed=at.iteration, loss=at.loss, data=at.log_density_data, samples=at.log_density_samples
            )

        return digits_jem.train(settings, seed, show)


def main() -> None:
    """Run the command; what is wrong with an input or a folder is one sentence, never a traceback."""
    try:
        app()
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        _fail(f"the system refused{where}: {error.strerror or error}; choose another folder with --out")


def _fail(sentence: str) -> None:
    Console(stderr=True).print(f"jointenergy: {sentence}", highlight=False, soft_wrap=True, markup=False)
    sys.exit(2)

"""cli: `jointenergy train`, `resume` and `demo` train runs; `jointenergy recipes` lists what can be trained."""

from __future__ import annotations

import atexit
import math
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from jointenergy import recipes
from jointenergy.cli import evaluation
from jointenergy.cli.options import Baseline, DataFolder, Quick, Seed, Smoke, TrainDevice, chosen_size
from jointenergy.cli.progress import train_with_progress
from jointenergy.cli.screen import DIVERGED, INTERRUPTED, WRONG, complain, console, refused, say
from jointenergy.errors import InputError
from jointenergy.experiments import study as studies
from jointenergy.recipes import run_folder
from jointenergy.recipes.data import data_of
from jointenergy.recipes.programs import program_of
from jointenergy.recipes.schema import Recipe, read, write
from jointenergy.report import comparison, suite
from jointenergy.runs.loading import open_run
from jointenergy.training.distributed import Parted, World, join, leave
from jointenergy.training.loop import Diverged, Interrupted, Loop
from jointenergy.training.trackers import TRACKERS, tracker

Set = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a setting of the recipe, such as chain.steps=20. Repeatable."
    ),
]
Track = Annotated[str, typer.Option(metavar="TRACKER", help=f"Also log metrics elsewhere: {', '.join(TRACKERS)}.")]


def list_recipes(
    name: Annotated[
        str, typer.Argument(metavar="[RECIPE]", help="Recipe to print: a name, a variant or a TOML file.")
    ] = "",
    python: Annotated[bool, typer.Option("--python", help="Print the Python program that trains the same.")] = False,
    data: DataFolder = None,
    seed: Seed = 0,
    quick: Quick = False,
    smoke: Smoke = False,
    overrides: Set = [],  # noqa: B006 (typer reads the default and copies it)
) -> None:
    """List the recipes and studies, or print a recipe.

    NAME:VARIANT is a recipe with some of its settings changed. `train` and
    `reproduce` take recipes, `study` takes studies. With a name the recipe is
    printed complete, as TOML or with --python as a program, which reads the
    data for their shape and labels.
    """
    if name:
        recipe = recipes.load(name, overrides, size=chosen_size(quick=quick, smoke=smoke))
        text = program_of(recipe, data_of(recipe, data, seed=seed), seed, folder=data) if python else write(recipe)
        typer.echo(text, nl=False)
        return
    if python or overrides or quick or smoke:
        raise InputError("--python, --quick, --smoke and --set are for one recipe: name it, as in recipes digits-jem")
    table = Table(box=None, pad_edge=False, show_header=False)
    for known in recipes.names():
        table.add_row(known, recipes.load(known).description)
    for known in studies.names():
        table.add_row(known, f"{studies.load(known).recipe.description} A study.")
    console.print(table)


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe or a variant, or a TOML file.")],
    data: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder to create; default: runs/NAME-SEED.")
    ] = None,
    seed: Seed = 0,
    time: Annotated[
        str, typer.Option(metavar="TIME", help="Train this long, not for the recipe's iterations: 90s, 20m, 2h.")
    ] = "",
    baseline: Baseline = False,
    guard: Annotated[bool, typer.Option(help="Monitor the run and recover from divergence.")] = True,
    device: TrainDevice = "auto",
    quick: Quick = False,
    smoke: Smoke = False,
    track: Track = "",
    overrides: Set = [],  # noqa: B006 (typer reads the default and copies it)
) -> None:
    """Train a recipe into a run folder.

    The folder holds the recipe, metrics, events and checkpoints. Ctrl-C saves
    the run; `resume` continues it. Under torchrun the batch and the replay
    buffer are split among the processes.
    """
    settings = recipes.load(recipe, overrides, size=chosen_size(quick=quick, smoke=smoke))
    if baseline:
        settings = settings.baseline()
    seconds = _seconds(time) if time else None
    with _joined(device) as (world, where):
        folder = out or Path("runs") / f"{settings.name}-{seed}"
        world.from_first(lambda: run_folder.check_free(folder))
        rows = data_of(settings, data, where, seed)
        if seconds is not None:
            n = run_folder.iterations_in(settings, seconds, seed, device=where, world=world, data=rows)
            settings = replace(settings, iterations=n)
            if world.first:
                say(f"{time} are {settings.iterations} iterations on this machine")
        loop = run_folder.create(
            folder, settings, seed, data_folder=data, guarded=guard, device=where, world=world, data=rows
        )
        _go(loop, track)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Device to train on: auto, cpu or cuda; default: the run's own.")
    ] = "",
    track: Track = "",
) -> None:
    """Resume a stopped run from its last checkpoint.

    The result is the same as if the run had never stopped.
    """
    with _joined(device or run_folder.about(run)["device"]) as (world, where):
        opened = run_folder.reopen(run, device=where, world=world)
        at, end = opened.trainer.iteration, opened.trainer.plan.iterations
        if at < end:
            if world.first:
                say(f"resuming at iteration {at} of {end}")
            _go(opened, track)
        elif world.first:
            say(f"{run} is complete: {end} iterations")


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Run folder.")] = Path("runs/demo"),
    seed: Seed = 0,
    overrides: Set = [],  # noqa: B006 (typer reads the default and copies it)
) -> None:
    """Train a JEM on 8 x 8 digits in a minute and write a report.

    The digits come with scikit-learn and the recipe is digits-jem. If stopped,
    the same command continues.
    """
    settings = recipes.load("digits-jem", overrides)
    run = _resumed_demo(out, settings, seed)
    if run.trainer.iteration < settings.iterations:
        _go(run)
    trained = open_run(out)
    evaluation.measure(suite.subject_of(trained, seed=seed), "quick", out / comparison.FOLDER)


def _resumed_demo(out: Path, settings: Recipe, seed: int) -> Loop:
    """Create the demo's run, or reopen it if it is the same."""
    if (out / run_folder.ABOUT).exists():
        if read(out / run_folder.RECIPE) == settings and run_folder.about(out)["seed"] == seed:
            return run_folder.reopen(out)
        raise InputError(f"{out} holds another run: choose another --out, or remove that folder")
    return run_folder.create(out, settings, seed)


@contextmanager
def _joined(device: str) -> Iterator[tuple[World, torch.device]]:
    """Join torchrun's processes until the program ends; a lost one is one sentence."""
    atexit.register(leave)  # not before an error is printed: the first process would end this one
    try:
        yield join(device)
    except Parted as parted:
        complain(str(parted))
        raise typer.Exit(WRONG) from None


def _go(run: Loop, track: str = "") -> None:
    """Fit with progress on the screen; Ctrl-C or a plain kill saves after the present step, a second stops at once."""

    def ask_to_stop(*_: object) -> None:
        run.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = [signal.signal(s, ask_to_stop) for s in (signal.SIGINT, signal.SIGTERM)]
    first, launch = run.world.first, "torchrun ... -m " if run.world.size > 1 else ""
    resume_line = f"go on with: {launch}jointenergy resume {run.folder}"
    try:
        train_with_progress(run, [tracker(track)] if track and first else [])
    except Interrupted as stopped:
        if first:
            say(f"{stopped}; {resume_line}")
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        if first:
            say(f"stopped at once; {resume_line}")
        raise typer.Exit(INTERRUPTED) from None
    except Diverged as diverged:
        if first:
            complain(str(diverged))
        raise typer.Exit(DIVERGED) from None
    except Parted as parted:
        raise Parted(f"{parted}; {resume_line}") from None
    except OSError as error:
        raise InputError(
            f"{refused(error)}; the checkpoints before it are whole: make room, then {resume_line}"
        ) from None
    finally:
        for kind, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(kind, handler)
    if not first:
        return
    for warning in run.trainer.warnings:
        say(f"warning: {warning}")
    if run.health is not None:
        state = "healthy" if run.health.healthy else f"not healthy: {'; '.join(run.health.complaints)}"
        say(f"chains are {state}; {run.interventions} intervention(s)")
    # A model that cannot compare labels has no accuracy.
    accuracy = f"accuracy on held-out rows {run.accuracy:.1%}; " if math.isfinite(run.accuracy) else ""
    say(f"{accuracy}run folder {run.folder}")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise InputError(f"--time takes a number with s, m or h, as in 90s, 20m or 2h, got {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]

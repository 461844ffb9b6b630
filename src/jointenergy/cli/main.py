"""cli: the `jointenergy` command; parse, call, show."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jointenergy import __version__, recipes
from jointenergy.cli import data as data_sets
from jointenergy.cli import evaluation, init, inpainting, reproduce, study, synthesis, tasks
from jointenergy.cli.progress import train_with_progress
from jointenergy.cli.sizes import Quick, Smoke, chosen_size
from jointenergy.cli.tracking import tracker
from jointenergy.errors import InputError
from jointenergy.evaluation import comparison, suite
from jointenergy.recipes import study as studies
from jointenergy.trained.opening import open_run
from jointenergy.training import loop, runs
from jointenergy.training.distributed import Parted, join, leave
from jointenergy.training.feeds import data_of
from jointenergy.training.recipe import Recipe

app = typer.Typer(
    name="jointenergy",
    help="Joint energy-based models of data and labels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
INTERRUPTED = 130  # what a shell expects of a program that Ctrl-C has ended
DIVERGED = 3
WRONG = 2
RANK = int(os.environ.get("RANK", "0"))  # which of torchrun's processes this is
GRACE = 5.0  # seconds; torchrun takes a tenth of one to end its processes when the first has ended

Set = Annotated[list[str], typer.Option("--set", help="Set a key of the recipe, as in --set chain.steps=20.")]
Device = Annotated[str, typer.Option(help="Where to train: auto (a GPU where there is one), cpu or cuda.")]
Track = Annotated[str, typer.Option(help="Write the figures for another program too: tensorboard.")]
Seed = Annotated[int, typer.Option(help="The seed of weights, chains and batches.", min=0, max=2**63 - 1)]


app.command()(init.init)
app.command("reproduce")(reproduce.reproduce)
app.command("results")(reproduce.list_results)
app.command()(study.study)
app.command()(tasks.predict)
app.command()(tasks.score)
app.command()(tasks.rank)
app.command()(synthesis.sample)
app.command()(inpainting.inpaint)
app.command()(synthesis.convert)
app.command()(synthesis.compose)
app.command()(tasks.export)
app.command()(evaluation.evaluate)
app.command()(evaluation.compare)
app.add_typer(data_sets.app, name="data")


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


@app.command("recipes")
def list_recipes() -> None:
    """List what comes with the library: the recipes of `train` and `reproduce`, then those of `study`.

    NAME:VARIANT is a recipe with some of its settings changed.
    """
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in recipes.names():
        table.add_row(name, recipes.load(name).description)
    for name in studies.names():
        table.add_row(name, f"{studies.load(name).recipe.description} A study.")
    console.print(table)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="The name of a recipe or a variant, or a TOML file.")],
    data: Annotated[Path | None, typer.Option(help="The folder of the data; else JOINTENERGY_DATA names it.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/NAME-SEED if not given.")] = None,
    seed: Seed = 0,
    time: Annotated[str, typer.Option(help="Train this long instead of the recipe's iterations: 90s, 20m, 2h.")] = "",
    baseline: Annotated[bool, typer.Option("--baseline", help="Train by cross-entropy alone, all else equal.")] = False,
    guard: Annotated[bool, typer.Option(help="Watch the run and mend it when it goes wrong.")] = True,
    device: Device = "auto",
    quick: Quick = False,
    smoke: Smoke = False,
    track: Track = "",
    overrides: Set = [],  # noqa: B006 (typer reads the default and copies it)
) -> None:
    """Train a recipe; the run folder holds its recipe, metrics, events and checkpoints.

    Under torchrun the batch and the buffer are shared by its processes.
    """
    settings = recipes.load(recipe, overrides, size=chosen_size(quick=quick, smoke=smoke))
    if baseline:
        settings = settings.baseline()
    seconds = _seconds(time) if time else None
    world, where = join(device)
    folder = out or Path("runs") / f"{settings.name}-{seed}"
    world.from_first(lambda: runs.check_free(folder))
    rows = data_of(settings, data, where, seed)
    if seconds is not None:
        n = runs.iterations_in(settings, seconds, seed, device=where, world=world, data=rows)
        settings = replace(settings, iterations=n)
        if world.first:
            console.print(f"{time} are {settings.iterations} iterations on this machine", highlight=False)
    run = runs.create(folder, settings, seed, data_folder=data, guarded=guard, device=where, world=world, data=rows)
    _go(run, track)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    device: Annotated[str, typer.Option(help="Where to go on: auto, cpu or cuda; where it was if not given.")] = "",
    track: Track = "",
) -> None:
    """Go on with a run that was stopped, exactly where its newest checkpoint is."""
    world, where = join(device or runs.about(run)["device"])
    opened = runs.reopen(run, device=where, world=world)
    at, end = opened.trainer.iteration, opened.trainer.recipe.iterations
    if at >= end:
        if world.first:
            console.print(f"{run} is complete: {end} iterations", highlight=False, soft_wrap=True)
        return
    if world.first:
        console.print(f"going on from iteration {at} of {end}", highlight=False)
    _go(opened, track)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/demo"),
    seed: Seed = 0,
    overrides: Set = [],  # noqa: B006 (typer reads the default and copies it)
) -> None:
    """Train digits-jem on the 8 x 8 digits that come with scikit-learn, measure it, and write a report of it."""
    settings = recipes.load("digits-jem", overrides)
    run = _resumed_demo(out, settings, seed)
    if run.trainer.iteration < settings.iterations:
        _go(run)
    trained = open_run(out)
    evaluation.measure(suite.subject_of(trained, seed=seed), "quick", out / comparison.FOLDER)


def _resumed_demo(out: Path, settings: Recipe, seed: int) -> loop.Fit:
    """The demo's own run: begun, or taken up where it was stopped if it is the same."""
    if (out / runs.ABOUT).exists():
        run = runs.reopen(out)
        if run.trainer.recipe == settings and run.trainer.seed == seed:
            return run
        raise InputError(f"{out} holds another run: choose another --out, or remove that folder")
    return runs.create(out, settings, seed)


def _go(run: loop.Fit, track: str = "") -> None:
    """Fit with progress on the screen; Ctrl-C or a plain kill saves after the present step, a second stops at once."""

    def ask_to_stop(*_: object) -> None:
        run.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = [signal.signal(s, ask_to_stop) for s in (signal.SIGINT, signal.SIGTERM)]
    first, launch = run.world.first, "torchrun ... -m " if run.world.size > 1 else ""
    resume_line = f"go on with: {launch}jointenergy resume {run.folder}"
    try:
        train_with_progress(run, console, tracker(track, run) if track and first else None)
    except loop.Interrupted as stopped:
        if first:
            console.print(f"{stopped}; {resume_line}", highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        if first:
            console.print(f"stopped at once; {resume_line}", highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except loop.Diverged as diverged:
        if first:
            _say(str(diverged))
        raise typer.Exit(DIVERGED) from None
    except Parted as parted:
        raise Parted(f"{parted}; {resume_line}") from None
    except OSError as error:
        raise InputError(
            f"{_refused(error)}; the checkpoints before it are whole: make room, then {resume_line}"
        ) from None
    finally:
        for kind, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(kind, handler)
    if not first:
        return
    for warning in run.trainer.warnings:
        console.print(f"warning: {warning}", highlight=False, soft_wrap=True)
    if run.health is not None:
        state = "healthy" if run.health.healthy else f"not healthy: {'; '.join(run.health.complaints)}"
        console.print(f"chains are {state}; {run.interventions} intervention(s)", highlight=False, soft_wrap=True)
    # A model that cannot compare labels has no accuracy.
    accuracy = f"accuracy on held-out rows {run.accuracy:.1%}; " if math.isfinite(run.accuracy) else ""
    console.print(f"{accuracy}run folder {run.folder}", highlight=False, soft_wrap=True)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise InputError(f"--time takes a number with s, m or h, as in 90s, 20m or 2h, got {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def main() -> None:
    """Run the command; what is wrong with an input or a folder is one sentence, never a traceback."""
    try:
        app()
    except (InputError, Parted) as error:
        _say_once(str(error))
    except OSError as error:
        _say_once(f"{_refused(error)}; choose another folder, or make room there")
    else:
        return
    finally:
        leave()
    sys.exit(WRONG)


def _refused(error: OSError) -> str:
    where = f" at {error.filename}" if error.filename else ""
    return f"the system refused{where}: {error.strerror or error}"


def _say_once(sentence: str) -> None:
    """What is wrong is mostly wrong in all processes: the first speaks, another only where it outlives the first."""
    if RANK:
        sleep(GRACE)
        sentence = f"process {RANK}: {sentence}"
    _say(sentence)


def _say(sentence: str) -> None:
    Console(stderr=True).print(f"jointenergy: {escape(sentence)}", highlight=False, soft_wrap=True)

"""cli: `jointenergy train`, `resume` and `demo` train runs; `jointenergy recipes` lists recipes and studies."""

from __future__ import annotations

import atexit
import math
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from jointenergy.cli import evaluation
from jointenergy.cli.options import Baseline, DataFolder, Quick, Seed, Smoke, TrainDevice, chosen_size
from jointenergy.cli.screen import DIVERGED, INTERRUPTED, UNHEALTHY, WRONG, cell, complain, console, note, refused, say
from jointenergy.errors import InputError, plural
from jointenergy.files.locks import only_writer

if TYPE_CHECKING:
    import torch

    from jointenergy.recipes.schema import Recipe
    from jointenergy.training.distributed import World
    from jointenergy.training.health import Health
    from jointenergy.training.loop import Loop
    from jointenergy.training.plan import Plan

LONGEST = 1e7  # largest number accepted by --time
FEW_ROWS = 30  # held-out rows below which the standard error of an accuracy may exceed 0.09
Set = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a setting of the recipe, such as chain.steps=20. Repeatable."
    ),
]
Track = Annotated[str, typer.Option(metavar="TRACKER", help="Also log metrics elsewhere: tensorboard, wandb, mlflow.")]


def list_recipes(
    name: Annotated[
        str, typer.Argument(metavar="[RECIPE]", help="Recipe to print: a name, a variant or a TOML file.")
    ] = "",
    python: Annotated[bool, typer.Option("--python", help="Print an equivalent Python program.")] = False,
    data: DataFolder = None,
    seed: Seed = 0,
    quick: Quick = False,
    smoke: Smoke = False,
    overrides: Set = [],  # noqa: B006 (typer reads the default and copies it)
) -> None:
    """List the recipes and studies, or print a recipe.

    NAME:VARIANT is a recipe with some settings changed. `train` and `reproduce`
    take recipes, `study` takes studies. With a name, prints the whole recipe as
    TOML, or as a Python program with --python, which reads the data for their
    shape and labels.
    """
    from jointenergy import recipes
    from jointenergy.experiments import study as studies
    from jointenergy.recipes.data import data_of
    from jointenergy.recipes.programs import program_of
    from jointenergy.recipes.schema import write

    if name:
        recipe = recipes.load(name, overrides, size=chosen_size(quick=quick, smoke=smoke))
        text = program_of(recipe, data_of(recipe, data, seed=seed), seed, folder=data) if python else write(recipe)
        typer.echo(text, nl=False)
        return
    if python or overrides or quick or smoke:
        raise InputError(
            "--python, --quick, --smoke and --set apply to one recipe: name it, such as `recipes digits-jem`"
        )
    table = Table(box=None, pad_edge=False, show_header=False)
    for known in recipes.names():
        table.add_row(known, cell(recipes.load(known).description))
    for known in studies.names():
        table.add_row(known, cell(f"{studies.load(known).recipe.description} A study."))
    console.print(table)


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe or a variant, or a TOML file.")],
    data: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder to create; default: runs/NAME-SEED.")
    ] = None,
    seed: Seed = 0,
    time: Annotated[
        str,
        typer.Option(
            "--time",
            metavar="TIME",
            help="Train for about this long: 90s, 20m, 2h. The first 40 iterations are timed and kept, and set "
            "the number of iterations.",
        ),
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
    the run; `resume` continues it. Under torchrun, the batch and the replay
    buffer are split among the processes. Exit status: 0 for a healthy run, 3
    if training diverged and was abandoned, 4 if the finished run is not healthy
    (not checked with --quick and --smoke), 130 after Ctrl-C.
    """
    from jointenergy import recipes
    from jointenergy.recipes import run_folder
    from jointenergy.recipes.data import data_of

    settings = recipes.load(recipe, overrides, size=chosen_size(quick=quick, smoke=smoke))
    if baseline:
        settings = settings.baseline()
    seconds = _seconds(time) if time else None
    folder = out or Path("runs") / f"{settings.name}-{seed}"
    with _joined(device) as (world, where), _only_writer(world, folder):
        world.from_first(lambda: run_folder.check_free(folder))
        rows = data_of(settings, data, where, seed)
        if seconds is not None:
            settings = run_folder.InTime.provisional(settings)
        loop = run_folder.create(
            folder,
            settings,
            seed,
            data_folder=data,
            guarded=guard,
            device=where,
            world=world,
            data=rows,
            judged=not (quick or smoke),  # too short to be healthy
        )
        if seconds is not None:
            loop.callbacks.append(run_folder.InTime(seconds, settings))
        _go(loop, track)
        _leave_unhealthy(loop)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="DEVICE", help="Device to train on: auto, cpu or cuda; default: the run's own."
        ),
    ] = "",
    track: Track = "",
) -> None:
    """Resume a stopped run from its last checkpoint.

    The result is the same as if the run had never stopped, and so is the exit
    status.
    """
    from jointenergy.recipes import run_folder

    with _joined(device or run_folder.about(run).device) as (world, where), _only_writer(world, run):
        opened = run_folder.reopen(run, device=where, world=world)
        at, end = opened.trainer.iteration, opened.trainer.plan.iterations
        if not opened.complete:
            if world.first:
                say(f"resuming at iteration {at} of {end}")
            _go(opened, track)
        elif world.first:
            say(f"{run} is complete: {end} iterations")
        _leave_unhealthy(opened)


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Run folder.")] = Path("runs/demo"),
    seed: Seed = 0,
    overrides: Set = [],  # noqa: B006 (typer reads the default and copies it)
) -> None:
    """Train a JEM on 8 x 8 digits in minutes and write a report.

    Uses the digits of scikit-learn and the recipe digits-jem. If stopped, run
    the same command to continue. The exit status is that of `train`.
    """
    from jointenergy import recipes
    from jointenergy.report import comparison, suite
    from jointenergy.runs.loading import open_run

    settings = recipes.load("digits-jem", overrides)
    with only_writer(out):
        run = _resumed_demo(out, settings, seed)
        if not run.complete:
            _go(run)
        trained = open_run(out)
        evaluation.measure(suite.subject_of(trained, seed=seed), "quick", out / comparison.FOLDER)
    say(f"open it in the browser: jointenergy studio {out}")
    _leave_unhealthy(run)


def _resumed_demo(out: Path, settings: Recipe, seed: int) -> Loop:
    """Create the demo's run, or reopen it if it is the same."""
    from jointenergy.recipes import run_folder
    from jointenergy.recipes.schema import read

    if (out / run_folder.ABOUT).exists():
        if read(out / run_folder.RECIPE) == settings and run_folder.about(out).seed == seed:
            return run_folder.reopen(out)
        raise InputError(f"{out} contains another run: choose another --out, or remove that folder")
    return run_folder.create(out, settings, seed)


@contextmanager
def _joined(device: str) -> Iterator[tuple[World, torch.device]]:
    """Join torchrun's processes until the program ends; report a lost process in one sentence."""
    from jointenergy.training.distributed import Parted, end_alone, join, leave

    atexit.register(leave)  # at exit, after errors are printed: leaving earlier could end this process
    try:
        yield join(device)
    except Parted as parted:
        complain(str(parted))
        end_alone(WRONG)


@contextmanager
def _only_writer(world: World, folder: Path) -> Iterator[None]:
    """Lock the run folder in the first process; if it is locked elsewhere, all processes raise."""
    with ExitStack() as held:
        world.from_first(lambda: _enter(held, folder))
        yield


def _enter(held: ExitStack, folder: Path) -> None:
    held.enter_context(only_writer(folder))


def _go(run: Loop, track: str = "") -> None:
    """Train with progress; Ctrl-C or SIGTERM saves after the current step, a second one stops at once."""
    from jointenergy.cli.progress import train_with_progress
    from jointenergy.training.distributed import Parted
    from jointenergy.training.loop import Diverged, Interrupted
    from jointenergy.training.trackers import tracker

    def ask_to_stop(*_: object) -> None:
        run.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = [signal.signal(s, ask_to_stop) for s in (signal.SIGINT, signal.SIGTERM)]
    first, launch = run.world.first, "torchrun ... -m " if run.world.size > 1 else ""
    resume_line = f"continue with: {launch}jointenergy resume {run.folder}"
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
            if run.health is not None and not run.health.healthy:
                note(_advice(run.health, run.trainer.plan))
        raise typer.Exit(DIVERGED) from None
    except Parted as parted:
        raise Parted(f"{parted}; {resume_line}") from None
    except OSError as error:
        raise InputError(
            f"{refused(error)}; earlier checkpoints are intact: free disk space, then {resume_line}"
        ) from None
    finally:
        for kind, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(kind, handler)
    if not first:
        return
    for warning in run.trainer.warnings:
        say(f"warning: {warning}")
    if run.verdict is not None:
        for warning in run.verdict.warnings:
            say(f"warning: {warning}")
        state = "healthy" if run.verdict.healthy else f"not healthy: {'; '.join(run.verdict.complaints)}"
        judged = _judged(run)
        small = "" if judged else ", but a run of this size is too short to judge"
        say(f"the run is {state}{small}; {plural(run.interventions, 'intervention')}")
        if not run.verdict.healthy and judged:
            say(_advice(run.verdict, run.trainer.plan))
    # A model that cannot compare labels has no accuracy.
    accuracy = f"{_accuracy(run)}; " if math.isfinite(run.accuracy) else ""
    say(f"{accuracy}run folder {run.folder}")


def _accuracy(run: Loop) -> str:
    n = len(run.trainer.data.x_held)
    doubt = ", too few to judge by" if n < FEW_ROWS else ""
    return f"held-out accuracy {run.accuracy:.1%} ({plural(n, 'row')}{doubt})"


def _advice(health: Health, plan: Plan) -> str:
    """The two settings most worth changing, and the page that explains the verdict."""
    from jointenergy.training.advice import PAGE, changes

    settings = ", then ".join(f"{change.verb} {change.recipe}" for change in changes(health, plan))
    return f"to change first: {settings}; the documentation ({PAGE}) explains the verdict"


def _leave_unhealthy(run: Loop) -> None:
    """Exit with UNHEALTHY if the finished run is not healthy; small sizes are not checked."""
    if run.verdict is not None and not run.verdict.healthy and _judged(run):
        raise typer.Exit(UNHEALTHY)


def _judged(run: Loop) -> bool:
    """Whether the run has its full size: --quick and --smoke are too short for a verdict."""
    from jointenergy.recipes import run_folder

    assert run.folder is not None
    return run_folder.about(run.folder).judged


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or not 0 < float(match[1]) < LONGEST:
        raise InputError(f"--time takes a number with s, m or h, such as 90s, 20m or 2h, got {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]

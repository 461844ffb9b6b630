"""cli: `jointenergy study` trains the models of a study one after another, and measures them together."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Annotated

import typer

from jointenergy.cli.options import Baseline, DataFolder, Quick, Smoke, TrainDevice, chosen_seeds, chosen_size
from jointenergy.cli.progress import train_with_progress
from jointenergy.cli.reproduce import show
from jointenergy.cli.screen import INTERRUPTED, say
from jointenergy.experiments import study as work
from jointenergy.experiments.seeds import parse_seeds
from jointenergy.report import results
from jointenergy.training import loop

USUAL = 5  # seeds


def study(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Name of a study or a variant, or a TOML file.")],
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="SEEDS", help="Number of seeds (3) or a list (0,1,5); default: 5, or 1 with --quick or --smoke."
        ),
    ] = None,
    data: DataFolder = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run folders.")] = work.RUNS,
    folder: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Folder to write the result to.")
    ] = results.FOLDER,
    baseline: Baseline = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the result; required with --set.")] = None,
    device: TrainDevice = "auto",
    quick: Quick = False,
    smoke: Smoke = False,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the study; needs --name. Repeatable."),
    ] = [],  # noqa: B006 (typer reads the default and copies it)
) -> None:
    """Train and evaluate a study, which has several models.

    Continual learning trains groups of classes one after another; composition
    fine-tunes a product of models. Writes results/NAME.json; the git tree must
    be clean.
    """
    size = chosen_size(quick=quick, smoke=smoke)
    chosen = parse_seeds(chosen_seeds(seeds, size, USUAL))
    plan = work.Plan(study, chosen, data, runs, folder, baseline, tuple(overrides), name, device, size)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = work.measure(plan, _fit, say)
    except (KeyboardInterrupt, loop.Interrupted):
        again = f"go on with the same command: {shlex.join(plan.command())}"
        say(f"stopped, saved in {plan.folder}; {again}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    show(result)
    say(f"written to {folder / result.name}.json")


def _fit(run: loop.Loop, part: str) -> None:
    """With progress on the screen; the first Ctrl-C saves after the present step, a second stops at once."""

    def ask_to_stop(*_: object) -> None:
        run.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    say(part)
    before = [signal.signal(s, ask_to_stop) for s in (signal.SIGINT, signal.SIGTERM)]
    try:
        train_with_progress(run)
    finally:
        for kind, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(kind, handler)

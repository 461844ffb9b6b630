"""cli: `jointenergy study` trains the models of a study one after another, and measures them together."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jointenergy.cli.progress import train_with_progress
from jointenergy.cli.reproduce import show
from jointenergy.cli.sizes import Quick, Smoke, chosen_seeds, chosen_size
from jointenergy.evaluation import results
from jointenergy.experiments import study as work
from jointenergy.experiments.seeds import parse_seeds
from jointenergy.training import loop

console = Console()
USUAL = 5  # seeds
INTERRUPTED = 130  # what a shell expects of a program that Ctrl-C has ended


def study(
    study: Annotated[str, typer.Argument(help="The name of a study or a variant, or a TOML file.")],
    seeds: Annotated[
        str | None, typer.Option(help="How many seeds, as in 3, or which, as in 0,1,5; 5, and 1 of a smaller size.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The folder of the data; else JOINTENERGY_DATA names it.")] = None,
    runs: Annotated[Path, typer.Option(help="Where the run folders lie.")] = work.RUNS,
    folder: Annotated[Path, typer.Option("--results", help="Where the result is written.")] = results.FOLDER,
    baseline: Annotated[bool, typer.Option("--baseline", help="Train by cross-entropy alone, all else equal.")] = False,
    name: Annotated[str | None, typer.Option(help="The result's name; a changed study needs one of its own.")] = None,
    device: Annotated[str, typer.Option(help="Where to train: auto (a GPU where there is one), cpu or cuda.")] = "auto",
    quick: Quick = False,
    smoke: Smoke = False,
    overrides: Annotated[
        list[str],
        typer.Option("--set", help="Set a key of the study, as in --set continual.negatives=seen; needs --name."),
    ] = [],  # noqa: B006 (typer reads the default and copies it)
) -> None:
    """Train the models of a study seed by seed, measure them, write results/NAME.json from a clean tree.

    Continual learning trains classes in groups one after another; composition fine-tunes a product of models.
    """
    size = chosen_size(quick=quick, smoke=smoke)
    chosen = parse_seeds(chosen_seeds(seeds, size, USUAL))
    plan = work.Plan(study, chosen, data, runs, folder, baseline, tuple(overrides), name, device, size)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = work.measure(plan, _fit, lambda sentence: console.print(sentence, highlight=False, markup=False))
    except (KeyboardInterrupt, loop.Interrupted):
        again = f"go on with the same command: {shlex.join(plan.command())}"
        console.print(f"stopped, saved in {plan.folder}; {again}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    show(result)
    console.print(f"written to {folder / result.name}.json", highlight=False, markup=False, soft_wrap=True)


def _fit(run: loop.Loop, part: str) -> None:
    """With progress on the screen; the first Ctrl-C saves after the present step, a second stops at once."""

    def ask_to_stop(*_: object) -> None:
        run.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    console.print(part, highlight=False, markup=False)
    before = [signal.signal(s, ask_to_stop) for s in (signal.SIGINT, signal.SIGTERM)]
    try:
        train_with_progress(run, console)
    finally:
        for kind, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(kind, handler)

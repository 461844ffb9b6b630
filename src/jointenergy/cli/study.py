"""cli: `jointenergy study` reproduces a study, which trains several models and evaluates them together."""

from __future__ import annotations

from typing import Annotated

import typer

from jointenergy.cli.options import Baseline, DataFolder, Quick, Smoke, TrainDevice, chosen_size
from jointenergy.cli.reproduce import RESULTS, Jobs, Results, Runs, reproduce


def study(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Name of a study or a variant, or a TOML file.")],
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="SEEDS",
            help="Number of seeds (3) or a list (0,1,5); default: 5, or 1 with --quick or --smoke.",
        ),
    ] = None,
    jobs: Jobs = 1,
    data: DataFolder = None,
    runs: Runs = None,
    folder: Results = RESULTS,
    baseline: Baseline = False,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the result; required with --set.")
    ] = None,
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
    from jointenergy.experiments import study as studies

    studies.load(study, overrides, size=chosen_size(quick=quick, smoke=smoke))  # refuses an unknown study
    reproduce(
        [study],
        seeds,
        jobs,
        data,
        runs,
        folder,
        baseline,
        name=name,
        device=device,
        quick=quick,
        smoke=smoke,
        overrides=overrides,
    )

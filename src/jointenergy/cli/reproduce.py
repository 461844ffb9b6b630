"""cli: `jointenergy reproduce` trains and evaluates several seeds of a recipe; `jointenergy results` lists results."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import progress as bars
from rich.table import Table

from jointenergy.cli.options import DataFolder, Quick, Smoke, TrainDevice, chosen_seeds, chosen_size
from jointenergy.cli.screen import INTERRUPTED, cell, console, say
from jointenergy.errors import InputError

if TYPE_CHECKING:
    from jointenergy.experiments import reproduce as work
    from jointenergy.metrics.registry import Metric
    from jointenergy.report import results

USUAL = 20  # default number of seeds
OF_STUDIES = 5
VITAL = ("health", "interventions")  # shown for every run
Jobs = Annotated[int, typer.Option(metavar="N", help="Seeds to train at the same time, each on one core.", min=1)]
Runs = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Parent of the run folders; default: runs/reproduce, or runs/study for studies."),
]
Results = Annotated[Path, typer.Option("--results", metavar="DIR", help="Folder to write the result to.")]
RESULTS = Path("results")
MAIN = ("accuracy", "nll", "ece", "healthy")  # columns of the list; the files have all metrics


def reproduce(
    named: Annotated[
        list[str],
        typer.Argument(metavar="RECIPE", help="Names of recipes, variants or studies, or TOML files."),
    ] = [],  # noqa: B006 (typer reads the default and copies it)
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="SEEDS",
            help="Number of seeds (3) or a list (0,1,5); default: 20 (studies: 5; with --quick or --smoke: 1).",
        ),
    ] = None,
    jobs: Jobs = 1,
    data: DataFolder = None,
    runs: Runs = None,
    folder: Results = RESULTS,
    baseline: Annotated[
        bool | None,
        typer.Option(
            "--baseline/--no-baseline",
            help="Train only the cross-entropy baseline, or skip it; default: also train it for a JEM or Gibbs-JEM.",
        ),
    ] = None,
    guard: Annotated[
        bool,
        typer.Option(help="Monitor the runs and recover from divergence; --no-guard names the result NAME-unguarded."),
    ] = True,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="Evaluate samples, inpainting and sampled labels instead of predictions.")
    ] = False,
    ood: Annotated[
        list[str],
        typer.Option(metavar="NAME=DIR", help="Out-of-distribution images to detect among test rows. Repeatable."),
    ] = [],  # noqa: B006
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the result; required with --set.")
    ] = None,
    device: TrainDevice = "auto",
    quick: Quick = False,
    smoke: Smoke = False,
    judge: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Run that classifies the samples; default: the recipe's baseline, if it exists."
        ),
    ] = None,
    likelihood: Annotated[
        bool, typer.Option("--likelihood", help="Bound the test log-likelihood with forward and reverse AIS.")
    ] = False,
    extractor: Annotated[
        str | None,
        typer.Option(metavar="inception|FILE", help="Measure FID and KID of samples with this network's features."),
    ] = None,
    collect: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Join the records of seeds in this folder (seed-N.json with worker-N.json) and train none.",
        ),
    ] = None,
    gallery: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for a picture of the first seed.")] = None,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the recipe; needs --name. Repeatable."),
    ] = [],  # noqa: B006
) -> None:
    """Train and evaluate several seeds of recipes.

    Each seed is evaluated once on the test rows. Writes results/NAME.json and,
    for a JEM or Gibbs-JEM, results/NAME-baseline.json; the git tree must be
    clean. Without a recipe, lists the results of the papers beside ours.
    """
    from jointenergy.cli.inputs import named_places
    from jointenergy.experiments import reproduce as work
    from jointenergy.experiments import study as studies
    from jointenergy.experiments.seeds import parse_seeds

    if not named:
        _overview(folder)
        return
    if name is not None and len(named) > 1:
        raise InputError(f"--name names one result, got {len(named)} recipes: reproduce them one at a time")
    size = chosen_size(quick=quick, smoke=smoke)
    plans = [
        work.Reproduction(
            recipe,
            parse_seeds(chosen_seeds(seeds, size, OF_STUDIES if studies.is_study(recipe) else USUAL)),
            jobs=jobs,
            runs=runs,
            results=folder,
            name=name,
            tasks=tasks,
            likelihood=likelihood,
            extractor=extractor,
            judge=judge,
            collect=collect,
            gallery=gallery,
            ood=tuple((known, Path(place)) for known, place in named_places(ood, "--ood", "DIR").items()),
            data=data,
            device=device,
            size=size,
            baseline=baseline is True,
            guard=guard,
            overrides=tuple(overrides),
        )
        for recipe in named
    ]
    for plan in plans:
        for part in work.with_baseline(plan) if baseline is None and collect is None else (plan,):
            _reproduce_one(part)


def _overview(folder: Path) -> None:
    """List every recipe and study with the figures of its paper and ours."""
    from jointenergy import recipes
    from jointenergy.experiments import study as studies
    from jointenergy.experiments.papers import PAPERS
    from jointenergy.report import results

    found = {result.name: result for result in results.all_in(folder)}
    table = Table(box=None, pad_edge=False)
    for heading in ("recipe", "figure", "paper", "ours", "seeds"):
        words = heading in ("recipe", "figure")
        table.add_column(heading, no_wrap=heading != "figure", overflow="fold", justify="left" if words else "right")
    for name in [*recipes.names(), *studies.names()]:
        known = recipes.result_name(name)
        result, paper = found.get(known), PAPERS.get(known, {})
        ours = {} if result is None else result.metrics
        figures = [key for key in paper if key != "source" and not key.endswith("_macro")]
        first = next((key for key in ours if not key.startswith(VITAL)), "")
        for i, figure in enumerate(figures or [first]):
            theirs = paper.get(figure)
            table.add_row(
                name if i == 0 else "",
                cell(figure),
                _figure(None if isinstance(theirs, str) else theirs),
                "not run" if result is None else _with_spread(ours.get(figure)),
                "" if result is None or i > 0 else str(len(result.seeds)),
            )
    console.print(table)
    say("Reproduce one with `jointenergy reproduce NAME`; the head of each recipe states its cost.")


def _reproduce_one(plan: work.Reproduction) -> None:
    """Reproduce with a progress bar, then show the result."""
    from jointenergy.experiments import reproduce as work

    # Handle SIGTERM like Ctrl-C, so that the runs are saved and no process is left behind.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = _with_progress(plan)
    except KeyboardInterrupt:
        done = f"{work.n_complete(plan)} of {len(plan.seeds)} seeds complete"
        again = f"continue with the same command: {shlex.join(plan.command())}"
        say(f"stopped; runs are saved in {plan.folder}; {done}; {again}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    _show(result)
    say(f"wrote {plan.results / result.name}.json")


def _with_progress(plan: work.Reproduction) -> results.Result:
    from jointenergy.experiments import reproduce as work

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console, refresh_per_second=4, transient=True) as bar:
        task = bar.add_task(f"0 of {len(plan.seeds)} seeds", total=len(plan.seeds) * plan.settings.iterations)

        def draw(at: work.SeedsProgress) -> None:
            if at.event is not None:
                say(at.event)
            said = f"{at.n_ended} of {len(plan.seeds)} seeds, {at.n_running} running"
            bar.update(task, completed=at.iterations, description=said)

        return work.reproduce(plan, draw)


def _show(result: results.Result) -> None:
    """Print a table of the figures of a result, with the notes below."""
    n = len(result.seeds)
    table = Table(title=cell(f"{result.name}, {n} seed{'s' if n > 1 else ''}"), box=None, title_justify="left")
    for heading in ("", "mean", "std", "lowest", "highest", "paper"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, metric in result.metrics.items():
        spread = _figure(metric.std) if len(metric.present) > 1 else "-"
        ends = (min(metric.present), max(metric.present)) if metric.present else (None, None)
        paper = result.paper.get(name)
        table.add_row(
            cell(name),
            _figure(metric.mean),
            spread,
            *map(_figure, ends),
            _figure(None if isinstance(paper, str) else paper),
        )
    console.print(table)
    if result.notes:
        say(result.notes)


def list_results(
    folder: Annotated[Path, typer.Option("--results", metavar="DIR", help="Folder of the results.")] = RESULTS,
) -> None:
    """List the results in a folder, with their spread.

    Each figure is the mean over seeds ± its standard deviation.
    """
    from jointenergy.report import results

    found = results.all_in(folder)
    if not found:
        raise InputError(f"there are no results in {folder}: create one with `jointenergy reproduce NAME`")
    table = Table(box=None, pad_edge=False)
    for heading in ("result", *MAIN, "seeds", "date"):
        table.add_column(heading, no_wrap=True)
    for result in found:
        figures = [_with_spread(result.metrics.get(name)) for name in MAIN]
        table.add_row(cell(result.name), *figures, str(len(result.seeds)), cell(result.date))
    console.print(table)


def _with_spread(metric: Metric | None) -> str:
    if metric is None or metric.mean is None:
        return "-"
    return _figure(metric.mean) + (f" ± {metric.std:.2g}" if len(metric.present) > 1 else "")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"

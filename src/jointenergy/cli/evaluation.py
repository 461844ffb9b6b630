"""cli: `jointenergy evaluate` measures a run and writes its report; `jointenergy compare` shows runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as Shown

from jointenergy.cli.options import Seed
from jointenergy.cli.screen import INTERRUPTED, cell, console, say
from jointenergy.cli.tasks import AsJson, Data, Device, EqualConstants, Network, RunPath, opened
from jointenergy.errors import InputError

if TYPE_CHECKING:
    from jointenergy.report import suite
    from jointenergy.report.sections import Cell, Subject, Suite

KEY_FIGURES = (
    ("accuracy", "accuracy"),
    ("ece", "calibration error (ECE)"),
    ("nll", "negative log-likelihood"),
    ("consistency_class.model", "samples classified as their class"),
    ("fid.inception.fresh", "FID of fresh samples"),
    ("kid.inception.fresh", "KID of fresh samples"),
    ("fid.inception.buffer", "FID of the replay buffer"),
)


PARTS = ("health", "samples", "prediction", "calibration", "ood", "robustness", "distal", "likelihood", "training")


class SuiteName(StrEnum):
    """Size of an evaluation."""

    quick = "quick"
    full = "full"
    paper = "paper"


class ReferenceName(StrEnum):
    """Real rows that samples are compared with."""

    train = "train"
    test = "test"


def evaluate(
    run: RunPath,
    rows: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="Test rows x with labels y; default: those of the run's data set. A run of fit or wrap needs them.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="BASELINE_RUN", help="Run of the same network trained with cross-entropy only."),
    ] = None,
    other: Annotated[list[str], typer.Option(metavar="NAME=RUN", help="Another run to compare with. Repeatable.")] = [],  # noqa: B006 (typer reads the default and copies it)
    suite_name: Annotated[
        SuiteName, typer.Option("--suite", help="Size of the evaluation; paper uses JEM's attack budget.")
    ] = SuiteName.quick,
    ood: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=DIR", help="Out-of-distribution images: a folder, an archive or an idx file. Repeatable."
        ),
    ] = [],  # noqa: B006
    extractor: Annotated[
        Path | None,
        typer.Option(metavar="inception|FILE", help="Feature extractor for FID and KID: a name or a file."),
    ] = None,
    reference: Annotated[
        ReferenceName | None,
        typer.Option(help="What samples are compared with; default: train for inception, test for all others."),
    ] = None,
    part: Annotated[
        list[str],
        typer.Option("--part", metavar="PART", help=f"Measure only this part: {', '.join(PARTS)}. Repeatable."),
    ] = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the report; default: RUN/evaluation.")
    ] = None,
    equal_constants: EqualConstants = False,
    network: Network = None,
    data: Data = None,
    device: Device = "auto",
    seed: Seed = 0,
) -> None:
    """Evaluate a run on its test rows and write a report.

    Writes report.html, metrics.json and pictures. After Ctrl-C, run the same
    command again to measure the remaining parts.
    """
    from jointenergy.cli import inputs
    from jointenergy.report import comparison, extractors, suite
    from jointenergy.report.evaluation import own_rows
    from jointenergy.report.ood_sets import read_ood_set

    folder = out or comparison.folder_of(run)
    trained = opened(run, data, device, network=network, equal_constants=equal_constants)
    baseline = None if against is None else opened(against, data, device, network=network, beside=True)
    others = {
        name: opened(Path(place), data, device, network=network, beside=True)
        for name, place in inputs.named_places(other, "--other", "RUN").items()
    }
    ood_sets = [
        read_ood_set(name, Path(place), trained) for name, place in inputs.named_places(ood, "--ood", "DIR").items()
    ]
    named = None if extractor is None else extractors.load(extractor, trained)
    if reference is not None:
        if named is None:
            raise InputError("--reference needs an extractor: add --extractor")
        named = replace(named, reference=reference.value)
    test = None
    if rows is not None:
        y = inputs.labels_in(rows) if len(trained.labels) else None
        test = own_rows(trained, inputs.read([rows], trained, resize=False).x, y)
    subject = suite.subject_of(
        trained, test=test, baseline=baseline, others=others, ood_sets=ood_sets, extractor=named, seed=seed
    )
    measure(subject, suite_name.value, folder, only=part or None)


def measure(subject: Subject, size: Suite, folder: Path, *, only: Sequence[str] | None = None) -> None:
    """Evaluate, write the page and print a summary; Ctrl-C keeps the finished parts."""
    from jointenergy.report import page, suite

    with console.status("measuring") as status:

        def show(part: str) -> None:
            if console.is_terminal:
                status.update(f"measuring: {part}")
            else:
                say(f"measuring: {part}")

        try:
            found = suite.evaluate(subject, size, folder, only=only, report=show)
        except KeyboardInterrupt:
            status.stop()
            say("stopped; finished parts are saved: run the same command to continue")
            raise typer.Exit(INTERRUPTED) from None
    written = page.write(found, folder)
    _show(found, written)


def _show(found: suite.RunEvaluation, page: Path) -> None:
    from jointenergy.report.page import rounded

    say(f"{found.headline[0].upper()}{found.headline[1:]}.")
    for name, words in KEY_FIGURES:
        value = found.metrics.get(name)
        if value is not None:
            beside = found.metrics.get(f"baseline.{name}")
            against = "" if beside is None else f"   baseline {rounded(beside, 4)}"
            say(f"{words:28} {rounded(value, 4)}{against}")
    say(f"{'time':28} {sum(found.seconds.values()):.0f} s")
    say(f"{'report':28} {page}")


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders with an evaluation.")],
    only: Annotated[str, typer.Option(metavar="TEXT", help="Show only metrics whose name contains this text.")] = "",
    as_json: AsJson = False,
) -> None:
    """Compare the metrics of evaluated runs side by side."""
    from jointenergy.cli import outputs
    from jointenergy.report import comparison

    table, says = comparison.compare([comparison.read(path) for path in runs])
    rows = [row for row in table.rows if only in str(row[0])]
    if only and not rows:
        raise InputError(f"no metric name of these runs contains {only!r}: omit --only to list all metrics")
    if as_json:
        plain = {str(row[0]): dict(zip(table.columns[1:], row[1:], strict=True)) for row in rows}
        print(outputs.json_text(plain))
        return
    shown = Shown(box=None, pad_edge=False)
    for i, column in enumerate(table.columns):
        shown.add_column(cell(column), justify="left" if i == 0 else "right")
    for row in rows:
        shown.add_row(*(cell(_text(value)) for value in row))
    console.print(shown)
    outputs.say(says)


def _text(value: Cell) -> str:
    """Format with four significant digits, since every row has its own scale."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

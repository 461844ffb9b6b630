"""cli: `push` and `pull` share a run in a folder or on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jointenergy.cli.tasks import Data, Network, RunPath, opened
from jointenergy.cli.waiting import waiting

Place = Annotated[str, typer.Argument(metavar="PLACE", help="A folder, or hf://OWNER/NAME on the Hugging Face hub.")]


def push(
    run: RunPath,
    place: Place,
    half: Annotated[
        bool, typer.Option("--half", help="Round weights to float16, for a file of half the size.")
    ] = False,
    network: Network = None,
    data: Data = None,
) -> None:
    """Share a run: weights, model card and checksums.

    The card shows the figures of `jointenergy evaluate`, if the run has been
    evaluated. The hub needs the extra `hub` and a token in HF_TOKEN.
    """
    from jointenergy.cli import outputs
    from jointenergy.report import comparison, sharing
    from jointenergy.report.suite import METRICS

    figures: dict[str, float | None] = {}
    if (comparison.folder_of(run) / METRICS).exists():
        figures = comparison.read(run).metrics
    source = opened(run, data, "cpu", network=network)
    with waiting("pushing"):
        where = sharing.push(source, place, figures=figures, half=half)
    outputs.written(where)


def pull(
    place: Place,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder to write to.")] = Path("models"),
) -> None:
    """Get a shared run and check it by its checksums."""
    from jointenergy.cli import outputs
    from jointenergy.report import sharing

    name = place.rpartition("/")[2] if "://" in place else Path(place).resolve().name
    with waiting("pulling"):
        path = sharing.pull(place, to / name)
    outputs.written(path)

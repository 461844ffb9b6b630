"""cli: data sets by name: `jointenergy data list` and `jointenergy data get`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from jointenergy.cli.screen import console, say
from jointenergy.errors import InputError

app = typer.Typer(help="List data sets and download them.", add_completion=False)


@app.command("list", epilog="Example: jointenergy data list")
def list_sets() -> None:
    """List the data sets, what each holds, and whether `data get` downloads it."""
    from jointenergy.data import READERS, downloads

    table = Table(box=None, pad_edge=False)
    for head in ("name", "what is read", "get", "options"):
        table.add_column(head)
    for name, entry in READERS.items():
        own = downloads.MADE_OF.get(name, name)
        got = "yes" if own in downloads.SOURCES else "by hand" if name in downloads.BY_HAND else ""
        table.add_row(name, entry.about, got, ", ".join(entry.takes))
    console.print(table)


@app.command("get", epilog="Example: jointenergy data get mnist --to data")
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a data set in `jointenergy data list`.")],
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the data sets; default: JOINTENERGY_DATA, or ./data.")
    ] = None,
) -> None:
    """Download the files of a data set to DIR/NAME and verify their checksums."""
    from jointenergy.data import downloads
    from jointenergy.data.request import VARIABLE

    folder = to or Path(os.environ.get(VARIABLE) or "data")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--to must be a folder, but {folder} is a file: choose another")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def report(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total or None)
            bar.update(tasks[file], completed=done)

        paths = downloads.get(name, folder, report=report)
    for path in paths:
        say(str(path))
    remedy = "" if os.environ.get(VARIABLE) == str(folder) else f"; use it with --data {folder} or {VARIABLE}={folder}"
    say(f"{name}: {len(paths)} file(s) verified{remedy}")

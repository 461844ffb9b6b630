"""cli: data sets by name: `jointenergy data list` and `jointenergy data get`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from jointenergy.data import READERS, downloads
from jointenergy.data.request import VARIABLE

app = typer.Typer(help="List the data sets that are known by name, and get those that can be downloaded.")
console = Console()


@app.command("list")
def list_sets() -> None:
    """List the data sets: their names, what is read, and whether `data get` fetches them."""
    table = Table(box=None, pad_edge=False)
    for head in ("name", "what is read", "get", "options"):
        table.add_column(head)
    for name, entry in READERS.items():
        own = downloads.MADE_OF.get(name, name)
        got = "yes" if own in downloads.SOURCES else "by hand" if name in downloads.BY_HAND else ""
        table.add_row(name, entry.about, got, ", ".join(entry.takes))
    console.print(table)


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="The name of a data set, as in `jointenergy data list`.")],
    to: Annotated[Path | None, typer.Option(help=f"The folder of all data; else {VARIABLE}, else ./data.")] = None,
) -> None:
    """Download a data set's public files, checked by their checksums, to DIR/NAME."""
    folder = to or Path(os.environ.get(VARIABLE) or "data")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def report(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total or None)
            bar.update(tasks[file], completed=done)

        paths = downloads.get(name, folder, report=report)
    for path in paths:
        console.print(str(path), highlight=False, soft_wrap=True)
    remedy = "" if os.environ.get(VARIABLE) == str(folder) else f"; use it by --data {folder}, or {VARIABLE}={folder}"
    console.print(f"{len(paths)} file(s) of {name}, whole{remedy}", highlight=False, soft_wrap=True)

"""cli: `jointenergy init` inspects your data and writes a recipe for them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jointenergy.cli.options import TrainDevice
from jointenergy.cli.screen import say
from jointenergy.cli.waiting import waiting
from jointenergy.errors import InputError
from jointenergy.files.writing import write_text

if TYPE_CHECKING:
    from jointenergy.data import Dataset


def init(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Folder of images (a folder for each class, or a CSV beside them), or an .npz or .csv file.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Recipe file to write.")] = Path("my.toml"),
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes", metavar="MINUTES", help="Training time to plan for on this machine.", min=0.1, max=100_000
        ),
    ] = 10.0,
    label: Annotated[
        str, typer.Option(metavar="COLUMN", help="Column of a .csv file with the class; else the last.")
    ] = "",
    device: TrainDevice = "auto",
) -> None:
    """Write a recipe for your own images or table.

    Keeps the names of your labels. Chooses the network, the chains and the
    number of iterations for this machine, with comments on what to change.
    """
    from jointenergy.data.own import look
    from jointenergy.recipes import own
    from jointenergy.recipes.schema import parse
    from jointenergy.training.distributed import device_of

    if out.exists():
        raise InputError(f"{out} already exists: choose another --out")
    if out.suffix != ".toml":
        raise InputError(f"--out must end in .toml, got {out}")
    where = device_of(device)
    with waiting("reading the data"):
        found = look(place, own.SIDES[where.type], label)
    train = found.train
    for line in (what_is_in(train), *own.label_lines(train), *found.notes):
        say(line)
    values = own.recipe_values(found, own.plain_name(out.stem), where)
    parse(values, str(out))
    with waiting("measuring the speed"):
        values, seconds = own.with_iterations(values, 60 * minutes, place, where)
    command = f"jointenergy train {shlex.quote(str(out))} --data {shlex.quote(str(place))}"
    system = "JEM" if len(train.labels) else "A density"
    values["description"] = f"{system} of {what_is_in(train)}."
    head = [
        f"{system} of {what_is_in(train)}.",
        f"Training takes about {_time(seconds)} on the {where.type.upper()} of the machine that wrote this file.",
        f"Start it with: {command}",
    ]
    text = own.text_of(values, found, head)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, text)
    say(f"wrote {out}: {values['iterations']:,} iterations, about {_time(seconds)}. Next: {command}")


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"


def what_is_in(train: Dataset) -> str:
    """Describe the training rows in a few words: number, shape and labels."""
    shape, labels = train.event_shape, train.labels
    if len(shape) == 3 and shape[0] in (1, 3):
        rows = f"images, {shape[1]} x {shape[2]} in {'color' if shape[0] == 3 else 'gray'}"
    else:
        rows = f"rows of {' x '.join(map(str, shape))} numbers"
    if len(labels) == 1:
        said = f"{labels.cardinalities[0]} values of {labels.names[0]}"
    else:
        said = f"{len(labels)} labels" if len(labels) else "no labels"
    return f"{len(train):,} training {rows}, {said}"

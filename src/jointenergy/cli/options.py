"""cli: options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jointenergy.errors import InputError

if TYPE_CHECKING:
    from jointenergy.recipes.variants import Size


def _seed(value: int) -> int:
    if value >= 2**63:  # the limit of a generator, checked here to keep it out of the help
        raise InputError(f"--seed must be below 2**63, got {value}")
    return value


Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Random seed.", min=0, callback=_seed)]
TrainDevice = Annotated[
    str,
    typer.Option("--device", metavar="DEVICE", help="Device to train on: auto (a GPU if there is one), cpu or cuda."),
]
DataFolder = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Folder of the data sets; default: JOINTENERGY_DATA.")
]
Baseline = Annotated[bool, typer.Option("--baseline", help="Train with cross-entropy only, all else equal.")]
Quick = Annotated[bool, typer.Option("--quick", help="Use the recipe's quick size: at most a minute on a CPU.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Use the recipe's smallest size: seconds, to check that it runs.")]


def chosen_seeds(asked: str | None, size: Size, usual: int) -> str:
    """Return the requested seeds, or the default number; smaller sizes use one seed."""
    return asked if asked is not None else str(usual if size == "full" else 1)


def chosen_size(*, quick: bool, smoke: bool) -> Size:
    if quick and smoke:
        raise InputError("--quick and --smoke exclude each other: give one of them")
    return "quick" if quick else "smoke" if smoke else "full"

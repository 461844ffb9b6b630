"""cli: the options that choose a smaller size of a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from jointenergy.errors import InputError
from jointenergy.recipes.variants import Size

Quick = Annotated[bool, typer.Option("--quick", help="The recipe's quick size: at most a minute on a CPU.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="The recipe's smallest size: seconds, to see that it runs.")]


def chosen_seeds(asked: str | None, size: Size, usual: int) -> str:
    """The seeds asked for, or as many as are usual; a smaller size is there to see that it runs."""
    return asked if asked is not None else str(usual if size == "full" else 1)


def chosen_size(*, quick: bool, smoke: bool) -> Size:
    if quick and smoke:
        raise InputError("--quick and --smoke are two sizes: give one of them")
    return "quick" if quick else "smoke" if smoke else "full"

"""cli: `jointenergy inpaint` completes images and tables that are known in part."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jointenergy.cli.options import Seed
from jointenergy.cli.synthesis import FilmOption, Steps, both, save_film, steps_of
from jointenergy.cli.tasks import AsCsv, AsJson, Data, Device, Given, InputPaths, Network, Resize, RunPath, opened
from jointenergy.cli.waiting import waiting
from jointenergy.errors import InputError
from jointenergy.limits import COUNT

if TYPE_CHECKING:
    from torch import Tensor

    from jointenergy.cli import inputs, outputs
    from jointenergy.inference import Inpainted
    from jointenergy.runs import Film, Run

SHOWN_DRAWS = 6  # draws shown per input in a picture
BESIDE = 3  # and beside them the input, its known part and the mean of the draws


def inpaint(
    run: RunPath,
    files: InputPaths,
    mask: Annotated[
        str,
        typer.Option(
            metavar="PART",
            help="Known part of each input: upper, lower, left or right; a picture (white is known) or .npy (True is "
            "known); or names of columns. Not needed for tables with empty cells.",
        ),
    ] = "",
    given: Given = "",
    draws: Annotated[int, typer.Option(metavar="N", help="Draws per input.", min=1, max=COUNT)] = 32,
    level: Annotated[float, typer.Option(help="Coverage of the intervals for table cells.", min=0.01, max=0.99)] = 0.9,
    steps: Steps = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write: a picture (.png), .npy or .npz.")
    ] = None,
    film: FilmOption = None,
    resize: Resize = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    seed: Seed = 0,
    network: Network = None,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Complete missing pixels or columns of inputs.

    Draws several completions of each input and shows their mean and spread.
    """
    from jointenergy.cli import inputs, outputs
    from jointenergy.cli.masks import mask_of

    if out is not None:
        outputs.check_file(out)
    outputs.check_film(film)
    source = opened(run, data, device, network=network)
    outputs.check_rows(film, 1, source.event_shape)
    known = inputs.labels_of(given, source.labels)
    rows = inputs.read(files, source, resize=resize, in_part=True)
    held = ~rows.x.isnan()
    if mask:
        held = held & mask_of(mask, source, len(rows.x), rows.columns)
    if bool(held.all()):
        raise InputError("nothing is missing in the input: name the known part with --mask, such as --mask upper")
    outputs.check_rows(out, len(rows.x) * (BESIDE + min(draws, SHOWN_DRAWS)), source.event_shape)
    length = steps_of(source, steps)
    reel, columns = _reel(length, len(rows.x), draws, source.event_shape) if film is not None else (None, None)
    with waiting("inpainting", length) as done:
        found = source.inpaint(
            rows.x, held, given=known, n_draws=draws, level=level, steps=length, frames=both(done, reel), seed=seed
        )
    if out is not None:
        _save_inpainted(out, found, rows.x, held, source)
    save_film(film, reel, source, columns)
    if columns is not None:
        outputs.say([f"each row of the film shows one draw of {columns} inputs"])
    outputs.show(_completed(found, rows, held), as_json=as_json, as_csv=as_csv)
    outputs.say([*rows.notes, *found.notes])


def _reel(steps: int, n: int, draws: int, event_shape: tuple[int, ...]) -> tuple[Film, int | None]:
    """Create the film and its number of columns; chains hold all inputs for the first draw, then for the next."""
    from jointenergy.runs import Film

    film = Film(steps)
    if n == 1 or draws == 1 or math.prod(event_shape) == 2:
        return film, None
    shown = min(n, film.n)
    return Film(steps, shown * max(1, min(draws, SHOWN_DRAWS, film.n // n))), shown


def _save_inpainted(path: Path, found: Inpainted, x: Tensor, held: Tensor, run: Run) -> None:
    from jointenergy.cli import outputs

    if path.suffix.lower() not in outputs.PICTURES:
        outputs.save(path, found.draws, found.y, run.bounds)
        return
    grey = x.where(held, x.new_tensor(sum(run.bounds) / 2))
    complete = [x] if not bool(x.isnan().any()) else []
    shown = [*complete, grey, *found.draws[:SHOWN_DRAWS], found.mean]
    outputs.save(path, outputs.beside(*shown), found.y, run.bounds, columns=len(shown))
    what = "the input, " if complete else ""
    outputs.say([f"each row of the picture: {what}the known part, {len(found.draws[:SHOWN_DRAWS])} draws, their mean"])


def _completed(found: Inpainted, rows: inputs.Inputs, held: Tensor) -> list[outputs.Record]:
    """List the completed cells of a table, or a summary per image."""
    records: list[outputs.Record] = []
    flat = [None if t is None else t.flatten(1) for t in (found.mean, found.std, found.low, found.high)]
    mean, std, low, high = flat
    assert mean is not None
    for i, name in enumerate(rows.names):
        free = (~held[i].flatten()).nonzero()[:, 0].tolist()
        if not rows.columns:
            spread = None if std is None or not free else float(std[i, free].mean())
            records.append({"input": name, "known": float(held[i].float().mean()), "mean spread of the rest": spread})
            continue
        for k in free:
            values = {"mean": mean, "std": std, "low": low, "high": high}
            shown = {key: None if t is None else float(t[i, k]) for key, t in values.items()}
            records.append({"input": name, "column": rows.columns[k], **shown})
    return records

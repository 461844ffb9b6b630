"""cli: questions about inputs, put to a trained run: predict, score, rank; and export, which makes it one file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jointenergy.cli import inputs, outputs
from jointenergy.cli.options import Seed
from jointenergy.cli.waiting import waiting
from jointenergy.errors import InputError
from jointenergy.inference import SCORES
from jointenergy.labels import MISSING
from jointenergy.runs import Run
from jointenergy.runs.loading import open_run
from jointenergy.runs.run import QUANTILE

FEW_LABELS = 3  # that stand beside each other in a table

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or a file written by `jointenergy export`.")]
InputPaths = Annotated[
    list[Path], typer.Argument(metavar="INPUT", help="Image files, folders of images, .npy, .npz or .csv.")
]
Given = Annotated[str, typer.Option(metavar="LABELS", help="Known labels, such as Smiling=1,Male=0.")]
Resize = Annotated[bool, typer.Option("--resize", help="Resize images to the size that the run takes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the data sets, if it has moved.")]
Device = Annotated[
    str, typer.Option(metavar="DEVICE", help="Device to compute on: auto (a GPU if there is one), cpu or cuda.")
]


class By(StrEnum):
    """How labels are found."""

    energy = "energy"
    sampling = "sampling"


def opened(path: Path, data: Path | None, device: str) -> Run:
    """The run, its warnings said."""
    with waiting("loading"):
        run = open_run(path, data=data, device=device)
    outputs.say(run.notes)
    return run


def predict(
    run: RunPath,
    files: InputPaths,
    by: Annotated[By, typer.Option(help="Compare energies exactly, or take the mode of sampled labels.")] = By.energy,
    refine: Annotated[
        int,
        typer.Option(
            metavar="N", help="Langevin steps on each input before predicting, as in JEM-1 and JEM-10.", min=0
        ),
    ] = 0,
    given: Given = "",
    all_values: Annotated[
        bool, typer.Option("--all", help="Show the probability of every value, not only the most likely.")
    ] = False,
    chains: Annotated[int, typer.Option(metavar="N", help="Chains per input, with --by sampling.", min=1)] = 10,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps per chain, with --by sampling.", min=0)] = 200,
    resize: Resize = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    seed: Seed = 0,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Predict the labels of inputs, with probabilities."""
    source = opened(run, data, device)
    known = inputs.labels_of(given, source.labels)
    rows = inputs.read(files, source, resize=resize)
    with waiting("predicting"):
        probs = source.predict_proba(
            rows.x, given=known, by=by.value, refine=refine, n_chains=chains, steps=steps, seed=seed
        )
    if not probs:
        raise InputError(f"{run} has no labels to predict")
    wide: list[dict[str, outputs.Value]] = [{"input": name} for name in rows.names]
    long: list[outputs.Record] = []
    for i, record in enumerate(wide):
        for k, (label, p) in enumerate(probs.items()):
            values = source.labels.values[k]
            best = values[int(p[i].argmax())]
            record |= {label: best, f"p({label})": float(p[i].max())}
            every = dict(zip(values, p[i].tolist(), strict=True))
            if all_values:
                record |= {f"p({label}={v})": q for v, q in every.items()}
            for value, q in (every if all_values else {best: every[best]}).items():
                long.append({"input": record["input"], "label": label, "value": value, "p": q})
    # A number for each value would not fit beside each other on a screen.
    narrow = len(probs) <= FEW_LABELS and not all_values
    outputs.show(wide, as_json=as_json, as_csv=as_csv, shown=wide if narrow else long)
    if by is By.sampling:
        outputs.say([f"p is the share of {chains} chains that ended there, after {steps} steps each"])
    outputs.say(rows.notes)


def score(
    run: RunPath,
    files: InputPaths,
    quantile: Annotated[
        float, typer.Option(help="Share of held-out rows that the threshold rejects.", min=0, max=0.999)
    ] = QUANTILE,
    resize: Resize = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Score inputs for out-of-distribution detection.

    Shows all scores of each input, each larger for inputs more like the data,
    and whether the input is in distribution.
    """
    source = opened(run, data, device)
    rows = inputs.read(files, source, resize=resize)
    shown: dict[str, list[float]] = {}
    missing: list[str] = []
    with waiting("scoring"):
        found = source.detect(rows.x, quantile=quantile)
        for name in SCORES:
            try:
                shown[name] = source.score(rows.x, name).tolist()
            except InputError as error:
                missing.append(f"no {name}: {error}")
    records: list[outputs.Record] = [
        {"input": name, **{n: s[i] for n, s in shown.items()}, "in": bool(found.inside[i])}
        for i, name in enumerate(rows.names)
    ]
    outputs.show(records, as_json=as_json, as_csv=as_csv)
    least, n_rows = found.threshold.value, found.threshold.n_rows
    kind = found.threshold.score
    outputs.say([f"in: {kind} of {least:.4g} or more, which {1 - quantile:.0%} of {n_rows} held-out rows have"])
    outputs.say([*missing, *rows.notes])


def rank(
    run: RunPath,
    files: InputPaths,
    first: Annotated[str, typer.Option(metavar="LABELS", help="First labeling, such as digit=3.")],
    second: Annotated[str, typer.Option(metavar="LABELS", help="Second labeling, such as digit=8.")],
    given: Given = "",
    resize: Resize = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Compare two labelings of each input by their log-odds."""
    source = opened(run, data, device)
    one, other, known = (inputs.labels_of(text, source.labels) for text in (first, second, given))
    rows = inputs.read(files, source, resize=resize)
    with waiting("ranking"):
        ranking = source.rank(rows.x, one, other, given=known)
    winners = {0: "first", 1: "second", MISSING: "tie"}
    names = {0: inputs.text_of(one, source.labels), 1: inputs.text_of(other, source.labels), MISSING: None}
    records: list[outputs.Record] = [
        {"input": name, "winner": winners[int(winner)], "better": names[int(winner)], "log_odds": float(odds)}
        for name, winner, odds in zip(rows.names, ranking.winner, ranking.log_odds, strict=True)
    ]
    outputs.show(records, as_json=as_json, as_csv=as_csv)
    outputs.say(rows.notes)


def export(
    run: RunPath,
    file: Annotated[Path, typer.Argument(metavar="FILE.safetensors", help="File to write.")],
    data: Data = None,
) -> None:
    """Export a run to one portable file that every command opens.

    The file holds the weights, recipe, labels and thresholds.
    """
    source = opened(run, data, "cpu")
    with waiting("exporting"):
        path = source.export(file)
    outputs.written(path)

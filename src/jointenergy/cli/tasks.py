"""cli: query a trained run: predict, score, rank; calibrate; and export to one file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jointenergy.cli.options import Seed
from jointenergy.cli.waiting import waiting
from jointenergy.errors import InputError
from jointenergy.limits import COUNT

if TYPE_CHECKING:
    from jointenergy.runs import Run

FEW_LABELS = 3  # label columns shown side by side

RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="Run folder, exported file, or the name of a published model.")
]
InputPaths = Annotated[
    list[Path], typer.Argument(metavar="INPUT", help="Image files, folders of images, .npy, .npz or .csv.")
]
Given = Annotated[str, typer.Option(metavar="LABELS", help="Known labels, such as Smiling=1,Male=0.")]
Resize = Annotated[bool, typer.Option("--resize", help="Resize images to the input size of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]
Network = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="MODULE:NAME",
        help="Your network, for a run of fit or wrap: a torch module, or a function that returns one, in a module or a "
        ".py file. Its code is run.",
    ),
]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the data sets, if it has moved.")]
EqualConstants = Annotated[
    bool,
    typer.Option(
        "--assume-equal-constants",
        help="Compare labels of a conditional model by assuming equal normalizing constants; the output says so.",
    ),
]
Device = Annotated[
    str,
    typer.Option("--device", metavar="DEVICE", help="Device to compute on: auto (a GPU if there is one), cpu or cuda."),
]


class By(StrEnum):
    """How labels are predicted."""

    energy = "energy"
    sampling = "sampling"


def opened(
    path: Path,
    data: Path | None,
    device: str,
    *,
    network: str | None = None,
    beside: bool = False,
    equal_constants: bool = False,
) -> Run:
    """Open the run and print its warnings; one of several (`beside`) may do without the network that others need."""
    from jointenergy.cli import outputs
    from jointenergy.cli.own_network import network_named
    from jointenergy.runs.loading import open_run

    with waiting("loading"):
        own = None if network is None else network_named(network)
        run = open_run(path, network=own, data=data, device=device)
    if own is not None and run.recipe is not None and not beside:
        raise InputError(f"{path} is a run of a recipe, which defines its network: leave out --network")
    if equal_constants:
        run = run.assuming_equal_constants()
    outputs.say(run.notes)
    return run


def predict(
    run: RunPath,
    files: InputPaths,
    by: Annotated[By, typer.Option(help="Compare energies exactly, or take the mode of sampled labels.")] = By.energy,
    refine: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Langevin steps on each input before predicting, as in JEM-1 and JEM-10.",
            min=0,
            max=COUNT,
        ),
    ] = 0,
    given: Given = "",
    all_values: Annotated[
        bool, typer.Option("--all", help="Show the probability of every value, not only the most likely.")
    ] = False,
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Show probabilities at the temperature of `jointenergy calibrate`.")
    ] = False,
    coverage: Annotated[
        float | None,
        typer.Option(metavar="P", help="Show prediction sets that contain the true value with this probability."),
    ] = None,
    chains: Annotated[
        int, typer.Option(metavar="N", help="Chains per input, with --by sampling.", min=1, max=COUNT)
    ] = 10,
    steps: Annotated[
        int, typer.Option(metavar="N", help="Steps per chain, with --by sampling.", min=0, max=COUNT)
    ] = 200,
    equal_constants: EqualConstants = False,
    resize: Resize = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    seed: Seed = 0,
    network: Network = None,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Predict the labels of inputs, with probabilities."""
    from jointenergy.cli import inputs, outputs

    source = opened(run, data, device, network=network, equal_constants=equal_constants)
    if coverage is not None and (given or refine or by is By.sampling):
        raise InputError("--coverage uses p(label | x) by energy: leave out --given, --refine and --by sampling")
    known = inputs.labels_of(given, source.labels)
    rows = inputs.read(files, source, resize=resize)
    with waiting("predicting"):
        probs = source.predict_proba(
            rows.x,
            given=known,
            by=by.value,
            refine=refine,
            calibrated=calibrated,
            n_chains=chains,
            steps=steps,
            seed=seed,
        )
        sets = None if coverage is None else source.predict_set(rows.x, coverage=coverage).names()
    if not probs:
        raise InputError(f"{run} has no labels to predict")
    wide: list[dict[str, outputs.Value]] = [{"input": name} for name in rows.names]
    long: list[outputs.Record] = []
    for i, record in enumerate(wide):
        for k, (label, p) in enumerate(probs.items()):
            values = source.labels.values[k]
            best = values[int(p[i].argmax())]
            record |= {label: best, f"p({label})": float(p[i].max())}
            held = {} if sets is None else {f"set({label})": " ".join(sets[i][label])}
            record |= held
            every = dict(zip(values, p[i].tolist(), strict=True))
            if all_values:
                record |= {f"p({label}={v})": q for v, q in every.items()}
            for value, q in (every if all_values else {best: every[best]}).items():
                beside = {"set": held[f"set({label})"]} if held else {}
                long.append({"input": record["input"], "label": label, "value": value, "p": q, **beside})
    # One column per value would not fit on a screen.
    narrow = len(probs) <= FEW_LABELS and not all_values
    outputs.show(wide, as_json=as_json, as_csv=as_csv, shown=wide if narrow else long)
    if by is By.sampling:
        outputs.say([f"p is the share of {chains} chains at that value after {steps} steps"])
    if coverage is not None:
        outputs.say([f"prediction sets cover at least {coverage:.0%} of inputs like the validation rows"])
    outputs.say(rows.notes)


def calibrate(
    run: RunPath,
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Validation rows x with labels y; default: the held-out rows."),
    ] = None,
    coverage: Annotated[
        list[float], typer.Option(metavar="P", help="Fit prediction sets of this coverage. Repeatable.")
    ] = [0.9],  # noqa: B006 (typer reads the default and copies it)
    equal_constants: EqualConstants = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    network: Network = None,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Fit the temperature and the prediction sets of a run.

    Both are stored in the run folder or the exported file, for `predict
    --calibrated` and `predict --coverage`. Use rows from the distribution of
    future inputs that were not trained on.
    """
    from jointenergy.cli import inputs, outputs

    source = opened(run, data, device, network=network, equal_constants=equal_constants)
    if rows is None:
        x = y = None
    else:
        x, y = inputs.read([rows], source, resize=False).x, inputs.labels_in(rows)
    with waiting("calibrating"), source.thresholds.together():
        sets = {p: source.conform(x, y, coverage=p) for p in coverage}
        temperature = source.calibrate(x, y)
    records: list[outputs.Record] = [{"fitted": "temperature", "value": temperature.value, "rows": temperature.n_rows}]
    for p, fitted in sets.items():
        records += [{"fitted": f"sets of {n}, {p:g}", "value": c.value, "rows": c.n_rows} for n, c in fitted.items()]
    outputs.show(records, as_json=as_json, as_csv=as_csv)


def score(
    run: RunPath,
    files: InputPaths,
    quantile: Annotated[
        float, typer.Option(help="Share of held-out rows that the threshold rejects.", min=0, max=0.999)
    ] = 0.05,
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Validation rows x of the threshold; default: the held-out rows."),
    ] = None,
    features: Annotated[
        bool, typer.Option("--features", help="Also show feature-based scores; reads the training rows.")
    ] = False,
    equal_constants: EqualConstants = False,
    resize: Resize = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    network: Network = None,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Score inputs for out-of-distribution detection.

    Shows all scores of each input, higher for inputs more like the training
    data, and whether the input is in distribution.
    """
    from jointenergy.cli import inputs, outputs
    from jointenergy.inference import SCORES

    source = opened(run, data, device, network=network, equal_constants=equal_constants)
    asked = inputs.read(files, source, resize=resize)
    shown: dict[str, list[float]] = {}
    missing: list[str] = []
    with waiting("scoring"):
        if rows is not None:
            source.fit_threshold(inputs.read([rows], source, resize=False).x, quantile=quantile)
        found = source.detect(asked.x, quantile=quantile)
        for name in (n for n in SCORES if features or SCORES[n].by_features is None):
            try:
                shown[name] = source.score(asked.x, name).tolist()
            except InputError as error:
                missing.append(f"no {name}: {error}")
    records: list[outputs.Record] = [
        {"input": name, **{n: s[i] for n, s in shown.items()}, "in": bool(found.inside[i])}
        for i, name in enumerate(asked.names)
    ]
    outputs.show(records, as_json=as_json, as_csv=as_csv)
    least, n_rows = found.threshold.value, found.threshold.n_rows
    kind = found.threshold.score
    which = "held-out" if rows is None else "validation"
    outputs.say([f"in distribution: {kind} of at least {least:.4g} ({1 - quantile:.0%} of {n_rows} {which} rows)"])
    outputs.say([*missing, *asked.notes])


def rank(
    run: RunPath,
    files: InputPaths,
    first: Annotated[str, typer.Option(metavar="LABELS", help="First labeling, such as digit=3.")],
    second: Annotated[str, typer.Option(metavar="LABELS", help="Second labeling, such as digit=8.")],
    given: Given = "",
    equal_constants: EqualConstants = False,
    resize: Resize = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    network: Network = None,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Compare two labelings of each input by their log-odds."""
    from jointenergy.cli import inputs, outputs
    from jointenergy.labels import MISSING

    source = opened(run, data, device, network=network, equal_constants=equal_constants)
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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, .safetensors or .onnx.")],
    half: Annotated[
        bool, typer.Option("--half", help="Round weights to float16, for a file of half the size.")
    ] = False,
    network: Network = None,
    data: Data = None,
) -> None:
    """Export a run to one file, safetensors or ONNX.

    Every command opens a .safetensors file. It holds the weights, recipe,
    labels, thresholds, temperature and prediction sets. An .onnx file is for
    other programs: it gives logits, log-density and the largest probability
    of a batch.
    """
    from jointenergy.cli import outputs

    source = opened(run, data, "cpu", network=network)
    with waiting("exporting"):
        path = source.export(file, half=half)
    outputs.written(path)

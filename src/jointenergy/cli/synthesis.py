"""cli: generate with a trained run: sample, convert, compose, distal; write pictures, arrays and films."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jointenergy.cli.options import Seed
from jointenergy.cli.tasks import (
    AsCsv,
    AsJson,
    Data,
    Device,
    EqualConstants,
    Given,
    InputPaths,
    Network,
    Resize,
    RunPath,
    opened,
)
from jointenergy.cli.waiting import waiting
from jointenergy.errors import InputError
from jointenergy.limits import COUNT

if TYPE_CHECKING:
    from jointenergy.inference.chains import Frames
    from jointenergy.kernels import State
    from jointenergy.runs import Film, Run

AT_ONCE = 1000  # chains per batch
SHOWN_FRAMES = 10  # frames shown of a conversion

Out = Annotated[Path, typer.Option(metavar="FILE", help="File to write: a picture (.png), .npy, or .npz with x and y.")]
FilmOption = Annotated[
    Path | None, typer.Option("--film", metavar="FILE", help="Write an animated .gif of the chains.")
]
Steps = Annotated[
    int | None,
    typer.Option(metavar="N", help="Steps per chain; default: the recipe's sampling_steps.", min=0, max=COUNT),
]
N = Annotated[int, typer.Option("-n", metavar="N", help="Number of samples.", min=1, max=COUNT)]


class Method(StrEnum):
    """Treatment of labels that are not given."""

    resample = "resample"
    marginalize = "marginalize"
    select = "select"


class Begin(StrEnum):
    """Starting points of chains."""

    noise = "noise"
    class_ = "class"
    buffer = "buffer"


def sample(
    run: RunPath,
    out: Out,
    n: N = 64,
    given: Given = "",
    method: Annotated[
        Method | None,
        typer.Option(
            help="Resample free labels, marginalize them, or select among unconditional chains; default: the recipe's."
        ),
    ] = None,
    start: Annotated[Begin | None, typer.Option(help="Starting points of the chains; default: the recipe's.")] = None,
    keep_best: Annotated[
        float | None,
        typer.Option(help="Run more chains and keep this share, those with the highest p(given | x).", min=0, max=1),
    ] = None,
    steps: Steps = None,
    film: FilmOption = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    seed: Seed = 0,
    network: Network = None,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Draw samples of x, given any of the labels.

    By default, fresh chains are run and every sample is kept; --start and
    --keep-best change this.
    """
    from jointenergy.cli import inputs, outputs
    from jointenergy.inference.sample import TENTH
    from jointenergy.runs import Film

    outputs.check_file(out)
    outputs.check_film(film)
    source = opened(run, data, device, network=network)
    outputs.check_rows(out, n, source.event_shape)
    outputs.check_rows(film, 1, source.event_shape)
    known = inputs.labels_of(given, source.labels)
    if not known and (keep_best is not None or method is Method.select):
        raise InputError("--keep-best and --method select rank chains by p(given | x): add labels with --given")
    length = steps_of(source, steps)
    reel = Film(length) if film is not None else None
    n_chains = math.ceil(n / (keep_best or (TENTH if method is Method.select else 1.0)) - 1e-9)
    batch_size = AT_ONCE if n_chains > AT_ONCE and reel is None else None
    with waiting("sampling", n_chains if batch_size else length) as done:
        drawn = source.sample(
            n,
            given=known,
            method=None if method is None else method.value,
            start=None if start is None else start.value,
            keep_best=keep_best,
            steps=length,
            batch_size=batch_size,
            frames=None if batch_size else both(done, reel),
            progress=done if batch_size else None,
            seed=seed,
        )
    outputs.save(out, drawn.x, drawn.y, source.bounds)
    save_film(film, reel, source)
    record: dict[str, outputs.Value] = {"samples": n, "given": inputs.text_of(known, source.labels), "steps": length}
    record |= {"temperature": drawn.temperature}
    if known and drawn.log_prob is not None:
        record["p(given | x)"] = float(drawn.log_prob.exp().mean())
    if drawn.acceptance_rate is not None:
        record["accepted"] = drawn.acceptance_rate
    outputs.show([record], as_json=as_json, as_csv=as_csv)
    outputs.say(drawn.notes)
    if reel is not None and n_chains > n:
        outputs.say([f"the film shows {min(reel.n, n_chains)} of all {n_chains} chains, not only the {n} samples kept"])


def distal(
    run: RunPath,
    given: Annotated[str, typer.Option(metavar="LABELS", help="Target labels, such as digit=3.")],
    out: Out,
    n: N = 16,
    above: Annotated[float, typer.Option(metavar="P", help="Stop when p(labels | x) reaches this probability.")] = 0.9,
    max_steps: Annotated[int, typer.Option(metavar="N", help="Maximum number of steps.", min=0, max=COUNT)] = 1000,
    equal_constants: EqualConstants = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    seed: Seed = 0,
    network: Network = None,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Turn noise into inputs that the model is confident about.

    Follows the gradient of log p(labels | x). A good generative model arrives at
    images of the class; a plain classifier is often confident about noise.
    """
    from jointenergy.cli import inputs, outputs

    outputs.check_file(out)
    source = opened(run, data, device, network=network, equal_constants=equal_constants)
    outputs.check_rows(out, n, source.event_shape)
    known = inputs.labels_of(given, source.labels)
    if not known:
        raise InputError("distal needs target labels: add --given, such as --given digit=3")
    with waiting("climbing"):
        found = source.distal(n, known, above=above, max_steps=max_steps, seed=seed)
    outputs.save(out, found.x, source.predict(found.x), source.bounds)
    record: dict[str, outputs.Value] = {
        "images": n,
        "given": inputs.text_of(known, source.labels),
        "reached": int(found.reached.sum()),
        "median steps": float(found.steps.double().median()),
        "p(given | x)": float(found.probability.mean()),
    }
    outputs.show([record], as_json=as_json, as_csv=as_csv)


def convert(
    run: RunPath,
    files: InputPaths,
    to: Annotated[str, typer.Option(metavar="LABELS", help="Target labels, such as digit=8.")],
    out: Out,
    steps: Steps = None,
    film: FilmOption = None,
    resize: Resize = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    seed: Seed = 0,
    network: Network = None,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Change inputs until they have other labels.

    Each row of the picture shows the chain of one input, from the input to the
    result.
    """
    from jointenergy.cli import inputs, outputs
    from jointenergy.runs import Film

    outputs.check_file(out)
    outputs.check_film(film)
    source = opened(run, data, device, network=network)
    wanted = inputs.labels_of(to, source.labels)
    rows = inputs.read(files, source, resize=resize)
    length = steps_of(source, steps)
    outputs.check_rows(out, len(rows.x) * len(_shown_frames(1 + length)), source.event_shape)
    outputs.check_rows(film, 1, source.event_shape)
    with waiting("converting", length) as done:
        found = source.convert(rows.x, wanted, steps=length, frames=both(done, None), seed=seed)
    if out.suffix.lower() in outputs.PICTURES:
        frames = [found.path[i] for i in _shown_frames(len(found.path))]
        outputs.save(out, outputs.beside(*frames), found.y, source.bounds, columns=len(frames))
    else:
        outputs.save(out, found.x, found.y, source.bounds)
    if film is not None:
        reel = Film(length)
        for step, x in zip(found.steps, found.path, strict=True):
            reel.add(step, x)
        save_film(film, reel, source)
    records: list[outputs.Record] = []
    for i, name in enumerate(rows.names):
        before, after = (None, None) if found.log_prob is None else found.log_prob[[0, -1], i].exp().tolist()
        change = float((found.x[i] - rows.x[i]).abs().mean())
        records.append({"input": name, "p(to | x) before": before, "after": after, "mean change": change})
    outputs.show(records, as_json=as_json, as_csv=as_csv)
    outputs.say([*rows.notes, *found.notes])


def compose(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders on the same x; a run may be repeated.")
    ],
    out: Out,
    given: Annotated[
        list[str],
        typer.Option("--given", metavar="LABELS", help="Known labels of each run, in order; '' for none. Repeatable."),
    ] = [],  # noqa: B006 (typer reads the default and copies it)
    n: N = 64,
    steps: Steps = None,
    film: FilmOption = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    seed: Seed = 0,
    network: Network = None,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Sample the product of several runs or conditions."""
    from jointenergy.cli import inputs, outputs
    from jointenergy.runs import Film

    outputs.check_file(out)
    outputs.check_film(film)
    if given and len(given) != len(runs):
        raise InputError(
            f"give one --given for each run, in order ('' for none): got {len(given)} for {len(runs)} run(s)"
        )
    opening = {path: opened(path, data, device, network=network, beside=True) for path in dict.fromkeys(runs)}
    sources = [opening[path] for path in runs]
    outputs.check_rows(out, n, sources[0].event_shape)
    outputs.check_rows(film, 1, sources[0].event_shape)
    known = [
        inputs.labels_of(text, s.labels) or None for text, s in zip(given or [""] * len(runs), sources, strict=True)
    ]
    length = steps_of(sources[0], steps)
    reel = Film(length) if film is not None else None
    with waiting("sampling", length) as done:
        drawn = sources[0].compose(
            list(zip(sources[1:], known[1:], strict=True)),
            n,
            given=known[0],
            steps=length,
            frames=both(done, reel),
            seed=seed,
        )
    outputs.save(out, drawn.x, drawn.y, sources[0].bounds)
    save_film(film, reel, sources[0])
    records: list[outputs.Record] = [
        {
            "run": str(path),
            "given": inputs.text_of(labels or {}, source.labels),
            "mean log_density": float(part.mean()),
            "p(given | x)": None if log_prob is None else float(log_prob.exp().mean()),
        }
        for path, source, labels, part, log_prob in zip(runs, sources, known, drawn.parts, drawn.log_prob, strict=True)
    ]
    outputs.show(records, as_json=as_json, as_csv=as_csv)
    outputs.say(drawn.notes)


def steps_of(run: Run, steps: int | None) -> int:
    """Return the number of steps asked for, or the recipe's."""
    length = run.sampling.steps if steps is None else steps
    if length is None:
        raise InputError(f"{run.origin.name} has no default number of steps: add --steps")
    return length


def _shown_frames(n: int) -> list[int]:
    """Choose a few of many frames, denser at the start, where most changes happen."""
    ends = {0, n - 1, *(round(n ** (i / SHOWN_FRAMES)) for i in range(SHOWN_FRAMES))}
    return sorted(i for i in ends if i < n)


def both(done: Callable[[int], None], reel: Film | None) -> Frames:
    """Advance the progress bar with each step and, if asked for, record the film."""

    def frames(step: int, state: State) -> None:
        done(step)
        if reel is not None:
            reel(step, state)

    return frames


def save_film(path: Path | None, reel: Film | None, run: Run, columns: int | None = None) -> None:
    """Save the film, if one was asked for."""
    from jointenergy.cli import outputs

    if path is not None and reel is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        reel.save(path, run.bounds, columns=columns)
        outputs.written(path)

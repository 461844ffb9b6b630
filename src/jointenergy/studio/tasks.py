"""studio: the tasks of a worker: each checks its request, calls the run, and sends pictures and numbers."""

from __future__ import annotations

import base64
import binascii
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from jointenergy.data import View
from jointenergy.data.fitting import fitted
from jointenergy.data.folders import decode
from jointenergy.errors import InputError
from jointenergy.kernels import Langevin, State
from jointenergy.runs import Run
from jointenergy.runs.arrays import tensor_of
from jointenergy.runs.film import Film
from jointenergy.studio.desk import OpenRun, rows_of_values, values_of
from jointenergy.studio.pool import Emit

MOST_CHAINS, MOST_STEPS, MOST_FRAMES = 64, 2000, 240
MOST_VALUES = 1_000_000  # per frame
BINS = 40
NEAREST = 6
SPREAD = 4.0  # reach of the histogram beyond held-out rows, in interquartile ranges
Chains = Annotated[int, Field(ge=1, le=MOST_CHAINS)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Text = Annotated[str, Field(max_length=24_000_000)]


class TaskAsked(BaseModel):
    """Fields of every task: the run, by its number, and a seed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    run: Annotated[int, Field(ge=0, lt=1000)] = 0
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class Input(BaseModel):
    """One input: a test row of a run, an image file, or the values of a table's row, None where missing."""

    model_config = ConfigDict(extra="forbid", strict=True)

    row: Annotated[int, Field(ge=0, lt=10_000_000)] | None = None
    of: Annotated[int, Field(ge=0, lt=1000)] | None = None
    image: Text | None = None
    invert: bool = False
    values: Annotated[list[Annotated[float, Field(allow_inf_nan=False)] | None], Field(max_length=10_000)] | None = None


Given = Annotated[dict[str, str], Field(max_length=1000)]


class SampleAsked(TaskAsked):
    """Request for chains, live or as an animation."""

    given: Given = {}
    chains: Chains = 16
    steps: Steps = 100
    temperature: Annotated[float, Field(gt=0, le=1e6)] | None = None
    start: Literal["noise", "class", "buffer"] | None = None


class InputAsked(TaskAsked):
    """Request about one input."""

    input: Input


class CompleteAsked(InputAsked):
    """Request to inpaint a region of an input; `hidden` are the indices of its pixels."""

    hidden: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=100_000)] = []
    chains: Chains = 8
    steps: Steps = 100
    given: Given = {}


class ConvertAsked(InputAsked):
    """Request to convert an input to new labels."""

    to: Given
    steps: Steps = 100


class AttackAsked(InputAsked):
    """Request to attack an input; the radius is a share of the range of x."""

    radius: Annotated[float, Field(gt=0, le=1)] = 0.1
    steps: Annotated[int, Field(ge=1, le=100)] = 20
    refine: Annotated[int, Field(ge=0, le=200)] = 10


class RowsAsked(TaskAsked):
    """Request for test rows to pick from."""

    begin: Annotated[int, Field(ge=0, lt=10_000_000)] = 0
    n: Annotated[int, Field(ge=1, le=64)] = 24


Desk = list[OpenRun]


# Pictures and numbers for the page.


def pixels(run: Run, x: Tensor) -> str:
    """Encode images as base64 bytes, rows first, channels last."""
    form = x.view(len(x), 1, *_side(x)) if x.ndim == 2 else x[:, None] if x.ndim == 3 else x
    unit = View.of(run.bounds).unit(form.detach().cpu().float())
    levels = (unit.nan_to_num(0.5) * 255).round().clamp(0, 255).byte()
    return base64.b64encode(levels.permute(0, 2, 3, 1).contiguous().numpy().tobytes()).decode()


def _side(x: Tensor) -> tuple[int, int]:
    side = math.isqrt(x.shape[1])
    return side, side


def shown(place: OpenRun, run: Run, x: Tensor) -> dict[str, Any]:
    """Convert rows for display."""
    if place.kind == "image":
        return {"n": len(x), "pixels": pixels(run, x)}
    return {"n": len(x), "values": [[_number(v) for v in row] for row in values_of(run, x).flatten(1).tolist()]}


def _number(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return round(value, 6) if math.isfinite(value) else None


def _numbers(values: Tensor) -> list[float | None]:
    return [_number(v) for v in values.detach().double().cpu().flatten().tolist()]


# Inputs from the page.


def x_of(desk: Desk, place: OpenRun, run: Run, asked: Input) -> Tensor:
    """Return one input, `[1, *event]`, as the run takes it."""
    given = [name for name in ("row", "image", "values") if getattr(asked, name) is not None]
    if len(given) != 1:
        raise InputError(f"an input is a test row, an image or values, one of them; got {', '.join(given) or 'none'}")
    if asked.row is not None:
        source = place if asked.of is None else place_of(desk, asked.of)
        if source.opened.event_shape != run.event_shape:
            raise InputError(
                f"{source.name} has x of shape {source.opened.event_shape} and {place.name} takes {run.event_shape}: "
                "compare runs on the same x"
            )
        if asked.row >= len(source.test.x):
            raise InputError(f"{source.name} has {len(source.test.x):,} rows to pick from, and no row {asked.row:,}")
        return run.rows(source.test.x[asked.row : asked.row + 1])
    if asked.image is not None:
        return _image(place, run, asked.image, asked.invert)
    assert asked.values is not None
    wanted = math.prod(run.event_shape)
    if len(asked.values) != wanted:
        raise InputError(f"a row has {len(asked.values)} values where the run takes {wanted}")
    row = torch.tensor([math.nan if v is None else v for v in asked.values], dtype=torch.float64)
    return run.rows(rows_of_values(run, row[None]).view(1, *run.event_shape))


def _image(place: OpenRun, run: Run, text: str, invert: bool) -> Tensor:
    """Read an uploaded image, as carefully as any untrusted file, in the shape of x."""
    form = place.form
    if form is None or place.kind != "image":
        raise InputError(f"{place.name} takes rows of numbers, not images")
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InputError("the image is not valid base64") from None
    found = tensor_of(decode(content, "of the page", "RGB" if form[0] == 3 else "L", None), "the image").float()
    found = 255.0 - found if invert else found
    x = fitted(found[None], form)[0].round().clamp(0, 255).byte()
    return run.rows(x.view(1, *run.event_shape))


def place_of(desk: Desk, number: int) -> OpenRun:
    """Return the run with this number."""
    if not 0 <= number < len(desk):
        raise InputError(f"there is no run {number}: {len(desk)} are open")
    return desk[number]


def _given(given: dict[str, str]) -> dict[str, int | str] | None:
    return dict(given) or None


def _labels(run: Run, y: Tensor) -> list[dict[str, Any]]:
    return [dict(row) for row in run.labels.decode(y)] if len(run.labels) else [{} for _ in y]


# Tasks. Each takes the open runs, the request, the number of its worker and where to send events.


def sample(desk: Desk, asked: SampleAsked, worker: int, emit: Emit) -> None:
    """Stream chains as they move, with the energy of each."""
    place = place_of(desk, asked.run)
    run = _warmed(place.of(worker), asked.temperature)
    _check_size(run, asked.chains)
    frames = _frames(place, run, asked.steps, asked.given, emit)
    drawn = run.sample(
        asked.chains, _given(asked.given), steps=asked.steps, start=asked.start, frames=frames, seed=asked.seed
    )
    probs = None if drawn.log_prob is None else _numbers(drawn.log_prob.exp())
    labels = _labels(run, drawn.y)
    emit("done", {**shown(place, run, drawn.x), "labels": labels, "probs": probs, "notes": drawn.notes})


def film(desk: Desk, asked: SampleAsked, worker: int, emit: Emit) -> None:
    """Draw the same chains as an animated GIF."""
    run = _warmed(place_of(desk, asked.run).of(worker), asked.temperature)
    _check_size(run, asked.chains)
    reel = Film(asked.steps)

    def frames(step: int, state: State) -> None:
        reel(step, state)
        emit("step", {"step": step}) if step % 10 == 0 else None

    run.sample(asked.chains, _given(asked.given), steps=asked.steps, start=asked.start, frames=frames, seed=asked.seed)
    emit("done", {"gif": base64.b64encode(reel.content(run.bounds)).decode()})


def ask(desk: Desk, asked: InputAsked, worker: int, emit: Emit) -> None:
    """Predict labels, set and score of one input."""
    place = place_of(desk, asked.run)
    run = place.of(worker)
    x = x_of(desk, place, run, asked.input)
    notes: list[str] = []
    answer: dict[str, Any] = {"x": shown(place, run, x), "labels": _probabilities(run, x, notes)}
    answer["true"] = _true(desk, place, asked.input)
    if len(run.labels):
        answer["set"] = _told(notes, lambda: dict(run.predict_set(x).names()[0]))
    answer["score"] = _told(notes, lambda: _score(place, run, x))
    answer["gradient_norm"] = _told(notes, lambda: _number(-float(run.score(x, "gradient_norm"))))
    answer["neighbors"] = _told(notes, lambda: _neighbors(place, run, x))
    emit("done", {**answer, "notes": [*run.notes, *notes]})


def complete(desk: Desk, asked: CompleteAsked, worker: int, emit: Emit) -> None:
    """Inpaint a region with several chains, live; then send their mean and spread."""
    place = place_of(desk, asked.run)
    run = place.of(worker)
    _check_size(run, asked.chains)
    x = x_of(desk, place, run, asked.input)
    mask = _mask(place, run, asked.hidden) & ~x[0].isnan()
    if bool(mask.all()):
        raise InputError("nothing is hidden: brush out a region, or empty a field")
    frames = _frames(place, run, asked.steps, asked.given, emit)
    found = run.inpaint(
        x,
        mask[None],
        given=_given(asked.given),
        n_draws=asked.chains,
        steps=asked.steps,
        frames=frames,
        seed=asked.seed,
    )
    notes, draws = list(found.notes), found.draws[:, 0]
    answer: dict[str, Any] = {**shown(place, run, draws), "labels": _labels(run, found.y[:, 0])}
    answer["mean"] = shown(place, run, found.mean)
    if found.std is not None and found.low is not None and found.high is not None:
        answer["spread"] = _numbers(found.std)
        answer["low"], answer["high"] = shown(place, run, found.low), shown(place, run, found.high)
    answer["probs"] = _probabilities(run, draws, notes)
    answer["score"] = _told(notes, lambda: _score(place, run, draws))
    emit("done", {**answer, "notes": notes})


def convert(desk: Desk, asked: ConvertAsked, worker: int, emit: Emit) -> None:
    """Convert one input to other labels, step by step."""
    place = place_of(desk, asked.run)
    run = place.of(worker)
    x = x_of(desk, place, run, asked.input)
    every = max(1, math.ceil(asked.steps / MOST_FRAMES))

    def frames(step: int, state: State) -> None:
        if step % every == 0 or step == asked.steps:
            emit("frame", {"step": step, **shown(place, run, state.x)})

    found = run.convert(x, _given(asked.to), steps=asked.steps, frames=frames, seed=asked.seed)
    probs = None if found.log_prob is None else _numbers(found.log_prob[:, 0].exp())
    notes = list(found.notes)
    emit(
        "done",
        {
            **shown(place, run, found.x),
            "steps": found.steps,
            "probs": probs,
            "before": _probabilities(run, x, notes),
            "after": _probabilities(run, found.x, notes),
            "change": _number(float((found.x - x).abs().mean())),
            "notes": notes,
        },
    )


def attack(desk: Desk, asked: AttackAsked, worker: int, emit: Emit) -> None:
    """Attack an input by PGD; send the predictions before, after, and after refinement."""
    place = place_of(desk, asked.run)
    run = place.of(worker)
    x = x_of(desk, place, run, asked.input)
    radius = asked.radius * (run.bounds[1] - run.bounds[0])
    emit("step", {"step": 0})
    attacked = run.attack(x, radius=radius, steps=asked.steps)
    emit("step", {"step": 1})
    notes: list[str] = []
    stages = {"before": x, "attacked": attacked.x}
    if asked.refine:
        stages["refined"] = run.refine(attacked.x, asked.refine, seed=asked.seed).x[0]
    said = {}
    for name, rows_at in stages.items():
        score = _told(notes, functools.partial(_score, place, run, rows_at))
        labels = _probabilities(run, rows_at, notes)
        said[name] = {"x": shown(place, run, rows_at), "labels": labels, "score": score}
    emit("done", {"stages": said, "changed": bool(attacked.changed[0]), "notes": list(dict.fromkeys(notes))})


def rows(desk: Desk, asked: RowsAsked, worker: int, emit: Emit) -> None:
    """Send test rows to pick from, with their labels."""
    place = place_of(desk, asked.run)
    run = place.of(worker)
    test = place.test
    picked = run.rows(test.x[asked.begin : asked.begin + asked.n])
    labels = _labels(run, test.y[asked.begin : asked.begin + asked.n].view(len(picked), -1))
    emit("done", {**shown(place, run, picked), "labels": labels, "begin": asked.begin, "of": len(test.x)})


TASKS: dict[str, tuple[type[TaskAsked], Callable[[Desk, Any, int, Emit], None]]] = {
    "sample": (SampleAsked, sample),
    "film": (SampleAsked, film),
    "ask": (InputAsked, ask),
    "complete": (CompleteAsked, complete),
    "convert": (ConvertAsked, convert),
    "attack": (AttackAsked, attack),
    "rows": (RowsAsked, rows),
}


# Parts of answers.


def _told(notes: list[str], part: Callable[[], Any]) -> Any:  # noqa: ANN401 (JSON)
    """Return a part of an answer, or None and the library's error message."""
    try:
        return part()
    except InputError as error:
        notes.append(str(error))
        return None


def _probabilities(run: Run, x: Tensor, notes: list[str]) -> dict[str, list[float | None]] | None:
    """Return p(label | x), averaged over rows."""
    if not len(run.labels):
        return None
    found: dict[str, list[float | None]] | None = _told(
        notes, lambda: {name: _numbers(p.double().mean(0)) for name, p in run.predict_proba(x).items()}
    )
    return found


def _score(place: OpenRun, run: Run, x: Tensor) -> dict[str, Any]:
    """Return log p(x), averaged over rows, with the threshold and the histogram of held-out rows."""
    value = float(run.score(x).double().mean())
    threshold, typical = run.threshold(), place.typical
    quarter = torch.quantile(typical, torch.tensor([0.25, 0.75], dtype=torch.float64))
    width = max(float(quarter[1] - quarter[0]), 1e-9)
    low = min(float(typical.min()), max(value, float(quarter[0]) - SPREAD * width))
    high = max(float(typical.max()), min(value, float(quarter[1]) + SPREAD * width))
    counts, _ = np.histogram(typical.numpy(), bins=BINS, range=(low, high))
    return {
        "value": _number(value),
        "threshold": _number(threshold.value),
        "quantile": threshold.quantile,
        "inside": value >= threshold.value,
        "low": low,
        "high": high,
        "counts": counts.tolist(),
        "trained": not run.is_cross_entropy,
    }


def _neighbors(place: OpenRun, run: Run, x: Tensor) -> dict[str, Any]:
    near = run.neighbors(x, NEAREST)
    index = near.index[0]
    found = shown(place, run, run.data.x[index])
    return {**found, "distance": _numbers(near.distance), "labels": _labels(run, run.data.y[index])}


def _true(desk: Desk, place: OpenRun, asked: Input) -> dict[str, Any] | None:
    """Return the labels of a test row."""
    if asked.row is None:
        return None
    source = place if asked.of is None else place_of(desk, asked.of)
    test = source.test
    return _labels(source.opened, test.y[asked.row : asked.row + 1].view(1, -1))[0]


def _mask(place: OpenRun, run: Run, hidden: list[int]) -> Tensor:
    """Return a mask, True where x is known; a hidden pixel is hidden in all channels."""
    form = place.form if place.kind == "image" else None
    channels, n = (1, math.prod(run.event_shape)) if form is None else (form[0], form[1] * form[2])
    if hidden and max(hidden) >= n:
        raise InputError(f"x has {n:,} pixels to hide, and no pixel {max(hidden):,}")
    known = torch.ones(channels, n, dtype=torch.bool)
    known[:, hidden] = False
    return known.view(run.event_shape)


def _frames(place: OpenRun, run: Run, steps: int, given: dict[str, str], emit: Emit) -> Callable[[int, State], None]:
    """Return a callback that sends the chains as they move, at most at the frame rate of a film."""
    every = max(1, math.ceil(steps / MOST_FRAMES))
    held = _given(given)

    def frames(step: int, state: State) -> None:
        if step % every and step != steps:
            return
        y = run.labels.given(held, len(state.x), state.x.device)
        with torch.no_grad():
            energy = -run.model.log_density_unchecked(state.x, y)
        emit("frame", {"step": step, "energy": _numbers(energy), **shown(place, run, state.x)})

    return frames


def _warmed(run: Run, temperature: float | None) -> Run:
    """Return the run with chains at another temperature."""
    kernel = run.sampling.x_kernel
    if temperature is None or math.isclose(temperature, run.sampling.temperature, rel_tol=1e-6):
        return run
    if not isinstance(kernel, Langevin):
        raise InputError(f"the temperature of Langevin chains can be set, and these move by {type(kernel).__name__}")
    moved = replace(kernel, noise_scale=math.sqrt(2.0 * kernel.step_size * temperature))
    return run.with_sampling(replace(run.sampling, x_kernel=moved))


def _check_size(run: Run, chains: int) -> None:
    size = chains * math.prod(run.event_shape)
    if size > MOST_VALUES:
        most = max(1, MOST_VALUES // math.prod(run.event_shape))
        raise InputError(f"{chains} chains of x with {math.prod(run.event_shape):,} values are too many: take {most}")

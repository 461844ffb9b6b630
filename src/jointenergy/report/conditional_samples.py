"""report: whether samples show the labels that they were asked for: single values, pairs, and pairs never seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from jointenergy.data.options import NOT
from jointenergy.errors import InputError
from jointenergy.inference.sample import Method
from jointenergy.labels import MISSING
from jointenergy.metrics.label_patterns import agreement
from jointenergy.models import Box
from jointenergy.report.samples_sets import passed
from jointenergy.runs import Run
from jointenergy.starts import ClassGaussianStart, XStart
from jointenergy.training.plan import clamped

Begin = Literal["noise", "class", "matched_buffer", "unmatched_buffer", "buffer"]
Judge = Callable[[Tensor], Tensor]
"""From x to its labels, `[n, L]`, MISSING where x is nothing that has any."""

BEGINS: tuple[Begin, ...] = ("noise", "class", "matched_buffer", "unmatched_buffer")
SELECTED: tuple[Begin, ...] = ("noise", "class", "buffer")
LARGEST = 4096  # values in a row of which class Gaussians are fitted


def held_out(run: Run) -> tuple[list[str], Tensor]:
    """The pairs that the recipe kept from the training rows, in its words and `[P, L]`.

    Others that no row has may be impossible.
    """
    known = run.labels.names
    asked = () if run.recipe is None else run.recipe.data.options.held_out_pairs
    kept = [pair for pair in asked if all(word.removeprefix(NOT) in known for word in pair)]
    patterns = torch.full((len(kept), len(known)), MISSING)
    for pattern, pair in zip(patterns, kept, strict=True):
        for word in pair:
            pattern[known.index(word.removeprefix(NOT))] = int(not word.startswith(NOT))
    return [" ".join(pair) for pair in kept], patterns


@dataclass(frozen=True)
class Way:
    """Where chains begin and what is done with the labels that are not asked for."""

    begin: Begin
    method: Method

    @property
    def key(self) -> str:
        return f"{self.begin}.{self.method}"


@dataclass(frozen=True, eq=False)
class Judged:
    """Samples of one way: how many, the share with the labels asked for by each judge, or why there are none."""

    way: Way
    n: int = 0
    by: Mapping[str, float] | None = None
    why: str = ""
    notes: tuple[str, ...] = ()
    x: Tensor | None = None
    """The samples, where they were to be kept."""


def ways(patterns: Tensor) -> list[Way]:
    """All that differ. With every label given there is none to sum out or redraw; who selects holds no labels."""
    methods: tuple[Method, ...] = ("resample", "marginalize") if bool((patterns == MISSING).any()) else ("marginalize",)
    held = [Way(begin, method) for begin in BEGINS for method in methods]
    return [*held, *(Way(begin, "select") for begin in SELECTED)]


@dataclass(frozen=True, eq=False)
class ClassStarts:
    """Each chain begins at the Gaussian of the first label it is given, or of the first label where it is given none.

    Fitted once for all ways; `Run.sample(start="class")` fits at each call and to one label.
    """

    by_label: Mapping[int, ClassGaussianStart]

    @classmethod
    def fit(cls, run: Run, patterns: Tensor) -> ClassStarts:
        size = math.prod(run.event_shape)
        if size > LARGEST:
            raise InputError(f"class starts need a covariance of each class, and {size:,} values a row are too many")
        data, clamp = run.data, run.bounds if clamped(run.sampling.x_kernel) else None
        first = {0, *_first_given(patterns).tolist()} - {MISSING}
        names = run.labels.names
        return cls(
            {k: ClassGaussianStart.fit(data.x, data.y, run.labels, names[k], bounds=clamp) for k in sorted(first)}
        )

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        first = _first_given(y).clamp(min=0)
        x: Tensor | None = None
        for k in first.unique().tolist():
            drawn = self.by_label[k].draw(y[first == k], generator=generator)
            x = drawn.new_empty(len(y), *drawn.shape[1:]) if x is None else x
            x[(first == k).to(x.device)] = drawn
        assert x is not None
        return x


def judged(
    run: Run,
    patterns: Tensor,
    judges: Mapping[str, Judge],
    *,
    per: int,
    per_selected: int,
    steps: int,
    seed: int,
    at_once: int,
    keep: Way | None = None,
) -> list[Judged]:
    """Samples of all patterns by every way, `per` of each pattern, and what the judges say of them.

    Selecting runs ten chains for each that it keeps, so it has a number of its own. `keep` is the way whose samples
    are wanted. What a run cannot do is said.
    """
    class_starts: ClassStarts | str
    try:
        class_starts = ClassStarts.fit(run, patterns)
    except InputError as error:
        class_starts = str(error)
    found = []
    for way in ways(patterns):
        asked = patterns.repeat_interleave(per_selected if way.method == "select" else per, dim=0)
        start: XStart | Literal["noise", "buffer"] = "buffer" if "buffer" in way.begin else "noise"
        if way.begin == "class":
            if isinstance(class_starts, str):
                found.append(Judged(way, why=class_starts))
                continue
            start = class_starts
        try:
            drawn = run.sample(
                len(asked),
                asked,
                method=way.method,
                start=start,
                matched=way.begin != "unmatched_buffer",
                steps=steps,
                batch_size=at_once,
                seed=seed,
            )
        except InputError as error:
            found.append(Judged(way, why=str(error)))
            continue
        asked = asked.to(drawn.x.device)
        by = {name: float(agreement(judge(drawn.x), asked).double().mean()) for name, judge in judges.items()}
        found.append(Judged(way, len(asked), by, notes=drawn.notes, x=drawn.x if way == keep else None))
    return found


def judges_of(runs: Mapping[str, Run], like: Tensor) -> tuple[dict[str, Judge], tuple[str, ...]]:
    """Those runs that can name labels of x, and for each that cannot a sentence."""
    found: dict[str, Judge] = {}
    notes = []
    for name, run in runs.items():
        try:
            run.predict(like)
        except InputError as error:
            notes.append(f"The {name} cannot judge which labels x has: {error}.")
            continue
        found[name] = judge_of(run)
    return found, tuple(notes)


def judge_of(run: Run) -> Judge:
    """The labels that a run names. Chains may end anywhere: x that is not finite, or far outside the box, has none."""
    middle, reach = sum(run.bounds) / 2, 1.5 * (run.bounds[1] - run.bounds[0])

    def piece(x: Tensor) -> Tensor:
        near = (x - middle).abs() <= reach if isinstance(run.model.domain, Box) else x.isfinite()
        rows = near.flatten(1).all(1)
        found = torch.full((len(x), len(run.labels)), MISSING, device=x.device)
        if bool(rows.any()):
            found[rows] = run.predict(x[rows]).to(x.device)
        return found

    def judge(x: Tensor) -> Tensor:
        return torch.cat(list(passed(piece, x)))

    return judge


def _first_given(y: Tensor) -> Tensor:
    """The first label that each row is given, or MISSING."""
    given = y != MISSING
    return torch.where(given.any(1), given.int().argmax(1), MISSING)

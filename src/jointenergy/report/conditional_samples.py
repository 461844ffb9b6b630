"""report: conditional samples: starts and methods compared, whether samples show their labels, pairs never seen."""

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
from jointenergy.metrics.label_patterns import agreement, named, pairs, share_with, singles
from jointenergy.models import Box
from jointenergy.report.drawings import grids
from jointenergy.report.sample_sets import Sets, at_once, passed, some, variety_by_class
from jointenergy.report.sections import Cell, Picture, Section, Subject, Table
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
        data, clamp = run.data, run.bounds if clamped(run.sampling.x_kernel, run.model) else None
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
            notes.append(f"The {name} cannot classify samples: {error}.")
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


TITLES = {
    "class": "Samples given a class",
    "single": "Samples given one label, the others free",
    "pairs": "Samples given pairs of labels",
    "novel": "Samples given pairs that no training row has",
}
BEGIN_WORDS = {
    "noise": "noise",
    "class": "class Gaussians",
    "matched_buffer": "persistent chains with the given labels",
    "unmatched_buffer": "any persistent chains",
    "buffer": "any persistent chains",
}
METHOD_WORDS = {
    "resample": "redrawn at each step",
    "marginalize": "summed out",
    "select": "unconditional, best tenth kept",
}
ROWS, COLUMNS, LISTED = 20, 8, 20  # of a grid of samples; pairs that a table lists


def conditional_samples(subject: Subject, sets: Sets, *, patterns: int, per: int, per_selected: int) -> Section:
    """Conditional samples over all ways to draw them, `per` of each of at most `patterns` values or pairs."""
    run = subject.run
    if len(run.labels) == 0:
        return Section("labels", "", ("The run has no labels, so there are no conditional samples.",))
    runs = {"model": run} if subject.baseline is None else {"model": run, "baseline": subject.baseline}
    judges, says = judges_of(runs, sets.test[:1])
    y = None if sets.train is None else run.data.y
    single = len(run.labels) == 1
    asked = {"class" if single else "single": singles(run.labels)}
    novel = torch.empty(0, len(run.labels))
    if not single:
        asked["pairs"], novel = pairs(run.labels, y)
        if len(novel):
            asked["novel"] = novel
        else:
            reason = "without training rows, new pairs are unknown" if y is None else "every one occurs"
            says += (f"There are no unseen pairs of labels to sample: {reason}.",)
    if run.model.normalizer == "conditional" and not single:
        says += (
            "Each label of this model has an unknown normalizing constant, so samples given some labels with the "
            "others free are not drawn.",
        )
        return Section("labels", "", says)
    own = Way("noise", "marginalize" if single or run.sampling.y_kernel is None else "resample")
    metrics: dict[str, float | None] = {}
    tables: list[Table] = []
    pictures: list[Picture] = []
    generator = torch.Generator().manual_seed(subject.seed)
    for kind, all_patterns in asked.items():
        chosen = some(all_patterns, patterns, generator)
        found = judged(
            run,
            chosen,
            judges,
            per=per,
            per_selected=per_selected,
            steps=sets.steps,
            seed=subject.seed,
            at_once=at_once(run.event_shape, run.origin.device),
            keep=own,
        )
        metrics |= _metrics(kind, found, own)
        tables.append(_table(kind, found, list(judges), len(chosen), len(all_patterns)))
        says += _said(kind, found)
        x = next((j.x for j in found if j.x is not None), None)
        if x is None:
            continue
        pictures += _picture(subject, kind, chosen, x, per)
        if single:
            classes = chosen[:, 0].repeat_interleave(per).to(x.device)
            data, data_y = (run.data.x, run.data.y) if y is not None else (sets.test, sets.test_y)
            alive = x.isfinite().flatten(1).all(1)
            metrics |= variety_by_class(x[alive], classes[alive], data, data_y[:, 0])
    if len(novel) and "model" in judges:
        shares = _novel(run, sets, novel, judges["model"])
        metrics |= {f"novel_share.{name}": float(share.mean()) for name, share in shares.items()}
        tables.append(_novel_table(run, novel, shares))
    if single:
        says += ("With one label, no other label is free.",)
    says += (
        "The best tenth of unconditional chains is kept even if fewer have the given labels: labels rarer than one in "
        "ten come out wrong.",
        "Consistency is the share of samples that a classifier assigns to their given labels. The model's own result "
        "shows that chains reach their target, the baseline's that another classifier agrees.",
    )
    return Section("labels", "", says, metrics, tuple(tables), tuple(pictures))


def _metrics(kind: str, found: list[Judged], own: Way) -> dict[str, float | None]:
    """The headline, of the run's own method from noise, by the names that results have; and one for each way."""
    metrics: dict[str, float | None] = {}
    for one in found:
        for judge, share in (one.by or {}).items():
            metrics[f"consistency_{kind}.{judge}.{one.way.key}"] = share
            if one.way != own:
                continue
            if kind in ("class", "single"):
                metrics[f"consistency_{kind}.{judge}"] = share
            else:
                metrics[f"consistency_{kind}" + ("_baseline" if judge == "baseline" else "")] = share
    return metrics


def _table(kind: str, found: list[Judged], judges: list[str], n: int, n_all: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        by = one.by or {}
        method = METHOD_WORDS[one.way.method]
        if kind == "class" and one.way.method == "marginalize":
            method = "none are free"
        if one.n:  # of a way without samples a sentence says why
            rows.append((BEGIN_WORDS[one.way.begin], method, one.n, *(by.get(j) for j in judges)))
    which = f"{n} of {n_all}" if n < n_all else f"{n}"
    single, many = {"class": ("class", "classes"), "single": ("value", "values")}.get(kind, ("pair", "pairs"))
    what = single if n == n_all == 1 else many
    columns = ("chains start from", "free labels", "samples", *(f"consistency, {j}" for j in judges))
    return Table(f"{TITLES[kind]} ({which} {what})", columns, tuple(rows))


def _said(kind: str, found: list[Judged]) -> tuple[str, ...]:
    """Why there are no samples of some way, and what must be known of others, each said once."""
    lines: dict[str, list[str]] = {}
    for one in found:
        where = BEGIN_WORDS[one.way.begin]
        if one.why or one.way.method == "resample":  # what is said of the starts is said once for all methods
            where += f" ({METHOD_WORDS[one.way.method]})"
        for note in (one.why,) if one.why else one.notes:
            lines.setdefault(("there are none, as " if one.why else "") + note, []).append(where)
    return tuple(f"{TITLES[kind]}, from {'; '.join(dict.fromkeys(w))}: {note}." for note, w in lines.items())


def _picture(subject: Subject, kind: str, chosen: Tensor, x: Tensor, per: int) -> list[Picture]:
    """A row of samples for each pattern, beside it test rows that have it, where they all have some."""
    run = subject.run
    columns = min(COLUMNS, per)
    shown = [named(run.labels, p) for p in chosen[:ROWS]]
    if kind == "class":
        shown = [run.labels.values[0][int(p[0])] for p in chosen[:ROWS]]
    lines = x.view(len(chosen), per, *run.event_shape)[:ROWS, :columns].flatten(0, 1)
    panels = {"samples": lines}
    real = _real(subject, chosen[:ROWS], columns)
    if real is not None:
        panels = {"test rows": real.to(lines), **panels}
    caption = {
        "class": "Samples given each class, fresh from noise, not selected",
        "single": "Samples given one label each, fresh from noise, not selected",
        "pairs": "Samples given pairs of labels, fresh from noise, not selected",
        "novel": "Samples given pairs that no training row has, fresh from noise, not selected",
    }[kind]
    caption += ", beside real test rows." if real is not None else "."
    drawn = grids(f"samples-of-{kind}", caption, panels, columns, run.bounds, shown)
    return [] if drawn is None else [drawn]


def _real(subject: Subject, patterns: Tensor, n: int) -> Tensor | None:
    y = subject.test.y
    found = []
    for pattern in patterns.to(y.device):
        rows = agreement(y, pattern[None]).nonzero()[:, 0][:n]
        if len(rows) < n:
            return None
        found.append(subject.test.x[rows])
    return subject.run.rows(torch.cat(found))


def _novel(run: Run, sets: Sets, novel: Tensor, judge: Judge) -> dict[str, Tensor]:
    """The share of unconditional samples, and of persistent chains, that have each held-out pair, by the model."""
    generator = torch.Generator().manual_seed(0)
    found = {"samples": sets.samples}
    if sets.buffer is not None:
        found["buffer"] = some(sets.buffer.x, max(len(sets.samples), 1), generator)
    return {name: share_with(judge(x), novel) for name, x in found.items() if len(x)}


def _novel_table(run: Run, novel: Tensor, shares: dict[str, Tensor]) -> Table:
    first = next(iter(shares.values()))
    order = first.argsort(descending=True, stable=True)[:LISTED].tolist()
    rows: list[tuple[Cell, ...]] = [(f"all {len(novel)} pairs, mean", *(float(s.mean()) for s in shares.values()))]
    rows += [(named(run.labels, novel[i]), *(float(s[i]) for s in shares.values())) for i in order]
    titles = {"samples": "share of fresh samples", "buffer": "share of persistent chains"}
    return Table(
        "How often unconditional chains show pairs that no training row has, by the model's labels",
        ("pair", *(titles[name] for name in shares)),
        tuple(rows),
    )

"""report: conditional samples of a run: do they show their labels, and how often do pairs never seen come up."""

from __future__ import annotations

import torch
from torch import Tensor

from jointenergy.metrics import label_patterns
from jointenergy.report import conditional_samples, samples_sets
from jointenergy.report.conditional_samples import Judge, Judged, Way
from jointenergy.report.samples_pictures import grids
from jointenergy.report.samples_quality import variety_by_class
from jointenergy.report.samples_sets import Sets, at_once, some
from jointenergy.report.sections import Cell, Picture, Section, Subject, Table
from jointenergy.runs import Run

TITLES = {
    "class": "Samples of a class",
    "single": "Samples of one label, the others free",
    "pairs": "Samples of pairs of labels",
    "novel": "Samples of pairs that no training row has",
}
BEGINS = {
    "noise": "noise",
    "class": "class Gaussians",
    "matched_buffer": "chains of training with the labels asked for",
    "unmatched_buffer": "chains of training, any",
    "buffer": "chains of training, any",
}
METHODS = {
    "resample": "redrawn at each step",
    "marginalize": "summed out",
    "select": "drawn without labels, the best tenth kept",
}
ROWS, COLUMNS, LISTED = 20, 8, 20  # of a grid of samples; pairs that a table lists


def labels(subject: Subject, sets: Sets, *, patterns: int, per: int, per_selected: int) -> Section:
    """Conditional samples over all ways to draw them, `per` of each of at most `patterns` values or pairs."""
    run = subject.run
    if len(run.labels) == 0:
        return Section("labels", "", ("The run has no labels, so there are no conditional samples.",))
    runs = {"model": run} if subject.baseline is None else {"model": run, "baseline": subject.baseline}
    judges, says = conditional_samples.judges_of(runs, sets.test[:1])
    y = None if sets.train is None else run.data.y
    single = len(run.labels) == 1
    asked = {"class" if single else "single": label_patterns.singles(run.labels)}
    novel = torch.empty(0, len(run.labels))
    if not single:
        asked["pairs"], novel = label_patterns.pairs(run.labels, y)
        if len(novel):
            asked["novel"] = novel
        else:
            reason = "without training rows nothing says which pairs are new" if y is None else "every one occurs"
            says += (f"There are no held-out pairs of labels to ask for: {reason}.",)
    if run.model.normalizer == "conditional" and not single:
        says += (
            "Each of this model's labels has an unknown constant of its own, so samples of some labels with the others "
            "free are not drawn.",
        )
        return Section("labels", "", says)
    own = Way("noise", "marginalize" if single or run.sampling.y_kernel is None else "resample")
    metrics: dict[str, float | None] = {}
    tables: list[Table] = []
    pictures: list[Picture] = []
    generator = torch.Generator().manual_seed(subject.seed)
    for kind, all_patterns in asked.items():
        chosen = samples_sets.some(all_patterns, patterns, generator)
        found = conditional_samples.judged(
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
        says += (
            "With one label none is free, so there is nothing to sum out or to redraw beside the label asked for.",
        )
    says += (
        "Of chains that were drawn without labels the best tenth is kept, whether or not so many show the labels asked "
        "for: labels rarer than one in ten come out wrong.",
        "Consistency is the share of samples that a judge puts under the labels they were drawn for. The model's own "
        "judgment shows that chains arrive where they were sent, the baseline's that others see it too.",
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
        method = METHODS[one.way.method]
        if kind == "class" and one.way.method == "marginalize":
            method = "none are free"
        rows.append((BEGINS[one.way.begin], method, one.n or None, *(by.get(j) for j in judges)))
    which = f"{n} of {n_all}" if n < n_all else f"{n}"
    single, many = {"class": ("class", "classes"), "single": ("value", "values")}.get(kind, ("pair", "pairs"))
    what = single if n == n_all == 1 else many
    columns = ("chains begin at", "labels not asked for", "samples", *(f"right by the {j}" for j in judges))
    return Table(f"{TITLES[kind]} ({which} {what})", columns, tuple(rows))


def _said(kind: str, found: list[Judged]) -> tuple[str, ...]:
    """Why there are no samples of some way, and what must be known of others, each said once."""
    lines: dict[str, list[str]] = {}
    for one in found:
        where = BEGINS[one.way.begin]
        if one.why or one.way.method == "resample":  # what is said of the starts is said once for all methods
            where += f" ({METHODS[one.way.method]})"
        for note in (one.why,) if one.why else one.notes:
            lines.setdefault(("there are none, as " if one.why else "") + note, []).append(where)
    return tuple(f"{TITLES[kind]}, from {'; '.join(dict.fromkeys(w))}: {note}." for note, w in lines.items())


def _picture(subject: Subject, kind: str, chosen: Tensor, x: Tensor, per: int) -> list[Picture]:
    """A row of samples for each pattern, beside it test rows that have it, where they all have some."""
    run = subject.run
    columns = min(COLUMNS, per)
    shown = [label_patterns.named(run.labels, p) for p in chosen[:ROWS]]
    if kind == "class":
        shown = [run.labels.values[0][int(p[0])] for p in chosen[:ROWS]]
    lines = x.view(len(chosen), per, *run.event_shape)[:ROWS, :columns].flatten(0, 1)
    panels = {"samples": lines}
    real = _real(subject, chosen[:ROWS], columns)
    if real is not None:
        panels = {"test rows": real.to(lines), **panels}
    caption = {
        "class": "Samples of each class, fresh from noise, the first ones and none chosen",
        "single": "Samples of one label each, fresh from noise, the first ones and none chosen",
        "pairs": "Samples of pairs of labels, fresh from noise, the first ones and none chosen",
        "novel": "Samples of pairs of labels that no training row has, fresh from noise, none chosen",
    }[kind]
    caption += ", beside real test rows." if real is not None else "."
    drawn = grids(f"samples-of-{kind}", caption, panels, columns, run.bounds, shown)
    return [] if drawn is None else [drawn]


def _real(subject: Subject, patterns: Tensor, n: int) -> Tensor | None:
    y = subject.test.y
    found = []
    for pattern in patterns.to(y.device):
        rows = label_patterns.agreement(y, pattern[None]).nonzero()[:, 0][:n]
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
    return {name: label_patterns.share_with(judge(x), novel) for name, x in found.items() if len(x)}


def _novel_table(run: Run, novel: Tensor, shares: dict[str, Tensor]) -> Table:
    first = next(iter(shares.values()))
    order = first.argsort(descending=True, stable=True)[:LISTED].tolist()
    rows: list[tuple[Cell, ...]] = [(f"all {len(novel)} pairs, mean", *(float(s.mean()) for s in shares.values()))]
    rows += [(label_patterns.named(run.labels, novel[i]), *(float(s[i]) for s in shares.values())) for i in order]
    titles = {"samples": "share of fresh samples", "buffer": "share of chains of training"}
    return Table(
        "How often pairs that no training row has come up by themselves, by the model's labels",
        ("pair", *(titles[name] for name in shares)),
        tuple(rows),
    )

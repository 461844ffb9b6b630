"""experiments: what is measured of pairs of labels: rows that have them, and fresh samples that were asked for them."""

from __future__ import annotations

import torch
from torch import Tensor

from jointenergy.inference.sample import Method
from jointenergy.metrics import label_patterns
from jointenergy.metrics.registry import Figures, Taken
from jointenergy.recipes.build import kernel_of
from jointenergy.report import conditional_samples
from jointenergy.report.predictors import parts_of_names
from jointenergy.report.sample_sets import at_once
from jointenergy.report.sections import Subject
from jointenergy.runs import Run
from jointenergy.training.engine import accelerated, arithmetic, precision_of
from jointenergy.training.health import diversity

PER_PAIR = 100  # samples of each pair of labels
MANY = 400  # pairs of values; of more, only those of two attributes that are both there
SPREAD = 1000  # rows whose mean distance is the diversity
FREE = 10_000  # samples with no label given, among which pairs that were held out are counted


def asked_pairs(run: Run) -> tuple[Tensor, str]:
    """The pairs that samples are drawn for, `[P, L]`, and what they are pairs of."""
    seen, _ = label_patterns.pairs(run.labels, run.data.y)
    if len(seen) > MANY and set(run.labels.cardinalities) == {2}:
        return seen[(seen != 0).all(1)], "attributes that are both there"
    return seen, "labels"


def _question(run: Run) -> tuple[str, Tensor, str]:
    """The kind of the pairs asked for, the pairs, and what they are of: those held out, or all that rows have."""
    novel = conditional_samples.held_out(run)[1]
    return ("novel", novel, "labels that were held out") if len(novel) else ("pairs", *asked_pairs(run))


def rows_of_pairs(subject: Subject) -> Taken:
    """Real rows judged as samples are: what samples of the data's own law would show; colder ones may show more."""
    run, test = subject.run, subject.test
    kind, patterns, _ = _question(run)
    found = conditional_samples.judge_of(run)(run.rows(test.x)).cpu()
    shares = []
    for pattern in patterns:
        having = label_patterns.agreement(test.y, pattern[None])
        if bool(having.any()):
            shares.append(label_patterns.share_with(found[having], pattern[None]))
    if not shares:
        return {}, ""
    name = f"consistency_{kind}_rows"
    remark = f"{name} is of test rows that have the pairs, each pair as much as any other."
    return {name: float(torch.cat(shares).mean())}, remark


def samples_of_pairs(subject: Subject) -> Taken:
    """Samples drawn for two labels, the others free: whether they show them, by the model and by a baseline."""
    run = subject.run
    judges = {"": conditional_samples.judge_of(run)}
    if subject.baseline is not None:
        judges["_baseline"] = conditional_samples.judge_of(subject.baseline)
    kind, patterns, which = _question(run)
    if len(patterns) == 0:
        return {}, ""
    words, novel = conditional_samples.held_out(run)
    names = parts_of_names(words)
    per_pair, n_free = (1, 100) if subject.small else (PER_PAIR, FREE)
    asked = patterns.repeat_interleave(per_pair, dim=0)
    x = fresh_samples(subject, len(asked), asked)
    figures: Figures = {"diversity": _spread(x) / _spread(run.rows(subject.test.x))}
    for judge, labels_of in judges.items():
        shown = label_patterns.agreement(labels_of(x).cpu(), asked).double()
        figures[f"consistency_{kind}{judge}"] = float(shown.mean())
        if len(novel):
            rates = shown.view(len(patterns), per_pair).mean(1).tolist()
            figures |= {f"novel_share{judge}.given.{pair}": r for pair, r in zip(names, rates, strict=True)}
        elif set(run.labels.values) == {("0", "1")} and 0 < (present := (asked != 0).all(1)).sum() < len(asked):
            # That an attribute is absent is shown more easily where most rows lack most of them.
            figures[f"consistency_present{judge}"] = float(shown[present].mean())
    if run.sampling.y_kernel is not None:
        x = fresh_samples(subject, len(asked), asked, "marginalize")
        for judge, labels_of in judges.items():
            shown = label_patterns.agreement(labels_of(x).cpu(), asked).double()
            by = judge.removeprefix("_") or "model"
            figures[f"consistency_{kind}.{by}.noise.marginalize"] = float(shown.mean())
    if len(novel):
        x = fresh_samples(subject, n_free, None)
        for judge, labels_of in judges.items():
            rates = label_patterns.share_with(labels_of(x).cpu(), novel).tolist()
            figures |= {f"novel_share{judge}.free.{pair}": r for pair, r in zip(names, rates, strict=True)}
    remark = f"Samples of pairs of {which}, and their diversity: {per_pair} of each from noise, unfiltered, rest free."
    if "consistency_present" in figures:
        remark += " consistency_present is of those of two attributes that are both there."
    if run.sampling.y_kernel is not None:
        remark += " The other labels are redrawn; in figures named marginalize they are summed out."
    if len(novel) and subject.baseline is None:
        remark += " The model itself judged those that were held out: no baseline that has seen them was there."
    return figures, remark


def fresh_samples(subject: Subject, n: int, asked: Tensor | None, method: Method | None = None) -> Tensor:
    """Chains as training ran them, in its precision: who judges them looks with the weights as they are loaded."""
    run, device = subject.run, subject.run.origin.device
    assert run.recipe is not None  # what has chains was trained by one
    precision = precision_of(run.recipe.engine, kernel_of(run.recipe), device)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    fast = run.with_weights_of(accelerated(run.model, dtype, compiled=False))
    at_a_time = at_once(run.event_shape, device)
    with arithmetic(run.recipe.engine, precision):
        return fast.sample(n, asked, start="noise", method=method, batch_size=at_a_time, seed=subject.seed).x


def _spread(x: Tensor) -> float:
    """The mean distance of rows taken evenly, so that sorted ones are all there."""
    return diversity(x[:: max(1, len(x) // SPREAD)][:SPREAD])

"""report: which runs predict labels of the test rows, exactly or by sampling, and what they say."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy import inference
from jointenergy.data import Dataset
from jointenergy.errors import EnumerationError, InputError
from jointenergy.inference.density import label_log_probs
from jointenergy.inference.rows import pieces
from jointenergy.labels import MISSING
from jointenergy.metrics.calibration import calibration_error
from jointenergy.metrics.classification import Collector, Told, entries_nll
from jointenergy.metrics.registry import finite_or_none
from jointenergy.models import JointModel
from jointenergy.report.sections import Subject
from jointenergy.runs import Run


def predictors(subject: Subject) -> tuple[dict[str, Run], list[str]]:
    """The runs that can be asked, the subject's own first, and a sentence for each that cannot."""
    if not bool((subject.test.y != MISSING).any()):
        return {}, [f"{subject.test.name} has no labels to predict."]
    able: dict[str, Run] = {}
    said: list[str] = []
    for name, run in subject.classifiers().items():
        reason = _unable(run, subject)
        if reason is None:
            able[name] = run
            said += [f"Assumed of {shown(name)}, not known: {a}." for a in run.model.assumptions]
        else:
            said.append(f"No predictions of {shown(name)}: {reason}.")
    return able, said


def _unable(run: Run, subject: Subject) -> str | None:
    labels, wanted = run.labels, subject.test.labels
    if len(labels) == 0:
        return "its model has no labels"
    if run.model.normalizer == "conditional":
        return (
            "each label of its model has an unknown normalizing constant, so labels cannot be compared (relate them "
            "with offsets, or use run.assuming_equal_constants(), which is then marked)"
        )
    if (labels.names, labels.cardinalities) != (wanted.names, wanted.cardinalities):
        return "its labels differ from those of the test rows"
    if run.bounds != subject.run.bounds or run.event_shape != subject.run.event_shape:
        return "its x has another shape or scale than the run's"
    return None


def shown(name: str) -> str:
    """What sentences call a run: the subject's own, its baseline, or another by its name."""
    return f"the {name}" if name in ("run", "baseline") else name


def prefix(name: str) -> str:
    """What stands before the names of a run's metrics: nothing for the subject's own."""
    if name == "run":
        return ""
    return "baseline." if name == "baseline" else f"others.{in_metric(name)}."


def in_metric(text: str) -> str:
    """A text as a part of a metric's name, which has letters, digits, _ and - alone."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_") or "_"


def parts_of_names(texts: Sequence[str]) -> list[str]:
    """`in_metric` of each, different where the texts are: a number is added to those that would be the same."""
    parts: list[str] = []
    for text in texts:
        part, number = in_metric(text), 2
        while part in parts:
            part, number = f"{in_metric(text)}_{number}", number + 1
        parts.append(part)
    return parts


def told_by(run: Run, data: Dataset, temperatures: Sequence[float] = (1.0,)) -> Told | str:
    """What a run says of the rows; or, in a sentence, why it cannot be told."""
    try:
        told = tell(run.model, rows_of(run, data), temperatures)
    except EnumerationError:
        return f"its labels have {run.labels.n_states:,} states, too many to enumerate"
    except InputError as error:
        return str(error)
    return told if all(a.finite for a in told.answers) else "its probabilities are not finite"


def rows_of(run: Run, data: Dataset) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows in pieces, as the run takes them and on its device."""
    device = next((p.device for p in run.model.parameters()), torch.device("cpu"))
    for x, y in batches(data, device):
        yield run.rows(x), y


def defined(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """None for what has no value: NaN, or the likelihood of what was held to be impossible."""
    return {name: finite_or_none(value) for name, value in metrics.items()}


ROWS = 1000  # rows that are looked at together


def batches(data: Dataset, device: torch.device | str) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows in pieces, brought to the device one after the other."""
    for x, y in zip(data.x.split(ROWS), data.y.split(ROWS), strict=True):
        yield x.to(device), y.to(device)


@torch.no_grad()
def tell(model: JointModel, rows: Iterable[tuple[Tensor, Tensor]], temperatures: Sequence[float] = (1.0,)) -> Told:
    """Each row once, in pieces of (x, y). MISSING entries count nowhere. Exact: by closed form or enumeration.

    At a temperature T the probabilities of each label are p^(1/T), normalized.
    """
    collected = [Collector(model.labels) for _ in temperatures]
    nll: list[Tensor] = []
    exact: list[Tensor] = []
    # Then the labels of a row together are their entries one by one, and no second look is needed.
    apart = model.factorized or len(model.labels) == 1
    begin = 0
    for x, y in rows:
        known = (y != MISSING).any(1)
        numbers = begin + known.nonzero()[:, 0]
        begin += len(y)
        x, y = x[known], y[known]
        for piece in pieces(model, torch.full_like(y, MISSING)):
            log_probs = label_log_probs(model, x[piece])
            for kept, temperature in zip(collected, temperatures, strict=True):
                scaled = log_probs if temperature == 1 else [(z / temperature).log_softmax(1) for z in log_probs]
                kept.add(scaled, y[piece], numbers[piece])
            nll.append(
                entries_nll(log_probs, y[piece]) if apart else -inference.label_log_prob(model, x[piece], y[piece])
            )
            best = torch.stack([z.argmax(1) for z in log_probs], 1) if apart else None
            best = inference.predict_joint(model, x[piece]).labels if best is None else best
            exact.append(((best == y[piece]) | (y[piece] == MISSING)).all(1))
    if begin == 0 or not nll:
        raise InputError("the rows have no observed labels")
    return Told(tuple(c.answers() for c in collected), torch.cat(nll).double().cpu(), torch.cat(exact).cpu())


@dataclass(frozen=True)
class Classification:
    """Accuracy and calibration are over all observed label entries pooled; nll is -log p(a row's labels | x), a mean.

    All are NaN for a model whose probabilities are not finite.
    """

    accuracy: float
    nll: float
    ece: float


def classify(model: JointModel, data: Dataset) -> Classification:
    """Each row of `data` once. MISSING entries count nowhere, and rows that miss all labels are passed over."""
    if not bool((data.y != MISSING).any()):
        raise InputError(f"data set {data.name!r} has no observed labels")
    told = tell(model, batches(data, next(model.parameters()).device))
    (answers,) = told.answers
    if not answers.finite:
        # The largest of values that are no numbers is no prediction.
        return Classification(math.nan, math.nan, math.nan)
    return Classification(
        float(answers.right.double().mean()),
        float(told.nll.mean()),
        calibration_error(answers.confidence, answers.right),
    )


SAMPLED_ROWS = 1000  # test rows at the most, taken evenly
CHAINS = 10  # of each row; the mode of their last states is the prediction
STEPS = 100  # of a chain from a uniform start, or so many for each label as it takes to visit all of them:
PER_LABEL = 3
LISTED = 32  # labels that have figures of their own


def sampling_steps(n_labels: int) -> int:
    """A step changes one label at the most."""
    return max(STEPS, PER_LABEL * n_labels)


def labeled_rows(test: Dataset, n: int = SAMPLED_ROWS) -> Dataset:
    """Rows that have a label, evenly taken: data may be sorted."""
    known = (test.y != MISSING).any(1).nonzero()[:, 0]
    return test.rows(known[:: max(1, -(-len(known) // n))])


def accuracy_by_sampling(
    run: Run, test: Dataset, seed: int, *, n_rows: int = SAMPLED_ROWS, n_chains: int = CHAINS, steps: int | None = None
) -> dict[str, float]:
    """Of the mode of each label over chains of the run's own label kernel, and of the first chain's draw alone."""
    rows = labeled_rows(test, n_rows)
    steps = sampling_steps(len(run.labels)) if steps is None else steps
    drawn = run.predict_by_sampling(rows.x, n_chains=n_chains, steps=steps, seed=seed)
    truth = rows.y
    seen = truth != MISSING
    found = {}
    for name, labels in (("by_sampling", drawn.labels.cpu()), ("by_one_sample", drawn.one_sample.cpu())):
        right = labels == truth
        found[f"accuracy_{name}"] = float(right[seen].double().mean())
        if len(run.labels) > 1:
            found[f"exact_match_{name}"] = float((right | ~seen).all(1).double().mean())
        if name == "by_sampling" and 1 < len(run.labels) <= LISTED:
            for k, part in enumerate(parts_of_names(run.labels.names)):
                if bool(seen[:, k].any()):
                    found[f"accuracy_by_sampling_of.{part}"] = float(right[seen[:, k], k].double().mean())
    return found

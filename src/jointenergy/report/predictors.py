"""report: which of the runs predict labels of the test rows, why the others do not, and their names in metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from jointenergy.data import Dataset
from jointenergy.errors import EnumerationError, InputError
from jointenergy.labels import MISSING
from jointenergy.metrics.classification import Told
from jointenergy.metrics.registry import finite_or_none
from jointenergy.report.classification import batches, tell
from jointenergy.report.sections import Subject
from jointenergy.runs import Run


def predictors(subject: Subject) -> tuple[dict[str, Run], list[str]]:
    """The runs that can be asked, the subject's own first, and a sentence for each that cannot."""
    if not bool((subject.test.y != MISSING).any()):
        return {}, [f"{subject.test.name} has no labels, so nothing can be right or wrong."]
    able: dict[str, Run] = {}
    said: list[str] = []
    for name, run in subject.classifiers().items():
        reason = _unable(run, subject)
        if reason is None:
            able[name] = run
            said += [f"Assumed of {shown(name)}, not known: {a}." for a in run.model.assumptions]
        else:
            said.append(f"Nothing is predicted by {shown(name)}: {reason}.")
    return able, said


def _unable(run: Run, subject: Subject) -> str | None:
    labels, wanted = run.labels, subject.test.labels
    if len(labels) == 0:
        return "its model has no labels"
    if run.model.normalizer == "conditional":
        return (
            "each label of its model has an unknown normalizer of its own, so labels cannot be compared (relate them "
            "by offsets, or say run.assuming_equal_constants(), which is then marked)"
        )
    if (labels.names, labels.cardinalities) != (wanted.names, wanted.cardinalities):
        return "its labels are not those of the test rows"
    if run.bounds != subject.run.bounds or run.event_shape != subject.run.event_shape:
        return "it takes x of another shape or scale than the run"
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
        return f"its labels have {run.labels.n_states:,} states, too many to be summed"
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

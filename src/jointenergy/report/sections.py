"""report: what is evaluated, and what each part of the evaluation brings to the page: figures, tables, pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor, nn

from jointenergy.data import Dataset
from jointenergy.errors import InputError
from jointenergy.runs import Run

Suite = Literal["quick", "full", "paper"]
Reference = Literal["train", "test"]
Cell = str | float | int | None


class Rows(Protocol):
    """Rows of x from somewhere, as the run takes them, that pass by in pieces: a set may be larger than memory."""

    @property
    def name(self) -> str: ...

    def batches(self, size: int) -> Iterator[Tensor]: ...


@dataclass(frozen=True, eq=False)
class Extractor:
    """A network whose features compare images, named wherever a figure rests on it.

    `features` maps x as the run takes it to `[n, d]`; `logits`, where there are any, to `[n, classes]`.
    """

    name: str
    features: nn.Module
    logits: nn.Module | None = None
    protocol: str = "x as it is, not rounded"
    """How x becomes what the network sees: part of the record of every figure that rests on it."""
    costly: bool = False
    """Whether features of real rows are worth a cache, and all training rows too many to pass for neighbors."""
    reference: Reference = "test"
    """What samples are compared with: the whole training set, or as many test rows as there are samples."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A run with its test rows, as the run takes them, and what it is held against."""

    run: Run
    test: Dataset
    baseline: Run | None = None
    """The same network trained by cross-entropy alone."""
    others: Mapping[str, Run] = field(default_factory=dict)
    """Further runs to compare with, by a name for each, such as an adversarially trained baseline."""
    ood_sets: Sequence[Rows] = ()
    """Sets that are unlike the data."""
    extractor: Extractor | None = None
    seed: int = 0
    small: bool = False
    """Whether figures need only show that they can be made: then few samples are drawn."""

    def __post_init__(self) -> None:
        for name in self.others:
            if name in ("run", "baseline") or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
                raise InputError(
                    f"another run cannot be called {name!r}: choose a name of letters, digits, _ and - that is "
                    "neither run nor baseline"
                )

    def classifiers(self) -> dict[str, Run]:
        """All that predict labels, the run first."""
        baseline = {} if self.baseline is None else {"baseline": self.baseline}
        return {"run": self.run, **baseline, **self.others}


@dataclass(frozen=True)
class Picture:
    """A drawing as a PNG file; the caption says what is seen, in words for someone who sees it the first time.

    What is `folded` is shown to who asks for details.
    """

    name: str
    caption: str
    png: bytes
    folded: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under columns. The numbers of a column are shown in one form, None as a dash."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: bool = False

    def __post_init__(self) -> None:
        if any(len(row) < len(self.columns) for row in self.rows):
            raise InputError(f"the table {self.title!r} has rows with fewer cells than its {len(self.columns)} columns")


@dataclass(frozen=True)
class Section:
    """One part of the page. `metrics` are flat names, as published results have them, with NaN as None.

    `lead` is what a reader must know, in a sentence or two, and what is wrong; `says` are the sentences on how it was
    measured and how to read it, for who asks.
    """

    name: str
    title: str
    says: tuple[str, ...] = ()
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    protocols: Mapping[str, str] = field(default_factory=dict)
    """How a metric was taken, by its name, where figures of another protocol cannot be compared with it."""
    lead: tuple[str, ...] = ()


class Part(Protocol):
    """A part of the evaluation: measures the subject, larger in the full suite. None where it does not apply."""

    def __call__(self, subject: Subject, suite: Suite) -> Section | None: ...

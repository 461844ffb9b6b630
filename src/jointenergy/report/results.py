"""report: published results, one file and one schema for every figure, and the only function that writes them."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from jointenergy.errors import InputError
from jointenergy.files.reading import content_of
from jointenergy.files.writing import write_text
from jointenergy.inference import SCORES
from jointenergy.limits import JSON_BYTES
from jointenergy.metrics.registry import Metric, check_value, range_of
from jointenergy.report import provenance

FOLDER = Path("results")
SOURCE = "source"  # the one key of `paper` that is no metric: where its figures stand
CLOSE = 1e-9  # how far a stored mean may lie from that of its values

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_name(name: str) -> None:
    """Names are those of files too: a path in one would write elsewhere."""
    if not _NAME.fullmatch(name):
        raise InputError(f"a result's name has letters, digits, '-', '_' and '.', got {name!r}")


@dataclass(frozen=True)
class Result:
    """What one file of results/ says, checked; seeds without a value are told in the notes."""

    name: str
    command: str
    commit: str
    hardware: str
    date: str
    minutes: float
    seeds: tuple[int, ...]
    metrics: Mapping[str, Metric]
    paper: Mapping[str, float | str] = field(default_factory=dict)
    notes: str = ""

    def __post_init__(self) -> None:
        self._check_origin()
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"result {self.name!r} needs seeds that are different and not negative, got {self.seeds}")
        if not self.metrics:
            raise InputError(f"result {self.name!r} has no metric: give at least one")
        for name, metric in self.metrics.items():
            range_of(name, {"score": SCORES})
            if len(metric.values) != len(self.seeds):
                raise InputError(
                    f"{name} of result {self.name!r} has {len(metric.values)} value(s) where {len(self.seeds)} seed(s) "
                    "were started: give one for each, None for one that failed"
                )
            for seed, value in zip(self.seeds, metric.values, strict=True):
                if value is not None:
                    check_value(name, value, f" of seed {seed}")
        for key, figure in self.paper.items():
            self._check_paper(key, figure)
        # By construction, so that no mean over fewer seeds stands without its sentence.
        missing = [said for said in self._missing() if said not in self.notes]
        object.__setattr__(self, "notes", " ".join([*([self.notes] if self.notes else []), *missing]))

    def _check_origin(self) -> None:
        check_name(self.name)
        if not provenance.COMMIT.fullmatch(self.commit):
            raise InputError(f"the commit of result {self.name!r} must be hexadecimal digits, got {self.commit!r}")
        if not math.isfinite(self.minutes) or self.minutes < 0:
            raise InputError(f"the minutes of result {self.name!r} must be a time, got {self.minutes}")
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError:
            raise InputError(f"the date of result {self.name!r} must be as 2026-01-31, got {self.date!r}") from None
        for part in ("command", "hardware"):
            if not getattr(self, part):
                raise InputError(f"the {part} of result {self.name!r} is empty")
        for part in ("command", "hardware", "notes"):
            if provenance.names_a_path(getattr(self, part)):
                raise InputError(
                    f"the {part} of result {self.name!r} names an absolute path, which means nothing elsewhere: "
                    "write it relative"
                )

    def _check_paper(self, key: str, figure: float | str) -> None:
        if key == SOURCE:
            if not isinstance(figure, str):
                raise InputError(f"the paper's {SOURCE!r} in result {self.name!r} is a text, got {figure!r}")
            return
        range_of(key, {"score": SCORES})
        if isinstance(figure, str):
            raise InputError(f"the paper's {key} in result {self.name!r} is a number, got {figure!r}")
        check_value(key, figure, " of the paper")

    def _missing(self) -> list[str]:
        """A sentence for each group of metrics that the same seeds have no value of."""
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, metric in self.metrics.items():
            without = tuple(s for s, v in zip(self.seeds, metric.values, strict=True) if v is None)
            if without:
                groups.setdefault(without, []).append(name)
        return [
            f"No value of {', '.join(names)} for {len(seeds)} of {len(self.seeds)} seeds ({', '.join(map(str, seeds))})"
            ": mean and std are over the others."
            for seeds, names in groups.items()
        ]


def measured(
    name: str,
    metrics: Mapping[str, Iterable[float | None]],
    *,
    seeds: Sequence[int],
    minutes: float,
    command: Sequence[str | Path],
    paper: Mapping[str, float | str] | None = None,
    notes: str = "",
    protocols: Mapping[str, str] | None = None,
) -> Result:
    """Values of now, by this machine, commit and command (its words); refused from a tree that is not clean."""
    return Result(
        name,
        provenance.command(command),
        provenance.commit(),
        provenance.hardware(),
        today(),
        round(minutes, 2),
        tuple(seeds),
        {metric: Metric(values, (protocols or {}).get(metric, "")) for metric, values in metrics.items()},
        {} if paper is None else dict(paper),
        notes,
    )


def today() -> str:
    """The date, as results have it."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def write(result: Result, folder: Path = FOLDER) -> Path:
    """`folder/NAME.json`, whole or not at all, from a clean tree at the result's own commit."""
    commit = provenance.commit()
    if commit != result.commit:
        raise InputError(
            f"result {result.name!r} was measured at commit {result.commit[:12]} and the tree is at {commit[:12]}: "
            "measure it again, or check that commit out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}.json"
    write_text(path, text_of(result))
    return path


def text_of(result: Result) -> str:
    """The file's text, keys in the order of the schema."""
    metrics = {
        name: {"mean": metric.mean, "std": metric.std, "values": list(metric.values)}
        | ({"protocol": metric.protocol} if metric.protocol else {})
        for name, metric in result.metrics.items()
    }
    values: dict[str, Any] = {f: getattr(result, f) for f in result.__dataclass_fields__}
    values |= {"seeds": list(result.seeds), "metrics": metrics, "paper": dict(result.paper)}
    text = json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False)
    # Numbers of one list on one line: a change of a figure is then a change of one line.
    return re.sub(r'\[\n([^\[\]{}"]*)\]', lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


class _Strict:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class _StoredMetric(_Strict):
    mean: float | None
    std: float | None
    values: tuple[float | None, ...]
    protocol: str = ""


@dataclass(frozen=True)
class _Stored(_Strict):
    """The file itself: every key is there, none beside them; only a metric's protocol may be absent."""

    name: str
    command: str
    commit: str
    hardware: str
    date: str
    minutes: float
    seeds: tuple[int, ...]
    metrics: dict[str, _StoredMetric]
    paper: dict[str, float | str]
    notes: str


_STORED = TypeAdapter(_Stored)


def read(path: Path) -> Result:
    """A result file, checked as if it were written now; means that are not those of their values are refused."""
    try:
        stored = _STORED.validate_json(content_of(path, JSON_BYTES, "the result file"))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(p) for p in first["loc"]) or "the file"
        raise InputError(f"{path.name} is no result: {key}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
    if stored.name != path.stem:
        raise InputError(f"{path.name} holds the result {stored.name!r}: a file is named after its result")
    metrics = {name: Metric(m.values, m.protocol) for name, m in stored.metrics.items()}
    for name, metric in metrics.items():
        for part in ("mean", "std"):
            _check_same(path, name, part, getattr(stored.metrics[name], part), getattr(metric, part))
    values = {f: getattr(stored, f) for f in stored.__dataclass_fields__}
    result = Result(**{**values, "metrics": metrics})
    if result.notes != stored.notes:
        raise InputError(f"{path.name} does not say which seeds have no value: write it with the program")
    return result


def _check_same(path: Path, name: str, part: str, stored: float | None, right: float | None) -> None:
    same = stored == right if stored is None or right is None else math.isclose(stored, right, abs_tol=CLOSE)
    if not same:
        raise InputError(f"{path.name}: the {part} of {name} is {stored}, that of its values {right}: it was edited")


def all_in(folder: Path = FOLDER) -> list[Result]:
    """Every result of a folder, by name."""
    return [read(path) for path in sorted(folder.glob("*.json"))]

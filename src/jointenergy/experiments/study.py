"""experiments: studies, the experiments that train several models: their settings, their seeds, and the result.

A study is a recipe with one more table, `[continual]` or `[composition]`, that says what is done with it.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.experiments.composition import Composition
from jointenergy.experiments.continual import Continual
from jointenergy.experiments.parts import Fitting, Place, plainly
from jointenergy.experiments.reproduce import check_all_are_named
from jointenergy.experiments.seeds import Record, Seed, seeds_text
from jointenergy.labels import nearest
from jointenergy.recipes.schema import Recipe, parse, values_of
from jointenergy.recipes.variants import Size
from jointenergy.report import provenance, results
from jointenergy.training.distributed import device_of

FOLDER = recipes.FOLDER / "studies"
RUNS = Path("runs/study")
KINDS: dict[str, type[Continual] | type[Composition]] = {"continual": Continual, "composition": Composition}

# What the papers report, by the name of the result: metrics, and the source.
PAPERS: dict[str, dict[str, float | str]] = {}


@dataclass(frozen=True)
class Study:
    """A recipe and what is done with it."""

    recipe: Recipe
    kind: Continual | Composition

    def baseline(self) -> Study:
        return replace(self, recipe=self.kind.baseline(self.recipe))


def names() -> list[str]:
    """The studies that come with the library, each followed by its variants as STUDY:VARIANT."""
    return recipes.listed(FOLDER)


def load(name: str, overrides: tuple[str, ...] = (), *, size: Size = "full") -> Study:
    """A study or a variant (STUDY:VARIANT) by name, or from a TOML file, with `key.key=value` overrides."""
    stem, variant = recipes.parted(name)
    path = FOLDER / f"{stem}.toml"
    path = path if path.exists() else Path(stem)
    if path.suffix != ".toml":
        raise InputError(f"there is no study called {name!r}: {nearest(name, names())}; the file of one ends in .toml")
    values = values_of(path, overrides, variant=variant, size=size)
    tables = [t for t in KINDS if t in values]
    if len(tables) != 1:
        raise InputError(f"{path.name} is no study: it needs one of the tables {', '.join(f'[{t}]' for t in KINDS)}")
    table = values.pop(tables[0])
    try:
        kind = TypeAdapter(KINDS[tables[0]]).validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, (tables[0], *first["loc"])))
        raise InputError(f"{path.name}: {key}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
    return Study(parse(values, path.name), kind)


@dataclass(frozen=True)
class Plan:
    """What is to be measured. The published name belongs to a study of the library only as it was shipped."""

    study: str
    seeds: tuple[int, ...]
    data: Path | None = None
    runs: Path = RUNS
    results: Path = results.FOLDER
    baseline: bool = False
    overrides: tuple[str, ...] = ()
    name: str | None = None
    device: str = "auto"
    size: Size = "full"
    settings: Study = field(init=False)

    def __post_init__(self) -> None:
        settings = load(self.study, self.overrides, size=self.size)
        own = self.name or settings.recipe.name
        results.check_name(own)
        shipped = {recipes.result_name(name): name for name in names()}
        if own in shipped and load(shipped[own]) != settings:
            raise InputError(
                f"the name {own!r} belongs to the study of the library as it is: choose another with --name"
            )
        object.__setattr__(self, "settings", settings.baseline() if self.baseline else settings)

    @property
    def result_name(self) -> str:
        name = self.name or self.settings.recipe.name.removesuffix("-baseline")
        return name + ("-baseline" if self.baseline else "")

    @property
    def folder(self) -> Path:
        return self.runs / self.result_name

    def command(self) -> list[str]:
        """The words that make the same result."""
        words = ["jointenergy", "study", self.study, "--seeds", seeds_text(self.seeds)]
        words += ["--data", str(self.data)] if self.data is not None else []
        words += ["--runs", str(self.runs)] if self.runs != RUNS else []
        words += ["--results", str(self.results)] if self.results != results.FOLDER else []
        words += ["--name", self.name] if self.name else []
        words += ["--device", self.device] if self.device != "auto" else []
        words += [f"--{self.size}"] if self.size != "full" else []
        words += ["--baseline"] if self.baseline else []
        return words + [word for override in self.overrides for word in ("--set", override)]


def measure(plan: Plan, fit: Fitting = plainly, say: Callable[[str], None] = lambda _: None) -> results.Result:
    """Train and measure what is not yet measured, seed by seed, and write the result.

    `fit` brings each run to its end and may raise to stop: what is trained is saved, and the same plan goes on from it.
    """
    # Before the work, not after: only a clean tree can publish.
    commit, source = provenance.commit(), provenance.source_digest()
    device = device_of(plan.device)
    check_all_are_named(plan.folder, plan.seeds)
    records = []
    with _alone(plan):
        for number in plan.seeds:
            seed = Seed(number, plan.folder)
            record = seed.record() or Record(commit, source)
            if record.source != source:
                raise InputError(
                    f"seed {number} was begun by other code than the present (commit {record.commit[:12]}): remove "
                    f"{seed.run} and {seed.record_path}, or choose another --runs"
                )
            if record.figures is None:
                seed.remember(record)
                record = _measured(plan, seed, record, Place(seed.run, number, plan.data, device), fit, say)
            records.append(record)
    taken = [record.figures or {} for record in records]
    metrics = list(dict.fromkeys(name for figures in taken for name in figures))
    result = results.measured(
        plan.result_name,
        {name: [figures.get(name) for figures in taken] for name in metrics},
        seeds=plan.seeds,
        minutes=sum(record.seconds for record in records) / 60,
        command=plan.command(),
        paper=PAPERS.get(plan.result_name),
        notes=" ".join(dict.fromkeys(record.remark for record in records if record.remark)),
    )
    results.write(result, plan.results)
    return result


def _measured(plan: Plan, seed: Seed, record: Record, place: Place, fit: Fitting, say: Callable[[str], None]) -> Record:
    began = time.monotonic()

    def now() -> Record:
        return replace(record, seconds=record.seconds + time.monotonic() - began)

    try:
        figures, remark = plan.settings.kind.measure(
            plan.settings.recipe, place, lambda run, part: fit(run, f"seed {seed.number}, {part}")
        )
    except BaseException:
        seed.remember(now())  # the time before a stop counts too
        raise
    record = replace(now(), figures=figures, remark=remark)
    seed.remember(record)
    say(f"seed {seed.number}: " + ", ".join(f"{k} {v:.4g}" for k, v in figures.items() if v is not None))
    return record


@contextmanager
def _alone(plan: Plan) -> Iterator[None]:
    """One process at a time in the folder of a plan, and one study."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    settings = plan.folder / "study.json"
    text = json.dumps(asdict(plan.settings), default=str)
    with (plan.folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{plan.folder} is being worked on by another process") from None
        if settings.exists() and settings.read_text() != text:
            raise InputError(f"{plan.folder} holds another study: remove it, or choose another --runs or --name")
        settings.write_text(text)
        yield

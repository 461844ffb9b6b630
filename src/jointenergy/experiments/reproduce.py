"""experiments: a recipe trained with many seeds, each measured once on the test rows, and its published result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.experiments.further import Asked, further
from jointenergy.experiments.papers import PAPERS
from jointenergy.experiments.seeds import (
    DIVERGED,
    Child,
    Record,
    Seed,
    draw_portrait,
    figures_of,
    seeds_text,
    task_figures_of,
)
from jointenergy.metrics.registry import Figures
from jointenergy.recipes.schema import Recipe
from jointenergy.recipes.variants import Size
from jointenergy.report import extractors, provenance, results

RUNS = Path("runs/reproduce")
NOT_OF_BASELINES = {
    "tasks": "a baseline has no chains to do tasks with",
    "likelihood": "a baseline's log p(x) is no density",
    "extractor": "a baseline has no samples to compare",
}
LOOK = 0.2  # seconds between two looks at the processes


@dataclass(frozen=True)
class Progress:
    """How far all seeds have come together, in iterations; `event` is a sentence, where one has just ended."""

    iterations: int
    n_ended: int
    n_running: int
    event: str | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be reproduced. The published name belongs to a recipe of the library only as it was shipped."""

    recipe: str
    seeds: tuple[int, ...]
    jobs: int = 1
    data: Path | None = None
    runs: Path = RUNS
    results: Path = results.FOLDER
    baseline: bool = False
    overrides: tuple[str, ...] = ()
    name: str | None = None
    device: str = "auto"
    guard: bool = True
    tasks: bool = False
    """Measure how well each run does its tasks, not only how well it tells labels."""
    ood: tuple[tuple[str, Path], ...] = ()
    """Sets unlike the data that each run is to tell from its test rows, and where they lie."""
    size: Size = "full"
    judge: Path | None = None
    """A run of the same labels that judges samples, by default the recipe's baseline of the same seed, if trained."""
    gallery: Path | None = None
    """Where a picture of the first seed is put."""
    likelihood: bool = False
    """Bound the log-likelihood of the test rows; of a smaller size by the quick suite."""
    extractor: str | None = None
    """The network whose features compare samples with test rows: `inception`, or a file as of `evaluate`."""
    settings: Recipe = field(init=False)

    def __post_init__(self) -> None:
        settings = recipes.load(self.recipe, self.overrides, size=self.size)
        object.__setattr__(self, "settings", settings.baseline() if self.baseline else settings)
        if self.overrides and self.name is None:
            raise InputError(
                f"--set changes the recipe, and results of {settings.name!r} are of the recipe as it is: give the "
                "changed one a name with --name"
            )
        own = self.name or settings.name
        shipped = {recipes.result_name(name): name for name in recipes.names()}
        if own in shipped and recipes.load(shipped[own]) != settings:
            raise InputError(f"the name {own!r} belongs to the recipe of the library: choose another with --name")
        results.check_name(own)
        if own.endswith("-baseline"):
            raise InputError(f"the name {own!r} belongs to a baseline: leave the ending out and use --baseline")
        for option, why in NOT_OF_BASELINES.items():
            if self.baseline and getattr(self, option):
                raise InputError(f"{why}: leave --{option} or --baseline out")
        if self.extractor is not None:
            extractors.check_there(self.extractor, self.data)  # before hours of training
        if self.jobs < 1:
            raise InputError(f"--jobs must be at least 1, got {self.jobs}")

    @property
    def result_name(self) -> str:
        name = (self.name or self.settings.name.removesuffix("-baseline")) + ("-baseline" if self.baseline else "")
        return name + ("" if self.guard else "-unguarded") + ("-tasks" if self.tasks else "")

    @property
    def folder(self) -> Path:
        return self.runs / self.result_name

    def command(self) -> list[str]:
        """The words that make the same result. Jobs are among them: on one core each, sums have another order."""
        words = ["jointenergy", "reproduce", self.recipe, "--seeds", seeds_text(self.seeds)]
        words += ["--jobs", str(self.jobs)] if self.jobs > 1 else []
        words += ["--runs", str(self.runs)] if self.runs != RUNS else []
        words += ["--results", str(self.results)] if self.results != results.FOLDER else []
        words += ["--name", self.name] if self.name else []
        words += ["--tasks"] if self.tasks else []
        words += ["--likelihood"] if self.likelihood else []
        words += ["--extractor", self.extractor] if self.extractor is not None else []
        words += ["--judge", str(self.judge)] if self.judge is not None else []
        words += ["--gallery", str(self.gallery)] if self.gallery is not None else []
        words += [word for name, place in self.ood for word in ("--ood", f"{name}={place}")]
        return words + self._changes()

    def judge_of(self, seed: int) -> Path | None:
        """The run folder that judges the samples of a seed: the one that was named, or the baseline, if it is there."""
        if self.judge is not None or self.baseline or self.settings.model.family in ("conditional", "unconditional"):
            return self.judge
        own, shipped = self.settings, recipes.load(recipes.parted(self.recipe)[0], size=self.size)
        held_out = own.data.options.held_out_pairs
        # Pairs that were held out need a judge that has seen them; of a variant on the same data the recipe's will do.
        judges = [] if held_out else [(self.result_name, own)]
        fits = shipped.data == own.data or (held_out and not shipped.data.options.held_out_pairs)
        judges += [(shipped.name, shipped)] if fits and shipped.model.family == own.model.family else []
        baselines = ((Seed(seed, self.runs / f"{name}-baseline"), settings.baseline()) for name, settings in judges)
        return next((judge.run for judge, settings in baselines if judge.state(settings) == "complete"), None)

    def train_words(self) -> list[str]:
        """The words after `jointenergy` that train one seed, but for the seed and its folder."""
        return ["train", self.recipe, *self._changes()]

    def _changes(self) -> list[str]:
        words = ["--data", str(self.data)] if self.data is not None else []
        words += ["--device", self.device] if self.device != "auto" else []
        words += [f"--{self.size}"] if self.size != "full" else []
        words += ["--baseline"] if self.baseline else []
        words += [] if self.guard else ["--no-guard"]
        return words + [word for override in self.overrides for word in ("--set", override)]


def reproduce(plan: Plan, report: Callable[[Progress], None] = lambda _: None) -> results.Result:
    """Train what is not yet trained, measure what is not yet measured, and write the result.

    Ctrl-C (KeyboardInterrupt) stops the processes after their present step, saved; the same plan goes on from there.
    """
    # Before hours of work, not after: only a clean tree can publish.
    commit, source = provenance.commit(), provenance.source_digest()
    seeds = [Seed(number, plan.folder) for number in plan.seeds]
    check_all_are_named(plan.folder, plan.seeds)
    for seed in seeds:
        seed.check(plan.settings, source)
    paper = PAPERS.get(plan.result_name) or _paper_before(plan)
    _Work(plan, seeds, Record(commit, source), report).go()
    result = _result(plan, seeds, paper)
    results.write(result, plan.results)
    if plan.gallery is not None:
        picture = plan.gallery / f"{plan.result_name}.png"
        draw_portrait(seeds[0], plan.settings, plan.data, picture, plan.device)
    return result


def check_all_are_named(folder: Path, seeds: Sequence[int]) -> None:
    """Every seed that was ever started is published: nobody picks the good ones."""
    started = {int(p.stem.removeprefix("seed-")) for p in folder.glob("seed-[0-9]*.json")}
    left_out = sorted(started - set(seeds))
    if left_out:
        raise InputError(
            f"seed(s) {', '.join(map(str, left_out))} were started in {folder} too, and every seed that was "
            "started is published: name them in --seeds, or choose another --runs"
        )


def n_complete(plan: Plan) -> int:
    """How many seeds of the plan need no more training."""
    return sum(Seed(s, plan.folder).state(plan.settings) in ("complete", "diverged") for s in plan.seeds)


@dataclass
class _Work:
    """The queue of seeds and the processes at work on them."""

    plan: Plan
    seeds: list[Seed]
    fresh: Record
    report: Callable[[Progress], None]
    children: list[Child] = field(default_factory=list)
    n_ended: int = 0

    def go(self) -> None:
        waiting = list(self.seeds)
        try:
            while waiting or self.children:
                while waiting and len(self.children) < self.plan.jobs:
                    self._begin(waiting.pop(0))
                for child in [c for c in self.children if c.process.poll() is not None]:
                    self._end(child)
                self._tell()
                if self.children:
                    time.sleep(LOOK)
        finally:
            self._stop()

    def _begin(self, seed: Seed) -> None:
        if seed.state(self.plan.settings) in ("complete", "diverged"):
            self._measure(seed, "was complete")
            return
        if provenance.source_digest() != self.fresh.source:
            raise InputError("the source changed while seeds were trained: go back to the commit, or begin again")
        if seed.record() is None or seed.state(self.plan.settings) == "new":
            seed.remember(self.fresh)
        one_thread = self.plan.jobs > 1
        child = Child.start(seed, self.plan.train_words(), self.plan.settings, one_thread=one_thread)
        self.children.append(child)

    def _end(self, child: Child) -> None:
        self.children.remove(child)
        child.close()
        code = child.process.returncode
        if code not in (0, DIVERGED):
            raise InputError(
                f"seed {child.seed.number} ended with status {code} ({child.last_words()}): see {child.seed.log}, then "
                "run the same command again, which goes on from here"
            )
        self._measure(child.seed, "diverged" if code == DIVERGED else "is trained")

    def _measure(self, seed: Seed, how: str) -> None:
        """The test rows are looked at once for each seed; what was seen then is kept."""
        record = seed.record()
        assert record is not None  # written before a seed is started
        if record.figures is None:
            record = replace(record, diverged=seed.state(self.plan.settings) == "diverged")
            seed.remember(record)
            if self.plan.tasks:
                figures, remark = task_figures_of(seed, self.plan.settings, self.plan.data, self.plan.device)
            else:
                judge = self.plan.judge_of(seed.number)
                small = self.plan.size != "full"
                figures, remark = figures_of(seed, self.plan.settings, self.plan.data, judge, small=small)
            record = replace(record, figures=figures, remark=remark)
            seed.remember(record)
        plan = self.plan
        asked = Asked(plan.ood, plan.likelihood, plan.extractor)
        record = further(seed, record, plan.settings, asked, plan.data, plan.device, full=plan.size == "full")
        self.n_ended += 1
        accuracy = (record.figures or {}).get("accuracy")
        shown = "no accuracy" if accuracy is None else f"accuracy {accuracy:.4f}"
        self._tell(f"seed {seed.number} {how}: {shown}")

    def _tell(self, event: str | None = None) -> None:
        end = self.plan.settings.iterations
        # A seed has ended when it is measured, not when its last iteration is logged.
        iterations = self.n_ended * end + sum(min(end - 1, c.seed.iteration()) for c in self.children)
        self.report(Progress(iterations, self.n_ended, len(self.children), event))

    def _stop(self) -> None:
        """All that still runs is asked to save and stop; a second Ctrl-C does not wait for it."""
        try:
            for child in self.children:
                child.ask_to_stop()
            while self.children:
                self.children[-1].ended()
                self.children.pop()
        except KeyboardInterrupt:
            for child in self.children:
                child.process.kill()
                child.ended()
            raise


def _result(plan: Plan, seeds: Sequence[Seed], paper: Mapping[str, float | str]) -> results.Result:
    records = [record for seed in seeds if (record := seed.record()) is not None]
    figures: list[Figures] = [record.figures or {} for record in records]
    names = list(dict.fromkeys(name for taken in figures for name in taken))
    return results.measured(
        plan.result_name,
        {name: [taken.get(name) for taken in figures] for name in names},
        seeds=plan.seeds,
        # Of all seeds together, each by the clock of its own process, before and after any stop.
        minutes=sum(record.seconds for record in records) / 60,
        command=plan.command(),
        paper=paper,
        notes=" ".join(dict.fromkeys(record.remark for record in records if record.remark)),
        protocols={name: how for record in records for name, how in record.protocols.items()},
    )


def _paper_before(plan: Plan) -> dict[str, float | str]:
    """What the file that is replaced says of the paper."""
    path = plan.results / f"{plan.result_name}.json"
    return dict(results.read(path).paper) if path.exists() else {}

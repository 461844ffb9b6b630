"""experiments: training a recipe or a study with many seeds, each evaluated once on the test rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.experiments import study as studies
from jointenergy.experiments.papers import PAPERS
from jointenergy.experiments.seed_figures import add_asked, draw_portrait, figures_of, task_figures_of
from jointenergy.experiments.seeds import SeedFolder, SeedRecord, seeds_text
from jointenergy.experiments.study import Study
from jointenergy.experiments.worker import DIVERGED, Worker
from jointenergy.metrics.registry import Figures
from jointenergy.recipes.schema import Recipe
from jointenergy.recipes.variants import Size
from jointenergy.report import extractors, provenance, results
from jointenergy.training.health import PROTOCOL

NOT_OF_BASELINES = {
    "tasks": "a baseline has no chains to do tasks with",
    "likelihood": "a baseline's log p(x) is no density",
    "extractor": "a baseline has no samples to compare",
}
NOT_OF_STUDIES = ("tasks", "ood", "judge", "likelihood", "extractor", "gallery")
LOOK = 0.2  # seconds between polls of the processes


@dataclass(frozen=True)
class SeedsProgress:
    """Report the iterations of all seeds together; `event` is a sentence when a seed has just ended."""

    iterations: int
    n_ended: int
    n_running: int
    event: str | None = None


@dataclass(frozen=True)
class Reproduction:
    """Describe the reproduction of a recipe or a study, in the names and order of the command's options.

    Only the unchanged recipe of the library may use its published name.
    """

    recipe: str
    seeds: tuple[int, ...]
    jobs: int = 1
    runs: Path | None = None
    """Parent of the run folders, by default `runs/reproduce` or `runs/study`."""
    results: Path = results.FOLDER
    name: str | None = None
    tasks: bool = False
    """Whether to evaluate samples, inpainting and labels by sampling too."""
    likelihood: bool = False
    """Whether to bound the log-likelihood of the test rows; smaller sizes use the quick suite."""
    extractor: str | None = None
    """Network whose features compare samples with test rows: `inception`, or a file as in `evaluate`."""
    judge: Path | None = None
    """Run with the same labels that judges samples, by default the trained baseline of the same seed."""
    collect: Path | None = None
    """Folder with records of seeds trained elsewhere, which are joined; nothing is trained."""
    gallery: Path | None = None
    """File for a picture of the first seed."""
    ood: tuple[tuple[str, Path], ...] = ()
    """OOD sets to evaluate each run on, and their folders."""
    data: Path | None = None
    device: str = "auto"
    size: Size = "full"
    baseline: bool = False
    guard: bool = True
    overrides: tuple[str, ...] = ()
    settings: Recipe | Study = field(init=False)

    def __post_init__(self) -> None:
        settings = _load(self.recipe, self.overrides, self.size)
        object.__setattr__(self, "settings", settings.baseline() if self.baseline else settings)
        if self.overrides and self.name is None:
            raise InputError(
                f"--set changes the recipe, and results of {settings.name!r} are of the recipe as it is: give the "
                "changed one a name with --name"
            )
        own = self.name or settings.name
        shipped = {recipes.result_name(name): name for name in [*recipes.names(), *studies.names()]}
        if own in shipped and _load(shipped[own]) != settings:
            raise InputError(f"the name {own!r} belongs to the recipe of the library: choose another with --name")
        results.check_name(own)
        if own.endswith("-baseline"):
            raise InputError(f"the name {own!r} belongs to a baseline: leave the ending out and use --baseline")
        for option, why in NOT_OF_BASELINES.items():
            if self.baseline and getattr(self, option):
                raise InputError(f"{why}: leave --{option} or --baseline out")
        asked = [f"--{option}" for option in NOT_OF_STUDIES if getattr(self, option)]
        asked += [] if self.guard else ["--no-guard"]
        if isinstance(settings, Study) and asked:
            raise InputError(f"{self.recipe!r} is a study, which trains several models: leave {', '.join(asked)} out")
        if self.extractor is not None:
            extractors.check_there(self.extractor, self.data)  # before hours of training
        if self.jobs < 1:
            raise InputError(f"--jobs must be at least 1, got {self.jobs}")

    @property
    def command_name(self) -> str:
        return "study" if isinstance(self.settings, Study) else "reproduce"

    @property
    def result_name(self) -> str:
        name = (self.name or self.settings.name.removesuffix("-baseline")) + ("-baseline" if self.baseline else "")
        return name + ("" if self.guard else "-unguarded") + ("-tasks" if self.tasks else "")

    @property
    def root(self) -> Path:
        return self.runs or Path("runs") / self.command_name

    @property
    def folder(self) -> Path:
        return self.root / self.result_name

    def command(self) -> list[str]:
        """Return the command that gives the same result. It names the jobs: the number of threads changes the order of
        sums."""
        words = ["jointenergy", self.command_name, self.recipe, "--seeds", seeds_text(self.seeds)]
        for option in fields(self)[2:-1]:
            value = getattr(self, option.name)
            if value == option.default:
                continue
            if option.name == "ood":
                words += [word for name, place in self.ood for word in ("--ood", f"{name}={place}")]
            elif option.name == "overrides":
                words += [word for override in self.overrides for word in ("--set", override)]
            elif option.name in ("size", "guard"):
                words += [f"--{self.size}" if option.name == "size" else "--no-guard"]
            else:
                words += [f"--{option.name}", *([] if value is True else [str(value)])]
        return words

    def judge_of(self, seed: int) -> Path | None:
        """Return the run folder that judges the samples of a seed: the named one, or the baseline if it exists."""
        own = self.settings
        if self.judge is not None or self.baseline or isinstance(own, Study):
            return self.judge
        if own.model.family in ("conditional", "unconditional"):
            return None
        shipped = recipes.load(recipes.parted(self.recipe)[0], size=self.size)
        held_out = own.data.options.held_out_pairs
        # Held-out pairs need a judge that has seen them; a variant on the same data may use the recipe's.
        judges = [] if held_out else [(self.result_name, own)]
        fits = shipped.data == own.data or (held_out and not shipped.data.options.held_out_pairs)
        judges += [(shipped.name, shipped)] if fits and shipped.model.family == own.model.family else []
        baselines = (
            (SeedFolder(seed, self.root / f"{name}-baseline"), settings.baseline()) for name, settings in judges
        )
        return next((judge.run for judge, settings in baselines if judge.state(settings) == "complete"), None)


def with_baseline(plan: Reproduction) -> tuple[Reproduction, ...]:
    """Return the plan, preceded by that of its baseline if it has one (JEM and Gibbs-JEM), which then judges samples.

    A baseline is evaluated plain and temperature-scaled, on the same seeds and sets.
    """
    settings = plan.settings
    if isinstance(settings, Study) or settings.model.family != "logits" or plan.baseline or plan.tasks:
        return (plan,)
    return replace(plan, baseline=True, guard=True, likelihood=False, extractor=None, judge=None, gallery=None), plan


def _load(name: str, overrides: Sequence[str] = (), size: Size = "full") -> Recipe | Study:
    load = studies.load if studies.is_study(name) else recipes.load
    return load(name, overrides, size=size)


def reproduce(plan: Reproduction, report: Callable[[SeedsProgress], None] = lambda _: None) -> results.Result:
    """Train and evaluate the seeds that are not complete, and write the result.

    Ctrl-C (KeyboardInterrupt) stops the processes after their current step and saves them; the same plan resumes.
    """
    if plan.collect is not None:
        return _collected(plan, plan.collect)
    # Check before hours of work: only a clean tree can publish.
    commit, source = provenance.commit(), provenance.source_digest()
    seeds = [SeedFolder(number, plan.folder) for number in plan.seeds]
    _check_all_are_named(plan)
    for seed in seeds:
        seed.check(plan.settings, source)
    fresh = SeedRecord(commit, source, hardware=provenance.hardware(), date=results.today())
    _Workers(plan, seeds, fresh, report).go()
    result = _result(plan, seeds)
    results.write(result, plan.results)
    if plan.gallery is not None:
        draw_portrait(seeds[0], plan.gallery / f"{plan.result_name}.png", plan.data, plan.device)
    return result


def n_complete(plan: Reproduction) -> int:
    """Count the seeds of the plan that need no more training."""
    return sum(SeedFolder(s, plan.folder).state(plan.settings) in ("complete", "diverged") for s in plan.seeds)


@dataclass
class _Workers:
    """Manage the queue of seeds and the processes that train them."""

    plan: Reproduction
    seeds: list[SeedFolder]
    fresh: SeedRecord
    report: Callable[[SeedsProgress], None]
    workers: list[Worker] = field(default_factory=list)
    n_ended: int = 0

    def go(self) -> None:
        waiting = list(self.seeds)
        try:
            while waiting or self.workers:
                while waiting and len(self.workers) < self.plan.jobs:
                    self._begin(waiting.pop(0))
                for worker in [c for c in self.workers if c.process.poll() is not None]:
                    self._end(worker)
                self._tell()
                if self.workers:
                    time.sleep(LOOK)
        finally:
            self._stop()

    def _begin(self, seed: SeedFolder) -> None:
        if seed.state(self.plan.settings) in ("complete", "diverged"):
            self._measure(seed, "was complete")
            return
        if provenance.source_digest() != self.fresh.source:
            raise InputError("the source changed while seeds were trained: check out that commit again, or restart")
        if seed.record() is None or seed.state(self.plan.settings) == "new":
            seed.remember(self.fresh)
        plan = self.plan
        self.workers.append(
            Worker.start(seed, plan.settings, plan.data, plan.device, guarded=plan.guard, one_thread=plan.jobs > 1)
        )

    def _end(self, worker: Worker) -> None:
        self.workers.remove(worker)
        worker.ended()
        code = worker.process.returncode
        if code not in (0, DIVERGED):
            raise InputError(
                f"seed {worker.seed.number} ended with status {code} ({worker.last_words()}): see {worker.seed.log}, "
                "then run the same command again, which goes on from here"
            )
        self._measure(worker.seed, "diverged" if code == DIVERGED else "is trained")

    def _measure(self, seed: SeedFolder, how: str) -> None:
        """Evaluate each seed once on the test rows, and keep the figures."""
        record = seed.record()
        assert record is not None  # written before a seed is started
        plan, full = self.plan, self.plan.size == "full"
        if record.figures is None:
            assert isinstance(plan.settings, Recipe)  # a study is measured where it is trained
            record = replace(record, diverged=seed.state(plan.settings) == "diverged")
            seed.remember(record)
            if plan.tasks:
                figures, remark = task_figures_of(seed, plan.data, plan.device)
            else:
                judge = plan.judge_of(seed.number)
                figures, remark = figures_of(seed, plan.settings, plan.data, judge, small=not full)
            record = replace(record, figures=figures, remark=remark)
            seed.remember(record)
        asked = (plan.ood, plan.likelihood, plan.extractor)
        record = add_asked(seed, record, plan.data, plan.device, *asked, full=full)
        self.n_ended += 1
        accuracy = (record.figures or {}).get("accuracy")
        shown = "no accuracy" if accuracy is None else f"accuracy {accuracy:.4f}"
        self._tell(f"seed {seed.number} {how}: {shown}")

    def _tell(self, event: str | None = None) -> None:
        end = self.plan.settings.iterations
        # A seed has ended when it is evaluated, not when its last iteration is logged.
        iterations = self.n_ended * end + sum(min(end - 1, c.seed.iteration()) for c in self.workers)
        self.report(SeedsProgress(iterations, self.n_ended, len(self.workers), event))

    def _stop(self) -> None:
        """Ask all running processes to save and stop; a second Ctrl-C does not wait."""
        try:
            for worker in self.workers:
                worker.ask_to_stop()
            while self.workers:
                self.workers[-1].ended()
                self.workers.pop()
        except KeyboardInterrupt:
            for worker in self.workers:
                worker.process.kill()
                worker.ended()
            raise


def _collected(plan: Reproduction, folder: Path) -> results.Result:
    """Join records found anywhere in a folder, each next to the `worker-N.json` with its settings."""
    found: dict[int, SeedFolder] = {}
    for path in sorted(folder.rglob("seed-*.json")):
        number = path.stem.removeprefix("seed-")
        if not number.isdecimal():
            continue
        seed = SeedFolder(int(number), path.parent)
        record = seed.record()
        if record is None or record.figures is None:
            raise InputError(f"seed {number} in {path.parent} is not measured yet: finish it there first")
        if seed.trained_settings() != plan.settings:
            raise InputError(f"seed {number} in {path.parent} was trained with other settings than {plan.recipe!r}")
        if seed.number in found:
            raise InputError(f"seed {number} is in {found[seed.number].folder} and in {path.parent}: remove one")
        found[seed.number] = seed
    if not found:
        raise InputError(f"there are no records of seeds (seed-0.json and so on) in {folder}")
    seeds = [found[number] for number in sorted(found)]
    result = _result(replace(plan, seeds=tuple(sorted(found))), seeds)
    results.write(result, plan.results)
    return result


def _origin(seed: SeedFolder, record: SeedRecord) -> str:
    date, hardware = record.date or "date unknown", record.hardware or "hardware unknown"
    return f"Seed {seed.number}: commit {record.commit[:12]}, {date}, {hardware}."


def _result(plan: Reproduction, seeds: Sequence[SeedFolder]) -> results.Result:
    before = plan.results / f"{plan.result_name}.json"  # keeps what an existing result says about papers
    paper = PAPERS.get(plan.result_name) or (results.read(before).paper if before.exists() else {})
    records = [record for seed in seeds if (record := seed.record()) is not None]
    figures: list[Figures] = [record.figures or {} for record in records]
    names = list(dict.fromkeys(name for taken in figures for name in taken))
    origins = [_origin(*both) for both in zip(seeds, records, strict=True)] if plan.collect is not None else []
    return results.measured(
        plan.result_name,
        {name: [taken.get(name) for taken in figures] for name in names},
        seeds=plan.seeds,
        # Sum over seeds, each timed by its own process, across interruptions.
        minutes=sum(record.seconds for record in records) / 60,
        command=plan.command(),
        paper=paper,
        notes=" ".join([*dict.fromkeys(record.remark for record in records if record.remark), *origins]),
        protocols={"healthy": PROTOCOL, **{name: how for r in records for name, how in r.protocols.items()}},
    )


def _check_all_are_named(plan: Reproduction) -> None:
    """Check that every started seed is published, so that seeds cannot be selected."""
    started = {int(p.stem.removeprefix("seed-")) for p in plan.folder.glob("seed-[0-9]*.json")}
    left_out = sorted(started - set(plan.seeds))
    if left_out:
        raise InputError(
            f"seed(s) {', '.join(map(str, left_out))} were started in {plan.folder} too, and every seed that was "
            "started is published: name them in --seeds, or choose another --runs"
        )

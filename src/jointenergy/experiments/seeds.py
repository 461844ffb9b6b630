"""experiments: one seed of a reproduction: its run folder, the process that trains it, its figures on test rows."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Literal

from jointenergy.data import Dataset
from jointenergy.errors import InputError
from jointenergy.experiments import measures
from jointenergy.metrics.registry import Figures
from jointenergy.recipes import run_folder
from jointenergy.recipes.data import dataset_of
from jointenergy.recipes.schema import Recipe, read
from jointenergy.report import gallery, likelihood, tasks
from jointenergy.report.sections import Subject
from jointenergy.runs.loading import open_run
from jointenergy.training import checkpoints, loop, state

State = Literal["new", "begun", "complete", "diverged"]

SMALL_ROWS = 100  # test rows that a quick or smoke size is measured on
DIVERGED = 3  # what `jointenergy train` leaves with when a run could not be kept healthy
TASKS = (
    f"Of the best healthy weights, as loaded: {tasks.PER_CLASS} samples of each class from noise, unfiltered; "
    f"{tasks.DRAWS} inpaintings of the lower half of each test image, {tasks.LEVEL:.0%} intervals, squared errors in "
    f"units of x; labels by sampling from {tasks.CHAINS} chains of {tasks.STEPS} steps. class_mean knows the true "
    "class, as given_class does; guessed_class_mean takes what a support vector machine guesses from the upper half."
)
PATIENCE = 120.0  # seconds that a process asked to stop may take to finish its step and save


def parse_seeds(text: str) -> tuple[int, ...]:
    """`20` is 0 to 19; `0,1,5` are those, and `5,` is 5 alone."""
    text = text.replace(" ", "")
    if re.fullmatch(r"[1-9][0-9]{0,3}", text):
        return tuple(range(int(text)))
    if not re.fullmatch(r"[0-9]{1,18}(,[0-9]{1,18})*,?", text) or "," not in text:
        said = "a number of seeds below 10,000, as in 20, or a list of them below 10^18, as in 0,1,5"
        raise InputError(f"--seeds takes {said}, got {text!r}")
    seeds = tuple(int(s) for s in text.split(",") if s)
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds names a seed twice: {text}")
    return tuple(sorted(seeds))


def seeds_text(seeds: Sequence[int]) -> str:
    """What `parse_seeds` reads as these seeds."""
    if tuple(seeds) == tuple(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")


@dataclass(frozen=True)
class Record:
    """What is remembered of a seed beside its run: the code that trains it, its time, its figures once taken."""

    commit: str
    source: str
    seconds: float = 0.0
    diverged: bool = False
    figures: Figures | None = None
    remark: str = ""
    protocols: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seed:
    """One seed in the folder of a reproduction."""

    number: int
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / f"seed-{self.number}"

    @property
    def log(self) -> Path:
        return self.folder / f"seed-{self.number}.log"

    @property
    def record_path(self) -> Path:
        return self.folder / f"seed-{self.number}.json"

    def record(self) -> Record | None:
        try:
            return Record(**json.loads(self.record_path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise InputError(f"{self.record_path} is damaged: remove it together with {self.run}") from None

    def remember(self, record: Record) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.record_path.with_suffix(".part")
        temporary.write_text(json.dumps(asdict(record)))
        temporary.replace(self.record_path)

    def check(self, settings: Recipe, source: str) -> None:
        """What is there must be this recipe, trained by this code: else the result would name the wrong commit."""
        record = self.record()
        if record is None and not self.run.exists():
            return
        remedy = f"remove {self.run} and {self.record_path}, or choose another --runs"
        if record is not None and self.state(settings) == "new":
            return  # stopped before its first checkpoint: it begins anew
        if record is None or read(self.run / "recipe.toml") != settings:
            raise InputError(f"{self.run} holds another run: {remedy}")
        if record.source != source:
            raise InputError(
                f"seed {self.number} was trained by other code than the present (commit {record.commit[:12]}): {remedy}"
            )

    def state(self, settings: Recipe) -> State:
        paths = checkpoints.all_in(self.run / "checkpoints")
        if not paths:
            return "new"
        if int(paths[-1].name.rpartition("-")[2]) >= settings.iterations:
            return "complete"
        # The record is asked first: a run that is opened again forgets the events after its newest checkpoint.
        record = self.record()
        ended = (record is not None and record.diverged) or self.events()[-1:] == ["diverged"]
        return "diverged" if ended else "begun"

    def events(self) -> list[str]:
        try:
            lines = (self.run / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [str(json.loads(line)["event"]) for line in lines]

    def iteration(self) -> int:
        """How far the run has come, by its metrics."""
        try:
            with (self.run / "metrics.csv").open(newline="") as file:
                return max((int(row["iteration"]) for row in csv.DictReader(file)), default=0)
        except (OSError, KeyError, TypeError, ValueError):
            return 0  # not yet written, or just being written


@dataclass
class Child:
    """The process that trains a seed. Its log is locked while it lives, even when whoever started it is gone."""

    seed: Seed
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    began: float

    @classmethod
    def start(cls, seed: Seed, train: Sequence[str], settings: Recipe, *, one_thread: bool) -> Child:
        """Begin the run, or take it up at its newest checkpoint; `train` are the words after `jointenergy`."""
        seed.folder.mkdir(parents=True, exist_ok=True)
        log = seed.log.open("ab")
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.close()
            raise InputError(f"seed {seed.number} in {seed.folder} is being trained by another process") from None
        words = ["resume", str(seed.run)]
        if seed.state(settings) == "new":
            # A run that was stopped before its first checkpoint has nothing to go on from.
            shutil.rmtree(seed.run, ignore_errors=True)
            words = [*train, "--seed", str(seed.number), "--out", str(seed.run)]
        environment = {**os.environ, **({"OMP_NUM_THREADS": "1"} if one_thread else {})}
        # In a session of its own: Ctrl-C reaches it once, from here, and a second signal would end it unsaved.
        process = subprocess.Popen(
            [sys.executable, "-m", "jointenergy", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        return cls(seed, process, log, time.monotonic())

    def ask_to_stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def ended(self) -> None:
        """Wait for the end, then note the time it took; checkpoints make even a kill safe."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.close()

    def close(self) -> None:
        self.log.close()
        record = self.seed.record()
        if record is not None:
            seconds = record.seconds + time.monotonic() - self.began
            self.seed.remember(replace(record, seconds=seconds, diverged=self.process.returncode == DIVERGED))

    def last_words(self) -> str:
        lines = self.seed.log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def figures_of(
    seed: Seed, settings: Recipe, data_folder: Path | None, judge: Path | None = None, *, small: bool = False
) -> tuple[Figures, str]:
    """Averaged weights on the test rows, and a remark where there is more to say than a number.

    `judge` is the run folder of a baseline, which judges samples too. A `small` size looks at few rows and samples.
    """
    diverged = seed.state(settings) == "diverged"
    # Opening a run cuts its events back to its newest checkpoint, so that they are counted before.
    interventions = sum(event in loop.INTERVENTIONS for event in seed.events())
    run = run_folder.reopen(seed.run)
    taken: Figures = {}
    remarks = list(run.trainer.warnings)
    usable = True
    if diverged:
        # The newest weights are in doubt; where a rollback would go to the very start, none were ever found healthy.
        usable = int(run.last_healthy.rpartition("-")[2]) > 0
        if usable:
            state.restore_weights(run.trainer, checkpoints.load(run.checkpoint_folder / run.last_healthy))
        whose = "its figures are of its last healthy weights" if usable else "it never had healthy weights"
        remarks.append(f"Seed {seed.number} diverged: {whose}.")
    device = next(run.trainer.ema.parameters()).device.type
    opened = open_run(seed.run, data=data_folder, device=device)
    # What has chains is measured as it ends; a baseline at its best on held-out rows, as it judges others.
    subject = Subject(
        opened.with_weights_of(run.trainer.ema) if run.trainer.uses_chains else opened,
        test_rows(settings, data_folder),
        None if judge is None else open_run(judge, data=data_folder, device=device),
        seed=seed.number,
    )
    if small:
        rows = subject.test.rows(likelihood.evenly(len(subject.test.x), SMALL_ROWS))
        subject = replace(subject, test=rows, small=True)
        remarks.append(f"Of a smaller size, on {len(rows.x)} test rows: no figure of the recipe.")
    if usable:
        taken, remark = measures.take_all(subject)
        remarks += [remark] if remark else []
    elif measures.tells_labels(subject):
        taken = {"accuracy": None, "nll": None, "ece": None}
    if run.trainer.uses_chains:
        taken["healthy"] = float(not diverged and run.health is not None and run.health.healthy)
        if run.health is not None and not diverged:
            taken |= measures.signs_of(run.health)
    taken["interventions"] = float(interventions if diverged else run.interventions)
    return taken, " ".join(remarks)


def draw_portrait(seed: Seed, settings: Recipe, data_folder: Path | None, path: Path, device: str = "cpu") -> None:
    """A picture of the run that a user loads, as a PNG file, unless there is nothing to see."""
    run = open_run(seed.run, data=data_folder, device=device)
    png = gallery.portrait(Subject(run, test_rows(settings, data_folder), seed=seed.number))
    if png is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png)


def task_figures_of(seed: Seed, settings: Recipe, data_folder: Path | None, device: str = "cpu") -> tuple[Figures, str]:
    """How well the run that a user loads does its tasks on the test rows, and what must be said of it."""
    run = open_run(seed.run, data=data_folder, device=device)
    if checkpoints.best(seed.run / "checkpoints") is None:
        return {"healthy": 0.0}, f"Seed {seed.number} was never healthy: its tasks are not measured."
    figures: Figures = {**tasks.measure(run, test_rows(settings, data_folder), seed.number), "healthy": 1.0}
    return figures, " ".join([TASKS, *run.notes])


def test_rows(settings: Recipe, folder: Path | None) -> Dataset:
    """The rows that figures are of."""
    return dataset_of(settings.data, folder, "test")

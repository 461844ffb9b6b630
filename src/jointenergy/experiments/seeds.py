"""experiments: the seeds of a reproduction, their folders and records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from jointenergy.errors import InputError
from jointenergy.experiments.study import Study, from_values
from jointenergy.files.reading import json_of, told
from jointenergy.files.schema import read_json
from jointenergy.files.writing import write_json
from jointenergy.metrics.registry import Figures
from jointenergy.recipes.run_folder import RECIPE
from jointenergy.recipes.schema import Recipe, read
from jointenergy.training import checkpoints
from jointenergy.training.journal import EVENTS, read_events, read_rows

SeedState = Literal["new", "begun", "complete", "diverged"]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds: `20` is 0 to 19, `0,1,5` is a list, `5,` is seed 5 alone."""
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
    """Format seeds so that `parse_seeds` reads them."""
    if tuple(seeds) == tuple(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")


@dataclass(frozen=True)
class SeedRecord:
    """Record of a seed besides its run: the code that trains it, its time, its figures."""

    commit: str
    source: str
    seconds: float = 0.0
    diverged: bool = False
    figures: Figures | None = None
    remark: str = ""
    protocols: dict[str, str] = field(default_factory=dict)
    hardware: str = ""
    date: str = ""


_RECORD = TypeAdapter(SeedRecord)


@dataclass(frozen=True)
class SeedFolder:
    """Represent one seed in the folder of a reproduction; `run` is its run folder, for a study a folder of runs."""

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

    @property
    def worker_path(self) -> Path:
        return self.folder / f"worker-{self.number}.json"

    def record(self) -> SeedRecord | None:
        if not self.record_path.exists():
            return None
        return read_json(
            _RECORD, self.record_path, f"{self.record_path} is damaged: remove it together with {self.run}"
        )

    def remember(self, record: SeedRecord) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.record_path, asdict(record))

    def check(self, settings: Recipe | Study, source: str) -> None:
        """Check that an existing run has these settings and this code, so that the result names the right commit."""
        record = self.record()
        if record is None and not self.run.exists():
            return
        remedy = f"remove {self.run} and {self.record_path}, or choose another --runs"
        if record is not None and self.state(settings) == "new":
            return  # stopped before its first checkpoint: restart it
        if record is None or self.trained_settings() != settings:
            raise InputError(f"{self.run} holds another run: {remedy}")
        if record.source != source:
            raise InputError(
                f"seed {self.number} was trained by other code than the present (commit {record.commit[:12]}): {remedy}"
            )

    def trained_settings(self) -> Recipe | Study:
        """Return the settings of the existing run; the runs of a study have a recipe each."""
        if (self.run / RECIPE).exists():
            return read(self.run / RECIPE)
        with told(f"{self.worker_path} is damaged: remove it together with {self.run}"):
            return from_values(json_of(self.worker_path)["settings"], self.worker_path.name)

    def state(self, settings: Recipe | Study) -> SeedState:
        record = self.record()
        if isinstance(settings, Study):
            # A study is evaluated where it is trained, and its runs start and resume by themselves.
            measured = record is not None and record.figures is not None
            return "complete" if measured else "begun" if self.run.exists() else "new"
        paths = checkpoints.all_in(self.run / "checkpoints")
        if not paths:
            return "new"
        if int(paths[-1].name.rpartition("-")[2]) >= settings.iterations:
            return "complete"
        # Read the record first: opening a run drops events after its newest checkpoint.
        ended = (record is not None and record.diverged) or self.events()[-1:] == ["diverged"]
        return "diverged" if ended else "begun"

    def events(self) -> list[str]:
        return [str(event.get("event")) for event in read_events(self.run / EVENTS)]

    def iteration(self) -> int:
        """Return the iterations of its runs together, by their metrics."""
        return sum(_last_iteration(path) for path in (self.run / "metrics.csv", *self.run.glob("*/metrics.csv")))


def _last_iteration(metrics: Path) -> int:
    try:
        return max((int(row["iteration"]) for row in read_rows(metrics)), default=0)
    except (KeyError, ValueError):
        return 0  # not written yet, or being written

"""experiments: the process that trains one seed: `Worker` starts and stops it, `main` runs in it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from jointenergy.errors import InputError
from jointenergy.experiments.seeds import SeedFolder
from jointenergy.experiments.study import Study, from_values, to_values
from jointenergy.experiments.study_parts import StudySeed
from jointenergy.files.locks import emptied, only_writer
from jointenergy.files.reading import json_of
from jointenergy.files.writing import write_json
from jointenergy.recipes import run_folder
from jointenergy.recipes.schema import Recipe
from jointenergy.training.callbacks import Printed
from jointenergy.training.distributed import device_of
from jointenergy.training.loop import Diverged, Interrupted, Loop

WRONG = 2
DIVERGED = 3  # exit status of a run that diverged for good
INTERRUPTED = 130
PATIENCE = 120.0  # seconds for a stopping process to finish its step and save
STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Worker:
    """Control the process that trains a seed. Its log is locked while it lives, even without its parent."""

    seed: SeedFolder
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    began: float

    @classmethod
    def start(
        cls,
        seed: SeedFolder,
        settings: Recipe | Study,
        data: Path | None = None,
        device: str = "auto",
        *,
        guarded: bool = True,
        one_thread: bool = False,
    ) -> Worker:
        """Start the run, or resume it from its newest checkpoint."""
        seed.folder.mkdir(parents=True, exist_ok=True)
        log = seed.log.open("ab")
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.close()
            raise InputError(f"seed {seed.number} in {seed.folder} is being trained by another process") from None
        given = {
            "folder": str(seed.folder),
            "number": seed.number,
            "data": data and str(data),
            "device": device,
            "guarded": guarded,
        }
        write_json(seed.worker_path, {**given, "settings": to_values(settings)})
        # A new session: Ctrl-C reaches the process once, from here; a second signal would end it unsaved.
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "jointenergy.experiments.worker", str(seed.worker_path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **({"OMP_NUM_THREADS": "1"} if one_thread else {})},
            start_new_session=True,
        )
        return cls(seed, process, log, time.monotonic())

    def ask_to_stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def ended(self) -> None:
        """Wait for the end and record the time it took; checkpoints make even a kill safe."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        record = self.seed.record()
        if record is not None:
            seconds = record.seconds + time.monotonic() - self.began
            self.seed.remember(replace(record, seconds=seconds, diverged=self.process.returncode == DIVERGED))

    def last_words(self) -> str:
        lines = self.seed.log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def main(path: Path) -> int:
    """Train the seed described by a file of `Worker`; the exit status says how it ended."""
    for kind in STOPS:
        signal.signal(kind, signal.default_int_handler)
    try:
        train(**json_of(path))
    except (Interrupted, KeyboardInterrupt) as stopped:
        print(str(stopped) or "stopped at once")
        return INTERRUPTED
    except Diverged as diverged:
        print(f"jointenergy: {diverged}")
        return DIVERGED
    except (InputError, OSError) as error:
        print(f"jointenergy: {error}")
        return WRONG
    return 0


def train(*, folder: str, number: int, data: str | None, device: str, guarded: bool, settings: dict[str, Any]) -> None:
    """Train a recipe into its run folder, new or resumed; train and measure the models of a study."""
    seed, chosen = SeedFolder(number, Path(folder)), from_values(settings, "the worker's settings")
    with only_writer(seed.run):
        _train(seed, chosen, None if data is None else Path(data), device, guarded=guarded)


def _train(seed: SeedFolder, chosen: Recipe | Study, place: Path | None, device: str, *, guarded: bool) -> None:
    number = seed.number
    if isinstance(chosen, Study):
        own = StudySeed(seed.run, number, place, device_of(device))
        figures, remark = chosen.kind.measure(chosen.recipe, own, lambda run, part: _fit(run, f"seed {number}, {part}"))
        record = seed.record()
        assert record is not None  # written before a seed is started
        seed.remember(replace(record, figures=figures, remark=remark))
    elif seed.state(chosen) == "new":
        # A run that stopped before its first checkpoint cannot be resumed.
        emptied(seed.run)
        run = run_folder.create(seed.run, chosen, number, data_folder=place, guarded=guarded, device=device_of(device))
        _fit(run, f"seed {number}")
    else:
        _fit(run_folder.reopen(seed.run), f"seed {number}")


def _fit(run: Loop, name: str) -> None:
    """Train to the end; the first signal saves after the current step, a second Ctrl-C stops at once."""

    def ask_to_stop(*_: object) -> None:
        run.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    at, end = run.trainer.iteration, run.trainer.plan.iterations
    print(f"{name}: " + (f"resuming at iteration {at} of {end}" if at else f"{end} iterations"))
    run.callbacks = [*run.callbacks, Printed(name)]
    for kind in STOPS:
        signal.signal(kind, ask_to_stop)
    try:
        run.fit()
    finally:
        for kind in STOPS:
            signal.signal(kind, signal.default_int_handler)
    if run.verdict is not None:
        said = "healthy" if run.verdict.healthy else f"not healthy: {'; '.join(run.verdict.complaints)}"
        print(f"{name}: {said}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

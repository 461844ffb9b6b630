"""`kill -9` while it matters: during a rollback, an evaluation, a reproduction, a study, and in two processes.

Each case is done once unharmed, then killed and done again; both must leave the same behind. What can be is done in
forks of this process, which has torch loaded: they die by SIGKILL at their n-th change of a file, or after a time.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from safetensors.torch import load_file

from jointenergy import recipes
from jointenergy.cli.main import main
from jointenergy.cli.screen import UNHEALTHY
from jointenergy.experiments import reproduce
from jointenergy.recipes import run_folder
from jointenergy.report import page, suite
from jointenergy.report.sections import Part
from jointenergy.runs.loading import open_run
from jointenergy.training import checkpoints
from jointenergy.training.callbacks import Callback
from jointenergy.training.loop import Loop
from tests.forks import forked
from tests.small_run import TINY

CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.truncate")
LONGER = ("iterations=14", "cadence.check=7", "cadence.checkpoint=2", "cadence.log=1")
PARTS = ("health", "prediction", "training")
STRIKE = 9  # the iteration at which a run is rolled back
COUNTED = mmap.mmap(-1, 8)  # the changes of files that the latest fork made, in memory that it shares

Digest = dict[str, object]


def dying(at: int | None, armed: Callable[[], bool] = lambda: True) -> None:
    """From now on this process counts its changes of files made while armed, and dies at number `at`."""
    COUNTED[:] = bytes(8)

    def count(event: str, arguments: tuple[object, ...]) -> None:
        writes = event != "open" or (isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"))
        if event in CHANGES and writes and armed():
            COUNTED[:] = (counted() + 1).to_bytes(8, "little")
            if counted() == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def counted() -> int:
    return int.from_bytes(COUNTED[:], "little")


def spread(n: int) -> list[int]:
    """Choose n of the changes that an unharmed fork has just made, the first and all through to the end."""
    assert counted() >= n
    return [1 + i * counted() // n for i in range(n)]


def weights_of(folder: Path) -> Digest:
    """What a run came to: its weights, its tables without times, its events."""
    newest = checkpoints.all_in(folder / "checkpoints")[-1]
    tensors = load_file(newest / checkpoints.TENSORS)
    events = (folder / "events.jsonl").read_text() if (folder / "events.jsonl").exists() else ""
    rows = [line.rpartition(",")[0] for line in (folder / "metrics.csv").read_text().splitlines()]
    return {"name": newest.name, "events": events, "metrics": rows, **{k: v.tolist() for k, v in tensors.items()}}


# A rollback.


class RollBack(Callback):
    """Sends the run back once, and notes while it does."""

    inside = False

    def before_step(self, loop: Loop) -> None:
        if loop.trainer.iteration == STRIKE and loop.trainer.attempt == 0:
            self.inside = True
            loop._roll_back("asked for")
            self.inside = False


def rolled_back(folder: Path, die_at: int | None) -> None:
    """Begin or resume a run that is rolled back at one iteration; die at a change of a file meanwhile."""
    begun = (folder / run_folder.ABOUT).exists()
    settings = recipes.load("digits-jem", (*TINY, *LONGER))
    run = run_folder.reopen(folder) if begun else run_folder.create(folder, settings, 0)
    back = RollBack()
    run.callbacks.append(back)
    dying(die_at, lambda: back.inside)
    run.fit()


def kill_rollbacks(place: Path, n: int) -> list[bool]:
    assert forked(lambda: rolled_back(place / "whole", None)) == 0
    whole = weights_of(place / "whole")
    assert '"rollback"' in str(whole["events"])
    alike = []
    for at in spread(n):
        folder = place / f"killed-{at}"
        status = forked(lambda folder=folder, at=at: rolled_back(folder, at))  # type: ignore[misc]
        assert status == -signal.SIGKILL
        assert forked(lambda folder=folder: rolled_back(folder, None)) == 0  # type: ignore[misc]
        alike.append(weights_of(folder) == whole)
        shutil.rmtree(folder)
    return alike


# An evaluation.


def evaluated(run: Path, folder: Path, die_at: int | None) -> None:
    dying(die_at)
    parts: dict[str, Part] = {name: suite.PARTS[name] for name in PARTS}
    suite.PARTS = parts
    page.write(suite.evaluate(suite.subject_of(open_run(run)), "quick", folder), folder)


def kill_evaluations(place: Path, n: int) -> list[bool]:
    run_folder.create(place / "run", recipes.load("digits-jem", TINY), 0).fit()
    assert forked(lambda: evaluated(place / "run", place / "whole", None)) == 0
    whole = _metrics(place / "whole")
    alike = []
    for at in spread(n):
        folder = place / f"killed-{at}"
        status = forked(lambda folder=folder, at=at: evaluated(place / "run", folder, at))  # type: ignore[misc]
        assert status == -signal.SIGKILL
        assert forked(lambda folder=folder: evaluated(place / "run", folder, None)) == 0  # type: ignore[misc]
        alike.append(_metrics(folder) == whole and (folder / page.REPORT).exists())
    return alike


def _metrics(folder: Path) -> object:
    return json.loads((folder / suite.METRICS).read_text())["metrics"]


# A reproduction, and a study: their seeds are trained in processes of their own.


def reproduced(place: Path, name: str) -> None:
    recipe = "digits-continual" if name == "study" else "digits-jem"
    changes = () if name == "study" else (*TINY, *LONGER)
    plan = reproduce.Reproduction(
        recipe,
        (0,),
        runs=place / "runs",
        results=place / "results",
        name="killed",
        size="smoke" if name == "study" else "full",
        overrides=changes,
        device="cpu",
    )
    reproduce.reproduce(plan, lambda _: None)


def kill_reproductions(place: Path, n: int, name: str, random: Random) -> list[bool]:
    began = time.monotonic()
    assert forked(lambda: reproduced(place / "whole", name)) == 0
    seconds = time.monotonic() - began
    whole = _result(place / "whole")
    alike = []
    for i in range(n):
        folder = place / f"killed-{i}"
        forked(lambda folder=folder: reproduced(folder, name), random.uniform(0.3, 1.0) * seconds)  # type: ignore[misc]
        _end_workers(folder)
        assert forked(lambda folder=folder: reproduced(folder, name)) == 0  # type: ignore[misc]
        alike.append(_result(folder) == whole)
    return alike


def _end_workers(folder: Path) -> None:
    """Kill the process that trains a seed, too: it has a session of its own."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "jointenergy.experiments.worker" in words and any(str(folder) in word for word in words):
            os.kill(int(entry.name), signal.SIGKILL)
            while entry.exists() and "zombie" not in (entry / "status").read_text():
                time.sleep(0.01)


def _result(folder: Path) -> object:
    metrics = json.loads((folder / "results" / "killed.json").read_text())["metrics"]
    return {name: m["values"] for name, m in metrics.items() if "seconds" not in name and "ms" not in name}


# Two processes.

ENDED = {0, UNHEALTHY}  # so short a run is not healthy


def in_two(folder: Path, words: tuple[str, ...], kill_after: float | None = None) -> list[int]:
    """A command in two processes, with the environment that torchrun gives them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                sink = os.open(folder.with_suffix(f".{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(sink, 1)
                os.dup2(sink, 2)
                main(words)
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 1
            finally:
                os._exit(status)
        pids.append(pid)
    if kill_after is not None:
        time.sleep(kill_after)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def kill_processes(place: Path, n: int, random: Random) -> list[bool]:
    place.mkdir(parents=True, exist_ok=True)
    changes = [word for change in (*TINY, *LONGER) for word in ("--set", change)]

    def train(folder: Path) -> tuple[str, ...]:
        return ("train", "digits-jem", "--out", str(folder), "--device", "cpu", *changes)

    began = time.monotonic()
    assert ENDED.issuperset(in_two(place / "whole", train(place / "whole")))
    seconds = time.monotonic() - began
    whole = weights_of(place / "whole")
    alike = []
    for i in range(n):
        folder = place / f"killed-{i}"
        in_two(folder, train(folder), random.uniform(0.2, 1.0) * seconds)
        begun = bool(checkpoints.all_in(folder / "checkpoints")) if folder.exists() else False
        if not begun:  # before its first checkpoint there is nothing to resume
            shutil.rmtree(folder, ignore_errors=True)
        again = ("resume", str(folder), "--device", "cpu") if begun else train(folder)
        alike.append(ENDED.issuperset(in_two(folder, again)) and weights_of(folder) == whole)
    return alike


CASES: dict[str, Callable[[Path, int], list[bool]]] = {
    "rollback": kill_rollbacks,
    "evaluate": kill_evaluations,
    "reproduce": lambda place, n: kill_reproductions(place, n, "reproduce", Random(0)),
    "study": lambda place, n: kill_reproductions(place, n, "study", Random(1)),
    "two-processes": lambda place, n: kill_processes(place, n, Random(2)),
}

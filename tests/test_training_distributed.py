"""Training in several processes: real ones that talk by gloo, some of them under torchrun, as a user starts them.

Starting processes is dear, so each test here has several assertions; `tests/ranks.py` is what its processes do.
"""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from jointenergy.recipes import run_folder
from jointenergy.training import checkpoints, loop
from jointenergy.training.distributed import World
from jointenergy.training.state import shard_of
from jointenergy.training.trainer import Trainer
from tests.ranks import TINY
from tests.small import COLD, Before, small

ROOT = Path(__file__).parent.parent
LIMIT = 200  # seconds, for processes that wait for each other in vain


def launch(folder: Path, *cases: str, device: str = "cpu", size: int = 2) -> None:
    """Two processes, or more, that go through the cases together; where one fails the others are ended."""
    command = [sys.executable, "-m", "tests.ranks", str(folder), device, *cases]
    processes, outputs = [], []
    for rank in range(size):
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        environment = os.environ | {k: str(v) for k, v in numbers.items()}
        outputs.append((folder / f"output.{rank}").open("w+"))
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=outputs[-1], stderr=outputs[-1]))
    deadline = time.monotonic() + LIMIT
    while any(p.poll() is None for p in processes) and not any(p.poll() for p in processes):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    codes = [p.poll() for p in processes]
    for process in processes:
        process.kill()
        process.wait()
    said = []
    for output in outputs:
        output.seek(0)
        said.append(output.read())
        output.close()
    assert codes == [0] * size, "\n".join(said)
    assert all((folder / f"{case}.{rank}").exists() for case in cases for rank in range(size))


def torchrun(*arguments: str, cwd: Path, restarts: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), "-m", "jointenergy", *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def metrics(folder: Path) -> list[dict[str, str]]:
    if not (folder / "metrics.csv").exists():
        return []
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def wait_for_rows(process: subprocess.Popen[str], folder: Path, n: int) -> None:
    """Until a run that is under way has written n rows of metrics."""
    deadline = time.monotonic() + LIMIT
    while len(metrics(folder)) < n:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def rows_of(state: dict[str, torch.Tensor]) -> list[tuple[float, ...]]:
    return sorted(tuple(row) for row in torch.cat((state["x"], state["y"], state["age"][:, None]), dim=1).tolist())


def test_two_processes(tmp_path):
    run = run_folder.create(tmp_path / "one", small(*TINY, "iterations=100"), 0)
    run.callbacks.append(Before(lambda trainer: setattr(run, "stop", trainer.iteration == 47)))
    with pytest.raises(loop.Interrupted, match="after iteration 48"):
        run.fit()
    launch(tmp_path, "steps", "shared_states", "gradients", "faults", "more_processes", "errors", "lost")

    # From one to two, and from two to one: said in a sentence, no chain lost, the data order the run's own.
    said = [json.loads(line) for line in (tmp_path / "one" / "events.jsonl").read_text().splitlines()]
    sentence = "saved by 1 process(es), resumed by 2 on cpu; random streams restarted"
    assert [e for e in said if e["event"] == "resumed"] == [{"event": "resumed", "iteration": 48, "says": sentence}]
    again = run_folder.reopen(tmp_path / "copy")
    found = checkpoints.load(tmp_path / "copy" / "checkpoints" / "iteration-00000080")
    shards = [{k: found.tensors[f"ranks/{r}/buffer/{k}"] for k in ("x", "y", "age")} for r in range(2)]
    assert again.trainer.chains.buffer is not None
    assert rows_of(again.trainer.chains.buffer.state_dict()) == sorted(rows_of(shards[0]) + rows_of(shards[1]))
    assert torch.equal(again.trainer.feeds[0].order.pending, found.tensors["order/data/pending"])
    sentence = "saved by 2 process(es), resumed by 1 on cpu; random streams restarted"
    again.fit()
    assert again.trainer.iteration == 100
    said = [json.loads(line) for line in (tmp_path / "copy" / "events.jsonl").read_text().splitlines()]
    assert [e["says"] for e in said if e["event"] == "resumed"][-1] == sentence
    assert [int(row["iteration"]) for row in metrics(tmp_path / "copy")] == list(range(10, 101, 10))


@pytest.mark.slow
def test_a_killed_and_a_stopped_run_end_like_an_unbroken_one(tmp_path):
    overrides = [*TINY, *COLD, "iterations=400", "batch_size=64", "cadence.check=200", "cadence.keep=2"]
    changes = [part for o in overrides for part in ("--set", o)]
    folder = tmp_path / "broken"

    process = torchrun("train", "digits-jem", "--out", "broken", *changes, "--device", "cpu", cwd=tmp_path)
    wait_for_rows(process, folder, 3)
    for pid in [*children(process), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    n = len(metrics(folder))
    assert n < 40

    # One of two is killed, so torchrun starts both again; then torchrun itself is told to end.
    process = torchrun("resume", "broken", cwd=tmp_path, restarts=1)
    wait_for_rows(process, folder, n + 3)
    os.kill(children(process)[1], signal.SIGKILL)
    time.sleep(1.0)  # a row is written a hundred times in this, and a process is not begun
    wait_for_rows(process, folder, len(metrics(folder)) + 3)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1  # torchrun's own
    assert out.count("resuming at iteration") == 2
    assert err.count("another process of the run has ended") <= 1, err  # torchrun may be quicker than the first
    assert out.count("saved in broken; continue with: torchrun ... -m jointenergy resume broken") == 1, out + err
    stopped = int(out.split("stopped after iteration ")[1].split(";")[0])
    assert checkpoints.all_in(folder / "checkpoints")[-1].name == f"iteration-{stopped:08d}"
    assert "SignalException" in err  # torchrun's own
    assert "jointenergy/" not in err.replace(str(ROOT), "")

    launch(tmp_path, "whole_and_resumed")
    ends = [checkpoints.load(tmp_path / name / "checkpoints" / "iteration-00000400") for name in ("whole", "broken")]
    assert ends[0].tensors.keys() == ends[1].tensors.keys()
    assert "ranks/1/buffer/x" in ends[0].tensors
    for name, value in ends[0].tensors.items():
        assert torch.equal(value, ends[1].tensors[name]), name
    first, second = ({k: v for k, v in e.values.items() if k != "seconds"} for e in ends)
    assert json.dumps(first) == json.dumps(second)
    assert metrics(tmp_path / "whole") == metrics(folder)
    events = [(tmp_path / name / "events.jsonl").read_text() for name in ("whole", "broken")]
    assert events[0] == events[1]


@pytest.mark.slow
def test_what_is_wrong_in_all_processes_is_said_once(tmp_path):
    process = torchrun("train", "digits-jem", "--out", "run", "--set", "batch_size=63", "--device", "cpu", cwd=tmp_path)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    lines = [line for line in (out + err).splitlines() if line.startswith("jointenergy:")]
    assert lines == [
        "jointenergy: batch_size of 63 cannot be divided among 2 processes: make it a multiple of that, or start "
        "another number of processes"
    ]
    assert err.count("Traceback") == 1  # torchrun's own, below the sentence
    assert err.index("jointenergy:") < err.index("Traceback")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 3), (3, 2), (4, 1)])
@pytest.mark.parametrize("n_seen", [5, 12, 100], ids=["half full", "full", "more was seen"])
def test_shards_are_dealt_out_anew_without_loss(before, after, n_seen):
    size = 12
    shards = []
    for rank in range(before):
        share = n_seen // before + (rank < n_seen % before)
        x = torch.arange(size // before) * before + rank + 1.0
        x[share:] = 0.0
        shards.append({"x": x, "y": x.long(), "age": x.long(), "n_seen": torch.tensor(share)})
    dealt = [shard_of(shards, rank, after) for rank in range(after)]
    for name in ("x", "y", "age"):
        assert sorted(torch.cat([d[name] for d in dealt]).tolist()) == sorted(
            torch.cat([s[name] for s in shards]).tolist()
        )
    assert sum(int(d["n_seen"]) for d in dealt) == n_seen
    for d in dealt:  # slots in use come first
        used = min(int(d["n_seen"]), len(d["x"]))
        assert bool((d["x"][:used] > 0).all())
        assert bool((d["x"][used:] == 0).all())


def test_one_process_needs_nobody():
    world = World()
    value = torch.ones(2)
    world.mean([value])
    world.wait()
    assert world.first
    assert world.sum(value) is value
    assert world.gather(value) == world.gather_at_first(value) == [value]
    assert world.from_first(lambda: 3) == 3


# ---------------------------------------------------------------- GPUs


@pytest.mark.gpu
def test_one_process_on_each_gpu(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("no GPU beside the first")
    run = run_folder.create(tmp_path / "one", small(*TINY, "iterations=100"), 0, device="cuda:0")
    run.callbacks.append(Before(lambda trainer: setattr(run, "stop", trainer.iteration == 47)))
    with pytest.raises(loop.Interrupted):
        run.fit()
    launch(tmp_path, "steps", "shared_states", "gradients", "faults", "more_processes", device="cuda")


@pytest.mark.gpu
def test_a_run_on_a_gpu_goes_on_there_and_on_the_cpu(tmp_path):
    run = run_folder.create(tmp_path / "whole", small(*TINY, "iterations=100"), 0, device="cuda")

    def copy(trainer: Trainer) -> None:
        if trainer.iteration == 60:
            for name in ("gpu", "cpu"):
                shutil.copytree(tmp_path / "whole", tmp_path / name)

    run.callbacks.append(Before(copy))
    run.fit()
    assert all(p.is_cuda for p in run.trainer.model.parameters())
    again = run_folder.reopen(tmp_path / "gpu")
    assert again.trainer.data.x.is_cuda
    assert again.trainer.iteration == 60
    again.fit()
    # Kernels of a GPU may add in another order each time; a wrong stream or buffer would show in the second digit.
    for one, two in zip(metrics(tmp_path / "whole"), metrics(tmp_path / "gpu"), strict=True):
        assert one.keys() == two.keys()
        for name, value in one.items():
            assert float(two[name]) == pytest.approx(float(value), rel=1e-2, abs=1e-2), (one["iteration"], name)
    assert (
        not (tmp_path / "gpu" / "events.jsonl").exists()
        or "restarted" not in (tmp_path / "gpu" / "events.jsonl").read_text()
    )
    moved = run_folder.reopen(tmp_path / "cpu", device="cpu")
    assert not moved.trainer.data.x.is_cuda
    moved.fit()
    events = (tmp_path / "cpu" / "events.jsonl").read_text()
    assert "saved by 1 process(es), resumed by 1 on cpu; random streams restarted" in events
    assert moved.trainer.iteration == 100

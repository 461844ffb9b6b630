"""Checkpoints: what goes in comes out, a crash or a flipped bit never passes for a checkpoint."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from jointenergy.errors import InputError
from jointenergy.training import checkpoints
from jointenergy.training.checkpoints import Checkpoint


def example(iteration=3):
    g = torch.Generator().manual_seed(iteration)
    tensors = {"a/b": torch.randn(4, 5, generator=g), "n": torch.tensor(7), "keys": g.get_state()}
    return Checkpoint(iteration, tensors, {"loss": 0.1 + iteration, "list": [1, None, "x"]})


def test_round_trip(tmp_path):
    path = checkpoints.save(tmp_path, example())
    back = checkpoints.load(path)
    assert back.iteration == 3
    assert back.values == example().values
    assert back.tensors.keys() == example().tensors.keys()
    assert all(
        torch.equal(v, example().tensors[k]) and v.dtype == example().tensors[k].dtype for k, v in back.tensors.items()
    )


def test_the_best_is_kept(tmp_path):
    assert checkpoints.best(tmp_path) is None
    paths = [checkpoints.save(tmp_path, example(i)) for i in (1, 2, 3)]
    checkpoints.mark_best(tmp_path, paths[0])
    checkpoints.prune(tmp_path, keep=1)
    assert checkpoints.all_in(tmp_path) == [paths[0], paths[2]]
    checkpoints.mark_best(tmp_path, paths[2])
    checkpoints.prune(tmp_path, keep=1)
    assert checkpoints.all_in(tmp_path) == [paths[2]] == [checkpoints.best(tmp_path)]


def test_prune_keeps_the_newest_and_clears_leftovers(tmp_path):
    for i in (1, 20, 300):
        checkpoints.save(tmp_path, example(i))
    (tmp_path / ".iteration-00000400.99.part").mkdir()
    checkpoints.prune(tmp_path, keep=2)
    assert [p.name for p in checkpoints.all_in(tmp_path)] == ["iteration-00000020", "iteration-00000300"]
    assert len(list(tmp_path.iterdir())) == 2


def truncate(path):
    data = (path / checkpoints.TENSORS).read_bytes()
    (path / checkpoints.TENSORS).write_bytes(data[: len(data) // 2])


def flip(path):
    data = bytearray((path / checkpoints.TENSORS).read_bytes())
    data[-1] ^= 1
    (path / checkpoints.TENSORS).write_bytes(bytes(data))


def alter(path):
    values = json.loads((path / checkpoints.VALUES).read_text())
    (path / checkpoints.VALUES).write_text(json.dumps(values | {"loss": 0.0}))


DAMAGE = {
    "truncated": truncate,
    "one bit": flip,
    "altered values": alter,
    "no sums": lambda p: (p / checkpoints.SUMS).unlink(),
    "empty sums": lambda p: (p / checkpoints.SUMS).write_text(""),
    "sums of another kind": lambda p: (p / checkpoints.SUMS).write_text("[]"),
    "no tensors": lambda p: (p / checkpoints.TENSORS).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_recognized_and_the_one_before_is_used(damage, tmp_path):
    checkpoints.save(tmp_path, example(1))
    damage(checkpoints.save(tmp_path, example(2)))
    found, messages = checkpoints.newest(tmp_path)
    assert found is not None
    assert found.iteration == 1
    assert len(messages) == 1
    assert "iteration-00000002 is damaged" in messages[0]
    with pytest.raises(InputError, match="is damaged"):
        checkpoints.load(tmp_path / "iteration-00000002")


def test_nothing_there(tmp_path):
    assert checkpoints.newest(tmp_path) == (None, [])


WRITER = """
import sys, torch
from pathlib import Path
from jointenergy.training import checkpoints
folder = Path(sys.argv[1])
for i in range(1, 100000):
    tensors = {"x": torch.full((300_000,), float(i))}
    path = checkpoints.save(folder, checkpoints.Checkpoint(i, tensors, {"i": i}))
    checkpoints.mark_best(folder, path)
    checkpoints.prune(folder, keep=2)
"""


@pytest.mark.parametrize("delay", [0.05, 0.17, 0.31])
def test_kill_at_any_moment_leaves_a_whole_checkpoint(delay, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
    deadline = time.monotonic() + 60
    while len(checkpoints.all_in(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    found, messages = checkpoints.newest(tmp_path)
    assert found is not None
    assert messages == []
    assert float(found.tensors["x"][0]) == found.iteration == found.values["i"]


def test_a_crash_while_one_is_removed_leaves_no_half_of_it(tmp_path, monkeypatch):
    for i in (1, 2):
        checkpoints.save(tmp_path, example(i))

    def crash(path, **_):
        (path / checkpoints.TENSORS).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("jointenergy.training.checkpoints.shutil.rmtree", crash)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.remove(tmp_path / "iteration-00000002")
    monkeypatch.undo()
    found, messages = checkpoints.newest(tmp_path)
    assert found is not None
    assert (found.iteration, messages) == (1, [])
    checkpoints.prune(tmp_path, keep=2)
    assert [p.name for p in tmp_path.iterdir()] == ["iteration-00000001"]

"""Runs that are killed at any moment and done again leave behind what they would have; `benchmarks/kills.py` does more.

And the disk fills up: what is being written is refused in a sentence, and what was there before is still whole.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import jointenergy
from jointenergy import recipes
from jointenergy.cli.screen import UNHEALTHY
from jointenergy.errors import InputError
from jointenergy.files import writing
from jointenergy.files.locks import only_writer
from jointenergy.recipes import run_folder
from jointenergy.report import page
from jointenergy.runs.loading import open_run
from jointenergy.training import checkpoints, loop
from jointenergy.training.health import Health
from tests.kills import CASES
from tests.small_run import TINY, call


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n"), [("rollback", 4), ("evaluate", 3), ("two-processes", 2)])
def test_killed_and_done_again(name, n, tmp_path):
    alike = CASES[name](tmp_path / name, n)
    assert len(alike) == n
    assert all(alike)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reproduce", "study"])
def test_killed_reproductions(name, tmp_path, copied_tree):
    assert CASES[name](tmp_path / name, 1) == [True]


@pytest.fixture
def run(tmp_path):
    run_folder.create(tmp_path / "run", recipes.load("digits-jem", TINY), 0).fit()
    return tmp_path / "run"


def full_disk(monkeypatch):
    """From now on there is no room: files can be made, and nothing written to them reaches the disk."""

    def sync(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(writing, "sync", sync)
    monkeypatch.setattr(checkpoints, "sync", sync)


def test_the_disk_fills_during_an_export(run, tmp_path, monkeypatch):
    path = tmp_path / "e.safetensors"
    assert call("export", str(run), str(path)).status == 0
    before = path.read_bytes()
    full_disk(monkeypatch)
    answer = call("export", str(run), str(path))
    assert answer.status == 2
    assert "No space left on device" in answer.err
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_the_disk_fills_during_a_checkpoint(run, tmp_path, monkeypatch):
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("iterations = 6", "iterations = 9"))
    full_disk(monkeypatch)
    answer = call("resume", str(run))
    assert answer.status == 2
    assert "earlier checkpoints are intact: free disk space" in answer.err
    monkeypatch.undo()
    assert call("resume", str(run)).status == UNHEALTHY  # so short a run
    assert checkpoints.all_in(run / "checkpoints")[-1].name == "iteration-00000009"
    assert not list(run.rglob("*.part*"))


def test_the_disk_fills_during_a_report(run, monkeypatch):
    words = ("evaluate", str(run), "--part", "prediction")
    assert call(*words).status == 0
    before = (run / "evaluation" / page.REPORT).read_bytes()
    full_disk(monkeypatch)
    assert call(*words).status == 2
    assert (run / "evaluation" / page.REPORT).read_bytes() == before
    monkeypatch.undo()
    assert call(*words).status == 0


def test_the_disk_fills_during_a_picture_of_a_report(run, tmp_path, monkeypatch):
    def write(path: Path, _: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_bytes", write)
    answer = call("evaluate", str(run), "--part", "training", "--out", str(tmp_path / "out"))
    assert answer.status == 2
    assert "No space left on device" in answer.err
    assert not (tmp_path / "out").exists()  # it left folders with nothing in them


def test_the_disk_fills_when_all_parts_are_measured(run, tmp_path, monkeypatch):
    """What was measured stays, and no folder of pictures without pictures."""
    full_disk(monkeypatch)
    answer = call("evaluate", str(run), "--part", "training", "--out", str(tmp_path / "out"))
    assert answer.status == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["parts"]


def test_a_report_leaves_the_pictures_of_others_alone(run, tmp_path):
    other = tmp_path / "out" / "pictures" / "mine.png"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"mine")
    assert call("evaluate", str(run), "--part", "training", "--out", str(tmp_path / "out")).status == 0
    assert other.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "words",
    [
        ("sample", "RUN", "-n", "500", "--steps", "0", "--out", "PLACE/x.npy"),
        ("sample", "RUN", "-n", "500", "--steps", "0", "--out", "PLACE/x.npz"),
        ("sample", "RUN", "-n", "500", "--steps", "0", "--out", "PLACE/x.png"),
        ("export", "RUN", "PLACE/x.safetensors"),
        ("evaluate", "RUN", "--part", "training", "--out", "PLACE/x"),
        ("train", "digits-jem", "--out", "PLACE/x", *(word for change in TINY for word in ("--set", change))),
    ],
    ids=lambda words: f"{words[0]} {Path(words[-1]).suffix}",
)
@pytest.mark.parametrize("room", [0, 2000])
def test_every_writer_names_the_file_that_has_no_room(words, room, run, tmp_path):
    """Fails where a library's own words, without the number of the system's error or the file, reach the user."""
    place = tmp_path / "place"
    place.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        answer = call(*(word.replace("RUN", str(run)).replace("PLACE", str(place)) for word in words))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert answer.status == 2
    assert f"the system refused at {place}/x" in answer.err
    assert "File too large: " in answer.err
    assert [file for file in place.rglob("*") if file.is_file()] == []


def test_the_disk_fills_during_a_sample(run, tmp_path, monkeypatch):
    full_disk(monkeypatch)
    for name in ("x.npy", "x.npz", "x.png"):
        assert call("sample", str(run), "--out", str(tmp_path / name), "-n", "2", "--steps", "1").status == 2
        assert not (tmp_path / name).exists()
    film = ("--film", str(tmp_path / "x.gif"))
    assert call("sample", str(run), "--out", str(tmp_path / "y.npy"), "-n", "2", "--steps", "1", *film).status == 2
    assert not (tmp_path / "x.gif").exists()


def test_a_folder_that_is_only_read_answers(run, tmp_path, monkeypatch):
    (tmp_path / "x.csv").write_text(",".join("0" * 64) + "\n")
    make = writing.whole

    def refuse(path: Path):
        if run in path.parents:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return make(path)

    monkeypatch.setattr(writing, "whole", refuse)
    before = sorted(run.rglob("*"))
    for words in (("score", "x.csv"), ("predict", "x.csv"), ("export", "e.safetensors")):
        answer = call(words[0], str(run), str(tmp_path / words[1]))
        assert answer.status == 0, answer.err
    assert sorted(run.rglob("*")) == before
    assert open_run(tmp_path / "e.safetensors").labels.names == ("digit",)


def test_two_trainings_of_one_folder(tmp_path):
    with only_writer(tmp_path / "run"):
        for words in (("train", "digits-jem", "--out"), ("demo", "--out")):
            answer = call(*words, str(tmp_path / "run"))
            assert answer.status == 2
            assert f"is being written by process {os.getpid()} on " in answer.err


def test_two_resumes_and_two_fits_of_one_folder(run):
    with only_writer(run):
        answer = call("resume", str(run))
        assert answer.status == 2
        assert "is being written by process" in answer.err
        x, y = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32), np.arange(40) % 2
        with pytest.raises(InputError, match="is being written by process"):
            jointenergy.fit(torch.nn.Linear(2, 2), (x, y), folder=run)
    assert call("resume", str(run)).status == UNHEALTHY  # as `train` ended


def test_a_run_killed_before_its_last_check_is_checked_on_resume(tmp_path, monkeypatch):
    """Fails if a folder with all iterations passes for complete, and nobody has judged its best weights again."""

    def killed(*_: object, **__: object) -> Health:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "check_trainer", lambda _: Health(True))
    monkeypatch.setattr(loop, "check", killed)
    run = run_folder.create(tmp_path / "run", recipes.load("digits-jem", TINY), 0)
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert run.ended
    assert not run.complete
    monkeypatch.setattr(loop, "check", lambda *_, **__: Health(False))
    answer = call("resume", str(tmp_path / "run"))
    assert answer.status == UNHEALTHY
    assert "the best weights fail a second check" in answer.out
    monkeypatch.setattr(loop, "check", killed)
    again = call("resume", str(tmp_path / "run"))
    assert again.status == UNHEALTHY
    assert "complete: 6 iterations" in again.out


@pytest.mark.parametrize("name", [".lock", "events.jsonl", "metrics.csv", "checks.csv"])
def test_pipes_in_a_folder_are_named(name, run):
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("iterations = 6", "iterations = 9"))
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    answer = call("resume", str(run))
    assert answer.status == 2
    assert f"{name} is a pipe" in answer.err or f"{name} cannot be read: it is a pipe" in answer.err


@pytest.mark.parametrize("name", [".lock", "events.jsonl", "metrics.csv"])
def test_links_in_a_folder_lead_to_no_file_outside(name, run, tmp_path):
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("iterations = 6", "iterations = 9"))
    for outside in (tmp_path / "precious", tmp_path / "nowhere"):
        (tmp_path / "precious").write_text("precious")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside)
        assert call("resume", str(run)).status in (0, 2, UNHEALTHY)
        assert (tmp_path / "precious").read_text() == "precious"
        assert not (tmp_path / "nowhere").exists()

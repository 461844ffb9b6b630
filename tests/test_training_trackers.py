"""Trackers: metrics, events and pictures reach TensorBoard, Weights & Biases, MLflow and trackers of one's own."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import jointenergy as je
from jointenergy.errors import InputError
from jointenergy.training.callbacks import Event
from jointenergy.training.trackers import MLflow, TensorBoard, Tracker, WandB, tracker


def train(follower: Tracker, **more: object) -> None:
    images, y = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    settings = {"iterations": 4, "batch_size": 16, "steps": 2, "sampling_steps": 2, "device": "cpu", "verbose": False}
    je.fit(net, (images, y), callbacks=[follower], **settings, **more)


def test_unknown_and_missing_programs_are_one_sentence(monkeypatch, tmp_path):
    with pytest.raises(InputError, match="no tracker called 'tensorbord': did you mean 'tensorboard'"):
        tracker("tensorbord")
    for name in ("torch.utils.tensorboard", "wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"pip install tensorboard, or 'jointenergy\[track\]'"):
        train(tracker("tensorboard"), folder=tmp_path / "run")
    for name in ("wandb", "mlflow"):
        with pytest.raises(InputError, match=rf"pip install {name}, or 'jointenergy\[track\]'"):
            tracker(name)


def test_tensorboard_has_metrics_signs_of_health_events_and_pictures(tmp_path):
    train(TensorBoard(), folder=tmp_path / "run")
    (file,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert all(word in file.read_bytes() for word in (b"loss", b"health/auroc_fresh", b"chains", b"events"))
    with pytest.raises(InputError, match=r"TensorBoard\(folder\)"):
        train(TensorBoard())
    train(TensorBoard(str(tmp_path / "elsewhere")))
    assert list((tmp_path / "elsewhere").iterdir())


def test_mlflow_has_metrics_events_and_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    train(MLflow(run_name="mine"))
    assert mlflow.active_run() is None
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"loss", "auroc_fresh"} <= written
    assert any(name.startswith("chains") and name.endswith(".png") for name in written)
    assert any(path.parent.name == "events" for path in tmp_path.rglob("*.txt"))


def test_weights_and_biases_has_metrics_and_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    follower = WandB(project="mine", dir=str(tmp_path))
    said: list[dict[str, object]] = []
    write = follower.run.log

    def log(values: dict[str, object], step: int) -> None:
        said.append(values)
        write(values, step=step)

    monkeypatch.setattr(follower.run, "log", log)
    follower.write_text("events", "<b>not markup</b>", 0)
    train(follower)
    assert {"loss", "chains", "health/auroc_fresh"} <= {key for values in said for key in values}
    assert list(tmp_path.rglob("*.wandb"))
    assert any("media" in str(path) for path in tmp_path.rglob("*.png"))
    assert all("<b>" not in path.read_text() for path in tmp_path.rglob("*.html"))


def test_a_tracker_of_ones_own_needs_three_methods():
    class Mine(Tracker):
        def __init__(self):
            self.seen = []

        def write_scalar(self, name, value, iteration):
            self.seen.append((name, iteration))

        def write_text(self, name, text, iteration):
            self.seen.append((text, iteration))

        def write_image(self, name, image, iteration):
            self.seen.append((name, image.shape[2]))

    mine = Mine()
    train(mine)
    mine.on_event(None, Event("rollback", 9, "it went back"))
    assert ("loss", 2) in mine.seen
    assert ("chains", 3) in mine.seen
    assert ("it went back", 9) in mine.seen

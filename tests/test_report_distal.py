"""Distal images: what the section and the command show is where `run.distal` ends."""

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import jointenergy
from jointenergy.cli.main import app
from jointenergy.data import Dataset
from jointenergy.labels import LabelSpace
from jointenergy.metrics.registry import check_value
from jointenergy.report.distal import distal
from jointenergy.report.sections import Subject
from tests.small import trained
from tests.test_runs import TINY


def wrapped(gain=20.0):
    network = nn.Linear(64, 3)
    with torch.no_grad():
        network.weight.copy_(gain * torch.eye(3, 64))
        network.bias.zero_()
    return jointenergy.wrap(network, LabelSpace({"kind": 3}), bounds=(-1, 1), event_shape=(64,))


def test_the_section_tells_the_run_and_its_baseline_apart():
    test = Dataset(torch.zeros(4, 64), torch.zeros(4, 1, dtype=torch.int64), LabelSpace({"kind": 3}), "cloud")
    subject = Subject(wrapped(), test, wrapped(0.0))  # the second never becomes sure
    assert distal(subject, "quick") is None
    found = distal(subject, "paper")
    assert found is not None
    assert found.metrics["distal_reached"] == 1.0
    assert found.metrics["baseline.distal_reached"] == 0.0
    for name, value in found.metrics.items():
        assert value is not None
        check_value(name, value)
    assert [p.name for p in found.pictures] == ["distal"]


@pytest.mark.filterwarnings("ignore:.*no healthy checkpoint")
def test_the_command_writes_what_the_run_finds(tmp_path):
    folder = trained(tmp_path / "run", *TINY, "iterations=20").folder
    out = tmp_path / "d.npz"
    words = ["distal", str(folder), "--given", "digit=3", "-n", "4", "--max-steps", "30", "--out", str(out)]
    assert CliRunner().invoke(app, words).exit_code == 0
    with np.load(out) as made:
        wanted = jointenergy.load(folder).distal(4, {"digit": 3}, max_steps=30).x
        assert torch.equal(torch.from_numpy(made["x"]).reshape(4, 64), wanted)

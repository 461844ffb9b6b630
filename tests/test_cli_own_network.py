"""`--network`: the shell opens runs whose network is in the user's code, and stores what it fits in their files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from typer.testing import CliRunner, Result

import jointenergy
from jointenergy.cli.main import COMMANDS, app, load_command
from jointenergy.data import load
from jointenergy.errors import InputError
from jointenergy.runs import portable
from jointenergy.runs.loading import open_run

NETS = """
from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from layers import SIZES  # a file beside this one


@dataclass
class Settings:  # needs its module in sys.modules
    width: int = 16


def make():
    return nn.Sequential(nn.Linear(*SIZES[:2]), nn.SiLU(), nn.Linear(*SIZES[1:]))


def needs(size):
    return size


class Broken:
    def __init__(self):
        raise ValueError("no such weights")


ready = make()
number = 3
"""
TEST = load("digits", split="test")
# Commands that open no run of the user's own.
WITHOUT = {"demo", "train", "resume", "recipes", "init", "data", "studio", "models", "pull", "compare", "reproduce"}
WITHOUT |= {"study", "results"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code of a network, an exported run, a folder of fit, and rows."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "nets.py").write_text(NETS)
    (folder / "layers.py").write_text("SIZES = (64, 16, 10)\n")
    (folder / "broken.py").write_text("1 / 0\n")
    data = load("digits")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 16), nn.SiLU(), nn.Linear(16, 10))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data.x), data.y[:, 0]).backward()
        optimizer.step()
    jointenergy.wrap(net, {"digit": 10}, bounds=(-1, 1), event_shape=(64,)).export(folder / "w.safetensors")
    rows = (data.x[:200], data.y[:200, 0])
    jointenergy.fit(net, rows, labels={"digit": 10}, iterations=3, steps=2, folder=folder / "fitted", verbose=False)
    np.savez(folder / "validation.npz", x=TEST.x[:200].numpy(), y=TEST.y[:200].numpy())
    np.savez(folder / "test.npz", x=TEST.x[200:260].numpy(), y=TEST.y[200:260, 0].numpy())
    np.save(folder / "x.npy", TEST.x[:5].numpy())
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "place"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def call(*words: str) -> Result:
    return CliRunner().invoke(app, [*words], catch_exceptions=False)


def records(*words: str) -> list[dict[str, object]]:
    outcome = call(*words, "--json")
    assert outcome.exit_code == 0, outcome.output
    found: list[dict[str, object]] = json.loads(outcome.stdout)
    return found


def own(*words: str) -> tuple[str, ...]:
    return (*words, "--network", "nets.py:make")


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - WITHOUT))
def test_every_command_that_opens_a_run_takes_a_network(name):
    """Fails for a new command that cannot open the runs of fit and wrap."""
    assert "--network" in {option for parameter in load_command(name).params for option in parameter.opts}


@pytest.mark.parametrize("run", ["w.safetensors", "fitted"])
def test_a_run_of_the_users_own_is_asked(place, run):
    network = nn.Sequential(nn.Linear(64, 16), nn.SiLU(), nn.Linear(16, 10))
    wanted = open_run(place / run, network=network).predict_proba(np.load("x.npy"))["digit"].max(1).values
    assert [r["p(digit)"] for r in records(*own("predict", run, "x.npy"))] == wanted.tolist()
    found = records(*own("score", run, "x.npy", "--rows", "validation.npz"))
    assert len(found) == 5
    assert call(*own("sample", run, "-n", "2", "--steps", "2", "--start", "noise", "--out", "o.npz")).exit_code == 0
    assert np.load("o.npz")["x"].shape == (2, 64)


@pytest.mark.parametrize("run", ["w.safetensors", "fitted"])
def test_what_the_shell_fits_is_stored_with_the_run(place, run):
    """Fails if an exported file cannot be calibrated, or a later command does not find what was fitted."""
    plain = [r["p(digit)"] for r in records(*own("predict", run, "x.npy"))]
    fitted = records(*own("calibrate", run, "--rows", "validation.npz", "--coverage", "0.8"))
    assert [r["fitted"] for r in fitted] == ["temperature", "sets of digit, 0.8"]
    found = records(*own("predict", run, "x.npy", "--calibrated", "--coverage", "0.8"))
    assert [r["p(digit)"] for r in found] != plain
    assert all(r["set(digit)"] for r in found)


def test_an_exported_file_keeps_its_weights_when_it_is_calibrated(place, monkeypatch):
    """Fails if half weights grow, or a stopped write leaves half a file."""
    network = nn.Sequential(nn.Linear(64, 16), nn.SiLU(), nn.Linear(16, 10))
    jointenergy.load("w.safetensors", network=network).export("half.safetensors", half=True)
    before = tensors_of(place / "half.safetensors")
    assert call(*own("calibrate", "half.safetensors", "--rows", "validation.npz")).exit_code == 0
    after = tensors_of(place / "half.safetensors")
    assert {name: t.dtype for name, t in after.items()} == {name: t.dtype for name, t in before.items()}
    assert all(torch.equal(after[name], before[name]) for name in before)
    kept = (place / "half.safetensors").read_bytes()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(portable, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        call(*own("calibrate", "half.safetensors", "--rows", "validation.npz", "--coverage", "0.8"))
    assert (place / "half.safetensors").read_bytes() == kept
    assert not list(place.glob(".*part*"))


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_evaluate_takes_the_rows(place):
    words = ("--rows", "test.npz", "--part", "prediction", "--part", "health")
    assert call(*own("evaluate", "fitted", *words, "--against", "w.safetensors")).exit_code == 0
    plain = json.loads((place / "fitted" / "evaluation" / "metrics.json").read_text())
    assert plain["about"]["test_rows"] == 60
    assert {"accuracy", "baseline.accuracy"} <= plain["metrics"].keys()
    assert call(*own("evaluate", "w.safetensors", *words)).exit_code == 0
    assert "Not checked" in (place / "w-evaluation" / "report.html").read_text()


def test_a_module_is_imported_by_its_name(place, monkeypatch):
    monkeypatch.syspath_prepend(str(place))
    assert len(records("predict", "w.safetensors", "x.npy", "--network", "nets:make")) == 5
    assert len(records("predict", "w.safetensors", "x.npy", "--network", "nets.py:ready")) == 5


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["w.safetensors"], "network=...), or in the shell with --network MODULE:NAME"),
        (["fitted"], "network=...), or in the shell with --network MODULE:NAME"),
        (["w.safetensors", "--network", "nets"], "--network takes MODULE:NAME, such as nets:make"),
        (["w.safetensors", "--network", "nowhere.py:make"], "there is no file nowhere.py for --network"),
        (["w.safetensors", "--network", "no_such_nets:make"], "No module named 'no_such_nets': name a module on"),
        (["w.safetensors", "--network", "broken.py:make"], "broken.py of --network cannot be imported, division by"),
        (["w.safetensors", "--network", "nets.py:mak"], "nets.py has nothing called 'mak': did you mean 'make'?"),
        (["w.safetensors", "--network", "nets.py:needs"], "could not be called without arguments: needs() missing"),
        (["w.safetensors", "--network", "nets.py:Broken"], "could not be called without arguments: no such weights"),
        (["w.safetensors", "--network", "nets.py:number"], "or a function without arguments that returns one, got int"),
        (["fitted", "--network", "nets.py:make", "--data", "."], "fitted has no recipe and so no data folder"),
        (["digits-jem", "--network", "nets.py:make"], "is a run of a recipe, which defines its network: leave out"),
    ],
)
def test_what_is_wrong_is_one_sentence(place, words, sentence):
    with pytest.raises(InputError) as refused:
        call("predict", words[0], "x.npy", *words[1:])
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (own("evaluate", "w.safetensors"), "has no recipe that names some: pass x and y to jointenergy.evaluate, or"),
        (own("calibrate", "w.safetensors"), "has none: pass yours to run.conform(x, y, coverage=0.9), or in the shell"),
        (own("score", "w.safetensors", "x.npy"), "with your own rows, in the shell with --rows FILE.npz, here with"),
        (own("sample", "w.safetensors", "--out", "o.npz"), "has no default number of steps: add --steps"),
        (("calibrate", "digits-jem", "--rows", "validation.npz"), "a published model stores no calibration: export it"),
    ],
)
def test_what_a_run_lacks_is_one_sentence(place, words, sentence):
    with pytest.raises(InputError) as refused:
        call(*words)
    assert sentence in str(refused.value)
    assert not (place / "o.npz").exists()

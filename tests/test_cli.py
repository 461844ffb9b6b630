"""The command: the demo runs, and what is wrong is one sentence."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import jointenergy
from jointenergy.cli.main import app
from jointenergy.recipes.digits_jem import Progress, Settings, train


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jointenergy", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_demo_writes_a_picture_and_says_how_good_it_is(tmp_path):
    outcome = CliRunner().invoke(app, ["demo", "--iterations", "60", "--out", str(tmp_path / "new" / "demo")])
    assert outcome.exit_code == 0
    assert "accuracy on the test digits" in outcome.output
    assert "calibration error" in outcome.output
    with Image.open(tmp_path / "new" / "demo" / "samples.png") as picture:
        assert picture.size == ((10 * 10 + 2) * 4,) * 2


def test_demo_learns():
    # A tenth of the demo: it must be far from chance and the density must know data from chains no longer.
    seen: list[Progress] = []
    outcome = train(Settings(iterations=600), 0, seen.append)
    assert outcome.accuracy > 0.94
    assert outcome.agreement > 0.9
    assert outcome.samples.shape == (100, 64)
    assert abs(seen[-1].log_density_data - seen[-1].log_density_samples) < 1.5
    assert [p.iteration for p in seen] == list(range(50, 601, 50))


def test_demo_is_reproducible_and_leaves_the_global_random_state_alone(untouched_random_state):
    with untouched_random_state():
        first, second, other = (train(Settings(iterations=20), seed, lambda p: None) for seed in (1, 1, 2))
    assert first.samples.equal(second.samples)
    assert not first.samples.equal(other.samples)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_demo():
    # What others reach on this split: accuracy .982 and calibration error .044 (a public JEM), .989 and .0085 (an MLP).
    outcome = train(Settings(), 0, lambda p: None)
    assert outcome.accuracy > 0.98
    assert outcome.ece < 0.02
    assert outcome.agreement > 0.95


def test_version(tmp_path):
    assert run("--version", cwd=tmp_path).stdout.strip() == f"jointenergy {jointenergy.__version__}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["demo", "--iterations", "0"], "greater than or equal to 1"),
        (["demo", "--iterations", "many"], "valid integer"),
        (["dmeo"], "No such command 'dmeo'. Did you mean 'demo'?"),
        (["demo", "--out", "occupied"], "occupied"),
        (["demo", "--sede", "1"], "--se"),
    ],
)
def test_nonsense_is_answered_without_a_traceback(arguments, sentence, tmp_path):
    (tmp_path / "occupied").write_text("a file where a folder should be")
    outcome = run(*arguments, cwd=tmp_path)
    assert outcome.returncode == 2
    assert sentence in outcome.stderr
    assert "Traceback" not in outcome.stdout + outcome.stderr


@pytest.mark.skipif(os.name == "nt", reason="no POSIX signals")
def test_ctrl_c_ends_with_one_sentence(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "jointenergy", "demo", "--iterations", "100000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "runs" / "demo").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped by Ctrl-C" in out
    assert "Traceback" not in out + err

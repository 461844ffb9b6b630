"""A release: the wheel and the source archive build, pass the index's checks, and the wheel works by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

import jointenergy
from jointenergy.cli.screen import UNHEALTHY

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {"robust", "track", "fid", "studio", "hub", "onnx", "docs", "bench", "dev"}


def say(*words: object, cwd: Path | None = None, status: int = 0) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "JOINTENERGY_DATA")}
    done = subprocess.run(
        [str(w) for w in words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=800,
        env={**env, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_the_files_of_a_release_name_the_same_version():
    """Fails if the package, the citation and the changelog are of different versions."""
    version = jointenergy.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_extras_are_there():
    assert set(PROJECT["optional-dependencies"]) == EXTRAS
    within = PROJECT["optional-dependencies"]["dev"][0]
    assert all(extra in within for extra in EXTRAS - {"bench", "dev", "fid"})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_installs_and_trains_without_the_repository(tmp_path):
    """Fails if a file is missing in the wheel, its metadata is refused, or the demo does not run from it."""
    say(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT)
    files = sorted((tmp_path / "dist").iterdir())
    assert [f.name for f in files] == [
        f"jointenergy-{jointenergy.__version__}-py3-none-any.whl",
        f"jointenergy-{jointenergy.__version__}.tar.gz",
    ]
    say(sys.executable, "-m", "twine", "check", "--strict", *files)

    # The packages that jointenergy needs are those of this environment, so that nothing large is fetched.
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    say(python, "-m", "pip", "install", "--no-deps", "--quiet", files[0])
    site = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    (site / "beside.pth").write_text(f"{Path(pytest.__file__).resolve().parents[1]}\n")

    away = tmp_path / "away"
    away.mkdir()
    where = say(python, "-c", "import jointenergy; print(jointenergy.__file__)", cwd=away)
    assert where.startswith(str(tmp_path / "env"))
    words = ["--set", "iterations=20", "--set", "cadence.check=20", "--set", "cadence.checkpoint=20"]
    said = say(tmp_path / "env" / "bin" / "jointenergy", "demo", *words, cwd=away, status=UNHEALTHY)
    assert "report" in said
    assert (away / "runs" / "demo" / "evaluation" / "report.html").exists()

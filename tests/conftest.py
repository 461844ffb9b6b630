"""What all tests share: the skip policy, real data, seeded generators and a watch on the global random state."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

# Before torch is loaded. One thread for each process of tests: they run side by side, their networks are too small for
# more, and numbers then do not depend on the machine. Threads that spin while they wait stall those of other programs.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pytest
import torch

from jointenergy.experiments import worker
from jointenergy.report import provenance
from jointenergy.training import loop
from jointenergy.training.health import Health
from tests.forks import WorkerFork

pytest_plugins = ["pytester", "tests.skips"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `gpu` run wherever there is one."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no GPU")


@pytest.fixture
def data_dir() -> Path:
    """The folder of the public data sets, where there is one."""
    value = os.environ.get("JOINTENERGY_DATA")
    if not value:
        pytest.skip("no real data: set JOINTENERGY_DATA to a folder with the public data sets")
    folder = Path(value)
    if not folder.is_dir():
        pytest.fail(f"JOINTENERGY_DATA is {value!r}, which is no folder: correct it or unset it.")
    return folder


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded data go to a cache of the tests' own, and not to the user's."""
    before = os.environ.get("JOINTENERGY_CACHE")
    os.environ["JOINTENERGY_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["JOINTENERGY_CACHE"]
    if before is not None:
        os.environ["JOINTENERGY_CACHE"] = before


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of benchmarks/ as `python benchmarks/NAME.py` sees it, and forgets it again."""
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    names = [path.stem for path in folder.glob("*.py")]
    # Where a name is also that of a module of ours in another folder, this one's is wanted.
    kept = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh generator on the CPU, seeded with 0."""
    return torch.Generator().manual_seed(0)


def _numpy_state() -> tuple[object, ...]:
    state = np.random.get_state(legacy=False)  # noqa: NPY002 (the global state is what is watched)
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]


@contextmanager
def _untouched_random_state() -> Iterator[None]:
    on_cuda = torch.cuda.is_available()
    before_torch = torch.get_rng_state()
    before_cuda = torch.cuda.get_rng_state_all() if on_cuda else []
    before_numpy = _numpy_state()
    before_python = random.getstate()
    yield
    touched = []
    if not torch.equal(before_torch, torch.get_rng_state()):
        touched.append("torch")
    after_cuda = torch.cuda.get_rng_state_all() if on_cuda else []
    if not all(torch.equal(before, after) for before, after in zip(before_cuda, after_cuda, strict=True)):
        touched.append("torch.cuda")
    if before_numpy != _numpy_state():
        touched.append("numpy")
    if before_python != random.getstate():
        touched.append("random")
    if touched:
        pytest.fail(f"the global random state was touched: {', '.join(touched)}")


@pytest.fixture
def untouched_random_state() -> Callable[[], AbstractContextManager[None]]:
    """Gives a context manager that fails the test if what runs inside touches a global random state.

    Building a torch module draws from that state, so build outside and only compute inside:

        with untouched_random_state():
            kernel.step(...)
    """
    return _untouched_random_state


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def copied_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine without git, so that a tree being worked on can be tested; and in a folder of its own."""
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv(provenance.VARIABLE, COMMIT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds are trained in forks of this process, which start at once."""
    given = {name: getattr(subprocess, name) for name in ("DEVNULL", "STDOUT", "TimeoutExpired")}
    monkeypatch.setattr(worker, "subprocess", SimpleNamespace(Popen=WorkerFork, **given))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of health, most of a short run, are left out where a test is not about them: no run is healthy."""
    monkeypatch.setattr(loop, "check_trainer", lambda _: Health(False))

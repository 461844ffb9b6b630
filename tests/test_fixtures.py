"""The shared fixtures do what they promise, and the watch on the global random state has teeth."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch


def test_generators_are_fresh_and_seeded(generator):
    assert torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=torch.Generator().manual_seed(0)))


def test_explicit_generators_leave_the_global_state_alone(untouched_random_state, generator):
    with untouched_random_state():
        torch.randn(3, generator=generator)
        np.random.default_rng(0).normal()


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("torch", lambda: torch.rand(1)),
        ("numpy", lambda: np.random.random()),  # noqa: NPY002 (a mutant: it draws from the global state)
        ("random", random.random),
    ],
)
def test_a_global_draw_is_caught(untouched_random_state, name, draw):
    with (
        torch.random.fork_rng(),
        pytest.raises(pytest.fail.Exception, match=f"touched: {name}$"),
        untouched_random_state(),
    ):
        draw()


def test_data_dir_is_the_folder_that_the_variable_names(monkeypatch, tmp_path, request):
    monkeypatch.setenv("JOINTENERGY_DATA", str(tmp_path))
    assert request.getfixturevalue("data_dir") == tmp_path


def test_data_dir_refuses_a_folder_that_is_not_there(monkeypatch, tmp_path: Path, request):
    monkeypatch.setenv("JOINTENERGY_DATA", str(tmp_path / "absent"))
    with pytest.raises(pytest.fail.Exception, match="which is no folder"):
        request.getfixturevalue("data_dir")


def test_data_dir_skips_without_the_variable(monkeypatch, request):
    monkeypatch.delenv("JOINTENERGY_DATA", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no real data: set JOINTENERGY_DATA"):
        request.getfixturevalue("data_dir")

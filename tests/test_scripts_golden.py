"""The hash of a run that is rolled back: of a process of its own, whatever ran before."""

import pytest
import torch
from scripts.golden import digest, train_alone

from tests.test_runs import TINY


def test_what_ran_before_in_the_process_changes_no_hash(tmp_path):
    """Fails if the run is trained in this process, whose defaults it would take."""
    settings = [word for setting in (*TINY, "iterations=4") for word in ("--set", setting)]
    train_alone("train", "digits-jem", "--out", str(tmp_path / "one"), *settings)
    torch.set_default_dtype(torch.float64)
    try:
        train_alone("train", "digits-jem", "--out", str(tmp_path / "two"), *settings)
    finally:
        torch.set_default_dtype(torch.float32)
    assert digest(tmp_path / "one") == digest(tmp_path / "two")


def test_a_run_that_cannot_begin_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="there is no recipe"):
        train_alone("train", "digits-nothing", "--out", str(tmp_path / "one"))

"""The front of the package: its public names, there when asked for."""

import subprocess
import sys

import pytest

import jointenergy


def test_dir_shows_the_public_names_alone():
    assert dir(jointenergy) == sorted(jointenergy.__all__)
    assert {"kernels", "networks", "objectives", "data", "starts", "buffers", "load", "Box"} <= set(dir(jointenergy))


ALONE = """
import os, sys
import torch  # not ours, and most of the time
import jointenergy
for name in sys.argv[1:]:
    if os.fork() == 0:
        eval(f"jointenergy.{name}")
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


def test_a_name_is_there_without_an_import_of_its_own():
    # Each in a fork: what one of them imports does not help the next.
    names = ("kernels.Langevin", "networks", "objectives", "data", "starts", "buffers", "Box")
    subprocess.run([sys.executable, "-c", ALONE, *names], check=True, timeout=60)


def test_all_public_names_can_be_imported():
    names: dict[str, object] = {}
    exec("from jointenergy import *", names)
    assert set(jointenergy.__all__) <= set(names)


def test_a_name_that_is_not_there_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'jointenergy' has no attribute 'Bxo'"):
        jointenergy.Bxo  # noqa: B018

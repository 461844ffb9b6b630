"""The set-up's last word: which torch was installed, and no CUDA packages beside a CPU build; how the tests are run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.check_setup import SetupError, cuda_packages, describe

ROOT = Path(__file__).resolve().parents[1]
PLAIN = ["torch", "numpy", "tritonclient", "not-nvidia-cublas"]
CUDA = ["nvidia-cublas-cu13", "NVIDIA_cudnn.cu13", "cuda-bindings", "triton"]


def test_cuda_packages_are_recognized_by_name():
    assert cuda_packages(PLAIN) == []
    assert cuda_packages(PLAIN + CUDA) == ["cuda-bindings", "nvidia-cublas-cu13", "nvidia-cudnn-cu13", "triton"]


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.13.0"])
def test_a_cpu_build_alone_is_sound(version):
    assert describe(version, None, None, PLAIN) == f"torch {version}, a CPU build; no CUDA package was fetched"


@pytest.mark.parametrize(("version", "cuda"), [("2.13.0+cpu", None), ("2.13.0", None), ("2.13.0+cpu", "13.0")])
@pytest.mark.parametrize("package", CUDA)
def test_a_cpu_build_with_a_cuda_package_is_refused(version, cuda, package):
    with pytest.raises(SetupError, match=r"is a CPU build, yet 1 CUDA package\(s\)"):
        describe(version, cuda, None, [*PLAIN, package])


def test_gpu_builds_are_only_described():
    assert describe("2.13.0", "13.0", None, PLAIN + CUDA) == (
        "torch 2.13.0, a build for CUDA 13.0; CUDA packages beside it: 4"
    )
    assert describe("2.13.0+rocm7", None, "7.0", [*PLAIN, "triton"]) == "torch 2.13.0+rocm7, a build for ROCm 7.0"


def test_the_script_says_one_line():
    result = subprocess.run(
        [sys.executable, ROOT / "scripts" / "check_setup.py"], capture_output=True, text=True, timeout=120
    )
    said = result.stdout + result.stderr
    assert said.startswith("set-up: torch ")
    assert len(said.splitlines()) == 1
    assert (result.returncode == 0) == (result.stderr == "")


def test_a_test_that_ends_its_process_fails_and_the_others_go_on(pytester):
    """With the Makefile's options: some ways of sharing tests out wait for ever when a process is lost."""
    found = re.search(r"^PYTEST := \S+ (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    pytester.makepyfile(
        """
        import os, pytest

        @pytest.mark.parametrize("i", range(20))
        def test_x(i):
            if i == 7:
                os._exit(0)
        """
    )
    result = pytester.runpytest_subprocess(*found[1].replace("auto", "2").split(), timeout=60)
    result.assert_outcomes(passed=19, failed=1)

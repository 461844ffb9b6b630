"""Runs the tests marked `gpu` and publishes how many passed: python scripts/gpu_tests.py, from a clean tree.

Failed and missing tests are listed in results/gpu-tests.json.
`scripts/browser_tests.py` does the same for those marked `browser`.
"""

from __future__ import annotations

import sys
import time

import pytest
import torch

from jointenergy.report import results


class Count:
    """Count how the tests ended."""

    def __init__(self) -> None:
        self.ended = {"passed": 0, "failed": 0, "skipped": 0}
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.ended[report.outcome] += 1
        if report.outcome != "passed":
            self.names.append(f"{report.outcome}: {report.nodeid}")


def publish(marker: str) -> None:
    """Run the tests of a marker and write how they ended."""
    count, began = Count(), time.perf_counter()
    pytest.main(["-q", "-m", marker, "--show-capture=no", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[count])
    figures: dict[str, list[float | None]] = {f"tests.{k}": [float(v)] for k, v in count.ended.items()}
    result = results.measured(
        f"{marker}-tests",
        figures,
        seeds=[0],
        minutes=(time.perf_counter() - began) / 60,
        command=["python", *sys.argv],
        notes="; ".join(count.names) or f"Every test marked {marker} passed.",
    )
    print(f"{count.ended}, written to {results.write(result)}")
    sys.exit(bool(count.ended["failed"]))


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("the tests marked `gpu` need one, and torch finds none")
    publish("gpu")

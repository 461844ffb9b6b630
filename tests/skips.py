"""A pytest plugin: skips are counted by reason, and with CI=true only those that hardware or a browser excuses pass.

An expected failure is a test that does not hold, so with CI=true none is allowed either.

Where pytest-xdist shares tests out to workers, their reports of tests come back by themselves. What they skipped while
collecting does not, so it is handed over when a worker ends, once for all workers: each collects the same tests.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

ALLOWED_REASONS = ("no GPU", "no browser")
HANDED_OVER = "skipped while collecting"


def is_allowed(reason: str) -> bool:
    return reason.startswith(ALLOWED_REASONS)


def is_strict() -> bool:
    return os.environ.get("CI", "").strip().lower() == "true"


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Why this report is not a plain result, or None if it is one."""
    if hasattr(report, "wasxfail"):
        verb = "xpassed" if report.passed else "xfailed"
        return f"{verb}: {report.wasxfail.removeprefix('reason: ') or 'no reason given'}"
    if not report.skipped:
        return None
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ") or "no reason given"


class SkipPolicy:
    """Collects (test, reason) over a run and has the last word on its exit status."""

    def __init__(self) -> None:
        self.skips: list[tuple[str, str]] = []
        self.uncollected: list[tuple[str, str]] = []

    @property
    def refused(self) -> list[tuple[str, str]]:
        return [(test, reason) for test, reason in self.skips if not is_allowed(reason)] if is_strict() else []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reason = reason_of(report)
        if reason is not None:
            self.skips.append((report.nodeid, reason))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        reason = reason_of(report)
        if reason is not None:
            self.uncollected.append((report.nodeid, reason))
            self.skips.append((report.nodeid, reason))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for test, reason in getattr(node, "workeroutput", {}).get(HANDED_OVER, []):
            if (test, reason) not in self.uncollected:
                self.uncollected.append((test, reason))
                self.skips.append((test, reason))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[HANDED_OVER] = self.uncollected
            return
        harmless = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self.refused and session.exitstatus in harmless:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skips:
            terminalreporter.section("skips by reason")
            for reason, count in Counter(reason for _, reason in self.skips).most_common():
                terminalreporter.line(f"{count:5d}  {reason}")
        if self.refused:
            terminalreporter.section("skips that CI does not allow", red=True)
            for test, reason in self.refused:
                terminalreporter.line(f"{test}: {reason}")
            allowed = " or ".join(f'"{reason}"' for reason in ALLOWED_REASONS)
            terminalreporter.line(f"With CI=true the run fails unless every skip's reason starts with {allowed}.")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipPolicy(), "skip-policy")

"""The skip policy holds: with CI=true only hardware and a missing browser excuse a test that did not run."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PASSES = "def test_passes(): pass\n"

REFUSED = {
    "imperative": "import pytest\ndef test_it(): pytest.skip('too slow here')\n",
    "marked": "import pytest\n@pytest.mark.skip(reason='too slow here')\ndef test_it(): pass\n",
    "in a fixture": ("import pytest\n@pytest.fixture\ndef f(): pytest.skip('too slow here')\ndef test_it(f): pass\n"),
    "whole module": "import pytest\npytest.skip('too slow here', allow_module_level=True)\n",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.skipTest('too slow here')\n",
    "not at the start": "import pytest\ndef test_it(): pytest.skip('too slow here, and no GPU')\n",
    "xfailed": "import pytest\n@pytest.mark.xfail(reason='too slow here')\ndef test_it(): assert False\n",
    "xfailed, not run": "import pytest\n@pytest.mark.xfail(run=False, reason='too slow here')\ndef test_it(): pass\n",
    "xfailed for no GPU": "import pytest\n@pytest.mark.xfail(reason='no GPU too slow here')\ndef test_it(): 1 / 0\n",
    "xpassed": "import pytest\n@pytest.mark.xfail(reason='too slow here')\ndef test_it(): pass\n",
}
ALLOWED = {
    "no GPU": "import pytest\ndef test_it(): pytest.skip('no GPU')\n",
    "no browser": "import pytest\ndef test_it(): pytest.skip('no browser: none is installed')\n",
    "whole module": "import pytest\npytest.skip('no GPU here', allow_module_level=True)\n",
}


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Runs test sources in a process of their own under the policy, with CI set as given."""

    def run_sources(*arguments: str, ci: str | None, **sources: str) -> pytest.RunResult:
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
            monkeypatch.delenv(name, raising=False)
        if ci is None:
            monkeypatch.delenv("CI", raising=False)
        else:
            monkeypatch.setenv("CI", ci)
        pytester.makepyfile(**sources)
        return pytester.runpytest_subprocess("-p", "tests.skips", *arguments, timeout=60)

    return run_sources


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED)
def test_another_reason_fails_in_ci(run, source):
    result = run(ci="true", test_refused=source, test_passes=PASSES)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*skips that CI does not allow*", "test_refused.py*: *too slow here*", "With CI=true*"]
    )


@pytest.mark.parametrize("ci", [None, "false"])
def test_all_reasons_pass_elsewhere_and_are_counted(run, ci):
    sources = {f"test_refused_{i}": source for i, source in enumerate(REFUSED.values())}
    result = run(ci=ci, test_passes=PASSES, **sources)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*skips by reason*", "    5  too slow here"])
    for reason in ["xfailed: too slow here", "xfailed: [[]NOTRUN] too slow here", "xpassed: too slow here"]:
        result.stdout.fnmatch_lines([f"    1  {reason}"])
    result.stdout.no_fnmatch_line("*does not allow*")


def test_hardware_and_browser_excuse_a_test_in_ci(run):
    sources = {f"test_allowed_{i}": source for i, source in enumerate(ALLOWED.values())}
    result = run(ci="true", test_passes=PASSES, **sources)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*skips by reason*"])
    for reason in ["no GPU", "no browser: none is installed", "no GPU here"]:
        result.stdout.fnmatch_lines([f"    1  {reason}"])
    result.stdout.no_fnmatch_line("*does not allow*")


def test_skips_of_all_workers_are_counted_once_each(run):
    sources = {f"test_refused_{i}": source for i, source in enumerate(REFUSED.values())}
    result = run("-n", "2", ci="true", test_passes=PASSES, **sources)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*skips by reason*", "    5  too slow here"])
    for i in range(len(REFUSED)):
        result.stdout.fnmatch_lines([f"test_refused_{i}.py*: *too slow here*"])


def test_a_module_that_workers_skip_fails_in_ci(run):
    # Workers tell of no test at all here, only of what they did not collect.
    result = run("-n", "2", ci="true", test_refused=REFUSED["whole module"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["    1  too slow here", "test_refused.py: too slow here"])


def test_a_missing_import_fails_in_ci(run):
    source = "import pytest\npytest.importorskip('a_package_that_nobody_has')\n"
    result = run(ci="true", test_refused=source, test_passes=PASSES)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_refused.py: could not import 'a_package_that_nobody_has'*"])


def test_nothing_but_refused_skips_fails_in_ci_as_a_failure(run):
    result = run(ci="true", test_refused=REFUSED["whole module"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_run_without_skips_says_nothing(run):
    result = run(ci="true", test_passes=PASSES)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*skips*reason*")


def test_a_failing_run_stays_failed(run):
    result = run(ci=None, test_fails="def test_fails(): assert False\n", test_allowed=ALLOWED["no GPU"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_this_very_run_is_under_the_policy(request: pytest.FixtureRequest):
    assert request.config.pluginmanager.hasplugin("tests.skips")
    assert request.config.pluginmanager.hasplugin("skip-policy")

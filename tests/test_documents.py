"""What the README and the documents show runs as it stands."""

import re
from pathlib import Path

import pytest

from jointenergy.inference import SCORES
from jointenergy.training import checkpoints
from tests.small import trained
from tests.test_runs import TINY

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [d for d in DOCUMENTS if "```python" in d.read_text()]


@pytest.fixture
def same_scores():
    """The table of scores is as it was, whatever a document adds to it."""
    before = dict(SCORES)
    yield
    SCORES.clear()
    SCORES.update(before)


@pytest.mark.parametrize("document", WITH_CODE, ids=lambda d: d.name)
def test_python_blocks_run_in_order(document, tmp_path, monkeypatch, same_scores):
    monkeypatch.chdir(tmp_path)
    if "runs/demo" in document.read_text():  # what `make demo` leaves there, trained for a moment
        run = trained(tmp_path / "runs" / "demo", *TINY, "iterations=20", "cadence.check=20")
        checkpoints.mark_best(run.checkpoint_folder, run.checkpoint_folder / "iteration-00000020")
    namespace: dict[str, object] = {"__name__": "__document__"}
    for block in re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.S):
        exec(compile(block, str(document), "exec"), namespace)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_to_files_exist(document):
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not link.startswith(("http://", "https://")):
            assert (document.parent / link).exists(), link


def test_the_readme_begins_with_the_two_commands():
    top = "\n".join((ROOT / "README.md").read_text().splitlines()[:20])
    assert "make demo" in top
    assert "make test" in top


def test_the_readme_has_code():
    assert ROOT / "README.md" in WITH_CODE
    assert ROOT / "docs" / "extending.md" in WITH_CODE

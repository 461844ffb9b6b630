"""What the README and the documents show runs as it stands, and what they link to is there."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jointenergy import studio
from jointenergy.cli.main import app
from jointenergy.inference import SCORES
from jointenergy.studio.desk import placed
from jointenergy.training import checkpoints
from tests.small import trained
from tests.test_runs import TINY

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [d for d in DOCUMENTS if "```python" in d.read_text() and d.parent.name != "tutorials"]  # notebooks
NOTEBOOKS = ("records", "decisions", "tutorials")  # what was tried, why, and what code printed
WRITTEN = [d for d in DOCUMENTS if d.parent.name not in NOTEBOOKS]
MOST_LINES, MOST_NUMBERS = 130, 3


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """What `make demo` leaves in runs/demo, trained for a moment."""
    folder = tmp_path_factory.mktemp("documents") / "demo"
    run = trained(folder, *TINY, "iterations=20", "cadence.check=20")
    checkpoints.mark_best(run.checkpoint_folder, run.checkpoint_folder / "iteration-00000020")
    return folder


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), flags=re.S)


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.S)


def paragraphs(text: str) -> list[str]:
    """The prose of a page: no code, formulas, tables, or targets of links; items of a list are paragraphs."""
    prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "", without_code(text)))
    prose = re.sub(r"\\\(.*?\\\)|\$\$.*?\$\$", "", prose, flags=re.S)
    parts = re.split(r"\n\s*\n|\n(?=- |\d+\. )", prose)
    return [p.strip() for p in parts if p.strip() and not p.lstrip().startswith("|")]


def numbers(paragraph: str) -> list[str]:
    """Numbers that a reader has to hold: neither years of papers nor digits of a name such as CIFAR-10."""
    return re.findall(r"(?<![\w.-])\d[\d.,]*", re.sub(r"\b(?:19|20)\d\d\b", "", paragraph))


@pytest.fixture
def same_scores():
    """The table of scores is as it was, whatever a document adds to it."""
    before = dict(SCORES)
    yield
    SCORES.clear()
    SCORES.update(before)


@pytest.mark.parametrize("document", WITH_CODE, ids=lambda d: d.name)
def test_python_blocks_run_in_order(document, demo, tmp_path, monkeypatch, same_scores, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(studio, "serve", lambda *runs: [placed(run) for run in runs])  # would wait for Ctrl-C
    if document.name != "health.md":
        request.getfixturevalue("unchecked")
    if "runs/demo" in document.read_text():
        shutil.copytree(demo, tmp_path / "runs" / "demo")
    namespace: dict[str, object] = {"__name__": "__document__"}
    for block in blocks(document, "python"):
        exec(compile(block, str(document), "exec"), namespace)


def test_the_shell_commands_of_the_readme_run_after_the_demo(demo, tmp_path, monkeypatch):
    """Fails if a command has an input that `make demo` does not leave, an option that is gone, or no such target."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(demo, tmp_path / "runs" / "demo")
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    lines = [shlex.split(line, comments=True) for block in blocks(README, "sh") for line in block.splitlines()]
    ran = set()
    for program, *words in lines:
        match program:
            case "jointenergy":
                outcome = CliRunner().invoke(app, words)
                assert outcome.exit_code == 0, f"{words}: {outcome.output} {outcome.exception}"
                assert all((tmp_path / word).exists() for word in words if re.search(r"\.(npz|png)$", word))
            case "make":
                assert set(words) <= set(targets)
            case _:
                assert [program, *words] == ["pip", "install", "jointenergy"]
        ran.add(program)
    assert ran == {"jointenergy", "make", "pip"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_resolve(document):
    """Fails for a file that is not there and for an anchor that no heading of the page has."""
    for link in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        path, _, anchor = link.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        target = document.parent / path if path else document
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", without_code(target.read_text()), flags=re.M)
            slugs = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, link


def test_the_readme_is_short_and_begins_with_what_a_reader_needs():
    text = README.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    order = [text.index(words) for words in ("![", "pip install", "make demo", "make test", "```python")]
    assert order == sorted(order)
    assert (ROOT / "docs" / "figures" / "overview.png").stat().st_size < 150_000


def test_no_paragraph_of_the_readme_has_more_than_three_numbers():
    found = {p: numbers(p) for p in paragraphs(README.read_text())}
    assert len(found) > 10
    assert {p: n for p, n in found.items() if len(n) > MOST_NUMBERS} == {}


@pytest.mark.parametrize("document", WRITTEN, ids=lambda d: d.name)
def test_no_paragraph_of_a_page_has_more_than_three_numbers(document):
    """Fails for prose that should be a table or belongs to the records; measured parts are written by programs."""
    written = re.sub(r"<!-- measured -->.*<!-- end -->", "", document.read_text(), flags=re.S)
    found = {p: numbers(p) for p in paragraphs(written)}
    assert {p: n for p, n in found.items() if len(n) > MOST_NUMBERS} == {}


def test_numbers_of_a_paragraph_are_counted():
    page = "CIFAR-10 by Du (2019): 0.9, 1,000 and 3.\n\n```sh\n1 2 3 4\n```\n\n| 1 | 2 |\n\n- has 7\n- `8` [nine](9.md)"
    assert [len(numbers(p)) for p in paragraphs(page)] == [3, 1, 0]


def test_numbers_of_the_readme_have_a_leading_zero():
    assert re.findall(r"(?<![\w.)`*])\.\d+", without_code(README.read_text())) == []


def test_pages_that_teach_by_code_have_some():
    assert len(blocks(README, "python")) == 3
    assert {ROOT / "docs" / name for name in ("extending.md", "models.md", "tasks.md")} <= set(WITH_CODE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_the_rows_of_a_table_have_the_cells_of_its_head(document):
    """Fails if an edit cuts or widens a row, which a page then shows under the wrong columns."""
    lines = document.read_text().splitlines()
    cells = [len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0 for line in lines]
    after = zip(lines[1:], cells[1:], cells[:-1], strict=True)
    assert [line for line, n, before in after if n and before and n != before] == []
